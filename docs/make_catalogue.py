"""Write the table of known mistakes at the end of docs/parity.md: python docs/make_catalogue.py."""

from pathlib import Path

from mha.parity import CATALOGUE
from mha.parity.described import axes
from mha.parity.mistakes import of_decoding, of_gradients, of_precision, of_scores, of_sinks
from mha.parity.search import precision

PAGE = Path(__file__).parent / "parity.md"
HEADER = "| mistake | what it does |\n|---|---|\n"


def table():
    """The known mistakes as a table."""
    fitted = of_scores.ANOTHER_SCALE, of_scores.SCORES_MULTIPLIED, of_sinks.SINKS_SEVERAL_TIMES
    known = [(mistake.name, mistake.what) for mistake in (*CATALOGUE, *fitted)]
    known += [(rounding.name, rounding.what) for rounding in of_precision.ROUNDINGS]
    known += [("dropout left on", precision.DROPOUT), ("weights of another layer", "all, or those of one projection")]
    known += [(axes.SWAPPED, axes.WHAT)]
    known += [(one.name, one.what) for one in of_decoding.OF_DECODING]
    known += [(one.name, one.what) for one in (*of_gradients.GRADIENT_MISTAKES, of_gradients.DROPOUT)]
    return HEADER + "".join(f"| {name} | {what.replace('*', chr(92) + '*')} |\n" for name, what in known)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text[: text.index(HEADER)] + table(), encoding="utf-8")
