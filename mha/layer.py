"""The layer that users hold: one interface over the five backend modules."""

import os
from typing import Any

import numpy as np

from mha import checks, dispatch, weights
from mha.config import Config


class MultiHeadAttention:
    """Multi-head attention that computes the same numbers on every backend.

    For head i, h_i = f(W_q^i q, W_k^i k, W_v^i v), with f an attention pooling; the heads side by side, times W_o,
    are the output. A query that may see no key gets weights 0 and pooled value 0. Padding never matters.

    Args:
        num_hiddens: width D of the output.
        num_heads: number of heads H.
        dropout: probability, in [0, 1), that training drops an attention weight.
        bias: whether the four projections add a bias.
        query_size, key_size, value_size: widths of the inputs; None = num_hiddens.
        key_dim, value_dim: widths d and dv of one head; None = num_hiddens / num_heads.
        pooling: "dot" or "additive".
        dtype: "float32", "float64", "float16" or "bfloat16", where the framework has it.
        seed: draws the initial weights, the same on every backend; also dropout on NumPy and JAX.
        backend: "numpy", "torch", "tensorflow", "jax" or "mxnet"; None = MHA_BACKEND, else "numpy".

    Attributes:
        backend: the backend's name.
        config: the sizes and options, a frozen dataclass with all defaults filled in.
        layer: the framework's own layer, which trains, compiles and saves as that framework does.

    Raises:
        TypeError, ValueError: if an argument is not as above; the message says what was expected.
        ModuleNotFoundError: if the backend's framework is not installed; the message says how to install it.

    Sources: Vaswani et al., Attention Is All You Need (2017), section 3.2; Dive into Deep Learning, section
    "Multi-Head Attention".
    """

    def __init__(
        self,
        num_hiddens: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = False,
        *,
        query_size: int | None = None,
        key_size: int | None = None,
        value_size: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        pooling: str = "dot",
        dtype: Any = "float32",
        seed: int = 0,
        backend: str | None = None,
    ) -> None:
        sizes: Any = {"query_size": query_size, "key_size": key_size, "value_size": value_size}
        sizes |= {"key_dim": key_dim, "value_dim": value_dim}
        config = Config(num_hiddens, num_heads, dropout, bias, **sizes, pooling=pooling, dtype=dtype)
        seed = checks.seed(seed)
        self._build(config, dispatch.backend_name(backend), weights.initial(config, seed), seed)

    def _build(self, config: Config, backend: str, arrays: dict[str, np.ndarray], seed: int = 0) -> None:
        self.config = config
        self.backend = backend
        checks.choice(f"dtype on backend {backend!r}", config.dtype, self._tab.DTYPES)
        with self._tab.context(config.dtype):
            self.layer = self._tab.build(config, arrays, seed)

    @property
    def _tab(self) -> Any:
        """The backend's module; no attribute, so that a layer can be copied."""
        return dispatch.load(self.backend)

    def __call__(
        self,
        queries: Any,
        keys: Any,
        values: Any,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        causal: bool = False,
        training: bool = False,
        return_weights: bool = False,
    ) -> Any:
        """Attend.

        Args:
            queries: (B, Q, query_size), keys: (B, K, key_size), values: (B, K, value_size), in the layer's dtype: all
                three NumPy arrays or nested lists, or all three of the backend's own framework.
            valid_lens: None, or integers (B,) or (B, Q): query i of sample b sees key j iff j < valid_lens[b(, i)].
            mask: None, or booleans, True = may attend, (Q, K), (B, Q, K) or (B, H, Q, K); a size may be 1.
            causal: whether query i sees key j only if j <= i.
            training: whether to drop attention weights.
            return_weights: whether to return the attention weights too.

        Returns:
            The output (B, Q, D), with `return_weights` a pair of it and the weights (B, H, Q, K) before dropout:
            NumPy arrays if the inputs were, else the framework's own.

        Raises:
            TypeError, ValueError: if an input is not as above; the message says what was expected.
        """
        arguments, back = self._settle(queries, keys, values, valid_lens, mask, causal)
        training, return_weights = checks.flag("training", training), checks.flag("return_weights", return_weights)
        with self._tab.context(self.config.dtype):
            result = self._tab.attend(self.layer, *arguments, training, return_weights)
            return tuple(map(back, result)) if return_weights else back(result)

    def gradients(
        self,
        queries: Any,
        keys: Any,
        values: Any,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        causal: bool = False,
        cotangent: Any = None,
    ) -> dict[str, Any]:
        """Gradients of sum(output * cotangent), without dropout; the layer stays as it was.

        Args:
            queries, keys, values, valid_lens, mask, causal: as for a call.
            cotangent: (B, Q, D), the gradient of a loss by the output; None = ones.

        Returns:
            A dict: "queries", "keys", "values" and each weight's canonical name, in the shapes of these; NumPy arrays
            if the inputs were, else the framework's own.

        Raises:
            TypeError, ValueError: if an input is not as above; the message says what was expected.
        """
        arguments, back = self._settle(queries, keys, values, valid_lens, mask, causal)
        if cotangent is not None:
            cotangent = self._array("cotangent", cotangent)
            checks.output(self.config, cotangent, arguments[0])
            cotangent = self._native(cotangent)
        with self._tab.context(self.config.dtype):
            gradients = self._tab.gradients(self.layer, *arguments, cotangent)
            return {name: back(gradient) for name, gradient in gradients.items()}

    def trace(
        self,
        queries: Any,
        keys: Any,
        values: Any,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        causal: bool = False,
    ) -> dict[str, Any]:
        """Every step of a call without dropout, from the projected inputs to the output.

        Args:
            queries, keys, values, valid_lens, mask, causal: as for a call.

        Returns:
            A dict, in this order: W_q, W_k, W_v (B, T, H*d); split_q, split_k, split_v (B*H, T, d); scores, before
            masking, and weights (B*H, Q, K); pooled (B*H, Q, dv); merged (B, Q, H*dv); output (B, Q, D). Scores of
            half-precision layers are float32. NumPy arrays if the inputs were, else the framework's own.

        Raises:
            TypeError, ValueError: if an input is not as above; the message says what was expected.
        """
        arguments, back = self._settle(queries, keys, values, valid_lens, mask, causal)
        with self._tab.context(self.config.dtype):
            return {name: back(step) for name, step in self._tab.trace(self.layer, *arguments).items()}

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """The weights as canonical NumPy arrays, copies: kernels (in, out), head 0 first.

        Assigning a dict of the same names, shapes and dtype sets them all; a dict that does not fit raises TypeError
        or ValueError and changes nothing.
        """
        with self._tab.context(self.config.dtype):
            return self._tab.get_weights(self.layer)

    @weights.setter
    def weights(self, arrays: dict[str, np.ndarray]) -> None:
        arrays = checks.weights(weights.shapes(self.config), self.config.dtype, arrays)
        with self._tab.context(self.config.dtype):
            self.layer = self._tab.set_weights(self.layer, arrays)

    def to(self, backend: str) -> "MultiHeadAttention":
        """The same layer, configuration and weights, on another backend; this one stays as it is."""
        return restore(self.config, self.weights, backend)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights and configuration to a safetensors file, which `mha.load` reads on any backend.

        Raises OSError if the file cannot be written; the old file then stays.
        """
        weights.save(path, self.config, self.weights)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self.config).items())
        return f"MultiHeadAttention({options}, backend={self.backend!r})"

    def _settle(self, queries: Any, keys: Any, values: Any, valid_lens: Any, mask: Any, causal: Any) -> tuple:
        """The checked arguments of a call as the backend's own arrays, and what turns its results back."""
        causal = checks.flag("causal", causal)
        named = {"queries": queries, "keys": keys, "values": values}
        queries, keys, values = (self._array(name, value) for name, value in named.items())
        given = dispatch.backend_of(queries)
        for name, array in {"keys": keys, "values": values}.items():
            if dispatch.backend_of(array) != given:
                raise TypeError(
                    f"{name} is of {dispatch.backend_of(array)}, expected {given} as queries; "
                    "convert with mha.to_numpy or mha.tensor"
                )
        if valid_lens is not None:
            valid_lens = dispatch.concrete(valid_lens, "int64")
        if mask is not None and dispatch.backend_of(mask) != self.backend:
            mask = dispatch.concrete(mask, "bool")
        checks.inputs(self.config, queries, keys, values, valid_lens, mask)
        if isinstance(valid_lens, np.ndarray):
            valid_lens = checks.lengths(valid_lens, keys.shape[1])
        back = self._tab.to_numpy if given == "numpy" else _same
        return (*map(self._native, (queries, keys, values, valid_lens, mask)), causal), back

    def _array(self, name: str, value: Any) -> Any:
        """Nested lists as a NumPy array in the layer's dtype; NumPy's and the backend's own arrays as they are."""
        if isinstance(value, (list, tuple)):
            return checks.listed(name, value, weights.numpy_dtype(self.config.dtype))
        if dispatch.backend_of(value) not in ("numpy", self.backend):
            raise TypeError(
                f"{name} is a {type(value).__name__}, expected a NumPy array, nested lists or an array of backend "
                f"{self.backend!r}; convert with mha.to_numpy or mha.tensor"
            )
        return value

    def _native(self, value: Any) -> Any:
        """A NumPy array as the backend's own, where the layer is; anything else as it is."""
        if not isinstance(value, np.ndarray):
            return value
        with self._tab.context(self.config.dtype):
            return self._tab.tensor(checks.plain(value), self.layer)


def restore(config: Config, arrays: dict[str, np.ndarray], backend: str | None) -> MultiHeadAttention:
    """A layer of this configuration with these canonical weights, on the given backend or the default one."""
    attention = MultiHeadAttention.__new__(MultiHeadAttention)
    attention._build(config, dispatch.backend_name(backend), arrays)
    return attention


def load(path: str | os.PathLike[str], backend: str | None = None) -> MultiHeadAttention:
    """The layer that `save` wrote to a file, on any backend; None = MHA_BACKEND, else "numpy".

    Raises OSError if the file cannot be read, and ValueError if it is not such a file or does not fit itself.
    """
    return restore(*weights.load(path), backend)


def sync(source: MultiHeadAttention, target: MultiHeadAttention) -> None:
    """Copy the weights of one layer to another, whatever their backends.

    Raises TypeError if either is not an mha layer, ValueError if they differ in anything but dropout and backend; the
    target then stays as it was.
    """
    for name, attention in (("source", source), ("target", target)):
        if not isinstance(attention, MultiHeadAttention):
            raise TypeError(f"{name} is a {type(attention).__name__}, expected an mha.MultiHeadAttention")
    for option, value in vars(source.config).items():
        if option != "dropout" and value != getattr(target.config, option):
            raise ValueError(
                f"target has {option}={getattr(target.config, option)!r}, expected {value!r} as the source; "
                "make the target with the same options"
            )
    target.weights = source.weights


def _same(X: Any) -> Any:
    return X
