"""Caches in files, and those of other libraries, in and out."""
