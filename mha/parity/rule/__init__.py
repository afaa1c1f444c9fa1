"""Are two results, or two weights, the same?"""
