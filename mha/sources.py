"""Layers from elsewhere: from another kind of layer, from a file, and with the weights of another one."""

import os
from typing import Any

from mha import dispatch, native, weights
from mha.layer import MultiHeadAttention, restore
from mha.names import BackendName, SchemeChoice


def from_native(
    source: Any,
    *,
    scheme: SchemeChoice = "auto",
    prefix: str | None = None,
    num_heads: int | None = None,
    backend: BackendName | None = None,
    **options: Any,
) -> MultiHeadAttention:
    """The layer with the weights of another kind of layer, or of named arrays, bit for bit; the source stays as it is.

    Args:
        source: a torch.nn.MultiheadAttention, a built keras.layers.MultiHeadAttention or GroupQueryAttention, a
            bound flax.linen.MultiHeadDotProductAttention, a flax.nnx.MultiHeadAttention, the `MultiHeadAttention` of
            Dive into Deep Learning as `mha.d2l` has it or as the book prints it, the `layer` of an
            mha.MultiHeadAttention; or a mapping of names to arrays, which may be nested: a state dict, Flax's params,
            an nnx.State.
        scheme: how the arrays of a mapping are named and stored, one of `mha.weights.SCHEMES`; "auto" = as the names
            show.
        prefix: what the names of the layer's arrays begin with; None = as the names show.
        num_heads: the number of heads, where a mapping does not show it.
        backend: None = MHA_BACKEND, else "numpy".
        **options: scale, softcap, window, rotary, qk_norm and qk_norm_eps of the layer, which no mapping shows. Where a
            scheme's models may rotate positions, as LLaMA's, rotary must be given, if only as None.

    Returns:
        The layer, with the sizes, biases, dtype and dropout of the source; a mapping tells no dropout, so that it is 0.

    Raises:
        TypeError: if the source is of another class, a subclass included, or its arrays are no floats of one dtype.
        ValueError: if the source has no weights yet or an option that has no counterpart, or if its arrays are not
            those of one layer of a known scheme, or do not go together; the message says what was expected.
    """
    backend = dispatch.backend_name(backend)
    return restore(*native.read(source, scheme, prefix, num_heads, options), backend)


def load(
    path: str | os.PathLike[str],
    backend: BackendName | None = None,
    *,
    scheme: SchemeChoice = "auto",
    prefix: str | None = None,
    num_heads: int | None = None,
    **options: Any,
) -> MultiHeadAttention:
    """Load an attention layer from a safetensors file, bit for bit: one that `save` wrote, or one of a checkpoint.

    A file that `save` wrote says everything about its layer. Of a checkpoint, only the header and the arrays of the one
    layer are read, and the model's `config.json`, or Meta's `params.json`, if it lies beside the file. Nothing is
    unpickled, and no number is read before its description is right.

    Args:
        path: of the file.
        backend: None = MHA_BACKEND, else "numpy".
        scheme: how a checkpoint names and stores the arrays, one of `mha.weights.SCHEMES`; "auto" = as the names show.
        prefix: what the names of the layer's arrays begin with, with or without the last dot; None = as the names show.
        num_heads: the number of heads, where neither an array has an axis for them nor `config.json` says it.
        **options: scale, softcap, window, rotary, qk_norm and qk_norm_eps of the layer, where no `config.json` says
            them. Where a scheme's models may rotate positions, as LLaMA's, rotary must then be given, if only as None.

    Returns:
        The layer, with the sizes, biases and dtype of its arrays; dropout is 0, or what a file that `save` wrote says.

    Raises:
        FileNotFoundError: if nothing is there.
        mha.weights.FileError (an OSError and a ValueError): if the path is no regular file or may not be read.
        TypeError: if an argument is of another type, or one is needed; the message names the argument.
        ValueError: if it is no safetensors file, if it has no layer or several that fit scheme and prefix, or if the
            arrays do not go together or are not finite; if `config.json` is broken, has an option about attention that
            is not known here, or contradicts an argument or the arrays; the message names the path, and says what was
            found.
    """
    backend = dispatch.backend_name(backend)
    return restore(*weights.load(path, scheme=scheme, prefix=prefix, num_heads=num_heads, options=options), backend)


def sync(source: MultiHeadAttention, target: MultiHeadAttention) -> None:
    """Copy the weights of one layer to another, whatever their backends.

    Raises TypeError if either is not an mha layer, ValueError if they differ in anything but dropout and backend; the
    target then stays as it was.
    """
    for name, attention in (("source", source), ("target", target)):
        if not isinstance(attention, MultiHeadAttention):
            kind = f"{type(attention).__module__}.{type(attention).__qualname__}"
            raise TypeError(f"{name} is a {kind}, expected an mha.MultiHeadAttention")
    for option, value in vars(source.config).items():
        if option != "dropout" and value != getattr(target.config, option):
            raise ValueError(
                f"target has {option}={getattr(target.config, option)!r}, expected {value!r} as the source; "
                "make the target with the same options"
            )
    target.weights = source.weights
