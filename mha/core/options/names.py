"""Types of the names that arguments take, for type checkers and for your own annotations. Imports no framework."""

from typing import Any, Literal, Protocol

import numpy as np

BackendName = Literal["numpy", "torch", "tensorflow", "jax", "mxnet", "mlx"]
PoolingName = Literal["dot", "additive"]
NormName = Literal["rms", "layer"]
OverName = Literal["head", "all"]  # what a norm is over
GateName = Literal["element", "head"]
LanguageName = Literal["en", "zh", "ja", "id", "vi"]
FloatName = Literal["float32", "float64", "float16", "bfloat16"]
SuiteName = Literal["quick", "full"]
IntegerName = Literal["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
# Naming schemes of weights, `mha.weights.SCHEMES`.
SchemeName = Literal[
    "mha", "d2l", "torch", "torch-separate", "keras", "keras3", "flax", "equinox", "haiku", "mlx",
    "bert", "albert", "distilbert", "vit", "timm", "vit_pytorch", "gpt2", "gpt2-mlx", "llama", "meta", "neox",
    "megatron", "phi3", "phi", "modernbert", "flash_attn", "esmc", "t5", "mpnet", "blip", "internvl", "opt", "whisper",
    "diffusers",
]  # fmt: skip
SchemeChoice = Literal["auto"] | SchemeName  # "auto" = found from the names of the arrays
# The kinds of layers that `to_native` makes.
KindName = Literal[
    "torch.nn.MultiheadAttention",
    "keras.layers.MultiHeadAttention",
    "keras.layers.GroupQueryAttention",
    "flax.linen.MultiHeadDotProductAttention",
    "flax.linen.MultiHeadAttention",
    "flax.nnx.MultiHeadAttention",
    "mlx.nn.MultiHeadAttention",
    "mha.d2l.torch.MultiHeadAttention",
    "mha.d2l.tensorflow.MultiHeadAttention",
    "mha.d2l.jax.MultiHeadAttention",
    "mha.d2l.mxnet.MultiHeadAttention",
]
# The beginnings of such names that are enough to choose one kind.
KindStart = Literal["torch", "torch.nn", "keras", "keras.layers", "tensorflow", "flax.nnx", "mlx", "mlx.nn"]

# The kinds of caches that `Cache.to_native` makes.
CacheKind = Literal["transformers.DynamicCache", "transformers.StaticCache", "flax.linen", "flax.nnx", "mlx_lm.KVCache"]


class TorchDtype(Protocol):
    """A dtype of PyTorch, recognised by an attribute that no string has."""

    @property
    def is_floating_point(self) -> bool:
        """True for a dtype of floats."""


class TensorFlowDtype(Protocol):
    """A dtype of TensorFlow, recognised by an attribute that no string has."""

    @property
    def as_numpy_dtype(self) -> Any:
        """The NumPy dtype of the same numbers."""


# The types of the argument `dtype`, for layers and for any array. JAX and MXNet use NumPy's dtypes.
LayerDtype = FloatName | np.dtype[Any] | type[np.generic] | TorchDtype | TensorFlowDtype
ArrayDtype = LayerDtype | IntegerName | Literal["bool"] | type[bool]
