"""The text of docs/semantics.md: the text above the tables, and the tables."""

from importlib import metadata

from mha.core import dispatch
from semantics import kernels
from semantics.calls import B, D, H, K, Q
from semantics.columns import PEERS
from semantics.promises import PROMISES, keeps
from semantics.rows import TABLES
from semantics.verdicts import ask_mha, cell

HEAD = """# What happens if ...

Look up what `mha`, *Dive into Deep Learning* and the frameworks' own attention do with each kind of input.
`python docs/make_semantics.py` makes all these calls and writes down what comes.

Letters: B batch, Q queries, K keys and values, T either of the two, H heads, D `num_hiddens`, d and dv widths of a
query or key head and of a value head. Here B = {B}, Q = {Q}, K = {K}, H = {H}, D = {D}.

On the CPU with {versions}.

## How to read the tables

- **mha**: the result on all backends, which must be the same.
- **book**: the book's rule, written in PyTorch: hidden scores become -1e6, and nothing is checked.
- **PyTorch**: `nn.MultiheadAttention`; **MLX**: `nn.MultiHeadAttention`; **Keras**: `MultiHeadAttention`, and after
  "grouped:", if it differs, `GroupQueryAttention`; **Flax**: `linen.MultiHeadDotProductAttention`, and after "nnx:", if
  it differs, `nnx.MultiHeadAttention`. They have the same weights, and get masks made from the lengths.
- **sdpa**: PyTorch's `scaled_dot_product_attention` with our projections. Like MLX's layer, it returns no weights.
  Functions without projections are [below](#kernels).
- **MXNet**: our projections with `npx.softmax` and lengths, or (**by mask**) with `npx.sequence_mask` and -1e6.

In the cells:

- **same**: output, weights (if the framework returns them) and gradients (if the row names them) are what the first
  column says, within [the bounds](testing.md#the-rule). If these differ from each other, the output comes first: "NaN;
  weights same".
- **NaN**, **Inf**: the result has some, and should not. **other numbers**: finite, but wrong.
- **error**: the call raises; for `mha`, with the class of the error. **crashes**: the process ends.
- **takes it**: no error, although `mha` refuses such input. If the meaning is known, the cell names it: "3 keys",
  "broadcasts".
- **—**: there is no such argument, or the row does not apply.
- **same; mxnet: `ValueError`**: MXNet lacks the dtype, so `mha` makes no such layer there.

Gradients are those of sum(output * cotangent) by queries, keys and values, without dropout. Inputs with the same
results share a row; those for which all columns agree are below the table.
"""

PROMISED = """## On every backend

The frameworks do not promise the following; `mha` does:

"""


def page() -> tuple[str, list[str]]:
    """The text of the page, and the rules that `mha` does not keep."""
    broken, lines = [], [HEAD.format(B=B, Q=Q, K=K, H=H, D=D, versions=versions())]
    for table in TABLES:
        rules: dict[tuple[str, ...], list[str]] = {}  # by what came
        for probe in table.probes:
            expected = probe.expected()
            ours, right = ask_mha(probe, expected)
            if not right:
                broken.append(f"{table.title}: {probe.rule}: {ours}")
            cells = ours, *(cell(name, probe, expected) for name in table.peers)
            rules.setdefault(cells, []).append(probe.rule)
        lines += section(table.title, table.text, ["mha", *(PEERS[name].title for name in table.peers)], rules)
    titles = [column.title for column in kernels.COLUMNS]
    lines += section(kernels.TITLE, kernels.kernel_text(), titles, kernels.kernel_rules())
    promises = []
    for promise in PROMISES:
        without = [backend for backend in dispatch.FRAMEWORKS if not keeps(promise, backend)]
        if without:
            broken.append(f"{promise.__doc__} not kept on {', '.join(without)}")
        promises.append(f"- {promise.__doc__}" + (f" **Not on {', '.join(without)}.**" if without else ""))
    return "\n".join(lines) + "\n" + PROMISED + "\n".join(promises) + "\n", broken


def section(title: str, text: str, columns: list[str], rules: dict[tuple[str, ...], list[str]]) -> list[str]:
    """The lines of a section: its text, its table, and below it what all columns agree on; rules: by their cells."""
    lines = [f"## {title}\n", f"{text}\n", row(["", *columns]), "|---" * (len(columns) + 1) + "|"]
    agreed: dict[str, list[str]] = {}
    for cells, alike in rules.items():
        if said := everywhere(cells):
            agreed.setdefault(said, []).extend(alike)
        else:
            lines.append(row(["<br>".join(alike), *cells]))
    return [*lines, "", *(f"{said}: {'; '.join(alike)}.\n" for said, alike in agreed.items())]


def everywhere(cells: tuple[str, ...]) -> str:
    """What all columns agree on, in words; "" if they do not agree."""
    ours, *theirs = cells
    if set(cells) == {"same"}:
        return "**The same everywhere**"
    refused = ours.startswith("`") and set(theirs) in ({"error"}, {"error", "—"})
    return f"**An error everywhere** ({ours} in `mha`)" if refused else ""


def row(cells: list[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def versions() -> str:
    """The frameworks and their versions."""
    packages = {"NumPy": "numpy", "PyTorch": "torch", "TensorFlow": "tensorflow-cpu", "Keras": "keras", "JAX": "jax"}
    packages |= {"Flax": "flax", "MXNet": "mxnet", "MLX": "mlx"}
    return ", ".join(f"{name} {metadata.version(package).partition('+')[0]}" for name, package in packages.items())
