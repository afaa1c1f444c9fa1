"""Every backend computes what NumPy computes in float64, by the rules of mha/parity/, forward and gradients."""

import contextvars
import dataclasses
import hashlib
import json

import adapters
import in_tf32
import pytest

from mha import parity
from mha.core import dispatch
from mha.parity.cases import decodes, devices, rare, usual

# Where lower precisions may differ in more than rounding: at every scale, with many keys.
PRECISE = {"lengths per sample", "scale 0.01", "scale 30", "2053 keys"}


# Where a case takes long, other cases have these at once, or are compiled nearly alike.
ONE_BY_ONE = {
    "grouped heads", "one head of keys", "window, offset", "score bias", "gates, scale, cap", "norms",
    "rotary, interleaved, offsets", "no lengths", "length above K", "mask of each sample", "mask of one row",
    "mask of one head for all", "mask of one column, every query or none", "no bias", "one head", "head of width 1",
    "equal widths, no bias", "more queries than keys, causal", "additive, one head", "additive, head of width 1",
    "additive, scale 0.01", "additive, lengths per query", "additive, 2053 keys", "scale 30, 2053 keys, causal",
    "output gate of heads", "additive, output gate of heads", "sinks, scale 30", "additive, sinks", "chunks, offsets",
    "segments, lengths, mask, causal", "additive, segments", "positions, window", "positions of keys",
    "length zero", "scale 0.01", "additive", "rotary, magnified", "segments", "additive, scale 30", "output gate",
    "output gate, scale 30", "sinks", "segments without keys", "positions, chunks", "causal", "lengths per query",
    "output gate, all options", "additive, all options",
    "norms over all heads, after the rotation, of values", "segments, positions that restart",
}  # fmt: skip
LONG = pytest.mark.long(*adapters.SLOW)


def failures(results):
    return [str(result) for result in results if not result.passed]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=LONG if case.name in ONE_BY_ONE else ())
        for case in (*parity.CASES, *rare.SMALL)
    ],
)
def test_case(backend, case):
    dtypes = case.dtypes
    if backend in adapters.COMPILED and "float64" in dtypes and case.name not in PRECISE:
        dtypes = ("float64",)  # they compile each dtype for seconds; `mha parity` tries all
    for dtype in dtypes:
        if dtype in dispatch.load(backend).DTYPES:
            assert not failures(parity.check_case(backend, case, dtype))


@pytest.mark.backends("torch", "jax", "tensorflow", "mlx")
def test_errors_of_tf32_have_their_name_and_the_line_that_switches_it_off(backend):
    case = next(case for case in parity.CASES if case.name == "mask")
    with in_tf32.replaced(backend):
        results = {one.check: one for one in parity.check_case(backend, case, "float32")}
    assert results["output and weights"].ratio > 50
    line = dispatch.facts("TF32_OFF")[backend]
    causes = {name: one.cause for name, one in results.items() if one.cause}
    assert causes == {
        "output and weights": "TF32 arithmetic: matrix products keep 10 bits behind the leading one. "
        f"Switch it off: {line}"
    }


@pytest.mark.backends("torch")
@pytest.mark.parametrize(("function", "factor"), [("attend", 1.001), ("trace", 1.001), ("attend", float("nan"))])
def test_other_errors_are_not_called_tf32(monkeypatch, backend, function, factor):
    module = dispatch.load(backend)
    right = getattr(module, function)

    def wrong(layer, *arguments):
        found = right(layer, *arguments)
        if isinstance(found, dict):
            return found | {"output": found["output"] * factor}
        return (found[0] * factor, found[1]) if isinstance(found, tuple) else found * factor

    monkeypatch.setattr(module, function, wrong)
    case = next(case for case in parity.CASES if case.name == "mask")
    results = parity.check_case(backend, case, "float32")
    assert not all(one.passed for one in results)
    assert {one.cause for one in results} == {""}


@pytest.mark.backends("torch")
def test_every_check_computes_where_layers_are_made():
    """On the device "meta", which has no numbers, none of them can pass."""

    def at_meta():
        arrays = dispatch.load("torch").arrays
        arrays.USUAL.set(arrays.torch.device("meta"))
        assert dispatch.load("torch").device() == "meta"
        case = next(case for case in parity.CASES if case.name == "mask")
        return parity.check_case("torch", case, "float32", lesson=True) + parity.check_exact("torch", "bfloat16")

    results = contextvars.copy_context().run(at_meta)
    assert [one.check for one in results if one.passed] == []
    assert len(results) == 11
    assert dispatch.load("torch").device() == "cpu"


def test_exactness(backend):
    for dtype in dispatch.load(backend).DTYPES:
        assert not failures(parity.check_exact(backend, dtype))


@pytest.mark.parametrize("number", [0, 1, *(pytest.param(number, marks=LONG) for number in range(2, 12))])
def test_drawn_sizes(backend, number):
    assert not failures(parity.check_case(backend, rare.sizes(number), "float64"))


# A name stands for the same call in every version, so that results can be compared

TABLES = {
    "usual": (usual.CASES, "0e878972b2be"),
    "rare": (rare.RARE, "87ccb3fc0dc5"),
    "decodes": (decodes.DECODES, "b5d38bb9374f"),
    "four devices": (devices.cases_of(4), "189e4e5cf31f"),
    "five devices": (devices.cases_of(5), "934996b71a75"),
}


def plain(value):
    """What JSON has no form for, as what it has."""
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value.item()


def digest(cases):
    """A few digits for all that cases say."""
    return hashlib.sha256(json.dumps(cases, default=plain).encode()).hexdigest()[:12]


@pytest.mark.parametrize("table", TABLES)
def test_a_name_stands_for_the_same_call_as_before(table):
    """Who changes a case says so in the changelog, and writes here what comes of it."""
    cases, before = TABLES[table]
    assert digest(cases) == before


@pytest.mark.parametrize("table", TABLES)
def test_no_two_cases_have_one_name(table):
    names = [case.name for case in TABLES[table][0]]
    assert len({*names}) == len(names)
