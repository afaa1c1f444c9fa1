"""The attention layers of a model: how they are found, and what they should be."""
