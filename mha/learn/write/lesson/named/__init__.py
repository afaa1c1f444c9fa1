"""Weights under the names of a checkpoint: parts of a layer that are called so, or a method that loads them."""

from mha.learn.write.lesson.named import loading, renaming
from mha.learn.write.lesson.named.renaming import biased, own_names, packs, refuse
from mha.learn.write.recipe import Recipe
from mha.learn.write.trees.program import Program

__all__ = ["biased", "loads", "name", "own_names", "packs", "refuse"]


def loads(recipe: Recipe) -> bool:
    """Whether a layer takes the arrays of a scheme's files by a method `load`, as no names of its parts do."""
    return recipe.names is not None and not own_names(recipe.config, recipe.backend, recipe.names)


def name(program: Program, recipe: Recipe) -> None:
    """Let a layer take the arrays of a scheme's files: by the names of its parts, or if those cannot, by `load`."""
    if recipe.names is None:
        return
    if own := own_names(recipe.config, recipe.backend, recipe.names):
        renaming.renamed(program, own)
    else:
        loading.put(program, recipe.config, recipe.kind or recipe.backend, recipe.names)
