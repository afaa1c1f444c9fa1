"""The layers with a cache of each framework, to be measured token by token."""
