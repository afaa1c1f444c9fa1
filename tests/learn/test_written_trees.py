"""The rules by which a file is made from the lesson, on functions of a few lines: what changes, and what must not."""

import pytest

from mha.learn.write.trees import inlining, nodes, tidying
from mha.learn.write.trees.folding import PRESENT
from mha.learn.write.trees.nodes import code

pytestmark = pytest.mark.backends("numpy")
KNOWN = {"window": (PRESENT, None), "window[0]": PRESENT, "chunk": None, "scale": PRESENT, "offset": 0, "kind": "rms"}
# The statements of a function of x, y and n before and after; None = it stays as it is.
TIDIED = {
    "a name for a name": ("z = x\nreturn z * z", "return x * x"),
    "a name for what changes later": ("z = x\nx = y + z\nreturn x, z", None),
    "a name that changes later": ("z = x\ny = z + y\nz = y\nz = z + 1\nreturn z, x, y", None),
    "a sum with 0": ("return 0 + x, offset + y", "return x, y"),
    "a product with 1": ("return 1 * x, y * 1, y // 1", "return x, y, y"),
    "a difference from 0": ("return offset - x", "return 0 - x"),
    "an option that is not there": ("if chunk is not None:\n    x = x + chunk\nreturn x", "return x"),
    "an option that is there": ("if scale is not None:\n    x = x * scale\nreturn x", "return x * scale"),
    "a bound that is there": ("return 5 if window[0] is None else window[0]", "return window[0]"),
    "a choice": ("return x if kind == 'rms' else y", "return x"),
    "one of several": ("if x is None or chunk is not None:\n    y = n\nreturn y", "if x is None:\n    y = n\nreturn y"),
    "what nobody reads": ("z = x + y\nreturn x", "return x"),
    "a part that nobody reads": ("z, n = f(x)\nreturn n", "_, n = f(x)\nreturn n"),
    "a branch with nothing in it": ("if x is None:\n    z = y\nreturn y", "return y"),
    "what follows a return": ("if chunk is None:\n    return x\nreturn y", "return x"),
    "branches of a condition": (
        "if n:\n    x = x + 1\nif n:\n    y = y + 1\nreturn x, y",
        "if n:\n    x = x + 1\n    y = y + 1\nreturn x, y",
    ),
    "branches of a condition that changes": ("if n:\n    n = x + 1\nif n:\n    y = y + 1\nreturn n, y", None),
    "a tuple after a star": ("pair = x, y\nreturn f(*pair)", "return f(x, y)"),
    "a tuple that is read twice": ("pair = x, y\nreturn f(*pair), pair", None),
}  # fmt: skip


def function(statements, name="f", takes="x, y, n"):
    """The tree of a function with these statements."""
    lines = "".join(f"    {line}\n" for line in statements.split("\n"))
    return nodes.statement(f"def {name}({takes}):\n{lines}")


@pytest.mark.parametrize("rule", TIDIED)
def test_a_body_is_made_as_one_would_have_written_it(rule):
    before, after = TIDIED[rule]
    assert code(tidying.tidy(function(before), KNOWN)).strip() == code(function(after or before)).strip()


def test_a_step_that_may_return_early_has_a_branch_for_the_rest():
    early = "if n is None:\n    return x, y, n\nx = x + n\nreturn x, y + n, n"
    branches = "if n is None:\n    x, y, n = x, y, n\nelse:\n    x = x + n\n    x, y, n = x, y + n, n\nreturn x, y, n"
    assert inlining.returns_early(function(early))
    assert code(inlining.in_branches(function(early))).strip() == code(function(branches)).strip()
