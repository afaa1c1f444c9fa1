"""The cases that are compared on every backend, and the results of each that are."""
