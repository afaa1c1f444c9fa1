"""The ways that a framework splits a layer over devices, measured."""
