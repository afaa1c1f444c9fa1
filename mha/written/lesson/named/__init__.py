"""Weights under the names of a checkpoint: parts of a layer that are called so, or a method that loads them."""

from mha.config import Config
from mha.names import BackendName
from mha.written.lesson.named import loading, renaming
from mha.written.lesson.named.renaming import biased, own_names, packs, refuse
from mha.written.trees.program import Program

__all__ = ["biased", "name", "own_names", "packs", "refuse"]


def name(program: Program, config: Config, backend: BackendName, scheme: str, kind: str | None) -> None:
    """Let a layer take the arrays of a scheme's files: by the names of its parts, or if those cannot, by `load`.

    kind: of its modules, None = the framework's usual.
    """
    if own := own_names(config, backend, scheme):
        renaming.renamed(program, own)
    else:
        loading.put(program, config, kind or backend, scheme)
