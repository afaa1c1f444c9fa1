"""Whether a file is as it was written: by what its first line says that it was made of."""

import json
from pathlib import Path

from mha.config import of_recorded
from mha.written import files


def check(path: str | Path) -> str:
    """Say whether a file is as `mha.write` wrote it.

    Returns "" if it is; else, in one sentence, whether it was edited or is outdated: written by another version.
    Raises FileNotFoundError if there is no such file, ValueError if it is none that `mha.write` wrote.
    """
    text = Path(path).read_text()
    line, _, body = text.partition("\n")
    try:
        of = json.loads(line.removeprefix(files.MADE_OF))
        config, digest = of_recorded(of["config"]), of["digest"]
        rest = of["backend"], of["call"], of["names"], of["fused"], of.get("kind")
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path} is no file that mha wrote: its first line does not begin with {files.MADE_OF!r}"
        ) from None
    if files.digest(body) != digest:
        return f"{path} was edited: it is not the text that was written"
    if files.made(config, *rest) != text:
        return f"{path} is outdated: this version writes it otherwise; write it again with --force"
    return ""
