"""Modules beside those that they are of, for a call that others must not see."""

import dataclasses

FLAX = "parent", "name"  # fields of every module


def twin_of(part, first, **known):
    """A module with the fields of another, whose class comes behind another one that knows this of a call."""
    # Of the class: Flax makes a module again by its fields.
    fields = {one.name: getattr(part, one.name) for one in dataclasses.fields(part) if one.name not in FLAX}
    return type(type(part).__name__, (first, type(part)), known)(**fields)
