"""Write the tables of known mistakes at the end of docs/parity.md: python docs/make_catalogue.py."""

import re
from pathlib import Path
from typing import Any

from mha.parity.diagnosis.mistakes import (
    catalogue,
    of_gradients,
    of_precision,
    of_scores,
    of_softmax,
    of_tiles,
    of_weights,
)
from mha.parity.diagnosis.search import precision
from mha.parity.diagnosis.wrong_setup import calls

PAGE = Path(__file__).parent / "parity.md"

Known = list[tuple[str, str, str]]  # the name, what it does, and what to write instead


def known(*mistakes: Any) -> Known:
    """The rows of mistakes."""
    return [(mistake.name, mistake.what, mistake.fix) for mistake in mistakes]


SECTIONS: dict[str, Known] = {
    "Kernels, heads and biases of projections": [
        *known(*catalogue.OF_KERNELS, *catalogue.OF_HEADS, *catalogue.OF_GROUPS, *catalogue.OF_ORDERS_AND_BIASES),
        *known(*of_weights.of_another_layer({})),
        (calls.SWAPPED, calls.SWAPPED_EFFECT, calls.SWAPPED_FIX),
    ],
    "Scale, cap and biases of scores": known(
        *catalogue.OF_SCALE, *catalogue.OF_SCORES, *catalogue.OF_BIASES, of_scores.ANOTHER_SCALE,
        of_scores.SCORES_MULTIPLIED,
    ),
    "Lengths, masks and causal order": known(*catalogue.OF_HIDING, *catalogue.OF_MASKS),
    "Windows, chunks and segments": known(*catalogue.OF_WINDOWS, *catalogue.OF_CHUNKS, *catalogue.OF_SEGMENTS),
    "Softmax, dropout and sinks": [
        *known(*catalogue.OF_NAN, *catalogue.OF_SOFTMAX, *catalogue.OF_SINKS, of_softmax.SINKS_SEVERAL_TIMES),
        ("dropout left on", precision.DROPOUT, precision.DROPOUT_FIX),
    ],
    "Rotations and temperatures": known(
        *catalogue.OF_ROTATIONS, *catalogue.OF_ROTATED_PARTS, *catalogue.OF_PERMUTATIONS, *catalogue.OF_TEMPERATURE
    ),
    "Norms and gates": known(*catalogue.OF_NORMS, *catalogue.OF_GATES, *catalogue.OF_OUTPUT_GATE),
    "Precision": known(*of_precision.ROUNDINGS),
    "Decoding": known(*catalogue.OF_DECODING),
    "Gradients": known(*of_gradients.GRADIENT_MISTAKES, of_gradients.DROPOUT),
    "Kernels of attention": known(*of_tiles.OF_TILES, *catalogue.OF_TEXTS, *of_tiles.GRADIENTS_OF_TILES),
}  # fmt: skip

ALIKE = re.compile(r"W_[qkvo]|^(queries|keys|values)\b|to the left|to the right|on both sides")


def lists() -> str:
    """The known mistakes by what they concern; those of several projections or sides are one row."""
    mistakes = {name for section in SECTIONS.values() for name, _, _ in section}
    every = (*catalogue.CACHED_CATALOGUE, *catalogue.KERNEL_CATALOGUE)
    if missing := [mistake.name for mistake in every if mistake.name not in mistakes]:
        raise ValueError(f"in no section: {missing}")
    return "\n".join(f"### {title}\n\n{table(section)}" for title, section in SECTIONS.items())


def table(section: Known) -> str:
    """A table of mistakes, what they do, and what to write instead."""
    together: dict[str, Known] = {}
    for row in section:
        together.setdefault(ALIKE.sub("?", row[0], count=1), []).append(row)
    lines = ["| mistake | what it does | fix |\n|---|---|---|\n"]
    for (name, what, fix), *others in together.values():
        also = ", ".join(found[0] for one, _, _ in others if (found := ALIKE.search(one)))
        title = f"{name} (also {also})" if also else name
        lines.append(f"| {title} | {what} | {fix} |\n".replace("*", r"\*"))
    return "".join(lines)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text[: text.index(f"### {next(iter(SECTIONS))}\n")] + lists(), encoding="utf-8")
