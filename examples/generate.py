"""Train a small decoder, and let it go on, token by token: with a cache and without one, on the backend of MHA_BACKEND.

A text is a word of seven random digits, again and again. The decoder reads the word once and writes the rest: at each
place it has to find the digit that came seven places before. The script names no framework, and wherever it runs it
writes the same digits:

    MHA_BACKEND=torch python examples/generate.py
"""

import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from train import Adam

import mha

B, T, V, D, H, WORD = 16, 96, 10, 64, 4, 7  # texts of a batch, digits of a text, kinds of digits, width, heads
FIRST = 3  # digits, before time counts: a framework may compile for them
OPTIONS: Any = {"num_key_value_heads": 2, "rotary": mha.Rotary(base=100.0), "bias": True}


class Decoder:
    """Digits to scores of the next one: an embedding, causal attention, which knows places by rotation, and a layer."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.attention = mha.MultiHeadAttention(D, H, **OPTIONS, seed=seed)
        shapes = {"digits": (V, D), "head": (D, V)}
        self.own = {name: rng.normal(0, D**-0.5, shape).astype("float32") for name, shape in shapes.items()}

    def gradients(self, digits: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
        """The mean cross-entropy of the digits (B, T + 1) behind the first word, and its gradients by all weights."""
        read, wanted = digits[:, :-1], digits[:, 1:]
        X = self.own["digits"][read]  # (B, T, D)
        output, pull_back = self.attention.vjp(X, X, X, causal=True)  # (B, T, D)
        scores = output @ self.own["head"]  # (B, T, V)
        scores = scores - scores.max(-1, keepdims=True)
        logs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))  # (B, T, V)
        right = np.eye(V, dtype=X.dtype)[wanted]  # (B, T, V)
        counts = (np.arange(wanted.shape[1]) >= WORD - 1)[:, None] / (wanted[:, WORD - 1 :].size)  # (T, 1)

        by_scores = ((np.exp(logs) - right) * counts).astype(X.dtype)  # (B, T, V)
        found = pull_back(by_scores @ self.own["head"].T)
        by_digits = np.zeros_like(self.own["digits"])
        np.add.at(by_digits, read, found.pop("queries") + found.pop("keys") + found.pop("values"))
        by_own = {"digits": by_digits, "head": np.einsum("btd,btv->dv", output, by_scores)}
        return float(-(logs * right * counts).sum()), by_own | found

    def train(self, steps: int, seed: int = 0) -> Iterator[float]:
        """Train; yields the loss before each step."""
        rng, adam = np.random.default_rng(seed), Adam()
        for _ in range(steps):
            loss, gradients = self.gradients(texts(rng, T + 1))
            yield loss
            changed = adam.step(self.own | self.attention.weights, gradients)
            self.own = {name: changed.pop(name) for name in self.own}
            self.attention.weights = changed

    def next_digits(self, output: np.ndarray) -> np.ndarray:
        """The likeliest digits (B, 1) behind the last place of the attention's output."""
        return (output[:, -1:] @ self.own["head"]).argmax(-1)

    def with_cache(self, digits: np.ndarray, count: int) -> Iterator[np.ndarray]:
        """Go on from digits (B, T): each token is projected once, and its keys and values stay in the cache."""
        cache = self.attention.cache(len(digits), digits.shape[1] + count)
        for _ in range(count):
            X = self.own["digits"][digits]  # (B, T, D) of the prompt, then (B, 1, D)
            output, cache = self.attention(X, X, X, causal=True, cache=cache)
            digits = self.next_digits(output)
            yield digits

    def without_cache(self, digits: np.ndarray, count: int) -> Iterator[np.ndarray]:
        """Go on from digits (B, T): all that came before is projected again for each token."""
        for _ in range(count):
            X = self.own["digits"][digits]  # (B, T, D)
            output = self.attention(X[:, -1:], X, X, causal=True, offset=X.shape[1] - 1)
            digits = np.concatenate([digits, self.next_digits(output)], 1)
            yield digits[:, -1:]


def texts(rng: np.random.Generator, length: int) -> np.ndarray:
    """Texts of this length, (B, length): a word of each, again and again."""
    return np.tile(rng.integers(0, V, (B, WORD)), (1, -(-length // WORD)))[:, :length]


def main(
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 400,
    tokens: Annotated[int, typer.Option(min=4, help="How many digits to write.")] = 70,
) -> None:
    """Train a small decoder, and generate with and without a cache."""
    decoder, console = Decoder(), Console()
    with Progress(console=console) as progress:
        task = progress.add_task("", total=steps)
        for loss in decoder.train(steps):
            progress.update(task, advance=1, description=f"training, loss {loss:.3f}")
        text = texts(np.random.default_rng(1), WORD + tokens)
        ways: dict[str, Callable] = {"with a cache": decoder.with_cache, "without": decoder.without_cache}
        written, speeds = {}, {}
        for name, generate in ways.items():
            parts: list[np.ndarray] = []
            task, start = progress.add_task(name, total=tokens), 0.0
            for new in generate(text[:, :WORD], tokens):
                if len(parts) == FIRST:
                    start = time.perf_counter()
                parts.append(new)
                progress.advance(task)
            speeds[name] = B * (tokens - FIRST) / (time.perf_counter() - start)
            written[name] = np.concatenate(parts, 1)
    for name, digits in written.items():
        right = (digits == text[:, WORD:]).mean()
        console.print(f"{name}: {speeds[name]:,.0f} tokens a second, {right:.0%} right")
    first = "".join(map(str, text[0, :WORD]))
    console.print(f"{first} -> {''.join(map(str, written['with a cache'][0, : 3 * WORD]))} ...")


if __name__ == "__main__":
    typer.run(main)
