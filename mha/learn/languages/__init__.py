"""The texts for learners in each language: one catalogue, `<language>.toml` here; all have the same keys."""

import functools
import tomllib
from importlib import resources
from typing import Any, get_args

from mha.core.options.names import LanguageName

LANGUAGES: tuple[LanguageName, ...] = get_args(LanguageName)


@functools.cache
def catalogue(language: LanguageName = "en") -> dict[str, Any]:
    """All texts in a language, in tables by their use; texts with `{name}` are for `str.format`.

    Raises ValueError if there is no such language.
    """
    if language not in LANGUAGES:
        raise ValueError(f"language is {language!r}, expected one of {', '.join(LANGUAGES)}")
    file = resources.files(__name__) / f"{language}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))
