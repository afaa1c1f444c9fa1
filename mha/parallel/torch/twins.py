"""Copies of modules, which share all attributes until one is changed: a call changes a copy, not the module."""

import functools


def twin_of(module):
    """A copy of a module that shares all attributes with it, until one is changed."""
    twin = object.__new__(type(module))  # `copy.copy` makes those of `fully_shard` anew
    vars(twin).update(vars(module))
    return twin


def with_parameters(module, change, path=""):
    """A copy of a module with change(name, parameter) in the place of each parameter."""
    twin = twin_of(module)
    twin._parameters = {name: X if X is None else change(path + name, X) for name, X in module._parameters.items()}
    twin._modules = {name: with_parameters(one, change, f"{path}{name}.") for name, one in module._modules.items()}
    return twin


@functools.cache
def class_of(first, kind):
    """The class of a module in a call over ranks, with `first` before the module's own class, kind."""
    return type(kind.__name__, (first, kind), {})
