"""The rule of "the same": for two results, and for two weights."""
