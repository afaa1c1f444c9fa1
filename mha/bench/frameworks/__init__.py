"""The implementations to measure in each framework: our layer beside the framework's own."""
