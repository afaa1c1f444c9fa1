"""Level 9: each portion of a text, judged with the cache as it should be before it."""

import numpy as np

from mha.call import call_of
from mha.grading.cases import Case
from mha.grading.judging import Judged, biases
from mha.grading.process import Answer
from mha.parity.same.decoding import decoding
from mha.parity.same.problem import problem
from mha.parity.why.comparison import compared
from mha.parity.why.report import said

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
