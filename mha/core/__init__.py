"""The part of a layer that is the same on every backend: options, checks, caches, blocks. It imports no framework."""
