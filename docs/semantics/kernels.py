"""The frameworks' own kernels, on the cases of `mha.testing.assert_kernel`: what each does with each kind of case."""

import contextlib
import dataclasses
import io
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from mha.core.options.names import BackendName
from mha.parity import UNIT, Report
from mha.parity.rule.layouts import GRADIENT
from mha.parity.testing.kernels.check_kernel import run_kernel
from mha.parity.testing.kernels.running import KernelCall

# The kernels, with the options that they offer by names that are drawn


def torch_kernel(
    q: Any, k: Any, v: Any, mask: Any = None, bias: Any = None, causal: Any = False, scale: Any = None
) -> Any:
    """PyTorch's kernel, which takes one of mask, bias and causal order."""
    import torch

    if (mask is not None) + (bias is not None) + bool(causal) > 1:
        raise NotImplementedError("one of them alone")
    kernel, grouped = torch.nn.functional.scaled_dot_product_attention, q.shape[1] != k.shape[1]
    return kernel(q, k, v, mask if bias is None else bias, 0.0, causal, scale=scale, enable_gqa=grouped)


def flex_kernel(
    q: Any, k: Any, v: Any, mask: Any = None, bias: Any = None, causal: Any = False, window: Any = None,
    lengths: Any = None, softcap: Any = None, scale: Any = None,
) -> Any:  # fmt: skip
    """PyTorch's `flex_attention`, not compiled: its functions of scores and places are what anybody would write."""
    import torch
    from torch.nn.attention import flex_attention as flex

    B, H, Q, K = *q.shape[:3], k.shape[2]
    left, right = (Q + K if side is None else side for side in window or (None, None))
    mask = torch.ones(1, 1, Q, K, dtype=torch.bool).expand(B, H, Q, K) if mask is None else mask.expand(B, H, Q, K)
    ends = torch.full((B,), K) if lengths is None else lengths

    def changed(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        score = score if softcap is None else softcap * torch.tanh(score / softcap)
        return score if bias is None else score + bias[b, h, i, j]

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        near = (i - left <= j) & (j <= i + right) & mask[b, h, i, j] & (j < ends[b])
        return near & (j <= i) if causal else near

    blocks, wanted = flex.create_block_mask(seen, B, H, Q, K, device="cpu"), flex.AuxRequest(lse=True)
    grouped = q.shape[1] != k.shape[1]
    output, more = flex.flex_attention(q, k, v, changed, blocks, scale, enable_gqa=grouped, return_aux=wanted)
    return output, more.lse


def jax_kernel(
    q: Any, k: Any, v: Any, bias: Any = None, mask: Any = None, scale: Any = None, causal: Any = False,
    key_value_seq_lengths: Any = None, window: Any = None,
) -> Any:  # fmt: skip
    """JAX's kernel, whose window has two sides."""
    import jax

    if window is not None and None in window:
        raise NotImplementedError("a window has two sides")
    more = {"key_value_seq_lengths": key_value_seq_lengths, "local_window_size": window}
    return jax.nn.dot_product_attention(q, k, v, bias, mask, scale=scale, is_causal=causal, **more)


def keras_kernel(
    q: Any, k: Any, v: Any, bias: Any = None, mask: Any = None, scale: Any = None, causal: Any = False,
    softcap: Any = None,
) -> Any:  # fmt: skip
    """Keras's kernel."""
    import keras

    more = {"scale": scale, "is_causal": causal, "attn_logits_soft_cap": softcap}
    return keras.ops.dot_product_attention(q, k, v, bias, mask, **more)


def mlx_kernel(
    q: Any, k: Any, v: Any, scale: Any, mask: Any = None, bias: Any = None, causal: Any = False, sinks: Any = None
) -> Any:
    """MLX's kernel, which takes one of mask, bias and causal order."""
    import mlx.core as mx

    if (mask is not None) + (bias is not None) + bool(causal) > 1:
        raise NotImplementedError("one of them alone")
    hiding = "causal" if causal else mask if bias is None else bias
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=hiding, sinks=sinks)


@dataclasses.dataclass(frozen=True)
class Column:
    """A kernel: its title on the page, the framework of its arrays, and how it is called."""

    title: str
    backend: BackendName
    kernel: Callable[..., Any]
    layout: Any = "BHTD"
    gradients: bool | None = None


COLUMNS = (
    Column("sdpa", "torch", torch_kernel),
    Column("flex", "torch", flex_kernel, gradients=False),
    Column("JAX", "jax", jax_kernel, "BTHD"),
    Column("Keras", "tensorflow", keras_kernel, "BTHD"),
    Column("MLX", "mlx", mlx_kernel),
)


@dataclasses.dataclass(frozen=True)
class CaseRow:
    """A row of the table: what its cases are, in words, their names, and the dtype of the call."""

    title: str
    cases: tuple[str, ...]
    dtype: str = "float32"


ROWS = (
    CaseRow("1 and 65 tokens, 1 query of 704 keys", ("1 token", "plain", "1 query, 704 keys")),
    CaseRow("6 heads of queries, 2 and 3 of keys", ("6 heads of 2", "6 heads of 3")),
    CaseRow("4 heads of queries, 1 of keys", ("4 heads of 1",)),
    CaseRow("`causal`", ("causal",)),
    CaseRow("`causal`, more keys than queries: counted from the first", ("33 queries, 65 keys",)),
    CaseRow("`causal`, fewer keys than queries", ("65 queries, 33 keys",)),
    CaseRow(
        "Scores of 30, all near -120, or that grow from key to key",
        ("scores x 30", "scores near -120", "growing maximum"),
    ),
    CaseRow("`mask` of pairs, of heads, of keys", ("mask of pairs", "mask of heads", "mask of keys")),
    CaseRow("`mask` that hides all keys from a query: 0", ("mask that hides a row and a sample",)),
    CaseRow("`mask` and `causal`", ("mask, causal",)),
    CaseRow("`lengths`, one of them 0", ("lengths",)),
    CaseRow("`lengths`, 1e30 in hidden keys and values", ("huge numbers in hidden keys",)),
    CaseRow("`lengths`, NaN in hidden keys and values", ("NaN in hidden keys",)),
    CaseRow("`bias`", ("bias",)),
    CaseRow("`bias` in float32, the rest in bfloat16", ("float32 bias",), "bfloat16"),
    CaseRow("`bias` and `causal`", ("bias, causal",)),
    CaseRow("`window` of two sides", ("window (0, 0)", "window (40, 3)")),
    CaseRow("`window` of one side", ("window (5, None)",)),
    CaseRow("`window` and `causal`", ("window (9, 4), causal",)),
    CaseRow("`scale`", ("scale",)),
    CaseRow("`softcap`, alone, with `mask`, with `bias`", ("cap", "cap with mask", "cap with bias")),
    CaseRow("`sinks`", ("sinks", "sinks, large scores")),
    CaseRow(
        "Inputs transposed, of stride 0, with NaN in the memory around",
        ("transposed inputs", "inputs of stride 0", "NaN around the inputs"),
    ),
    CaseRow("float64", ("plain",), "float64"),
    CaseRow("bfloat16", ("plain", "causal"), "bfloat16"),
    CaseRow("float16", ("plain", "causal"), "float16"),
)


def cells_of(column: Column) -> list[str]:
    """Return what a kernel does in each row, in words; a dash if it does not offer the options of any case there."""
    found: dict[tuple[str, str], str] = {}
    for dtype in dict.fromkeys(row.dtype for row in ROWS):
        names = dict.fromkeys(name for row in ROWS if row.dtype == dtype for name in row.cases)
        found |= {(dtype, name): word for name, word in verdicts(column, list(names), dtype)}
    cells = [dict.fromkeys(found[row.dtype, name] for name in row.cases if (row.dtype, name) in found) for row in ROWS]
    return [" or ".join(words) or "—" for words in cells]


def verdicts(column: Column, names: list[str], dtype: Any) -> Iterator[tuple[str, str]]:
    """Yield the names of cases that a kernel can be given, and what it does there, in words."""
    options: dict[str, Any] = {"layout": column.layout, "gradients": column.gradients, "hidden_nan": True}
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        ran = run_kernel(column.kernel, column.backend, "quick", cases=names, dtypes=dtype, **options)
        yield from ((call.case.name, verdict(call, report)) for call, report in ran.reports.items())
    yield from ((call.case.name, "error") for call in ran.raised)


def verdict(call: KernelCall, report: Report) -> str:
    """Return what a report says, in words: the known mistake that explains it, if there is one."""
    wrong = [row for row in report.rows if not row.passed]
    if not wrong:
        return "same"
    if any(row.place is not None and math.isnan(row.place.theirs) for row in wrong):
        return "NaN"
    if call.dtype == "float64" and all(row.ratio * FLOAT64[row.name.startswith(GRADIENT)] <= FLOAT32 for row in wrong):
        return "same, in float32 precision"
    if "16" in call.dtype and all(row.error <= row.bound for row in wrong):
        return "same, but rounds more"
    said = report.diagnosis.mistakes[:1] or ("other numbers",)
    return f"{'gradients: ' * all(row.name.startswith(GRADIENT) for row in wrong)}{said[0]}"


# What rounding explains, by the magnitude of a number: of an output and of a gradient in float64, and in float32.
FLOAT64, FLOAT32 = (1e-12, 1e-10), 16 * UNIT["float32"]


def flex_gradient() -> None:
    """Ask PyTorch's `flex_attention` for a gradient."""
    import torch
    from torch.nn.attention import flex_attention as flex

    q = torch.ones(1, 1, 2, 8, requires_grad=True)
    flex.flex_attention(q, q, q).sum().backward()


def varlen_kernel() -> None:
    """Call PyTorch's `varlen_attn` with one text of two tokens."""
    import torch
    from torch.nn.attention.varlen import varlen_attn

    q, ends = torch.ones(2, 1, 8), torch.tensor([0, 2], dtype=torch.int32)
    varlen_attn(q, q, q, ends, ends, 2, 2)


def refusal(call: Callable[[], None]) -> str:
    """Return in a framework's own words why it does not make a call; one that it makes belongs into the table."""
    try:
        call()
    except NotImplementedError as problem:
        return f"`NotImplementedError: {str(problem).partition('. ')[0]}`"
    raise RuntimeError(f"{call.__name__}: it runs here, so that the table can have it")


TITLE = "Kernels"
TEXT = """Queries, keys and values that are heads already, in calls that [`assert_kernel`](kernels.md) makes, judged
with their gradients by its rule: "same" is what `mha` computes. Options have
[our names](kernels.md#how-a-kernel-is-called).

- **sdpa**: `torch.nn.functional.scaled_dot_product_attention`; **flex**: `torch.nn.attention.flex_attention`, with a
  function for each option, not compiled, and without gradients:
  {flex}.
- **JAX**: `jax.nn.dot_product_attention`; **Keras**: `keras.ops.dot_product_attention` on TensorFlow; **MLX**:
  `mx.fast.scaled_dot_product_attention`, whose `"causal"` is given for `causal`.

Words other than those above are names of [known mistakes](mistakes.md). "Same, but rounds more": each number is within
what rounding explains, but not the mean of all. TensorFlow does so without oneDNN, which is off here, and not with it.
A dash also stands where a framework's arrays have no strides. None of them takes `cu_seqlens`.
`torch.nn.attention.varlen.varlen_attn` does, and was not run:
{varlen}."""


def kernel_text() -> str:
    """Return the text above the table."""
    return TEXT.format(flex=refusal(flex_gradient), varlen=refusal(varlen_kernel))


def kernel_rules() -> dict[tuple[str, ...], list[str]]:
    """Return the rows of the table, those with the same results together: titles by their cells."""
    found: dict[tuple[str, ...], list[str]] = {}
    for row, *cells in zip(ROWS, *map(cells_of, COLUMNS), strict=True):
        found.setdefault(tuple(cells), []).append(row.title)
    return found
