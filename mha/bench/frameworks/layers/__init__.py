"""The layers and calls of each framework, to be measured."""
