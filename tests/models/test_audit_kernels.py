"""The calls of PyTorch's kernels in modules that no table knows, as audits read and judge them.

Letters: B samples, T tokens (Q queries, K keys), H heads of queries, G of keys and values, d the width of a head.
"""

import contextlib

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

from mha import parity

from .verdicts import verdicts

pytestmark = pytest.mark.backends("torch")
B, H, G, Q, K, d = 2, 6, 3, 5, 7, 4
NAME = "scaled_dot_product_attention"


class Kernel(torch.nn.Module):
    """A module that calls a kernel, as it is or with another factor: 1 = right."""

    def __init__(self, kernel, factor=1.0):
        super().__init__()
        self.kernel, self.factor = kernel, factor

    def forward(self, q, k, v):
        found = self.kernel(q, k, v)
        return found if self.factor == 1.0 else found * self.factor


def heads(*shape, dtype=torch.float32):
    """Heads of queries, keys and values, with axes before them; their widths are d."""
    torch.manual_seed(2)
    return [torch.randn(*shape, *sizes).to(dtype) for sizes in ((H, Q, d), (G, K, d), (G, K, d))]


def shared(X):
    """Heads (B, G, T, d) as many as queries have."""
    return X.repeat_interleave(H // G, -3)


def fused(**options):
    """PyTorch's kernel, with these options."""
    return lambda q, k, v: functional.scaled_dot_product_attention(q, shared(k), shared(v), **options)


torch.manual_seed(1)
PAIRS, ADDED = torch.rand(B, 1, Q, K) < 0.6, torch.randn(H, Q, K)
PAIRS[..., 0] = True
RIGHT = {
    "plain": fused(),
    "causal": fused(is_causal=True),
    "scale": fused(scale=0.7),
    "mask": fused(attn_mask=PAIRS),
    "mask of pairs": fused(attn_mask=PAIRS[0, 0]),
    "bias": fused(attn_mask=ADDED),
    "bias that hides": fused(attn_mask=torch.where(PAIRS, ADDED, -torch.inf)),
    "dropout": fused(dropout_p=0.5),
    "dropout by position": lambda q, k, v: functional.scaled_dot_product_attention(q, shared(k), shared(v), None, 0.5),
    "shared heads": lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    "one head": lambda q, k, v: functional.scaled_dot_product_attention(q, k[:, :1], v[:, :1]),
    "one sample": lambda q, k, v: functional.scaled_dot_product_attention(q[:1], shared(k), shared(v)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("kernel", RIGHT.values(), ids=RIGHT)
def test_each_form_of_the_kernel_is_read(kernel, dtype):
    def run(q, k, v):
        mask_dtype = {torch.float32: dtype}.get
        return kernel(*(X for X in (q, k, v)))

    q, k, v = heads(B, dtype=dtype)
    if kernel in (RIGHT["bias"], RIGHT["bias that hides"]) and dtype != torch.float32:
        q, k, v = heads(B)  # with a bias in float32
    report = parity.audit(Kernel(kernel), q, k, v)
    assert report, report
    assert [(row.kind, row.verdict, row.calls) for row in report.layers] == [(NAME, "same", 1)]
    assert "neither projections" in report.notes[0]
    assert report.layers[0].ratio < 0.7
