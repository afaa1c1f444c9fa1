"""Mistakes as students write them: changes of the right submissions beside this file, and what grading must say."""

from pathlib import Path
from typing import NamedTuple

RIGHT = Path(__file__).parent / "right"
STYLES = sorted(path.stem for path in RIGHT.glob("*_*.py"))


class Mistaken(NamedTuple):
    """A submission with mistakes: style.py with `changes`, pairs of old and new text.

    failed: by level, what is found there: a mistake, or several joined by " and ", or a word of the status.
    """

    style: str
    failed: dict[int, str]
    changes: tuple[tuple[str, str], ...]

    @property
    def name(self):
        return f"{self.style}: {'; '.join(f'{level} {reason}' for level, reason in self.failed.items())}"

    def text(self):
        """The submission; a change that finds nothing to change is an error."""
        text = (RIGHT / f"{self.style}.py").read_text(encoding="utf-8")
        for old, new in self.changes:
            assert old in text, f"{self.style}.py has no {old!r}"
            text = text.replace(old, new)
        return text


def of_style(style, *mistakes):
    """Mistakes in a style, each what fails by level, then what changes: old and new texts in turn."""
    return tuple(
        Mistaken(style, failed, tuple(zip(changes[::2], changes[1::2], strict=True))) for failed, *changes in mistakes
    )


NO_SCALE, OF_D = "no scale", "the scale of D for that of d"
LONG, SHORT = "lengths are one too long", "lengths are one too short"
TILED, IGNORED = "lengths are tiled, not repeated", "the lengths are ignored"
SPLIT, MERGE, MIXED = "the split lacks the permute", "the merge lacks the permute", "the heads are interleaved"
LATE, AXIS, ZERO = (
    "hidden keys are blanked after the softmax",
    "the softmax is over another axis",
    "weak mask fill",
)
