"""Parse JSON that comes with weights: strictly, so that nothing in it is passed over."""

import collections
import json
import reprlib
from typing import Any


def parse(text: str) -> dict[str, Any]:
    """Parse a JSON object; a name that comes twice is an error, where Python would take the last one."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for name, count in collections.Counter(name for name, _ in pairs).items():
            if count > 1:
                raise ValueError(f"the name {name!r} comes {count} times")
            if not name.isprintable():  # an error that quotes it could not be printed either
                raise ValueError(f"the name {name!r} is not printable")
        return dict(pairs)

    try:
        parsed = json.loads(text, object_pairs_hook=unique)
    except RecursionError as error:
        raise ValueError("the JSON nests too deep") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"expected a JSON object, not {reprlib.repr(parsed)}")
    return parsed
