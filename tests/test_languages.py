"""Catalogues of languages: the same keys in all, the same places to fill in, and none of them empty."""

import string

import pytest

from mha.languages import LANGUAGES, catalogue


def texts(table, name=""):
    """Every text of a catalogue by the path of its keys."""
    for key, value in table.items():
        yield from texts(value, f"{name}{key}.") if isinstance(value, dict) else [(name + key, value)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_there_in_every_language(language):
    english, theirs = dict(texts(catalogue("en"))), dict(texts(catalogue(language)))
    assert list(theirs) == list(english)
    assert all(theirs.values())


@pytest.mark.parametrize("language", LANGUAGES)
def test_texts_fill_in_the_same_names(language):
    english, theirs = dict(texts(catalogue("en"))), dict(texts(catalogue(language)))
    for name, text in english.items():
        assert fields(theirs[name]) == fields(text), name


def fields(text):
    return {field for _, field, _, _ in string.Formatter().parse(text) if field is not None}


def test_an_unknown_language_lists_the_known():
    with pytest.raises(ValueError, match="language is 'de', expected one of en, zh, ja, id, vi"):
        catalogue("de")
