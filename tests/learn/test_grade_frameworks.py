"""`mha grade` with the frameworks: right submissions in several styles, and mistakes; most with --long."""

import itertools
import re

import pytest

from .graded.mistaken import STYLES
from .graded.of_others import IN_JAX, IN_TENSORFLOW
from .graded.of_torch import IN_TORCH
from .graded.running import failed, graded, lacking, right

QUICK = {"torch": 1}  # so many mistakes in a framework are graded without --long


def of_framework(backend):
    """The mistakes in a framework as parameters, most of them long."""
    mistaken = {"torch": IN_TORCH, "jax": IN_JAX, "tensorflow": IN_TENSORFLOW}[backend]
    for at, one in enumerate(mistaken):
        marks = [pytest.mark.backends(backend)] + [pytest.mark.long(backend)] * (at >= QUICK.get(backend, 0))
        yield pytest.param(one, marks=marks, id=one.name)


@pytest.mark.parametrize("style", [
    pytest.param(style, marks=[
        pytest.mark.backends(style.partition("_")[0]),
        *[pytest.mark.long(style.partition("_")[0])] * (style.partition("_")[0] == before.partition("_")[0]),
    ])
    for before, style in itertools.pairwise(STYLES) if not style.startswith("numpy")
])  # fmt: skip
def test_right_submissions_pass(tmp_path, style):
    result = graded(tmp_path, right(style), limit=120)
    assert failed(result) == lacking(style), str(result)


@pytest.mark.parametrize("mistaken", [one for name in ("torch", "jax", "tensorflow") for one in of_framework(name)])
def test_the_level_and_the_reason(tmp_path, mistaken):
    result = graded(tmp_path, mistaken.text(), limit=120)
    assert failed(result, mistaken.failed) == lacking(mistaken.style) | mistaken.failed, str(result)


OWN = {
    "torch": "functional.scaled_dot_product_attention(queries, keys, values)",
    "jax": "jax.nn.dot_product_attention(queries[:, :, None], keys[:, :, None], values[:, :, None])[:, :, 0]",
    "tensorflow": "keras.layers.MultiHeadAttention(1, queries.shape[-1])(queries, values, keys)",
}
STYLE = {"torch": "torch_layer", "jax": "jax_nnx", "tensorflow": "tensorflow_einsum"}
CALLED = re.compile(r"(    def forward\(self|def dot_product_attention\().*\n( +)")


@pytest.mark.backends("torch", "jax", "tensorflow")
@pytest.mark.long("jax", "tensorflow")
def test_the_frameworks_own_attention_is_refused(tmp_path, backend):
    text = CALLED.sub(rf"\g<0>return {OWN[backend]}\n\g<2>", right(STYLE[backend]), count=1)
    result = graded(tmp_path, text, "2", limit=120)
    assert "is the framework's own attention: write it yourself" in result.levels[0].differs
