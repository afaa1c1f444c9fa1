"""Give a layer weights under the names of a checkpoint: rename its parts, or add a method that loads them."""

from mha.learn.write.lesson.named import loading, renaming
from mha.learn.write.lesson.named.renaming import may_have_biases, own_names, packs, refuse
from mha.learn.write.recipe import Recipe
from mha.learn.write.trees.program import Program

__all__ = ["loads", "may_have_biases", "name", "own_names", "packs", "refuse"]


def loads(recipe: Recipe) -> bool:
    """Whether a layer needs a method `load` for a scheme's files, because no renaming of its parts fits."""
    return recipe.names is not None and not own_names(recipe.config, recipe.backend, recipe.names)


def name(program: Program, recipe: Recipe) -> None:
    """Let a layer take the arrays of a scheme's files: rename its parts, or add `load` if that is not enough."""
    if recipe.names is None:
        return
    if own := own_names(recipe.config, recipe.backend, recipe.names):
        renaming.rename_parts(program, own)
    else:
        loading.put(program, recipe.config, recipe.kind or recipe.backend, recipe.names)
