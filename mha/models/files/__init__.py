"""Are results the same across files: cases for any framework, and the layers of two checkpoints?"""
