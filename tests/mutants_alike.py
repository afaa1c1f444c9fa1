"""Mutants that change nothing a user can see, by file and name, each with its reason: `mutants.py` leaves them out."""

ALIKE: dict[str, dict[str, str]] = {}
