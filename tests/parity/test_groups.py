"""`mha parity --distributed`: ranks that are right, wrong, die, hang or differ; what is left running afterwards."""

import json
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
from commands import refused, run

import mha
from mha import parity
from mha.parity.cases import devices
from mha.parity.cases.run import groups
from mha.parity.cases.run.workers import RunOutcome

ABOUT = json.dumps({"total": 2, "about": {"mha": mha.__version__, "python": "3.0"}})
GROUP = devices.Group("torch", 3)


@pytest.fixture
def ranks(monkeypatch, tmp_path):
    """Makes another Python for the ranks: a shell script, which knows its rank as $rank."""

    def make(script):
        path = tmp_path / "python"
        rank = """rank=$(echo "$3" | sed 's/.*"rank": \\([0-9]*\\).*/\\1/')"""
        path.write_text(f"#!/bin/sh\n{rank}\necho '{ABOUT}'\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return make


def result(check="ring", error=0.5, **others):
    values = {"backend": "torch:3", "check": check, "case": "mask", "dtype": "float64", "where": "output"}
    return values | {"error": error, "bound": 1.0} | others


def says(*results):
    told = json.dumps({"results": list(results)})
    return f"echo '{told}'"


def gone(path):
    """Waits until the process whose number a file has is gone."""
    process, end = Path(f"/proc/{int(path.read_text())}"), time.monotonic() + 10
    while process.exists() and time.monotonic() < end:
        time.sleep(0.01)  # until the system has taken it away
    return not process.exists()


@pytest.mark.long("tensorflow")
@pytest.mark.backends("tensorflow")
def test_tensorflow_spreads_a_batch_and_heads():
    cases = "--case", "all options", "--case", "few heads of keys"
    result = run("parity", "--distributed", "tf:2", *cases, "--dtype", "float64", "--json", "-")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    ways = "data (MirroredStrategy)", "heads (shard)"
    assert {one["check"] for one in report["results"]} == {name for way in ways for name in (way, f"{way}, gradients")}
    assert list(report["backends"]) == ["tensorflow:2"]


def test_of_all_ranks_the_worst_result_counts(ranks):
    right, wrong = says(result(), result("gather")), says(result(error=0.9), result("gather", 1.1))
    ranks(f"if [ $rank = 2 ]; then {wrong}; else {right}; fi; {right}")
    (outcome,) = groups.GroupRunner().run([GROUP])
    assert outcome.about["mha"] == mha.__version__
    assert {(one.check, one.where, one.error, one.passed) for one in outcome.results} == {
        ("ring", "rank 2: output", 0.9, True),
        ("gather", "rank 2: output", 1.1, False),
    }


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("kill -9 $$", "the process was ended by signal 9 (SIGKILL)"),
        ("echo 'ValueError: rank 1 has other lengths' >&2; exit 1", "ValueError: rank 1 has other lengths"),
        ("sleep 600", "gave nothing for 1 seconds"),
    ],
    ids=["dies", "raises", "hangs"],
)
def test_a_rank_that_fails_ends_the_others_and_is_named(ranks, tmp_path, script, words):
    others = 'while true; do echo \'{"begins": "a check"}\'; sleep 0.1; done'
    ranks(f"echo $$ > {tmp_path}/$rank; if [ $rank = 1 ]; then {script}; else {others}; fi")
    start = time.monotonic()
    (outcome,) = groups.GroupRunner(limit=1).run([GROUP])
    assert time.monotonic() - start < 300
    (failed,) = outcome.results
    assert failed.where.startswith(f"rank 1: {words}")
    assert not failed.passed
    assert all(gone(tmp_path / str(rank)) for rank in range(3))


def test_several_that_fail_at_once_are_all_told_of(ranks):
    ranks("if [ $rank = 0 ]; then sleep 0.5; echo oh >&2; exit 1; elif [ $rank = 1 ]; then kill -9 $$; fi; sleep 60")
    (outcome,) = groups.GroupRunner().run([GROUP])
    told = " | ".join(sorted(one.where for one in outcome.results))
    assert told.startswith("rank 0: oh, before its first check | rank 1: the process was ended by signal 9")


@pytest.mark.backends("torch")
def test_a_failed_group_is_said_and_counts(ranks):
    ranks("exit 3")
    answer = run("parity", "--distributed", "torch:2")
    assert answer.exit_code == 1
    assert "failed, on torch:2" in answer.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("torch",), "--distributed is torch, expected BACKEND:COUNT with 2 to 64 devices, such as torch:2"),
        (("torch:1",), "--distributed is torch:1, expected BACKEND:COUNT"),
        (("torch:99",), "--distributed is torch:99, expected BACKEND:COUNT"),
        (("mxnet:2",), "--distributed is 'mxnet', expected one of torch, tensorflow, jax"),
        (("torch:2", "--backends", "torch"), "--backends came with --distributed"),
        (("torch:2", "--device", "cuda"), "--device came with --distributed"),
        (("torch:2", "--python", "torch=python"), "--python came with --distributed"),
        (("torch:2", "--case", "mask"), "--case is 'mask', expected one of lengths per sample"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
@pytest.mark.backends("torch")
def test_what_cannot_be_spread_is_said(options, words):
    refused(words, "parity", "--distributed", *options)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_the_cases_divide_and_have_what_is_hard(count):
    cases = devices.cases_of(count)
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        layer = case.layer("numpy", "float64")
        H, G = layer.config.num_heads, layer.config.num_key_value_heads
        assert H % count == 0
        assert (G % count > 0) == ("of keys" in case.name)
        assert case.batch in (1, count)
        queries, keys, values, _ = case.inputs("float64")
        assert layer(queries, keys, values, **case.call("float64")).shape == (case.batch, case.num_queries, 29)
    by_name = {case.name: case.visible() for case in cases}
    assert any((~visible.any((1, 3))).any() for visible in by_name.values())  # queries that see no key
    assert any((~visible.any((1, 2))).any() for visible in by_name.values())  # keys that no query sees
    assert by_name["fewer rows than devices"].shape[2:] == (count - 1, max(2, count - 1))


def test_parts_that_are_layers_get_no_norm_over_all_heads(monkeypatch):
    ranks = types.SimpleNamespace(ways={"heads": 1, "shard": 1}, alone=("shard",), compute=None)
    proof = types.SimpleNamespace(Ranks=lambda *given: ranks)
    monkeypatch.setattr(devices.importlib, "import_module", lambda name: proof)
    names = {"grouped heads", "norms over all heads"}
    planned = devices.plan_rank("numpy", "quick", names, ["float64"], 0, 2, "", 1)
    assert [one.name.removeprefix("float64, ") for one in planned] == [
        "grouped heads, heads", "grouped heads, shard", "norms over all heads, heads",
    ]  # fmt: skip


def test_a_check_notices_what_is_wrong_or_missing():
    (case, *_), dtype = devices.cases_of(2), "float64"
    layer = case.layer("numpy", dtype)

    def compute(way, case, dtype, inputs, call, scale=1.0):
        clean = [np.where(np.isfinite(X), X, 0) for X in inputs]
        output, pull_back = layer.vjp(*clean[:3], **call)
        gradients = {f"gradient.{name}": X for name, X in pull_back(inputs[3]).items()}
        part = {"output": (output[1:] * scale, (slice(1, 2),))}
        return part | {name: (X * scale, ()) for name, X in gradients.items()}

    def check(compute):
        return devices._check(devices.Group("torch", 2), compute, "ring", case, dtype)

    right = check(compute)
    assert [(one.check, one.passed) for one in right] == [("ring", True), ("ring, gradients", True)]
    assert {one.backend for one in right} == {"torch:2"}
    wrong = check(lambda *given: compute(*given, scale=1 + 1e-9))
    assert not any(one.passed for one in wrong)
    doubled = {"gradient.queries": 2}  # of several arrays the worst counts, not the last
    wrong = check(lambda *given: {name: (X * doubled.get(name, 1), at) for name, (X, at) in compute(*given).items()})
    assert [one.passed for one in wrong] == [True, False]
    with pytest.raises(ValueError, match=r"ring gave gradient\.W_k\.bias.*, expected .*gradient\.keys"):
        check(lambda *given: {name: X for name, X in compute(*given).items() if name != "gradient.keys"})


def test_parts_of_a_call():
    call = {
        "valid_lens": [[1, 2], [3, 4], [5, 6]], "mask": np.arange(12).reshape(3, 1, 2, 2), "causal": True,
        "offset": [7, 8, 9], "score_bias": np.arange(2).reshape(1, 2), "head_gates": np.arange(6).reshape(3, 2),
    }  # fmt: skip
    part, places = devices.part_of_call(call, slice(1, 2), slice(1, 2))
    assert {name: X if isinstance(X, bool) else X.tolist() for name, X in part.items()} == {
        "valid_lens": [[4]], "mask": [[[[6, 7]]]], "causal": True, "offset": [8], "score_bias": [[0, 1]],
        "head_gates": [[2, 3]],
    }  # fmt: skip
    assert [np.arange(6).reshape(3, 2)[places["head_gates"]].tolist(), places["score_bias"]] == [
        [[2, 3]],
        (slice(None), slice(None)),
    ]
    assert devices.part_of_call({"offset": 4, "valid_lens": None})[0] == {"offset": 4, "valid_lens": None}


def test_a_framework_keeps_the_options_that_it_was_given(ranks, monkeypatch, tmp_path):
    ranks(f'echo "$XLA_FLAGS" >> {tmp_path}/flags')
    runner, group = groups.GroupRunner(), devices.Group("jax", 3)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=here")
    runner.run([group])
    monkeypatch.delenv("XLA_FLAGS")
    runner.run([group])
    own, alone = (tmp_path / "flags").read_text().splitlines()
    assert alone.startswith("--")
    assert alone.endswith("=3")
    assert own == f"--xla_dump_to=here {alone}"


def test_versions_are_those_of_the_first_rank_that_told_them():
    whole = groups._join_outcomes(
        GROUP, [RunOutcome("torch:3"), RunOutcome("torch:3", {"mha": "1"}, [parity.Result(**result())])]
    )
    assert whole.about == {"mha": "1"}
    assert [one.passed for one in whole.results] == [True]
