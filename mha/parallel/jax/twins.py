"""Copies of modules with another class, which change how one call is computed and nothing else."""

import dataclasses

FLAX = "parent", "name"  # fields of every module


def twin_of(part, first, **known):
    """A copy of a module whose class has `first` before its own class, and these attributes of a call."""
    # Of the class: Flax makes a module again by its fields.
    fields = {one.name: getattr(part, one.name) for one in dataclasses.fields(part) if one.name not in FLAX}
    return type(type(part).__name__, (first, type(part)), known)(**fields)
