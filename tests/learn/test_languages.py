"""Catalogues of languages: the same keys in all, the same places to fill in, and none of them empty."""

import re
import string

import pytest

from mha.learn.languages import LANGUAGES, catalogue


def texts(table, name=""):
    """Every text of a catalogue by the path of its keys."""
    for key, value in table.items():
        yield from texts(value, f"{name}{key}.") if isinstance(value, dict) else [(name + key, value)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_there_in_every_language_and_fills_in_the_same_names(language):
    english, theirs = dict(texts(catalogue("en"))), dict(texts(catalogue(language)))
    assert list(theirs) == list(english)
    assert all(theirs.values())
    for name, text in english.items():
        assert fields(theirs[name]) == fields(text), name


def fields(text):
    return {field for _, field, _, _ in string.Formatter().parse(text) if field is not None}


def test_an_unknown_language_lists_the_known():
    with pytest.raises(ValueError, match="language is 'de', expected one of en, zh, ja, id, vi"):
        catalogue("de")


# The tables whose texts are held to the terms.
HELD = ("explain",)
# Of each language, the texts by the paths of their keys.
TEXTS = {
    language: {name: text for table in HELD for name, text in texts(catalogue(language)[table], f"{table}.")}
    for language in LANGUAGES
}


def used(text):
    """The terms in an English text, by their keys; of "attention weights", not "attention" too."""
    terms, found = catalogue("en")["terms"], []
    for key, term in sorted(terms.items(), key=lambda item: -len(item[1])):
        one = re.sub("ies$", "y", term) if term.endswith("ies") else term.removesuffix("s")
        word = rf"\b({term}|{one})\b"
        if re.search(word, text, re.IGNORECASE):
            found.append(key)
            text = re.sub(word, "", text, flags=re.IGNORECASE)
    return found


def test_terms_are_found_in_an_english_text():
    assert used("A query has attention weights.") == ["attention_weights", "queries"]
    assert used("Attention pooling; the heads; head_gates; whatever is masked") == ["attention_pooling", "heads"]


@pytest.mark.parametrize("language", LANGUAGES[1:])
def test_texts_use_the_terms_of_their_language(language):
    terms, held = catalogue(language)["terms"], TEXTS[language]
    for name, text in TEXTS["en"].items():
        missing = [terms[key] for key in used(text) if terms[key].lower() not in held[name].lower()]
        assert not missing, (name, held[name])
    assert sum(len(used(text)) for text in TEXTS["en"].values()) > 50


@pytest.mark.parametrize("language", LANGUAGES)
def test_texts_have_the_same_numbers_and_names_of_options(language):
    told = re.compile(r"\d+(?:\.\d+)?|\w*_\w+|\b(?:True|softcap|rotary)\b", re.ASCII)
    for name, text in TEXTS["en"].items():
        assert sorted(told.findall(TEXTS[language][name])) == sorted(told.findall(text)), name


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_is_left_in_english(language):
    same = [name for name, text in TEXTS["en"].items() if TEXTS[language][name] == text]
    assert (same == []) is (language != "en")
