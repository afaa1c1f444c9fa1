"""The layer that users hold: one interface over all backend modules."""

import os
from collections.abc import Callable
from typing import Any, Literal, Unpack, overload

import numpy as np

from mha.core import dispatch
from mha.core.cache import Cache, caching, slots
from mha.core.call import Arguments, call_of, prepare, spell_out
from mha.core.options import checks, seeds
from mha.core.options.config import MODERN, ROWS, Config, shapes, special
from mha.core.options.names import BackendName, GateName, KindName, KindStart, LayerDtype, NormName, PoolingName
from mha.core.options.norms import Norm
from mha.core.options.positions import Rotary, Temperature
from mha.weights.canonical import initial

Named = dict[str, np.ndarray]  # arrays


class MultiHeadAttention:
    """Multi-head attention that computes the same numbers on every backend.

    For head i, h_i = f(W_q^i q, W_k^i k, W_v^i v), with f an attention pooling; the heads side by side, times W_o,
    are the output. A query that may see no key gets weights 0 and pooled value 0. Padding never matters.

    In a model of your own, write `self.attention = mha.MultiHeadAttention(...).layer`. Without `.layer`, Flax
    raises; the other frameworks register none of its weights, so that they are neither trained nor saved.

    Args:
        num_hiddens, num_heads: width D of the output; number of heads H.
        dropout: probability, in [0, 1), that training drops an attention weight.
        bias: whether the projections add a bias.
        query_size, key_size, value_size: widths of the inputs; None = num_hiddens.
        key_dim, value_dim: widths d and dv of one head; None = num_hiddens / num_heads.
        num_key_value_heads: number G of heads of keys and values, a divisor of H: query head h reads head
            h // (H / G); None = H, 1 = multi-query attention.
        scale: what dot products are multiplied by; None = 1 / sqrt(d).
        softcap: c of the cap c * tanh(score / c); None = no cap.
        window: (left, right): a query sees keys from `left` before to `right` after its position; None = no bound.
        chunk: number n of positions: a query sees only keys of its own chunk, 0 to n - 1, n to 2 n - 1, ...
        rotary: an `mha.Rotary`, how queries and keys turn with their positions; None = they do not.
        qk_norm, value_norm: an `mha.Norm` of queries and keys, and of values; or its kind alone, "rms" or "layer".
        temperature: factor of queries that grows with their positions, an `mha.Temperature`.
        sinks: whether each head has a sink: a weight that is one more score in the softmax, and pools nothing.
        output_gate: "element" or "head", what a sigmoid of queries times W_g scales after the pooling; None = none.
        pooling: "dot" or "additive", which takes no scale, rotary and qk_norm.
        dtype: "float32", "float64", "float16" or "bfloat16", where the framework has it.
        seed: draws the initial weights, the same on every backend; also dropout on NumPy and JAX. None = another seed
            for each layer, the same in every run: see `mha.manual_seed`.
        readable: whether the lesson itself runs, step by step and slower, so that breakpoints, prints and edits in it
            take effect; None = as MHA_READABLE says, 1 or 0, else False.
        backend: the name of one of `mha.backends()`, such as "torch"; None = MHA_BACKEND, else "numpy".

    Attributes:
        backend: the backend's name.
        config: the sizes and options, a frozen dataclass with all defaults filled in.
        layer: the framework's own layer, which trains, compiles and saves as that framework does.
        seed: what the weights were drawn from.
        readable: whether the lesson itself runs.

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
        num_key_value_heads: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        window: tuple[int | None, int | None] | None = None,
        chunk: int | None = None,
        rotary: Rotary | None = None,
        qk_norm: Norm | NormName | None = None,
        value_norm: Norm | NormName | None = None,
        temperature: Temperature | None = None,
        sinks: bool = False,
        output_gate: GateName | None = None,
        pooling: PoolingName = "dot",
        dtype: LayerDtype = "float32",
        seed: int | None = None,
        readable: bool | None = None,
        backend: BackendName | None = None,
    ) -> None:
        given: Any = locals()
        config = Config(**{name: given[name] for name in ROWS})
        seed = None if seed is None else checks.seed(seed)
        self._build(config, backend, None, seed, readable)

    def _build(
        self, config: Config, backend: BackendName | None, arrays: Named | None, seed: int | None, readable: bool | None
    ) -> None:
        """Make the layer; arrays: its weights, None = drawn from the seed; the others as of the class."""
        self.config = config
        self.backend: BackendName = dispatch.backend_name(backend)
        self.readable = dispatch.is_readable(readable)
        checks.choice(f"dtype on backend {self.backend!r}", config.dtype, self._module.DTYPES)
        shapes(config)  # too large ones are refused: a layer that cannot be made takes no seed from those that follow
        self.seed = seeds.next_seed() if seed is None else seed
        arrays = initial(config, self.seed) if arrays is None else arrays
        with self._module.context(config.dtype):
            self.layer = self._module.build(config, arrays, self.seed, self._calls.MultiHeadAttention)

    @property
    def _module(self) -> Any:
        """The backend's module; no attribute, so that a layer can be copied."""
        return dispatch.load(self.backend)

    @property
    def _calls(self) -> Any:
        """The module with the functions that call the layer: the backend's, or its lesson."""
        return dispatch.lesson(self.backend) if self.readable else self._module

    @overload
    def __call__(
        self,
        queries: Any,
        keys: Any,
        values: Any,
        valid_lens: Any = None,
        *,
        training: bool = False,
        return_weights: Literal[True],
        **call: Unpack[Arguments],
    ) -> tuple[Any, Any]: ...

    @overload
    def __call__(
        self,
        queries: Any,
        keys: Any,
        values: Any,
        valid_lens: Any = None,
        *,
        training: bool = False,
        return_weights: bool = False,
        **call: Unpack[Arguments],
    ) -> Any: ...

    @overload
    def __call__(
        self,
        queries: Any,
        keys: Any = None,
        values: Any = None,
        valid_lens: Any = None,
        *,
        cache: Cache,
        training: bool = False,
        return_weights: Literal[True],
        **call: Unpack[Arguments],
    ) -> tuple[Any, Any, Cache]: ...

    @overload
    def __call__(
        self,
        queries: Any,
        keys: Any = None,
        values: Any = None,
        valid_lens: Any = None,
        *,
        cache: Cache,
        training: bool = False,
        return_weights: Literal[False] = False,
        **call: Unpack[Arguments],
    ) -> tuple[Any, Cache]: ...

    @spell_out
    def __call__(
        self,
        queries: Any,
        keys: Any = None,
        values: Any = None,
        valid_lens: Any = None,
        *,
        cache: Cache | None = None,
        training: bool = False,
        return_weights: bool = False,
        **call: Unpack[Arguments],
    ) -> Any:
        """Attend.

        Args:
            queries: (B, Q, query_size), keys: (B, K, key_size), values: (B, K, value_size), in the layer's dtype: all
                three NumPy arrays or nested lists, or all three of the backend's own framework.
            valid_lens: None, or integers (B,) or (B, Q): query i of sample b sees key j iff j < valid_lens[b(, i)].
            mask: None, or booleans, True = may attend, (Q, K), (B, Q, K) or (B, H, Q, K); a size may be 1.
            score_bias: None, or floats of the layer's dtype in the shapes of a mask, added to the scores; -inf hides,
                a large negative number does not.
            causal: whether query i sees key j only if j <= offset + i.
            offset: position of the first query, an int or integers (B,); key j is at position j.
            head_gates: None, or floats (H,) or (B, H) of the layer's dtype, which multiply the pooled heads.
            positions: None, or integers (Q,) or (B, Q), where each query is, instead of offset + i: for causal order,
                window and rotation. A query below 0 is padding: it sees nothing.
            key_positions: None, or integers (K,) or (B, K), where each key is, instead of j; below 0 it is hidden.
            segments: None, or integers (Q,) or (B, Q): a query sees the keys of its own segment; below 0 it is padding.
                Not beside a cache. Where positions restart with each segment, positions and key_positions say so.
            key_segments: None = those of the queries, or integers (K,) or (B, K): below 0 a key is hidden.
            cache: None, or an `mha.Cache` of this layer: queries see its slots and the call's own tokens, which go into
                it. Keys and values are None beside a frozen one. What has keys' axis has one of slots then.
            training: whether to drop attention weights.
            return_weights: whether to return the attention weights too.

        Returns:
            The output (B, Q, D), with `return_weights` a pair of it and the weights (B, H, Q, K) before dropout:
            NumPy arrays if the inputs were, else the framework's own. With a cache, a tuple of these and the cache that
            is left, which the next call takes: the old one is used up.

        Raises:
            TypeError, ValueError: if an input is not as above; the message says what was expected.
        """
        if training is None:  # as the frameworks' own layers take it
            checks.flag("training", training)
        more = {"cache": cache, "training": training, "return_weights": return_weights}
        own_call = call_of("MultiHeadAttention.__call__", valid_lens, call, **more)
        module = dispatch.load(self.backend)
        calls = dispatch.lesson(self.backend) if self.readable else module
        if cache is not None:
            return caching.decode(self, calls, queries, keys, values, own_call)
        if dispatch.backend_of_all(queries, keys, values) == self.backend:  # its layer checks
            with module.context(self.config.dtype):
                return calls.attend(self.layer, queries, keys, values, own_call)
        arrays, _ = prepare.own_inputs(self, queries, keys, values)
        with module.context(self.config.dtype, tracked=False):
            result = calls.attend(self.layer, *arrays, own_call)
            return tuple(map(module.to_numpy, result)) if return_weights else module.to_numpy(result)

    def cache(self, batch_size: int, size: int | None = None) -> Cache:
        """An empty cache for calls of this layer, at its device.

        Args:
            batch_size: number of samples B.
            size: number of slots S, how many tokens it holds; None = left + 1 of a window (left, right), or the chunk.

        Raises:
            TypeError, ValueError: if a size is no positive int, or if neither window nor chunk says one.
        """
        config, ranks = slots.local_config(self.layer), slots.count_ranks(self.layer)
        return Cache.of_layer(self, slots.empty_arrays(config, batch_size, size, ranks))

    def cache_of(self, keys: Any, values: Any = None, valid_lens: Any = None, key_positions: Any = None) -> Cache:
        """A frozen cache for cross-attention: keys and values are projected once, and calls add nothing.

        Args:
            keys: (B, K, key_size), values: (B, K, value_size), None = keys: arrays as a call takes them.
            valid_lens: None, or integers (B,): the keys from there on are padding.
            key_positions: None, or integers (K,) or (B, K), where each key is, instead of j; below 0 it is padding.

        Raises:
            TypeError, ValueError: if an argument does not fit; the message says what was expected.
        """
        return caching.frozen_cache(self, keys, values, valid_lens, key_positions)

    @spell_out
    def vjp(
        self,
        queries: Any,
        keys: Any,
        values: Any,
        valid_lens: Any = None,
        *,
        training: bool = False,
        **call: Unpack[Arguments],
    ) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
        """Attend, and keep what gradients need: one forward pass for the output and for any number of gradients.

        Args:
            queries, keys, values, valid_lens, training, and what else a call takes: as for a call.

        Returns:
            The output (B, Q, D), and a function `pull_back(cotangent)`. It takes the gradient of a loss by the output,
            (B, Q, D), and returns what `gradients` returns, of the call that was made: with its dropout, and with the
            inputs and weights that it had. It may be called as often as one likes; what it needs is kept until then.

        Raises:
            TypeError, ValueError: if an input or a cotangent is not as above; the message says what was expected.
        """
        arrays, checked, back = prepare.convert(self, "vjp", queries, keys, values, valid_lens, call, training=training)
        module, config, place = self._module, self.config, self._module.place(self.layer)
        with module.context(config.dtype):
            copies = {id(X): module.clone(X) for X in arrays}
            arrays, checked = [copies[id(X)] for X in arrays], checked.map_arrays(module.clone)
            output, pull = self._calls.vjp(self.layer, *arrays, checked)

        def pull_back(cotangent: Any) -> dict[str, Any]:
            cotangent = prepare.check_cotangent_of(self, cotangent, output.shape, place)
            with module.context(config.dtype):
                return {name: back(gradient) for name, gradient in pull(cotangent).items()}

        return back(output), pull_back

    @spell_out
    def gradients(
        self,
        queries: Any,
        keys: Any,
        values: Any,
        valid_lens: Any = None,
        *,
        cotangent: Any = None,
        **call: Unpack[Arguments],
    ) -> dict[str, Any]:
        """Gradients of sum(output * cotangent), without dropout; the layer stays as it was.

        Args:
            queries, keys, values, valid_lens, and what else a call takes: as for a call.
            cotangent: (B, Q, D), the gradient of a loss by the output; None = ones.

        Returns:
            A dict: "queries", "keys", "values", "score_bias" and "head_gates" where they were given, and each weight's
            canonical name, in the shapes of these; NumPy arrays if the inputs were, else the framework's own.

        Raises:
            TypeError, ValueError: if an input is not as above; the message says what was expected.
        """
        arrays, checked, back = prepare.convert(self, "gradients", queries, keys, values, valid_lens, call)
        if cotangent is not None:
            shape = *arrays[0].shape[:2], self.config.num_hiddens
            cotangent = prepare.check_cotangent_of(self, cotangent, shape, self._module.place(self.layer))
        with self._module.context(self.config.dtype):
            gradients = self._calls.gradients(self.layer, *arrays, checked, cotangent)
            return {name: back(gradient) for name, gradient in gradients.items()}

    @spell_out
    def trace(
        self,
        queries: Any,
        keys: Any = None,
        values: Any = None,
        valid_lens: Any = None,
        *,
        cache: Cache | None = None,
        **call: Unpack[Arguments],
    ) -> dict[str, Any]:
        """Every step of a call without dropout, from the projected inputs to the output.

        Args:
            queries, keys, values, valid_lens, cache, and what else a call takes: as for a call. The cache stays.

        Returns:
            A dict, in this order, of those in brackets what the layer and the call have: W_q, W_k, W_v (B, T, H*d);
            split_q (B*H, Q, d), split_k and split_v (B*G, K, d); as these, [norm_q, norm_k; rotate_q, rotate_k;
            tempered_q]; scores, before masking, [capped, biased] and weights (B*H, Q, K); pooled [head_gated, gated]
            (B*H, Q, dv); merged (B, Q, H*dv); output (B, Q, D). Scores of half-precision layers are float32. NumPy
            arrays if the inputs were, else the framework's own. With a cache, those of keys and values are of the new
            tokens, of none beside a frozen one, and K is S from the scores on: the slots as a call leaves them.

        Raises:
            TypeError, ValueError: if an input is not as above; the message says what was expected.
        """
        switches = {"cache": cache, "return_weights": cache is not None}  # by slots, as those of the steps are
        arrays, checked, back = prepare.convert(self, "trace", queries, keys, values, valid_lens, call, **switches)
        with self._module.context(self.config.dtype):
            steps = self._calls.trace(self.layer, *arrays, checked)
            return {name: back(step) for name, step in steps.items()}

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """The weights as canonical NumPy arrays, copies: kernels (in, out), head 0 first.

        Assigning a dict of the same names, shapes and dtype sets them all; a dict that does not fit raises TypeError
        or ValueError and changes nothing. ValueError, too, if the layer itself has been changed and no longer fits.
        """
        with self._module.context(self.config.dtype):
            try:
                arrays = self._module.get_weights(self.layer)
                return checks.weights(shapes(self.config), self.config.dtype, arrays)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"the layer has been changed and no longer fits its configuration: {error}; undo the change"
                ) from error

    @weights.setter
    def weights(self, arrays: dict[str, np.ndarray]) -> None:
        arrays = checks.weights(shapes(self.config), self.config.dtype, arrays)
        arrays = {name: checks.plain(array) for name, array in arrays.items()}
        _ = self.weights  # a layer that no longer fits would be written half
        with self._module.context(self.config.dtype):
            self.layer = self._module.set_weights(self.layer, arrays)

    def to(self, backend: BackendName) -> "MultiHeadAttention":
        """The same layer, configuration, weights and seed, on another backend; this one stays as it is."""
        return restore(self.config, self.weights, backend, self.seed, self.readable)

    def to_native(self, kind: KindName | KindStart | type) -> Any:
        """A layer of another kind with the same weights, bit for bit; this one stays as it is.

        Args:
            kind: "torch.nn.MultiheadAttention" (with batch_first=True), "keras.layers.MultiHeadAttention" or
                "keras.layers.GroupQueryAttention" (built), "flax.linen.MultiHeadDotProductAttention" (bound to its
                variables), "flax.nnx.MultiHeadAttention", or "mha.d2l.torch.MultiHeadAttention" and so on; whatever the
                backend of this layer is. Also the class itself, or the beginning of its name, if the layer then leaves
                one choice: "torch", "keras", "flax.nnx".

        Raises:
            ValueError: if the kind is unknown, or has no counterpart for an option of this layer; the message names it.
            ModuleNotFoundError: if its framework is not installed; the message says how to install it.
        """
        from mha.weights import foreign

        return foreign.make(kind, self.config, self.weights)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights and configuration to a safetensors file, which `mha.load` reads on any backend.

        Raises ValueError if a weight holds NaN or infinity, mha.weights.FileError (an OSError and a ValueError) if
        the path is there but no regular file, and OSError if the file cannot be written; the old file then stays.
        """
        from mha import weights

        weights.save(path, self.config, self.weights)

    def __repr__(self) -> str:
        modern = special(self.config)
        named = {name: X for name, X in vars(self.config).items() if name not in MODERN or name in modern}
        options = ", ".join(f"{name}={value!r}" for name, value in named.items())
        options += f", seed={self.seed}" + (", readable=True" if self.readable else "")
        framework = dispatch.FRAMEWORKS[self.backend].needs[-1]
        hint = "" if framework == "numpy" else f"  # no layer of {framework}: a model of your own takes its .layer"
        return f"MultiHeadAttention({options}, backend={self.backend!r}){hint}"


def restore(
    config: Config, arrays: Named, backend: BackendName | None, seed: int | None = None, readable: bool | None = None
) -> MultiHeadAttention:
    """A layer of this configuration with these canonical weights; backend, seed and readable as of the class."""
    attention = MultiHeadAttention.__new__(MultiHeadAttention)
    attention._build(config, backend, arrays, seed, readable)
    return attention
