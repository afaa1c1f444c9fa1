"""Make, fill, call and differentiate a submission's MultiHeadAttention, in any framework and any style."""

import contextlib
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .frameworks import FRAMEWORKS, Array, Framework
from .signatures import COMMON, call, construct, is_keras, parameters, takes
from .submission import FailureError

PROJECTIONS = ("W_q", "W_k", "W_v", "W_o")
EVALUATION = {"training": False, "deterministic": True, "train": False, "inference": True, "is_training": False}


def makers(framework: Framework) -> dict[str, Callable[[], Any]]:
    """The functions that make what a constructor may need besides sizes."""
    if framework.name != "jax":
        return {"seed": lambda: 0, "rng": lambda: np.random.default_rng(0)}

    def key() -> Any:
        return importlib.import_module("jax").random.PRNGKey(0)

    return {"seed": lambda: 0, "key": key, "rng": key, "rngs": lambda: importlib.import_module("flax.nnx").Rngs(0)}


def layer_kind(cls: Any) -> str:
    """The kind of a class of layers: "linen", "nnx" or "keras", "" = any other class; "function" = no class."""
    if not isinstance(cls, type):
        return "function"
    roots = {f"{one.__module__}.{one.__name__}" for one in cls.__mro__}
    if any(root.startswith("flax.linen.module.") for root in roots):
        return "linen"
    if any(root.startswith("flax.nnx") for root in roots):
        return "nnx"
    return "keras" if is_keras(cls) else ""


def follow_path(thing: Any, path: str) -> tuple[Any, str, Any]:
    """Follow a path as `blocks.0.W_q`: return the owner of its last part, this part, and the value there."""
    *before, part = path.split(".")
    owner = functools.reduce(get_part, before, thing)
    try:
        return owner, part, get_part(owner, part)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        raise FailureError(
            "wrong", f"MultiHeadAttention has no {path}: call it so, or say NAMES = {{{path!r}: '...'}}"
        ) from None


def get_part(owner: Any, part: str) -> Any:
    """Get an attribute, an item by name, or an item by number."""
    if isinstance(owner, Mapping):
        return owner[part]
    return owner[int(part)] if part.isdigit() else getattr(owner, part)


class Slot:
    """The place of an array of weights (in, out) in a submission, which turns weights and gradients to its shape.

    X: the framework's own object; transposed: whether it is (out, in); put: a function that sets it; W: what it holds.
    """

    W: np.ndarray

    def __init__(self, X: Any, transposed: bool, put: Callable[[Any], None]) -> None:
        self.X, self.transposed, self.put = X, transposed, put

    def to_stored(self, W: np.ndarray) -> np.ndarray:
        """Return weights in the shape of this place."""
        W = W.T if self.transposed and W.ndim == 2 else W
        shape = tuple(self.X.shape)
        if W.shape != shape and W.size == int(np.prod(shape)):
            W = W.reshape(shape)  # (in, H, d)
        if W.shape != shape:
            raise FailureError("wrong", f"a weight has shape {shape}, expected {W.shape}")
        return np.ascontiguousarray(W)

    def back(self, X: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return a gradient as (in, out)."""
        X = X.T if self.transposed and X.ndim == 2 else X
        return X.reshape(shape) if X.shape != shape and X.size == int(np.prod(shape)) else X


def parts(dense: Any) -> tuple[Any, Any, bool]:
    """The kernel and the bias of a dense layer, and whether the kernel is (out, in)."""
    for name in ("kernel", "weight", "W", "w", "weights"):
        kernel = _held(dense, name)
        if kernel is not None and not callable(getattr(kernel, "append", None)):
            break
    else:
        raise FailureError("wrong", f"a projection is a {type(dense).__name__}, expected an array or a dense layer")
    found = (_held(dense, "bias"), _held(dense, "b"))
    bias = next((one for one in found if one is not None and not isinstance(one, bool)), None)
    own = type(dense).__module__.startswith(("torch.", "mlx.", "mxnet."))
    return kernel, bias, own and name == "weight"


class Layer:
    """A submission's layer of some sizes.

    Attributes:
        cls: its class, or a function `multi_head_attention`.
        names: NAMES of the submission.
        options: those of the constructor.
        weights: kernels (in, out) and biases by name.
        biased: which projections have a bias.
    """

    def __init__(
        self, cls: Any, names: dict[str, str], framework: str, options: dict[str, Any], weights: dict[str, np.ndarray]
    ) -> None:
        self.cls, self.names, self.framework, self.options = cls, names, FRAMEWORKS[framework], options
        self.weights, self.kind, self.biased = weights, layer_kind(cls), [name for name in weights if "bias" in name]
        self.made: Any = None
        if self.kind == "function":
            return
        given = dict(options)
        for name in ("query_size", "key_size", "value_size", "input_size", "in_features"):
            given[name] = options["num_hiddens"]
        self.made = construct(cls, given, makers(self.framework))

    @property
    def signature(self) -> Any:
        """The function whose signature says which arguments a call takes."""
        if self.kind == "function":
            return self.cls
        for name in ("forward", "call", "__call__"):
            if any(name in vars(one) for one in self.cls.__mro__):
                return getattr(self.made, name)
        raise FailureError("wrong", "MultiHeadAttention cannot be called: it has no forward, call or __call__")

    def prepare(self, inputs: list[Array], extra: dict[str, Any]) -> None:
        """Make the weights of the layer and set them."""
        if self.kind == "linen":
            import jax

            init = functools.partial(self.made.init, jax.random.PRNGKey(0))
            self.params = _mutable({"params": {}} | dict(call_with(init, inputs, extra, self.signature)))
            self.fill(self.params["params"])
        elif self.kind != "function":
            self.framework.prepare(self.made, lambda: self(inputs, extra))
            self.fill(self.made)
        else:
            known = {one.name for one in parameters(self.cls)}
            self.biased = [name for name in self.biased if f"b_{name[2]}" in known]

    def fill(self, owner: Any) -> None:
        """Set the weights, and note which projections have a bias."""
        self.slots: dict[str, list[Slot]] = {}
        for name in PROJECTIONS:
            kernel, bias = self.weights[f"{name}.kernel"], self.weights.get(f"{name}.bias")
            given = {"kernel": kernel, "bias": np.zeros(kernel.shape[1], kernel.dtype) if bias is None else bias}
            if self.is_unused(owner, self.names.get(name, name)):
                continue
            holder, part, held = follow_path(owner, self.names.get(name, name))
            pieces = _several(held) or [held]
            for at, one in enumerate(pieces):
                for kind, slot in self.slots_of(owner, name, holder, part, one).items():
                    self.put(slot, np.split(given[kind], len(pieces), -1)[at])
                    self.slots.setdefault(f"{name}.{kind}", []).append(slot)
        self.biased = [name for name in self.slots if name.endswith(".bias")]

    def is_unused(self, owner: Any, path: str) -> bool:
        """Whether a projection exists without weights, because no call has used it."""
        if self.kind == "linen":
            first = path.partition(".")[0]
            return first not in owner and hasattr(self.made.bind(self.params), first)
        dense = follow_path(owner, path)[2]
        if self.framework.name == "torch" and isinstance(dense, self.framework.xp.nn.Module):
            lazy = self.framework.xp.nn.parameter.UninitializedParameter
            return any(isinstance(X, lazy) for X in dense.parameters())
        return getattr(dense, "built", True) is False

    def slots_of(self, owner: Any, name: str, holder: Any, part: str, one: Any) -> dict[str, Slot]:
        """Find the kernel and the bias of one projection, a dense layer, or an array with another one beside it."""
        if not _is_array(one):
            kernel, bias, transposed = parts(one)
            found = {
                "kernel": Slot(kernel, transposed, _setter(one, "kernel", "weight", "W", "w", "weights", X=kernel))
            }
            if bias is not None:
                found["bias"] = Slot(bias, False, _setter(one, "bias", "b", X=bias))
            return found
        found = {"kernel": Slot(one, False, _set_in(holder, part))}
        with contextlib.suppress(FailureError):
            bias_owner, bias_part, bias = follow_path(owner, self.names.get(f"b_{name[2]}", f"b_{name[2]}"))
            if bias is not None and _is_array(bias):
                found["bias"] = Slot(bias, False, _set_in(bias_owner, bias_part))
        return found

    def put(self, slot: Slot, W: np.ndarray) -> None:
        """Set one array of weights in the framework's own way."""
        X, W = slot.X, slot.to_stored(W)
        slot.W = W
        if self.framework.name == "torch" and hasattr(X, "detach"):
            X.detach().copy_(self.framework.array(W).reshape(X.shape))
        elif hasattr(X, "assign"):
            X.assign(W)
        elif hasattr(X, "set_data"):
            X.set_data(self.framework.array(W))
        elif self.kind == "nnx" and type(X).__module__.startswith("flax"):
            X.value = self.framework.array(W)
        else:
            slot.put(self.framework.array(W))

    def __call__(self, inputs: list[Array], extra: dict[str, Any]) -> Any:
        """Call the layer: queries, keys and values by position, the rest by the names that the layer has."""
        if self.kind == "function":
            held = {name.partition(".")[0]: X for name, X in self.weights.items() if name.endswith("kernel")}
            held |= {f"b_{name[2]}": X for name, X in self.weights.items() if name in self.biased}
            arrays = {name: self.framework.array(X) if isinstance(X, np.ndarray) else X for name, X in held.items()}
            named = self.options | arrays | {"params": arrays, "weights": arrays} | extra | EVALUATION
            return call_with(self.cls, inputs, named, self.signature)
        if self.kind == "linen":
            function: Any = lambda *given, **named: self.made.apply(self.params, *given, **named)  # noqa: E731
            return call_with(function, inputs, extra, self.signature)
        return call_with(self.made, inputs, extra, self.signature)

    def takes(self, name: str) -> bool:
        """Whether a call takes an argument."""
        return takes(self.signature, name)

    @property
    def facts(self) -> dict[str, Any]:
        """The biases that the layer has, and whether its constructor is asked for them."""
        return {"biased": self.biased, "takes_bias": takes(self.cls, "bias")}

    def differentiate(
        self, inputs: dict[str, Array], extra: dict[str, Any], loss: Callable[[Any], Any]
    ) -> dict[str, np.ndarray | None] | None:
        """The gradients of loss(result) by inputs and weights, as (in, out); None if the layer has none."""
        if self.kind == "function":
            return None
        if self.kind == "nnx":
            return self.through_nnx(inputs, extra, loss)
        flat = {f"{name}/{at}": slot for name, slots in self.slots.items() for at, slot in enumerate(slots)}

        def of(arrays: dict[str, Array]) -> Any:
            for name, slot in flat.items():
                if name in arrays:
                    slot.put(arrays[name])
            return loss(self([arrays[name] for name in inputs], extra))

        by_arguments = self.framework.name in ("jax", "mlx")
        held = {name: self.framework.array(slot.W) if by_arguments else slot.X for name, slot in flat.items()}
        found = self.framework.gradients(of, inputs, held)
        result: dict[str, np.ndarray | None] = {}
        for name in inputs:
            result[name] = None if found[name] is None else self.framework.numpy(found[name])
        for name, slots in self.slots.items():
            pieces = [found[f"{name}/{at}"] for at in range(len(slots))]
            if any(one is None for one in pieces):
                result[name] = None
                continue
            shape = self.weights[name].shape if name in self.weights else (self.options["num_hiddens"],)
            each = shape[:-1] + tuple(n // len(pieces) for n in shape[-1:])
            turned = [slot.back(self.framework.numpy(X), each) for slot, X in zip(slots, pieces, strict=True)]
            result[name] = np.concatenate(turned, -1)
        return result

    def through_nnx(
        self, inputs: dict[str, Array], extra: dict[str, Any], loss: Callable[[Any], Any]
    ) -> dict[str, np.ndarray | None]:
        """The gradients of a module of Flax NNX, whose parameters must not change while JAX differentiates."""
        import jax
        from flax import nnx

        apart: Any = nnx.split(self.made, nnx.Param, ...)
        graph, params, rest = apart

        def of(arrays: dict[str, Array], params: Any) -> Any:
            layer = nnx.merge(graph, params, rest)
            return loss(call_with(layer, [arrays[name] for name in inputs], extra, self.signature))

        by_inputs, by_params = jax.grad(of, (0, 1))(inputs, params)
        tree = nnx.to_pure_dict(by_params)
        result: dict[str, np.ndarray | None] = {name: self.framework.numpy(X) for name, X in by_inputs.items()}
        for name in PROJECTIONS:
            found = follow_path(tree, self.names.get(name, name))[2]
            kernel, bias, _ = (found, None, False) if _is_array(found) else parts(found)
            result[f"{name}.kernel"] = self.framework.numpy(kernel)
            if bias is not None:
                result[f"{name}.bias"] = self.framework.numpy(bias)
        return result


def call_with(function: Any, inputs: list[Array], extra: dict[str, Any], signature: Any) -> Any:
    """Call a layer outside of training: lengths by position if it has them there, the switch by its own name."""
    named = EVALUATION | extra
    own = parameters(signature)
    required = [one for one in own[len(inputs) :] if one.default is one.empty and one.kind in (0, 1)]
    for one in required:  # `valid_lens` without a default
        named.setdefault(COMMON.get(one.name, one.name), None)
    return call(function, inputs, named, signature)


def _is_array(X: Any) -> bool:
    """Whether X is an array of weights itself, not a layer that has one."""
    return (hasattr(X, "shape") and not callable(X)) or hasattr(X, "set_data")


def _several(X: Any) -> list[Any] | None:
    """The projections of single heads, if X is a list of them."""
    if isinstance(X, (list, tuple)) or type(X).__name__ in ("ModuleList", "List"):
        return list(X)
    return None


def _held(owner: Any, name: str) -> Any:
    """An item or an attribute by name; None if there is none."""
    return owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)


def _set_in(owner: Any, part: str) -> Callable[[Any], None]:
    """Make a function that sets an attribute or an item."""

    def put(X: Any) -> None:
        if isinstance(owner, list):
            owner[int(part)] = X
        elif isinstance(owner, dict):
            owner[part] = X
        else:
            setattr(owner, part, X)

    return put


def _setter(owner: Any, *names: str, X: Any) -> Callable[[Any], None]:
    """Make a function that sets the attribute or the item of an owner whose value is X."""
    for name in names:
        if _held(owner, name) is X:
            return _set_in(owner, name)
    raise FailureError("wrong", f"a {type(owner).__name__} holds its weights in an unknown way")


def _mutable(tree: Any) -> Any:
    """Copy a tree of parameters to plain dicts."""
    return {name: _mutable(X) for name, X in tree.items()} if isinstance(tree, Mapping) else tree
