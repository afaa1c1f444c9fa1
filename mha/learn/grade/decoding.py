"""Judge level 9: each portion of a text, with the right cache before it."""

import numpy as np

from mha.core.call import call_of
from mha.learn.grade.cases import Case
from mha.learn.grade.judging import Judged, biases
from mha.learn.grade.process import Answer
from mha.parity.diagnosis.compare.comparison import compared
from mha.parity.diagnosis.compare.report import said
from mha.parity.rule.decoding import decoding
from mha.parity.rule.problem import problem

INPUTS = ("queries", "keys", "values")


def judge_portions(case: Case, answer: Answer, empty_rows: bool) -> Judged:
    """Judge the outputs of all portions; the first that differs counts."""
    attention = case.attention(biases(case, answer))
    cache, start = attention.cache(*case.inputs["queries"].shape[:2]), 0
    for at, length in enumerate(case.options["portions"]):
        part = slice(start, start + length)
        queries, keys, values = (np.ascontiguousarray(case.inputs[name][:, part]) for name in INPUTS)
        given = call_of("grade", None, {"causal": True}, cache=cache)._asdict()
        asked = decoding(problem(attention, queries, keys, values, given))
        row, X = compared(asked, "output", answer.arrays[f"output.{at}"], None)
        if not row.passed:
            steps = {} if X is None else {"output": X}
            return Judged(case, False, f"portion {at + 1}: {said(row)}", asked, steps, (row,))
        cache, start = attention(queries, keys, values, cache=cache, causal=True)[-1], start + length
    return Judged(case, True)
