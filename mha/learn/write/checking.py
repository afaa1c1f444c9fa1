"""Check whether a file is as it was written, by the recipe on its first lines."""

import json
from pathlib import Path

from mha.learn.write import files, recipe


def check(path: str | Path) -> str:
    """Say whether a file is as `mha.write` wrote it.

    Returns "" if it is; else, in one sentence, whether it was edited or is outdated: written by another version.
    Raises FileNotFoundError if there is no such file, ValueError if it is none that `mha.write` wrote.
    """
    text = Path(path).read_text()
    told, body = files.made_of(text)
    try:
        of = json.loads(told)
        made_of, digest = recipe.read(of), of["digest"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path} is no file that mha wrote: its first line does not begin with {files.MADE_OF!r}"
        ) from None
    if files.digest(body) != digest:
        return f"{path} was edited: it is not the text that was written"
    if files.made(made_of) != text:
        return f"{path} is outdated: this version writes it otherwise; write it again with --force"
    return ""
