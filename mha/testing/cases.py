"""The cases of a suite as an implementation can be given them: of its own layer, with one input, without empty rows."""

import dataclasses
import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from mha import checks, dispatch
from mha.config import DTYPES, Config
from mha.layer import MultiHeadAttention
from mha.names import BackendName, FloatName
from mha.parity.cases import CASES, Case
from mha.parity.problem import CALL, Problem, problem
from mha.parity.rules import largest
from mha.parity.suite import ALL_CASES, SuiteName

# A call that hides nothing, which the quick suite of `mha parity` leaves out: some implementations know no other.
PLAIN = dataclasses.replace(CASES[0], quick=("float64", "float32"))
EVERY = (PLAIN, *ALL_CASES[1:])
LONG = 10  # so many times as many keys as queries are no call of one input
# No score is larger, which a softmax that subtracts no maximum overflows at. Where scores are far larger, all but a few
# weights are 0 or 1: of 150 correct layers, three then missed the bound, which rests on those few.
LARGEST = 128.0


@dataclasses.dataclass(frozen=True)
class Trial:
    """A case in a dtype: the layer on the implementation's backend, and what it is called with, in NumPy.

    inputs: queries (B, Q, query_size), keys (B, K, key_size) and values (B, K, value_size); cotangent: (B, Q, D); call:
    the other arguments that are not left at their defaults.
    """

    attention: MultiHeadAttention
    inputs: tuple[np.ndarray, ...]
    cotangent: np.ndarray
    call: dict[str, Any]


def chosen(
    backend: BackendName, suite: SuiteName, cases: Any, dtypes: Any, of: MultiHeadAttention | Mapping[str, Any] | None
) -> Iterator[tuple[Case, FloatName]]:
    """The cases of a suite, each in its dtypes, of the suite's own layers or of another; arguments of `assert_parity`.

    Raises TypeError or ValueError if a name is not known, or if a layer has none of the dtypes.
    """
    quick = checks.choice("suite", suite, ("quick", "full")) == "quick" and cases is None
    names = None if cases is None else [_known(name) for name in _listed(cases)]
    known = DTYPES if dtypes is None else [checks.choice("dtypes", dtype, DTYPES) for dtype in _listed(dtypes)]
    own = of.config.dtype if isinstance(of, MultiHeadAttention) else None
    if own is not None and own not in known:
        raise ValueError(f"dtypes is {', '.join(known)}, expected {own}, which is the layer's, or None")
    options = None if of is None else options_of(of)
    seen = set()
    for case in EVERY[: len(CASES)] if quick else EVERY:
        wanted = case.quick if quick else case.dtypes
        if not wanted or (names is not None and case.name not in names):
            continue
        if options is not None:
            case = fitted(case, options)
            call = str([getattr(case, name) for name in (*CALL, "scale", "batch", "num_queries", "num_keys")])
            if call in seen and names is None:  # it differed in options alone
                continue
            seen.add(call)
        for dtype in [own] if own else [one for one in wanted if one in known]:
            if dtype in dispatch.load(backend).DTYPES:
                yield case, dtype


def options_of(of: MultiHeadAttention | Mapping[str, Any]) -> dict[str, Any]:
    """The options of a layer, checked, but for its dtype."""
    if not isinstance(of, MultiHeadAttention):
        if not isinstance(of, Mapping):
            raise TypeError(
                f"attention is {checks.brief(of)}, expected an mha.MultiHeadAttention, or options of one in a mapping"
            )
        if foreign := [name for name in of if name in ("dtype", "backend", "seed", "readable")]:
            raise ValueError(f"attention has {', '.join(foreign)}, which the suite chooses; leave it out")
        of = MultiHeadAttention(**of, backend="numpy")
    return {name: X for name, X in vars(of.config).items() if name != "dtype"}


def fitted(case: Case, options: Mapping[str, Any]) -> Case:
    """The same call of a layer with other options."""
    H = options["num_heads"]
    mask, bias = (
        (*shape[:1], 1 if shape[1] == 1 else H, *shape[2:]) if shape and len(shape) == 4 else shape
        for shape in (case.mask, case.score_bias)
    )
    gates = case.head_gates and (*case.head_gates[:-1], H)
    positions = case.causal or options["window"] or options["rotary"]
    offset = case.offset if positions else 0  # which would change nothing
    return dataclasses.replace(case, options=dict(options), mask=mask, score_bias=bias, head_gates=gates, offset=offset)


def of_one_input(case: Case) -> Case:
    """The same call with as many keys as queries.

    Raises NotImplementedError if there is none.
    """
    config, Q, K = Config(**case.options), case.num_queries, case.num_keys
    if len({config.query_size, config.key_size, config.value_size}) > 1:
        raise NotImplementedError("it takes one input, and these queries, keys and values have different widths")
    if K > LONG * Q:
        raise NotImplementedError("it takes one input, and here many keys stand against few queries")
    mask, bias = (shape and (*shape[:-1], min(shape[-1], Q)) for shape in (case.mask, case.score_bias))
    return dataclasses.replace(case, num_keys=Q, mask=mask, score_bias=bias)


def trial(
    case: Case, dtype: FloatName, backend: BackendName, of: MultiHeadAttention | None, alone: bool, empty_rows: bool
) -> Trial:
    """A case to be tried.

    of: the layer, None = the case's own; alone: whether there is one input; empty_rows: whether queries may see no key.
    Raises NotImplementedError if there is no such call.
    """
    case = of_one_input(case) if alone else case
    queries, keys, values, cotangent = case.inputs(dtype)
    inputs = (queries,) * 3 if alone else (queries, keys, values)
    call = {name: X for name, X in case.call(dtype).items() if X is not None and not (isinstance(X, int) and not X)}
    for name in ("valid_lens", "offset"):
        if isinstance(call.get(name), list):
            call[name] = np.array(call[name], np.int32)
    attention = case.layer(backend, dtype) if of is None else of
    if not empty_rows:
        call = without_empty_rows(attention, inputs, call)
    if case.scale > 1:
        scores = largest(asked(attention, inputs, call).oracle["scores"])
        inputs = tuple((X * min(1.0, (LARGEST / scores) ** 0.5)).astype(X.dtype) for X in inputs)
    return Trial(attention, inputs, cotangent, call)


def as_mask(tried: Trial, takes: Collection[str]) -> dict[str, Any]:
    """The call of a trial; where a mask is taken but not all else that hides, the mask says it, (B, 1 or H, Q, K)."""
    call, hiding = tried.call, ("valid_lens", "causal", "offset")
    missing = [name for name in hiding if name in call and name not in takes]
    config = tried.attention.config
    moves = "offset" in missing and (config.rotary is not None or config.window is not None)  # which no mask can say
    if not missing or moves or "mask" not in takes:
        return call
    seen = asked(tried.attention, tried.inputs, {name: X for name, X in call.items() if name != "score_bias"}).visible
    mask = np.array(seen[:, :1] if (seen == seen[:, :1]).all() else seen)
    return {name: X for name, X in call.items() if name not in hiding} | {"mask": mask}


def asked(attention: MultiHeadAttention, inputs: tuple[np.ndarray, ...], call: dict[str, Any]) -> Problem:
    """The call as `mha.parity` has it."""
    queries, keys, values = inputs
    defaults: dict[str, Any] = dict.fromkeys(CALL) | {"causal": False, "offset": 0}
    return problem(attention, queries, keys, values, defaults | call, None)


def without_empty_rows(
    attention: MultiHeadAttention, inputs: tuple[np.ndarray, ...], call: dict[str, Any]
) -> dict[str, Any]:
    """The call with every query seeing the first key.

    Raises NotImplementedError if that would be another call.
    """
    call = dict(call)
    if "valid_lens" in call:
        if (call["valid_lens"] == 0).any() and call["valid_lens"].ndim == 1:
            raise NotImplementedError("a query sees no key")
        call["valid_lens"] = np.maximum(call["valid_lens"], 1)
    if "mask" in call:
        call["mask"][..., 0] = True
    if "score_bias" in call:
        call["score_bias"][..., 0] = np.nan_to_num(call["score_bias"][..., 0], neginf=0)
    if not asked(attention, inputs, call).visible.any(3).all():
        raise NotImplementedError("a query sees no key")
    return call


def _listed(names: Any) -> list[Any]:
    return [names] if isinstance(names, str) else list(names)


def _known(name: Any) -> str:
    """The name of a case of either suite; ValueError if it is none."""
    known = [case.name for case in EVERY]
    if name not in known:
        near = difflib.get_close_matches(str(name), known, 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"cases has {name!r}, expected names of mha.parity.CASES, such as {known[1]!r}{meant}")
    return str(name)
