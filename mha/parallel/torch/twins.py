"""Modules beside those that they are of: they share all but what is changed, for a call that others must not see."""


def twin_of(module):
    """A module that shares all that another has, until it is changed."""
    twin = object.__new__(type(module))  # `copy.copy` makes those of `fully_shard` anew
    vars(twin).update(vars(module))
    return twin


def with_parameters(module, change, path=""):
    """A module with parameters changed, beside the one that it is of: change(name, parameter)."""
    twin = twin_of(module)
    twin._parameters = {name: X if X is None else change(path + name, X) for name, X in module._parameters.items()}
    twin._modules = {name: with_parameters(one, change, f"{path}{name}.") for name, one in module._modules.items()}
    return twin
