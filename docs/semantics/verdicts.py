"""Describe the result of a call in a word, by comparing it with float64 NumPy by the rule of `mha.parity`."""

import contextlib
import dataclasses
import io
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mha import parity
from mha.core import dispatch
from mha.core.options.config import numpy_dtype
from semantics.calls import B, Call, H, K, Q
from semantics.columns import PEERS, SECOND, Results, ask


@dataclasses.dataclass(frozen=True)
class Probe:
    """One row: a call, the rule of `mha` for it in words, and the rule as another call, or the error.

    rule: the input, and what `mha` does; readings: other results that a peer may have, by name, as calls of `mha` or as
    functions that recognise them; without: peers to which the row does not apply; instead: functions that find the
    verdict of a peer in another way; backends: the backends of `mha` that can make the call; parts: the results that
    the row is about; alone: peers that may crash, and are called in their own process.
    """

    rule: str
    call: Call
    means: Call | None = None
    error: type[Exception] | None = None
    readings: dict[str, Any] = dataclasses.field(default_factory=dict)
    without: tuple[str, ...] = ()
    instead: dict[str, Callable[[Call], str]] = dataclasses.field(default_factory=dict)
    backends: tuple[str, ...] = tuple(dispatch.FRAMEWORKS)
    parts: tuple[str, ...] = ("output", "weights", "gradients")
    alone: tuple[str, ...] = ()

    def expected(self) -> dict[str, tuple[Any, Any]]:
        """For each reading, the results in float64, and those of NumPy in the layer's dtype; `same` comes first."""
        own = {} if self.error else {"same": self.means or self.call}
        return {name: oracle(call, self.call.cotangent) for name, call in (own | self.readings).items()}


@dataclasses.dataclass(frozen=True)
class Table:
    """A section of the page: title, text above the table, the peers in its columns, its rows."""

    title: str
    text: str
    peers: tuple[str, ...]
    probes: tuple[Probe, ...]


@dataclasses.dataclass(frozen=True)
class Uniform:
    """A call in which a query that sees no key weighs all keys equally."""

    call: Call


def uniform(call: Call) -> dict[str, Any]:
    """The reading that a query that sees no key weighs all keys equally."""
    return {"uniform over padding": Uniform(call)}


def oracle(call: Any, cotangent: Any) -> tuple[Any, Any]:
    """The results of a call in float64, and those of NumPy in the layer's dtype."""
    if isinstance(call, Uniform):
        # Keys of zeros, all seen, have equal weights.
        plain = call.call
        alike = plain.but(keys=np.zeros_like(plain.keys), valid_lens=None)
        empty = ~np.broadcast_to(plain.seen(), (B, H, Q, K)).any(3)  # (B, H, Q)
        rows = {"output": empty.all(1)[..., None], "weights": empty[..., None]}
        pairs = zip(oracle(plain, None), oracle(alike, None), strict=True)
        exact, base = (
            {part: np.where(row, even[part], own[part]) for part, row in rows.items()} for own, even in pairs
        )
        return exact, base
    if not isinstance(call, Call):
        return call, None
    call = call.but(return_weights=True, cotangent=cotangent)
    return ask(call.widened(), "numpy"), ask(call, "numpy")


Outcome = Results | Exception


def outcome(run: Callable[..., Results], *arguments: Any) -> Outcome:
    """Make a call; returns arrays by name, or the exception."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            return run(*arguments)
        except Exception as problem:
            return problem
        finally:
            if "mxnet" in sys.modules:  # it computes later, and would raise the same error again at the end
                with contextlib.suppress(Exception):
                    sys.modules["mxnet"].nd.waitall()


def verdict(found: Outcome, probe: Probe, expected: dict[str, tuple[Any, Any]]) -> str:
    """The verdict on a call in a word; one for each of output, weights and gradients if they differ."""
    if isinstance(found, Exception):
        return f"`{type(found).__name__}`"
    parts = {part: part_verdict(part, X, probe, expected) for part, X in found.items() if part in probe.parts}
    first, *others = parts.items()
    return "; ".join([first[1], *(f"{part} {word}" for part, word in others if word != first[1])])


def part_verdict(part: str, X: np.ndarray, probe: Probe, expected: dict[str, tuple[Any, Any]]) -> str:
    """The verdict on one array in a word."""
    dtype = probe.call.dtype
    if X.dtype != numpy_dtype(dtype):
        return f"returns {X.dtype}"
    for reading, (exact, base) in expected.items():
        if callable(exact):
            if exact(part, X):
                return reading
            continue
        if agrees(part, X, exact, base, dtype):
            return reading
        if dtype == "float64" and agrees(part, X, exact, {part: exact[part].astype("float32")}, "float32"):
            return f"{reading}, in float32 precision"
    if not expected:
        return "takes it"
    shape = next((exact[part].shape for exact, _ in expected.values() if not callable(exact)), X.shape)
    if X.shape != shape:
        return f"shape {X.shape}"
    X = X.astype("float64")
    return "NaN" if np.isnan(X).any() else "Inf" if np.isinf(X).any() else "other numbers"


def agrees(part: str, X: np.ndarray, exact: dict, base: dict, dtype: str) -> bool:
    """True if an array is that of a reading, by the rule of `mha.parity`."""
    limit = parity.bound(dtype, exact[part], base[part], gradient=part == "gradients")
    return parity.error(X, exact[part]) <= limit


MAIN = Path(__file__).parents[1] / "make_semantics.py"


def ask_mha(probe: Probe, expected: dict[str, tuple[Any, Any]]) -> tuple[str, bool]:
    """The verdict on `mha`, for all backends if they agree, and True if it is as the rule says."""
    words: dict[str, list[str]] = {}  # backends by what came
    texts, right = set(), True
    for backend in probe.backends:
        found = outcome(ask, probe.call, backend)
        word = verdict(found, probe, expected)
        lacking = probe.error is None and probe.call.dtype not in dispatch.load(backend).DTYPES
        error = ValueError if lacking else probe.error
        right = right and (type(found) is error if error else word == "same")
        if isinstance(found, Exception) and not lacking and not callable(probe.call.queries):
            texts.add(str(found).replace(repr(backend), "its own"))
        words.setdefault(word, []).append(backend)
    most = max(words, key=lambda word: len(words[word]))
    rest = [f"{', '.join(backends)}: {word}" for word, backends in words.items() if word != most]
    differ = ["in other words on each backend"] if len(texts) > 1 else []
    return "; ".join([most, *rest, *differ]), right and not differ


def cell(name: str, probe: Probe, expected: dict[str, tuple[Any, Any]]) -> str:
    """The verdicts on the layers of a column: of the first, and of the second by its name if it differs."""
    first, second = ask_peer(name, probe, expected), SECOND.get(name)
    if second is None or {name, second} & {*probe.without}:
        return first
    other = ask_peer(second, probe, expected)
    return first if other == first else f"{first}; {second}: {other}"


def ask_peer(name: str, probe: Probe, expected: dict[str, tuple[Any, Any]], by_itself: bool = False) -> str:
    """The verdict on a peer; a dash if it has no counterpart."""
    call, peer = probe.call, PEERS[name]
    if name in probe.alone and not by_itself:
        command = [sys.executable, MAIN, "--one", name, probe.rule]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode == 1:  # as Python ends after an exception
            raise RuntimeError(process.stderr)
        return process.stdout.strip() if process.returncode == 0 else "crashes"  # MXNet may catch the signal, and exit
    if name in probe.instead:
        return probe.instead[name](call)
    given = {"mask": call.mask is not None, "causal": call.causal, "training": call.training}
    used = {name for name, is_given in given.items() if is_given} | set(call.options)
    if name in probe.without or used & peer.lacks:
        return "—"
    found = outcome(peer.ask, call)
    return "error" if isinstance(found, Exception) else verdict(found, probe, expected)
