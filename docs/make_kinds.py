"""Write the table of known kinds of models in docs/weights.md: python docs/make_kinds.py."""

from pathlib import Path

from mha.weights.models.call_conventions import COMPOSED, PAIRS
from mha.weights.models.kinds import KINDS

PAGE = Path(__file__).parent / "weights.md"
HEADER = "| scheme | `model_type` |\n|---|---|\n"


def table():
    """The known kinds, scheme by scheme, as a table."""
    rows = {f"`{scheme}`": kinds for scheme, kinds in KINDS.items()}
    rows |= {"parts in several": COMPOSED, "pairs of models": PAIRS}
    return HEADER + "".join(
        f"| {name} | {', '.join(f'`{one}`' for one in sorted(kinds))} |\n" for name, kinds in rows.items()
    )


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    start = text.index(HEADER)
    PAGE.write_text(text[:start] + table() + text[text.index("\n\n", start) + 1 :], encoding="utf-8")
