"""Two checkpoints: are their attention layers the same?"""
