"""The adapters, one a framework, that tell a listener of the calls of a model's modules."""
