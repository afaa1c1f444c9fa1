"""Variants of the lesson: a framework's kernel that pools, or modules of another kind."""
