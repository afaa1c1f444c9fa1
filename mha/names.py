"""The names that arguments take, as types: for type checkers, and for annotations of your own. Imports no framework."""

from typing import Any, Literal, Protocol

import numpy as np

BackendName = Literal["numpy", "torch", "tensorflow", "jax", "mxnet"]
PoolingName = Literal["dot", "additive"]
NormName = Literal["rms", "layer"]
LanguageName = Literal["en", "zh", "ja", "id", "vi"]
FloatName = Literal["float32", "float64", "float16", "bfloat16"]
IntegerName = Literal["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
# Naming schemes of weights, `mha.weights.SCHEMES`.
SchemeName = Literal[
    "mha", "d2l", "torch", "torch-separate", "keras", "flax",
    "bert", "distilbert", "vit", "timm", "gpt2", "llama", "meta", "neox", "t5", "opt",
]  # fmt: skip
SchemeChoice = Literal["auto"] | SchemeName  # "auto" = as the names of the arrays show
# Layers of other kinds, which `to_native` makes.
KindName = Literal[
    "torch.nn.MultiheadAttention",
    "keras.layers.MultiHeadAttention",
    "keras.layers.GroupQueryAttention",
    "flax.linen.MultiHeadDotProductAttention",
    "flax.linen.MultiHeadAttention",
    "flax.nnx.MultiHeadAttention",
    "mha.d2l.torch.MultiHeadAttention",
    "mha.d2l.tensorflow.MultiHeadAttention",
    "mha.d2l.jax.MultiHeadAttention",
    "mha.d2l.mxnet.MultiHeadAttention",
]
# The beginning of such a name, where it tells which is meant.
KindStart = Literal["torch", "torch.nn", "keras", "keras.layers", "tensorflow", "flax.nnx"]


class TorchDtype(Protocol):
    """A dtype as PyTorch writes it, told by what no string has."""

    @property
    def is_floating_point(self) -> bool:
        """Whether it is one of floats."""


class TensorFlowDtype(Protocol):
    """A dtype as TensorFlow writes it, told by what no string has."""

    @property
    def as_numpy_dtype(self) -> Any:
        """NumPy's."""


# What `dtype` takes: of a layer, and of any array. JAX and MXNet write dtypes as NumPy does.
LayerDtype = FloatName | np.dtype[Any] | type[np.generic] | TorchDtype | TensorFlowDtype
ArrayDtype = LayerDtype | IntegerName | Literal["bool"] | type[bool]
