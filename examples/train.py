"""Train a small model around `mha.MultiHeadAttention` with a loop in NumPy, on the backend that MHA_BACKEND chooses.

The model reads seven random digits and writes them in reverse order: each place must attend to another place. The
digits come from a seeded generator, so that there is nothing to download. The script names no framework:

    MHA_BACKEND=jax python examples/train.py
    python examples/train.py --picture training.png      # on every backend that is installed, side by side
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.progress import Progress

import mha

B, T, V, D, H = 64, 7, 10, 32, 4  # samples of a batch, digits of a sample, kinds of digits, width, heads


class Model:
    """Digits (B, T) to scores (B, T, V): an embedding of digits and places, attention, and a dense layer."""

    def __init__(self, seed: int, dtype: str) -> None:
        rng = np.random.default_rng(seed)
        self.attention = mha.MultiHeadAttention(D, H, bias=True, dtype=np.dtype(dtype), seed=seed)
        shapes = {"digits": (V, D), "places": (T, D), "head": (D, V)}
        self.own = {name: rng.normal(0, D**-0.5, shape).astype(dtype) for name, shape in shapes.items()}

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """The model's own weights and those of its attention; assign all of them together."""
        return self.own | self.attention.weights

    @weights.setter
    def weights(self, arrays: dict[str, np.ndarray]) -> None:
        self.own = {name: arrays[name] for name in self.own}
        self.attention.weights = {name: arrays[name] for name in self.attention.weights}

    def gradients(self, digits: np.ndarray, wanted: np.ndarray) -> tuple[float, float, dict[str, np.ndarray]]:
        """The mean cross-entropy, the share of digits that are right, and the gradients by all weights."""
        X = self.own["digits"][digits] + self.own["places"]  # (B, T, D)
        output, pull_back = self.attention.vjp(X, X, X, training=True)  # (B, T, D)
        scores = output @ self.own["head"]  # (B, T, V)
        scores = scores - scores.max(-1, keepdims=True)
        logs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))  # (B, T, V)
        right = np.eye(V, dtype=X.dtype)[wanted]  # (B, T, V)

        by_scores = (np.exp(logs) - right) / wanted.size  # (B, T, V)
        found = pull_back(by_scores @ self.own["head"].T)
        by_X = found.pop("queries") + found.pop("keys") + found.pop("values")  # (B, T, D)
        by_digits = np.zeros_like(self.own["digits"])
        np.add.at(by_digits, digits, by_X)
        by_own = {"digits": by_digits, "places": by_X.sum(0), "head": np.einsum("btd,btv->dv", output, by_scores)}
        loss, share = -(logs * right).sum() / wanted.size, (scores.argmax(-1) == wanted).mean()
        return float(loss), float(share), by_own | found


class Adam:
    """The optimiser of Kingma and Ba, Adam: A Method for Stochastic Optimization (2015), algorithm 1."""

    def __init__(self, rate: float = 3e-3, first: float = 0.9, second: float = 0.999) -> None:
        self.rate, self.first, self.second = rate, first, second
        self.steps = 0
        self.means: dict[str, np.ndarray] = {}
        self.squares: dict[str, np.ndarray] = {}

    def step(self, weights: dict[str, np.ndarray], gradients: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The weights after one step."""
        self.steps += 1
        changed = {}
        for name, gradient in gradients.items():
            mean, square = self.means.get(name, 0 * gradient), self.squares.get(name, 0 * gradient)
            self.means[name] = self.first * mean + (1 - self.first) * gradient
            self.squares[name] = self.second * square + (1 - self.second) * gradient**2
            mean = self.means[name] / (1 - self.first**self.steps)
            square = self.squares[name] / (1 - self.second**self.steps)
            changed[name] = weights[name] - (self.rate * mean / (np.sqrt(square) + 1e-8)).astype(gradient.dtype)
        return changed


def train(steps: int, seed: int = 0, dtype: str = "float32") -> Iterator[tuple[float, float]]:
    """Train; yields, before each step, the loss and the share of digits that are right."""
    rng, model, adam = np.random.default_rng(seed), Model(seed, dtype), Adam()
    for _ in range(steps):
        digits = rng.integers(0, V, (B, T))
        loss, share, gradients = model.gradients(digits, digits[:, ::-1])
        yield loss, share
        model.weights = adam.step(model.weights, gradients)


def on_all(steps: int, dtype: str) -> dict[str, list[float]]:
    """The losses on every installed backend, each in its own process."""
    losses: dict[str, list[float]] = {}
    for name, backend in mha.backends().items():
        if backend.installed:
            command = [sys.executable, __file__, "--steps", str(steps), "--dtype", dtype, "--losses"]
            environment = os.environ | {"MHA_BACKEND": name, "TF_CPP_MIN_LOG_LEVEL": "3"}
            ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            losses[name] = [float(line) for line in ran.stdout.split()]
    return losses


def draw(losses: dict[str, list[float]], path: Path) -> None:
    """Draw the curves, and below them the difference of each from NumPy's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    reference = np.array(losses["numpy"])
    for index, (name, curve) in enumerate(losses.items()):
        above.plot(curve, label=name, color=f"C{index}", linewidth=1.5 * (len(losses) - index))
        apart = np.abs(np.array(curve) - reference) / reference
        if name != "numpy":
            below.semilogy(np.where(apart > 0, apart, np.nan), label=name, color=f"C{index}")
    above.set(ylabel="loss", title="One script on each backend")
    below.set(ylabel="difference from NumPy's,\nby the loss", xlabel="step")
    above.legend()
    below.legend()
    figure.savefig(path, dpi=110)


def main(
    steps: Annotated[int, typer.Option(min=1, help="Steps of the optimiser.")] = 300,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    picture: Annotated[
        Path | None, typer.Option(help="Train on all backends, and draw the losses to this file.")
    ] = None,
    losses: Annotated[
        bool, typer.Option("--losses", help="Print the loss before each step, and nothing else.")
    ] = False,
) -> None:
    """Teach a small model to reverse seven digits, on the backend that MHA_BACKEND chooses."""
    if picture:
        draw(on_all(steps, dtype), picture)
    elif losses:
        for loss, _ in train(steps, dtype=dtype):
            print(loss)
    else:
        with Progress() as progress:
            task = progress.add_task("", total=steps)
            for loss, share in train(steps, dtype=dtype):
                progress.update(task, advance=1, description=f"loss {loss:.3f}, {share:.0%} right")


if __name__ == "__main__":
    typer.run(main)
