"""Fit the cases of a suite to an implementation: to its own layer, to one input, to queries that all see a key."""

import dataclasses
import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.call import OF_PAIRS, PACKED, PLACES, ROWS
from mha.core.options import checks
from mha.core.options.config import DTYPES, Config
from mha.core.options.names import BackendName, FloatName, SuiteName
from mha.layer import MultiHeadAttention
from mha.parity import CASES, UNIT, Case, largest
from mha.parity.cases.suite import ALL_CASES
from mha.parity.diagnosis.blind_spots.probes import TURNED, long_enough
from mha.parity.rule.problem import Problem, problem

# A call that hides nothing: the quick suite of `mha parity` has none, but some implementations take no other call.
PLAIN = dataclasses.replace(CASES[0], quick=("float64", "float32"))
EVERY = (PLAIN, *ALL_CASES[1:])
LONG = 10  # a case with more than 10 keys for each query makes no sense with one input
# Larger scores would overflow a softmax that subtracts no maximum. And with far larger scores, all but a few
# weights are 0 or 1: of 150 correct layers, three then missed the bound, which depends on these few.
LARGEST = 128.0


@dataclasses.dataclass(frozen=True)
class Trial:
    """A case in a dtype: the layer on the implementation's backend, and the arguments of its call, in NumPy."""

    attention: MultiHeadAttention
    inputs: tuple[np.ndarray, ...]  # queries, keys, values: (B, Q or K, width)
    cotangent: np.ndarray  # (B, Q, D)
    call: dict[str, Any]  # the other arguments, without those at their defaults

    def problem(self, cotangent: Any = None, empty_rows: bool = True) -> Problem:
        """Make a `Problem` of the call, for a comparison."""
        queries, keys, values = self.inputs
        call: dict[str, Any] = {**dict.fromkeys(ROWS), "causal": False, "offset": 0, **self.call}
        return problem(self.attention, queries, keys, values, call, cotangent, None, empty_rows)


def choose_cases(
    backend: BackendName,
    suite: SuiteName,
    cases: Any,
    dtypes: Any,
    of: MultiHeadAttention | Mapping[str, Any] | None,
    causal: bool,
    decodings: Callable[[Mapping[str, Any] | None], list[Case]] | None = None,
) -> Iterator[tuple[Case, FloatName]]:
    """Choose the cases of a suite, each in its dtypes, for the suite's layers or another; arguments of `assert_parity`.

    A layer with a window or a rotation has long sequences, too, each in one dtype. decodings: makes the cases of a
    decoder, which has no others, for the options of a layer; None = it is none.
    Raises TypeError or ValueError if a name is not known, or if a layer has none of the dtypes.
    """
    quick = checks.choice("suite", suite, ("quick", "full")) == "quick" and cases is None
    options = None if of is None else options_of(of)
    added = [] if options is None or decodings else long_sequences(options)
    every = (*EVERY, *added) if decodings is None else decodings(options)
    names = None if cases is None else [check_case_name(name, every, "mha.parity.CASES") for name in as_list(cases)]
    rare = ALL_CASES[len(CASES) :] if quick else ()
    known = DTYPES if dtypes is None else [checks.choice("dtypes", dtype, DTYPES) for dtype in as_list(dtypes)]
    own = of.config.dtype if isinstance(of, MultiHeadAttention) else None
    if own is not None and own not in known:
        raise ValueError(f"dtypes is {', '.join(known)}, expected {own}, which is the layer's, or None")
    possible = [dtype for dtype in known if dtype in dispatch.load(backend).DTYPES]
    precise = sorted(possible, key=UNIT.__getitem__)[:1]
    calls = set()
    for case in every:
        wanted = precise if case in added else case.quick if quick else case.dtypes
        if not wanted or case in rare or (names is not None and case.name not in names):
            continue
        case = case if options is None else fit_case(case, options)
        case = dataclasses.replace(case, causal=True) if causal else case
        call = str([getattr(case, name) for name in ("options", *ROWS, "scale", "batch", "num_queries", "num_keys")])
        if call in calls and names is None:  # the cases differed only in options of the layer, or in the order
            continue
        calls.add(call)
        for dtype in [own] if own else wanted:
            if dtype in possible:
                yield case, dtype


def long_sequences(options: Mapping[str, Any]) -> list[Case]:
    """Make the cases that show the window of a layer, its chunks and its rotation: one sample, longer than those."""
    config = Config(**options)
    if not (T := long_enough(config, TURNED)):
        return []
    long = Case("long sequence", dict(options), batch=1, num_queries=T, num_keys=T)
    ahead = config.window is None or config.window[1] != 0  # or else the window is a causal order, too
    return [long, dataclasses.replace(long, name="long sequence, causal", causal=True)][: 1 + ahead]


def options_of(of: MultiHeadAttention | Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a layer, checked, without its dtype."""
    if not isinstance(of, MultiHeadAttention):
        if not isinstance(of, Mapping):
            raise TypeError(
                f"attention is {checks.brief(of)}, expected an mha.MultiHeadAttention, or options of one in a mapping"
            )
        if foreign := [name for name in of if name in ("dtype", "backend", "seed", "readable")]:
            raise ValueError(f"attention has {', '.join(foreign)}, which the suite chooses; leave it out")
        of = MultiHeadAttention(**of, backend="numpy")
    return {name: X for name, X in vars(of.config).items() if name != "dtype"}


def fit_case(case: Case, options: Mapping[str, Any]) -> Case:
    """Return the same call for a layer with other options."""
    shapes = _resize(case, "H", lambda size: options["num_heads"])
    positions = case.causal or any(options[name] for name in ("window", "chunk", "rotary"))
    offset = case.offset if positions else 0  # without positions, an offset changes nothing
    return dataclasses.replace(case, options=dict(options), offset=offset, **shapes)


def of_one_input(case: Case) -> Case:
    """Return the same call with as many keys as queries.

    Raises NotImplementedError if there is no such call.
    """
    config, Q, K = Config(**case.options), case.num_queries, case.num_keys
    if len({config.query_size, config.key_size, config.value_size}) > 1:
        raise NotImplementedError("it takes one input, but these queries, keys and values have different widths")
    if K > LONG * Q:
        raise NotImplementedError("it takes one input, but this case has many keys and few queries")
    of_keys = {name: getattr(case, name) for name in ("key_positions", "key_segments")}
    of_keys = {name: None if X is None else np.array(X)[..., :Q].tolist() for name, X in of_keys.items()}
    return dataclasses.replace(case, num_keys=Q, **of_keys, **_resize(case, "K", lambda size: min(size, Q)))


def _resize(case: Case, letter: str, size_of: Callable[[int], int]) -> dict[str, Any]:
    """Return the shapes of the random arrays of a call, by name, with another size of a letter's axes; 1 stays 1."""
    found = {}
    for name, row in ROWS.items():
        shape = getattr(case, name)
        if isinstance(shape, tuple):
            axes = next(axes for axes in row.axes if len(axes) == len(shape))
            stays = {letter: 1} if row.broadcasts else {}
            sizes = zip(axes, shape, strict=True)
            found[name] = tuple(size_of(n) if axis == letter and stays.get(axis) != n else n for axis, n in sizes)
    return found


def trial(
    case: Case, dtype: FloatName, backend: BackendName, of: MultiHeadAttention | None, alone: bool, empty_rows: bool
) -> Trial:
    """Make the layer and the arguments for a case.

    of: the layer, None = the case's own; alone: True = one input; empty_rows: True = queries may see no key.
    Raises NotImplementedError if there is no such call.
    """
    case = of_one_input(case) if alone else case
    queries, keys, values, cotangent = case.inputs(dtype)
    inputs = (queries,) * 3 if alone else (queries, keys, values)
    call = {name: X for name, X in case.call(dtype).items() if X is not None and not (isinstance(X, int) and not X)}
    for name, X in call.items():
        if isinstance(X, list):
            call[name] = np.array(X, np.int32)
    tried = Trial(case.layer(backend, dtype) if of is None else of, inputs, cotangent, call)
    tried = tried if empty_rows else without_empty_rows(tried)
    if case.scale > 1:
        scores = largest(tried.problem().oracle["scores"])
        inputs = tuple((X * min(1.0, (LARGEST / scores) ** 0.5)).astype(X.dtype) for X in inputs)
    return dataclasses.replace(tried, inputs=inputs)


def replace_by_mask(tried: Trial, takes: Collection[str], by_itself: bool) -> Trial:
    """Return the trial with a mask (B, 1 or H, Q, K) for arguments that the implementation lacks, if it takes masks.

    An implementation without `valid_lens` gets each mask in this shape, so that it needs to know no other.
    by_itself: True = an implementation that takes no `causal` hides what follows by itself.
    """
    call, placing = tried.call, ("offset", *PLACES)
    missing = [name for name in ("valid_lens", "causal", *PACKED, *placing) if name in call and name not in takes]
    config, by_itself = tried.attention.config, by_itself and "causal" not in takes
    # No mask can replace positions that something else goes by, too.
    moves = not {*placing}.isdisjoint(missing) and bool(config.rotary or config.window or config.chunk or by_itself)
    other_shape = "mask" in call and "valid_lens" not in takes
    if "mask" not in takes or moves or not (missing or other_shape):
        return tried
    hidden = {name: X for name, X in call.items() if name in (*missing, "mask", *placing)}
    seen = dataclasses.replace(tried, call=hidden).problem().visible
    mask = np.array(seen[:, :1] if (seen == seen[:, :1]).all() else seen)
    stays = {name: X for name, X in call.items() if name not in missing}
    return dataclasses.replace(tried, call=stays | {"mask": mask})


def without_empty_rows(tried: Trial) -> Trial:
    """Change a call so that every query sees the first key.

    Raises NotImplementedError if that is impossible.
    """
    call = dict(tried.call)
    if "valid_lens" in call:
        if (call["valid_lens"] == 0).any() and call["valid_lens"].ndim == 1:
            raise NotImplementedError("a query sees no key")
        call["valid_lens"] = np.maximum(call["valid_lens"], 1)
    for X in (call[name] for name in OF_PAIRS if name in call):
        X[..., 0] = True if X.dtype == bool else np.nan_to_num(X[..., 0], neginf=0)
    changed = dataclasses.replace(tried, call=call)
    if not changed.problem().visible.any(3).all():
        raise NotImplementedError("a query sees no key")
    return changed


def check_arguments(names: Any) -> tuple[str, ...]:
    """Return the names of arguments of a call, checked; TypeError or ValueError if one is none."""
    if not isinstance(names, Collection):
        raise TypeError(f"takes is {checks.brief(names)}, expected names of {', '.join(ROWS)}")
    return tuple(checks.choice("takes", name, tuple(ROWS), {}) for name in as_list(names))


def as_list(names: Any) -> list[Any]:
    """Return one name, or several, as a list."""
    return [names] if isinstance(names, str) else list(names)


def check_case_name(name: Any, cases: Collection[Any], source: str) -> str:
    """Return the name of one of these cases, checked; ValueError if it is none. source: what lists them, in words."""
    known = [case.name for case in cases]
    if name not in known:
        near = difflib.get_close_matches(str(name), known, 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"cases has {name!r}, expected names of {source}, such as {known[1]!r}{meant}")
    return str(name)
