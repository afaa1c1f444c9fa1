"""Watch the calls of a model: gather the arrays that enter and leave the projections of each layer, call by call."""

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mha import arrays
from mha.models.audit.calls.kernel_call import KernelCall, Read
from mha.models.audit.calls.model_calls import (
    FRESH,
    EarlierInputs,
    Histories,
    History,
    ModelCall,
    UnknownError,
    cache_in,
    cache_state,
)
from mha.models.audit.calls.own_layers import OwnLayers, is_array
from mha.models.audit.layers.attention_layer import INPUT_OF, USER_LAYER, AttentionLayer
from mha.models.audit.layers.reference import is_at

PLAIN = (bool, int, float, str)  # attributes that may say of which kind a layer is
NUMBERING = re.compile(r"idx|index|layer_?id|number|name|path|prefix")  # attributes that say which layer it is


@dataclasses.dataclass
class CapturedCall:
    """The arrays of one attention layer in one call of the model, in NumPy."""

    layer: AttentionLayer
    call: ModelCall
    inputs: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # queries, keys, values
    outputs: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # of projections, as their modules return
    given: dict[str, Any] = dataclasses.field(default_factory=dict)  # its arguments, if it is watched as a whole
    steps: dict[str, Any] = dataclasses.field(default_factory=dict)  # further ones of `trace`
    kernels: list[tuple[KernelCall, Any]] = dataclasses.field(default_factory=list)  # that ran in it, with their output

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of samples, queries and keys."""
        queries, keys = self.inputs["queries"], self.inputs["keys"]
        return len(queries), queries.shape[1], (queries if keys is None else keys).shape[1]


class Session:
    """A listener that gathers the arrays of each attention layer, and judges each call when it is complete.

    judge: takes each complete call, and returns None or the output (B, Q, D) to go on with
    fail: takes the path of a layer, and why a call of it cannot be judged
    judge_kernels: takes the path of a known layer, "" = of none, and the calls of kernels in it, after its own
    once: whether nothing has to be kept for later calls
    wholes: the paths of the models whose calls count, () = each outermost one
    """

    def __init__(
        self,
        layers: list[AttentionLayer],
        adapter: Any,
        judge: Callable[[CapturedCall], np.ndarray | None],
        fail: Callable[[str, str], None],
        judge_kernels: Callable[[str, list[tuple[KernelCall, Any]]], None] = lambda path, calls: None,
        once: bool = False,
        wholes: frozenset[str] = frozenset(),
    ) -> None:
        self.adapter, self.judge, self.fail, self.once, self.wholes = adapter, judge, fail, once, wholes
        self.judge_kernels, self.left_out = judge_kernels, [one.path for one in layers if one.left_out]
        self.layers = {one.path: one for one in layers if not one.reason}
        self.at: dict[str, list[tuple[AttentionLayer, list[str]]]] = {}
        for one in self.layers.values():
            for path, roles in one.modules.items():
                self.at.setdefault(path, []).append((one, roles))
        self.stack: list[str] = []
        self.inside: list[Any] = []  # the modules of the stack
        self.began = -1  # the place in the stack of the model whose call counts; -1 = none does
        self.open: dict[str, CapturedCall] = {}
        self.kernel: KernelCall | None = None  # the one that is running
        self.own = OwnLayers(adapter)
        self.inner = self.own.inner
        self.pools: dict[str, tuple[str, int]] = {}  # by path, the softmax or kernel outside of all known layers
        self.ran: dict[str, set[str]] = {}
        self.entered: set[str] = set()  # the paths of all modules that were called
        self.histories, self.number = Histories(), 0
        self.call = ModelCall(0, {}, History())
        self.cache: Any = None
        self.tokens = 0
        self.same: tuple[Any, np.ndarray] | None = None

    def enter(self, path: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the input of a projection, or the arguments of the model's call."""
        if self.began < 0 and (path in self.wholes if self.wholes else not self.stack):
            self.began, self.number = len(self.stack), self.number + 1
            arguments = self.adapter.arguments(module, args, kwargs)
            self.cache, history = self.histories.of(arguments)
            self.call, self.tokens = ModelCall(self.number, arguments, history, cache_state(self.cache)), 0
            self.open.clear()
        self.stack.append(path)
        self.entered.add(path)
        self.inside.append(module)
        if self.began < 0:  # a part alone, as where it is computed again for gradients
            return
        for layer, roles in self.at.get(path, ()):
            captured = self.open.get(layer.path)
            if captured is None or roles == []:
                captured = self.open[layer.path] = CapturedCall(layer, self.call)
            if layer.native:
                self.own.enter(path, module, args, kwargs)
            elif roles:
                X = self.numpy(next(filter(is_array, (*args, *kwargs.values())), None))
                for role in roles:
                    if role in INPUT_OF and X is not None:
                        captured.inputs[INPUT_OF[role]] = layer.tokens_first(role, X)

    def leave(self, path: str, output: Any) -> Any:
        """Take the output of a projection; after the last one, the call of the layer is complete."""
        if path not in self.stack:
            return None
        while self.stack.pop() != path:
            pass
        del self.inside[len(self.stack) :]
        self.kernel = None  # it raised
        if self.began < 0:
            return None
        instead = None
        for layer, roles in self.at.get(path, ()):
            captured = self.open.get(layer.path)
            if output is None or captured is None:
                self.open.pop(layer.path, None)
                continue
            self.ran.setdefault(layer.path, set()).update(roles or ["W_o"])
            if layer.native:
                instead = self.complete_native(captured, path, output)
                self.judge_kernels(path, captured.kernels)
                continue
            for role in roles:
                captured.outputs[role] = layer.tokens_first(role, self.numpy(output))
            if "W_o" in roles:
                instead = self.complete(self.open.pop(layer.path), output)
                self.judge_kernels(layer.path, captured.kernels)
        if len(self.stack) <= self.began:
            self.began = -1
            for layer_path, captured in self.open.items():  # of which not all projections ran
                self.judge_kernels(layer_path, captured.kernels)
            if output is not None:
                self.end_call(output)
        return instead

    def note_pooling(self, function: str, axes: int, path: str | None = None) -> None:
        """Note a softmax or an attention kernel outside of the known layers."""
        if path is None and (self.began < 0 or self.kernel is not None):
            return
        where, inside = (self.stack[-1], self.open) if path is None else (path, self.layers)
        if any(is_at(where, path) for path in inside):
            return
        if axes > 2 or where not in self.pools:
            self.pools[where] = function, axes

    def enter_kernel(self, function: str, axes: int, read: Read) -> KernelCall | None:
        """Take a call of a kernel before it runs; None if it is left out, or outside of the model."""
        if self.began < 0 or any(is_at(self.stack[-1], path) for path in self.left_out):
            return None
        call = KernelCall(function, self.stack[-1], self.call, kind=kind_of(self.stack, self.inside))
        call.read(read)
        self.kernel = call
        return call

    def leave_kernel(self, call: KernelCall, output: Any) -> None:
        """Keep what left a kernel until the layer around it is judged; judge it if there is none that is known."""
        self.kernel = None
        around = [captured for path, captured in self.open.items() if is_at(call.path, path)]
        if around:
            around[-1].kernels.append((call, output))
        else:
            self.judge_kernels("", [(call, output)])

    def note_no_numbers(self, path: str, reason: str) -> None:
        """Note that a layer was called with arrays whose numbers are not known."""
        for layer, _ in self.at.get(path, ()):
            self.fail(layer.path, reason)

    def end_call(self, output: Any) -> None:
        """Add the tokens of a finished call of the model to the history of its cache."""
        history, made = self.call.history, cache_in(output)
        if self.tokens:
            try:
                places = self.call.places(self.tokens)
            except UnknownError:
                places, history.known = None, False
            history.positions, history.tokens = places, history.tokens + self.tokens
        for cache in (self.cache, made):
            if not self.once and cache is not None and not isinstance(cache, bool):
                self.histories.keep(cache, history)

    def complete_native(self, captured: CapturedCall, path: str, output: Any) -> Any:
        """Complete the call of a framework's own layer."""
        self.open.pop(path, None)
        try:
            given, back = self.own.leave(path, output, captured.layer.kind == USER_LAYER)
            captured.inputs = {name: self.numpy(given.pop(name)) for name in ("queries", "keys", "values")}
            captured.outputs, captured.given = {"W_o": self.numpy(given.pop("output"))}, given
            if given.get("mask") is not None and not given.get("causal"):
                given |= split_mask(given.pop("mask"))
        except (KeyError, TypeError, ValueError) as error:
            self.fail(path, f"what enters or leaves it is not known: {error}")
            return None
        instead = self.judge_or_fail(captured)
        return None if instead is None else back(instead)

    def complete(self, captured: CapturedCall, output: Any) -> Any:
        """Put the keys and values of earlier calls before those of this call, and judge it."""
        layer, inputs = captured.layer, captured.inputs
        partly = partial_reason(captured.outputs)
        if "queries" not in inputs or "merged" not in inputs:
            self.fail(layer.path, partly)
            return None
        if any(X is None or X.ndim != 3 for name, X in inputs.items() if name != "merged"):
            shape = next((X.shape for X in inputs.values() if X is not None), ())
            self.fail(layer.path, f"what enters its projections has shape {shape}, expected (batch, tokens, features)")
            return None
        cross = layer.attends is not None and layer.attends.cross
        history, earlier = self.call.history, self.call.history.layers.get(layer.path)
        same_batch = earlier is not None and len(earlier.keys) == len(inputs.get("keys", ()))
        if not cross:
            self.tokens = max(self.tokens, inputs["queries"].shape[1])
        if "keys" not in inputs or "values" not in inputs:
            if earlier is None or not cross:
                self.fail(layer.path, FRESH if cross else partly)
                return None
            inputs["keys"], inputs["values"] = earlier.keys, earlier.values
            captured.outputs = {name: X for name, X in captured.outputs.items() if name not in ("W_k", "W_v")}
        elif not cross and not (history.known and (history.tokens == 0 or same_batch)):
            self.fail(layer.path, FRESH)
            return None
        elif not cross and earlier is not None and history.tokens:
            for name in ("keys", "values"):
                inputs[name] = np.concatenate([getattr(earlier, name), inputs[name]], 1)  # (B, K, any)
            captured.outputs = {name: X for name, X in captured.outputs.items() if name not in ("W_k", "W_v")}
        if not self.once:
            history.layers[layer.path] = EarlierInputs(inputs["keys"], inputs["values"], cross)
        self.same = None
        instead = self.judge_or_fail(captured)
        if instead is not None and layer.places["W_o"].axes == "oi1":
            instead = instead.swapaxes(1, 2)  # (B, D, T)
        return None if instead is None else self.adapter.alike(instead, output)

    def judge_or_fail(self, captured: CapturedCall) -> np.ndarray | None:
        """Judge a call; an error in judging fails the layer, not the model's call."""
        try:
            return self.judge(captured)
        except Exception as error:
            self.fail(captured.layer.path, f"it could not be judged: {type(error).__name__}: {error}")
            return None

    def numpy(self, X: Any) -> Any:
        """Copy an array to NumPy; an array that comes several times in a row is copied once."""
        if X is None:
            return None
        if self.same is None or self.same[0] is not X:
            self.same = X, np.array(arrays.to_numpy(X))
        return self.same[1]


def kind_of(paths: list[str], modules: list[Any]) -> tuple[Any, ...]:
    """Return what a layer shares with others of its kind: the classes and plain attributes down from its number."""
    numbered = [at for at, path in enumerate(paths) if path.rpartition(".")[2].isdigit()]
    inner = modules[numbered[-1] :] if numbered else modules
    plain = [{name: X for name, X in getattr(one, "__dict__", {}).items() if isinstance(X, PLAIN)} for one in inner]
    own = [sorted((name, X) for name, X in one.items() if not NUMBERING.search(name)) for one in plain]
    return re.sub(r"\d+", "{}", paths[-1]), *map(type, inner), str(own)


def partial_reason(ran: Iterable[str]) -> str:
    """Say that only these projections of a layer ran."""
    return f"only {', '.join(sorted(ran))} of its projections ran"


def split_mask(mask: Any) -> dict[str, Any]:
    """Split a mask into the order of tokens and the keys that it hides, to name a mistake in one."""
    seen = np.asarray(arrays.to_numpy(mask))
    Q, K = seen.shape[-2:] if seen.ndim > 1 else (0, 0)
    if Q == K > 1:
        keys = seen[..., -1:, :]  # those that the last query sees
        if (seen == (keys & np.tri(Q, dtype=bool))).all():
            return {"causal": True} | ({} if keys.all() else {"mask": keys})
    return {"mask": mask}
