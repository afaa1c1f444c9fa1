"""Write the lists of known mistakes at the end of docs/parity.md: python docs/make_catalogue.py."""

import re
import textwrap
from pathlib import Path
from typing import Any

from mha.parity import CATALOGUE
from mha.parity.diagnosis.mistakes import catalogue, of_gradients, of_precision, of_scores, of_sinks
from mha.parity.diagnosis.search import precision
from mha.parity.diagnosis.wrong_setup import calls

PAGE = Path(__file__).parent / "parity.md"

Known = list[tuple[str, str]]


def known(*mistakes: Any) -> Known:
    """Mistakes as pairs: the name, and what it does."""
    return [(mistake.name, mistake.what) for mistake in mistakes]


SECTIONS: dict[str, Known] = {
    "Kernels, heads and biases of projections": [
        *known(*catalogue.OF_KERNELS, *catalogue.OF_HEADS, *catalogue.OF_GROUPS, *catalogue.OF_ORDERS_AND_BIASES),
        ("weights of another layer", "all, or those of one projection"),
        (calls.SWAPPED, calls.SWAPPED_EFFECT),
    ],
    "Scale, cap and biases of scores": known(
        *catalogue.OF_SCALE, *catalogue.OF_SCORES, *catalogue.OF_BIASES, of_scores.ANOTHER_SCALE,
        of_scores.SCORES_MULTIPLIED,
    ),
    "Lengths, masks and causal order": known(*catalogue.OF_HIDING, *catalogue.OF_MASKS),
    "Windows, chunks and segments": known(*catalogue.OF_WINDOWS, *catalogue.OF_CHUNKS, *catalogue.OF_SEGMENTS),
    "Softmax, dropout and sinks": [
        *known(*catalogue.OF_NAN, *catalogue.OF_SOFTMAX, *catalogue.OF_SINKS, of_sinks.SINKS_SEVERAL_TIMES),
        ("dropout left on", precision.DROPOUT),
    ],
    "Rotations and temperatures": known(
        *catalogue.OF_ROTATIONS, *catalogue.OF_ROTATED_PARTS, *catalogue.OF_PERMUTATIONS, *catalogue.OF_TEMPERATURE
    ),
    "Norms and gates": known(*catalogue.OF_NORMS, *catalogue.OF_GATES, *catalogue.OF_OUTPUT_GATE),
    "Precision": known(*of_precision.ROUNDINGS),
    "Decoding": known(*catalogue.OF_DECODING),
    "Gradients": known(*of_gradients.GRADIENT_MISTAKES, of_gradients.DROPOUT),
}  # fmt: skip

# Names that need no explanation, or have it from the mistake beside them.
CLEAR = {
    "the kernels of W_q, W_k and W_v are not transposed", "no kernel is transposed",
    "the heads of W_q are interleaved", "heads of values are tiled, not repeated", "K and V are swapped",
    "W_q.bias is dropped", "the biases of W_q, W_k and W_v are dropped", "every bias is dropped",
    "weights of another layer", "no scale", "the scale is applied twice", "another scale", "the cap is forgotten",
    "the bias is ignored", "the bias has the other sign", "the bias is not scaled",
    "the default scale on top of the model's own", "the mask is ignored", "the lengths are ignored",
    "causal order is ignored", "everything is seen", "the bias is tiled, not repeated",
    "the bias is broadcast over another axis", "padding at positions below 0 is seen",
    "all samples have the mask of the first", "the window is ignored", "the window only looks back",
    "the window is one wider to the left", "the window is one narrower to the left",
    "the window begins again at every offset", "the window goes by rows", "the chunks are ignored",
    "the chunk is one longer", "the chunk is one shorter", "the chunks begin again at every offset",
    "the chunks go by rows", "sinks are forgotten", "sinks are scaled", "sinks are capped", "sinks of other heads",
    "the rotation is forgotten", "the rotation goes backwards", "another base", "values turn, too",
    "the last pairs turn", "the last components turn", "the temperature is forgotten", "the temperature is inverted",
    "all samples turn as the first", "the norm comes after the rotation", "the norm comes before the rotation",
    "the norms are forgotten", "keys have no norm", "the scale of a norm is forgotten", "gates of other heads",
    "gates are forgotten", "the output gate is left out", "RMS norm for layer norm", "layer norm for RMS norm",
    "the norm is over all heads", "the norm is over each head", "another epsilon",
    "the norm of values has another epsilon", "the output gate is of another function", "bfloat16 arithmetic",
    "float16 arithmetic", "float32 arithmetic", "heads in half precision", "softmax in half precision",
    "cosines and sines in bfloat16", "keys are kept before they turn", "empty slots are seen",
    "keys or values are kept before their projection", "beams are reordered for values alone", "queries are detached",
    "attention weights are detached", "a projection gets no gradient", "the scale is applied twice in gradients",
    "sinks get no gradient", "causal order begins again at every offset", "the bias is scaled too",
    "the cap comes after the bias", "the cap comes before the scale", "biases are added twice",
    "lengths are one too long", "lengths are one too short", "weights are averaged over the heads",
    "hidden keys are blanked after the softmax", "the whole head turns", "1 is added to the scale of a norm",
    "the output gate comes after W_o", "keys and values are rounded in a cache", "Q and K are swapped",
    "another number of heads", "gradients of kernels are transposed", "the scale is forgotten in gradients",
    "rotary components of W_q are in another order", "the magnitude of the rotation is forgotten",
    "packed kernels in another order", "the loss is a mean", "the cap's derivative is forgotten",
    "sinks count several times", "the output gate is of other heads", "the scaling of frequencies is inverted",
    "padding is taken for tokens", "the bias of W_q is not scaled",
}  # fmt: skip

ALIKE = re.compile(r"W_[qkvo]|^(queries|keys|values)\b|to the left|to the right|on both sides")


def lists() -> str:
    """The known mistakes by what they concern; those of several projections or sides are one entry."""
    mistakes = [name for section in SECTIONS.values() for name, _ in section]
    missing = [mistake.name for mistake in CATALOGUE if mistake.name not in mistakes]
    if missing or not {*mistakes} >= CLEAR:
        raise ValueError(f"in no section: {missing}; unknown: {sorted(CLEAR - {*mistakes})}")
    return "\n".join(f"### {title}\n\n{listed(section)}" for title, section in SECTIONS.items())


def listed(section: Known) -> str:
    """A list of mistakes with their explanations; behind it, in one paragraph, those that need none."""
    together: dict[str, Known] = {}
    for name, what in section:
        together.setdefault(ALIKE.sub("?", name, count=1), []).append((name, what))
    lines, clear = [], []
    for (name, what), *others in together.values():
        also = ", ".join(found[0] for one, _ in others if (found := ALIKE.search(one)))
        title = f"{name} (also {also})" if also else name
        if name in CLEAR:
            clear.append(title)
        else:
            lines.append(f"- **{title}**: {what.replace('*', chr(92) + '*')}\n")
    if clear:
        lines.append(f"\n{textwrap.fill('Also: ' + '; '.join(clear) + '.', 120)}\n")
    return "".join(lines)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text[: text.index(f"### {next(iter(SECTIONS))}\n")] + lists(), encoding="utf-8")
