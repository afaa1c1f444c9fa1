"""Make a layer from another kind of layer or from a file, and copy weights between layers."""

import os
from typing import Any

from mha import weights
from mha.core import dispatch
from mha.core.options.names import BackendName, SchemeChoice
from mha.layer import MultiHeadAttention, restore
from mha.weights import foreign


def from_native(
    source: Any,
    *,
    scheme: SchemeChoice = "auto",
    prefix: str | None = None,
    num_heads: int | None = None,
    layer: int | None = None,
    backend: BackendName | None = None,
    **options: Any,
) -> MultiHeadAttention:
    """Make a layer with the weights of a framework's layer or of named arrays, bit for bit. The source is not changed.

    The new layer follows the rules of mha, not those of the source: True in a mask means that a query may attend to a
    key, and a query that sees no key gets weights 0 (the layers of PyTorch, Keras and Flax may give NaN, or weigh
    padding).

    Args:
        source: a torch.nn.MultiheadAttention, a built keras.layers.MultiHeadAttention or GroupQueryAttention, a
            bound flax.linen.MultiHeadDotProductAttention, a flax.nnx.MultiHeadAttention, the `MultiHeadAttention` of
            Dive into Deep Learning as `mha.d2l` has it or as the book prints it, the `layer` of an
            mha.MultiHeadAttention; a module of Hugging Face's transformers, for attention alone or a whole model, whose
            config says what its arrays do not show; or a mapping of names to arrays, which may be nested: a state dict,
            Flax's params, an nnx.State.
        scheme: the naming scheme of the arrays of a mapping or a module of transformers, one of `mha.weights.SCHEMES`;
            "auto" = found from the names.
        prefix: beginning of the names of the layer's arrays; None = found from the names.
        num_heads: number of heads, if a mapping does not show it.
        layer: the number of the layer, from 0, in a mapping of a stack of layers, as `nn.scan` of Flax makes it: the
            first axis of each array goes through the layers; None = no stack.
        backend: None = MHA_BACKEND, else "numpy".
        **options: scale, softcap, window, rotary and qk_norm of the layer, which no mapping shows. If
            models of the scheme may rotate positions, as LLaMA's do, rotary must be given; None = no rotation. Also
            key_dim and num_key_value_heads, which the arrays must fit; fold_one: True if norms of queries and keys
            multiply by 1 + w, as Gemma's do; bare_norms: True if they have no weights, as Llama 4's; and
            values_are_keys: True if W_v is W_k and has no array, as in Gemma 4. So it takes all that
            `mha.weights.models.options` returns. Of a module whose rotation goes by the length of a text, also
            length, the number of its tokens.

    Returns:
        The layer, with the sizes, biases, dtype and dropout of the source; dropout is 0 for a mapping, which has none.

    Raises:
        TypeError: if the source is of another class, even a subclass, or its arrays are no floats of one dtype, or if a
            needed argument is missing.
        ValueError: if the source has no weights yet, or has an option that mha does not have, or if its arrays are not
            those of one layer of a known scheme, or do not fit together; the message says what was expected.
    """
    backend = dispatch.backend_name(backend)
    return restore(*foreign.read(source, scheme, prefix, num_heads, options, layer), backend)


def load(
    path: str | os.PathLike[str],
    backend: BackendName | None = None,
    *,
    scheme: SchemeChoice = "auto",
    prefix: str | None = None,
    num_heads: int | None = None,
    **options: Any,
) -> MultiHeadAttention:
    """Load an attention layer from a file, bit for bit: from one that `save` wrote, or from a checkpoint.

    A file that `save` wrote says everything about its layer. From a checkpoint, only the names and the arrays of the
    one layer are read, and the model's `config.json`, or Meta's `params.json`, if it is in the same folder. Unlike
    `torch.load`, it unpickles nothing, and it reads no numbers before it has checked what the file claims.

    Args:
        path: of a file of any name: safetensors, the index of several of them (of which only those with the layer are
            opened), NumPy's `.npz`, Keras' `.keras`, `.weights.h5` or `.h5`, for which h5py must be installed; or of a
            directory with one of these, such as `save_pretrained` of transformers makes.
        backend: None = MHA_BACKEND, else "numpy".
        scheme: the naming scheme of a checkpoint, one of `mha.weights.SCHEMES`; "auto" = found from the names.
        prefix: beginning of the names of the layer's arrays, the last dot may be left out; None = found from the names.
        num_heads: number of heads, if no array has an axis for the heads and no `config.json` says it.
        **options: scale, softcap, window, rotary and qk_norm of the layer, if no `config.json` says
            them. If models of the scheme may rotate positions, as LLaMA's do, rotary must then be given; None = none.
            Also key_dim, num_key_value_heads and fold_one, as for `mha.from_native`, and length: the number of tokens
            of a text, where the rotation that `config.json` says goes by it ("longrope", "dynamic"); None = no more
            than those of the model's first training.

    Returns:
        The layer, with the sizes, biases and dtype of its arrays; dropout is as `save` recorded it, else 0.

    Raises:
        FileNotFoundError: if there is no such file.
        mha.weights.FileError (an OSError and a ValueError): if the path is no regular file, may not be read, or is a
            directory without weights.
        TypeError: if an argument has a wrong type, or is missing; the message names the argument.
        ValueError: if it is a pickle, GGUF, ONNX or of another kind that is not read, with what converts it, or no file
            of weights; if its arrays are quantised, or those of an adapter, by what they are; if a shard is missing or
            is not as the index says; if no layer, or more than one, fits scheme and prefix; if the arrays do not fit
            together or are not finite; if `config.json` is broken, has an option about attention that mha does not
            know, or contradicts an argument or the arrays. The message names the path and says what was found.
    """
    backend = dispatch.backend_name(backend)
    return restore(*weights.load(path, scheme=scheme, prefix=prefix, num_heads=num_heads, options=options), backend)


def sync(source: MultiHeadAttention, target: MultiHeadAttention) -> None:
    """Copy the weights of one layer to another, whatever their backends.

    Raises TypeError if either is not an mha layer, ValueError if they differ in anything but dropout and backend; then
    the target is not changed.
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
