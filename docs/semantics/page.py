"""The text of docs/semantics.md: what stands above the tables, and the tables themselves."""

from importlib import metadata

from mha import dispatch
from semantics.calls import B, D, H, K, Q
from semantics.columns import PEERS
from semantics.promises import PROMISES, keeps
from semantics.rows import TABLES
from semantics.verdicts import ask_mha, ask_peer

HEAD = """# What happens if ...

What `mha` does with each kind of input, for users who ask what happens if they pass it, and beside that what the same
input comes to in *Dive into Deep Learning* and in the frameworks' own attention, for those who port code from there.
Each verdict in the tables is the outcome of a call, made by `python docs/make_semantics.py`; none is typed by hand.

Letters: B batch, Q queries, K keys and values, T either of the two, H heads, D `num_hiddens`, d and dv widths of a
query or key head and of a value head. Here B = {B}, Q = {Q}, K = {K}, H = {H}, D = {D}.

On the CPU with {versions}.

## How to read the tables

The column **mha** holds the outcome on all five backends, which must be one. The other columns:

- **the book**: the rule that it prints for each framework, written anew in PyTorch: hidden scores become -1e6, lengths
  are repeated over the heads, nothing is checked.
- **PyTorch, Keras, Flax**: their own layers, with the same weights. They take masks, made from the lengths in each
  one's own convention. PyTorch's function stands between projections of ours, and gives no attention weights.
- **MXNet**: it brings no attention layer, only operators: here `npx.softmax` with lengths, or `npx.sequence_mask` with
  -1e6 and a softmax, between projections of ours. (Its `contrib` products for interleaved heads mask nothing.)

The words:

- **same**: what the rule in the first column says, up to rounding: output, attention weights where the peer gives them,
  and gradients where the row names them, within the bounds of [`mha.parity`](../mha/parity/rules.py) from a float64
  oracle. Where the parts differ, the output comes first: "NaN; weights same".
- **NaN**, **Inf**: there are some where the rule has none. **other numbers**: finite, and not what the rule says.
- `TypeError` and the like: the class of the error. An error of `mha` names the argument, what was expected, what came
  and what to do, in the same words on every backend.
- **takes it**: no error, though the input makes no sense to `mha`. What it is taken for is named where it was found:
  "uniform over padding", "3 keys", "broadcasts", "casts to float32".
- **crashes**: the process ends. **—**: the peer has no such argument, or the row does not apply to it.
- **same; mxnet: `ValueError`**: MXNet lacks the dtype, and `mha` refuses to make such a layer there.

Gradients are those of sum(output * cotangent) by queries, keys and values, without dropout; `attention.gradients` gives
those by the weights too. Of several kinds of hiding, each is enough to hide a key: lengths, mask and causal order
combine by "and".
"""

PROMISED = """## Besides

What has no counterpart to compare with. **kept** means on all five backends.

| promise | mha |
|---|---|
"""


def page() -> tuple[str, list[str]]:
    """The text of the page, and the rules that `mha` does not keep."""
    broken, lines = [], [HEAD.format(B=B, Q=Q, K=K, H=H, D=D, versions=versions())]
    for table in TABLES:
        titles = ["", "mha", *(PEERS[name].title for name in table.peers)]
        lines += [f"## {table.title}\n", f"{table.text}\n", row(titles), "|---" * len(titles) + "|"]
        for probe in table.probes:
            expected = probe.expected()
            ours, right = ask_mha(probe, expected)
            if not right:
                broken.append(f"{table.title}: {probe.rule}: {ours}")
            lines.append(row([probe.rule, ours, *(ask_peer(name, probe, expected) for name in table.peers)]))
        lines.append("")
    promises = []
    for promise in PROMISES:
        without = [backend for backend in dispatch.FRAMEWORKS if not keeps(promise, backend)]
        if without:
            broken.append(f"{promise.__doc__} not kept on {', '.join(without)}")
        promises.append(row([promise.__doc__, f"not on {', '.join(without)}" if without else "kept"]))
    return "\n".join(lines) + "\n" + PROMISED + "\n".join(promises) + "\n", broken


def row(cells: list[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def versions() -> str:
    """The frameworks and their versions."""
    packages = {"NumPy": "numpy", "PyTorch": "torch", "TensorFlow": "tensorflow-cpu", "Keras": "keras", "JAX": "jax"}
    packages |= {"Flax": "flax", "MXNet": "mxnet"}
    return ", ".join(f"{name} {metadata.version(package).partition('+')[0]}" for name, package in packages.items())
