"""Test a decoder, an implementation with a state: it gets a prompt, then tokens one by one, and some of them at once.

Together its outputs are those of one causal call. The first call that differs is explained by that call with a cache,
by a mistake in every call, or by one call of all tokens up to there.
"""

import copy
import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.cache import Cache
from mha.core.options import checks
from mha.core.options.config import DTYPES, Config
from mha.core.options.positions import Rotary
from mha.parity import Case, Report
from mha.parity.diagnosis.blind_spots.probes import MEMORY, long_enough, memory
from mha.parity.diagnosis.compare.comparison import report_of
from mha.parity.diagnosis.compare.from_the_start import from_the_start
from mha.parity.diagnosis.pipeline.chance import with_rounding
from mha.parity.rule.decoding import as_decoding
from mha.parity.rule.port_arrays import floats
from mha.parity.rule.problem import Problem
from mha.parity.rule.rules import outside
from mha.parity.testing.cases import Trial
from mha.parity.testing.implementations import Implementation, own

BATCH, PROMPT, LATER = 3, 5, (1, 1, 1, 3, 1)  # samples, tokens of the prompt, and of each call after it
USUAL: dict[str, Any] = {"num_hiddens": 30, "num_heads": 6, "bias": True}
LAYERS: dict[str, dict[str, Any]] = {
    "decoding": USUAL,
    "decoding, groups": USUAL | {"num_key_value_heads": 2, "key_dim": 8, "rotary": Rotary(6)},
    "decoding, window": USUAL | {"window": (3, 0)},
}


def decodings(options: Mapping[str, Any] | None) -> list[Case]:
    """Make the cases of a decoder, each with a full prompt and with a ragged one, which is padded on the right.

    options: of the layer, whose prompt is longer than window and chunk, if memory reaches; None = layers of the suite.
    """
    found = []
    for name, layer in LAYERS.items() if options is None else [("decoding", dict(options))]:
        config = Config(**layer)
        far = long_enough(config, 0)
        prompt = max(PROMPT, far if BATCH * memory(config, far + sum(LATER)) <= MEMORY else 0)
        lengths, T = np.array([prompt, 2, prompt - 1])[:, None], prompt + sum(LATER)
        each = np.arange(T)
        ragged = np.where(each < lengths, each, np.where(each < prompt, -1, lengths + each - prompt)).tolist()  # (B, T)
        sizes: dict[str, Any] = {"batch": BATCH, "num_queries": T, "num_keys": T}
        case = Case(name, layer, causal=True, **sizes, dtypes=DTYPES, quick=("float64", "float32"))
        found += [case, Case(**vars(case) | {"name": f"{name}, ragged", "positions": ragged, "key_positions": ragged})]
    return found


def report_on(it: Implementation, tried: Trial, empty_rows: bool) -> tuple[Report, str]:
    """Report on a decoder: on all its tokens, or on the first call that differs, with words for which one that is.

    empty_rows: whether what it gives for padding must be 0. Raises NotImplementedError if it takes nothing that says
    what is padding, and any error of its own.
    """
    cuts, positions = portions(tried.inputs[0].shape[1]), tried.call.get("positions")
    if positions is not None and not {"positions", "valid_lens"}.intersection(it.takes):
        raise NotImplementedError("it takes neither valid_lens nor positions")
    with dispatch.load(it.backend).context(tried.attention.config.dtype):
        theirs = outputs_of(it, tried, cuts)
    whole = with_rounding(tried.problem(None, empty_rows))
    report = report_of(whole, theirs, call_is_sure=True)
    expected = whole.expected("output")
    there = whole.blank_unused("output", theirs)
    wrong = np.asarray(outside(there, expected.X, expected.limit).any(2))  # (B, T)
    if report or not wrong.any():
        return report, ""
    token = int(wrong.any(0).argmax())
    number, sample = next(n for n, cut in enumerate(cuts) if token < cut.stop), int(wrong[:, token].argmax())
    where = f"call {number} after the prompt" if number else "the prompt"
    given = f"tokens: {cuts[0].stop}, then {', '.join(map(str, LATER))}"
    why = explain_calls(tried, cuts[: number + 1], theirs, empty_rows)
    return (report if why is None else why), f"{given}; token {token} of sample {sample} differs first, in {where}"


def explain_calls(tried: Trial, cuts: list[slice], theirs: np.ndarray, empty_rows: bool) -> Report | None:
    """Report on the last of these calls, or on all their tokens at once, if a known reason is found; None if not.

    The reason may be in that call, or in what each call left.
    """
    layer: Any = tried.attention.to("numpy")
    empty, positions = layer.cache(len(theirs), theirs.shape[1]), tried.call.get("positions")

    def call_of(cut: slice, cache: Cache) -> tuple[tuple[np.ndarray, ...], dict[str, Any]]:
        placed = {} if positions is None else {"positions": positions[:, cut]}
        return tuple(X[:, cut] for X in tried.inputs), {"causal": True, "cache": cache} | placed

    def step(cut: slice, cache: Cache) -> Problem:
        inputs, call = call_of(cut, cache)
        one = dataclasses.replace(tried, attention=layer, inputs=inputs, call=call)
        return as_decoding(one.problem(None, empty_rows))

    def report_call(cut: slice, cache: Cache) -> Report:
        return report_of(step(cut, cache), theirs[:, cut], call_is_sure=True)

    cache = copy.copy(empty)
    for cut in cuts[:-1]:
        inputs, call = call_of(cut, cache)
        _, cache = layer(*inputs, **call)
    alone = report_call(cuts[-1], cache)
    if not alone and alone.diagnosis.known:
        return alone
    found = from_the_start([partial(step, cut) for cut in cuts], empty, theirs[:, cuts[-1]])
    if not alone and found.known:
        return dataclasses.replace(alone, explain=lambda: found)
    together = report_call(slice(0, cuts[-1].stop), empty)
    return together if not together and together.diagnosis.known else None


def portions(tokens: int) -> list[slice]:
    """Return the tokens of each call: those of the prompt, then a few of them."""
    ends = np.cumsum([tokens - sum(LATER), *LATER]).tolist()
    return [slice(*edges) for edges in zip([0, *ends], ends, strict=False)]


def outputs_of(it: Implementation, tried: Trial, cuts: list[slice]) -> np.ndarray:
    """Return the outputs of a decoder that is given some tokens after others, side by side: (B, T, D)."""
    (B, T), D = tried.inputs[0].shape[:2], tried.attention.config.num_hiddens
    positions = np.broadcast_to(tried.call.get("positions", np.arange(T, dtype=np.int32)), (B, T))
    outputs: list[np.ndarray] = []
    state = None
    for cut in cuts:
        places = positions[:, cut]
        call = {"causal": True, "positions": places}
        if (places < 0).any():
            call["valid_lens"] = (places >= 0).sum(1, dtype=np.int32)
        call = {name: X for name, X in call.items() if name in it.takes}
        arrays = tuple(own(it.backend, X[:, cut], it.place) for X in tried.inputs)
        found = it.run(tried.attention, arrays, call, None, state)
        if not isinstance(found, tuple) or len(found) != 2:
            raise TypeError(f"it returned {checks.brief(found)}, expected the pair (output, state)")
        output, state = floats("output", found[0]), found[1]
        if output.shape != (B, cut.stop - cut.start, D):
            raise ValueError(f"output has shape {output.shape}, expected {(B, cut.stop - cut.start, D)}")
        outputs.append(output)
    return np.concatenate(outputs, 1)
