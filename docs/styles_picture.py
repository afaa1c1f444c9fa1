"""Draw docs/styles.svg: right code in bfloat16, and the same code with a scale that is 1 % too large, as judged.

Each row is code of a framework, which computes some random calls, right and wrong. On the left its largest error is
divided by what plain NumPy's allows, as in float32; on the right is what counts in half precision.

    pip install -e '.[plots]'
    mha backends                         # says how to install each framework
    python docs/styles_picture.py
"""

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import mha
from mha import parity
from mha.core.options.config import numpy_dtype
from mha.layer import restore
from mha.parity.rule.rules import bound, error, in_dtype

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers" / "right_ports"))

from draws import Trial

# Ports, by the titles of their rows.
PORTS = {
    "PyTorch, in steps": "torch.eager", "PyTorch, kernel": "torch.sdpa", "JAX, in steps": "jax.einsum_jit",
    "JAX, function": "jax.function_jit", "TensorFlow, in steps": "tensorflow.steps", "MLX, in steps": "mlx.steps",
    "MLX, kernel": "mlx.fast",
}  # fmt: skip
TITLES = "by the largest error", "by what the nearest style leaves"  # of the panels
# A label, a marker, a colour, and how far below the middle of a row it stands.
RIGHT, WRONG = ("right", "o", "#0072B2", -0.14), ("scale 1 % too large", "x", "#D55E00", 0.14)
CALLS, B, T, D, H = 12, 2, 64, 256, 8
DTYPE = "bfloat16"


def trials(seed: int) -> tuple[Trial, Trial]:
    """Draw a layer and a call of it, right and with another scale."""
    rng = np.random.default_rng(seed)
    layer = mha.MultiHeadAttention(D, H, dtype=DTYPE, seed=seed, backend="numpy")
    X = (rng.uniform(0.5, 3) * rng.normal(size=(B, T, D))).astype(numpy_dtype(DTYPE))
    options = dataclasses.replace(layer.config, scale=1.01 * layer.config.key_dim**-0.5)
    call = {"causal": bool(seed % 2)}
    right, wrong = (Trial(each, (X, X, X), call) for each in (layer, restore(options, layer.weights, "numpy", seed)))
    return right, wrong


def judged(right: Trial, output: np.ndarray) -> tuple[float, float]:
    """Judge an output by its largest error, and by the rule."""
    wide = in_dtype(right.layer, "float64")
    oracle = wide(*(X.astype("float64") for X in right.inputs), **right.call)
    plain = right.layer(*right.inputs, **right.call)
    limit = bound(DTYPE, oracle, plain)
    return error(output, oracle) / limit, parity.ratio(right.layer, output, *right.inputs, **right.call)


def ratios(name: str) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """Yield for each call how a port is judged that is right, and that has another scale."""
    framework, _, own_name = name.partition(".")
    port, _ = importlib.import_module(f"{framework}_ports").PORTS[own_name]
    for seed in range(CALLS):
        right, wrong = trials(seed)
        yield judged(right, mha.to_numpy(port(right))), judged(right, mha.to_numpy(port(wrong)))


def draw(found: dict[str, np.ndarray]) -> Figure:
    """Draw a panel for each way to judge; found: ratios (calls, right and wrong, ways) by the title of a row."""
    figure = Figure(figsize=(9, 3.8), layout="constrained", facecolor="white")
    figure.suptitle(f"{CALLS} calls in {DTYPE}, right and wrong", fontsize=12, x=0.01, ha="left")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for way, (panel, title) in enumerate(zip(panels, TITLES, strict=True)):
        for which, (label, marker, colour, shift) in enumerate((RIGHT, WRONG)):
            for row, numbers in enumerate(found.values()):
                at = np.full(CALLS, row + shift)
                line = panel.plot(numbers[:, which, way], at, marker, color=colour, markersize=5, alpha=0.8)
            line[0].set_label(label)
        panel.axvline(1, color="black", lw=1)
        panel.set_xscale("log")
        panel.set_xlim(0.02, 30)
        panel.set_xticks([0.03, 0.1, 0.3, 1, 3, 10, 30], ["0.03", "0.1", "0.3", "1", "3", "10", "30"], minor=False)
        panel.tick_params(which="minor", length=0)
        panel.set_title(title, fontsize=11)
        panel.set_yticks(range(len(found)), [*found])
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].invert_yaxis()
    figure.supxlabel("ratio: the same if at most 1", fontsize=11)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    return figure


def main() -> None:
    """Compute the calls with each port, and write the picture."""
    found = {title: np.array([*ratios(name)]) for title, name in PORTS.items()}
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "styles", "font.family": "sans-serif"}):
        draw(found).savefig(Path(__file__).with_name("styles.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
