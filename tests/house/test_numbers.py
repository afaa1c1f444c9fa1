"""Each number in the docs that counts something of the project is what is there: one row for each, read from the pages.

Other tests hold the numbers that need more: `test_bad_inputs`, `test_grade_catalogue`, `test_mutants`, `test_unseen`,
and those in `tests/real`. What was measured once, a time or a share, is no count.
"""

import re

import mutants
import numpy as np
import pages
import pytest
from mha.testing import kernel_cases
from semantics import rows

from mha.core import dispatch
from mha.learn import languages
from mha.learn.grade import process
from mha.learn.grade.levels import LEVELS
from mha.parity.diagnosis.blind_spots import probes, sight, views
from mha.parity.diagnosis.compare import same_layer
from mha.parity.diagnosis.search import search, time_budget, verdicts
from mha.parity.diagnosis.wrong_setup import beyond_attention
from mha.parity.rule import half_precision as half
from mha.parity.rule import rules
from mha.parity.testing import decoding
from mha.weights import schemes
from mha.weights.readers import source

WORDS = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
NUMBER = rf"\b(\d[\d,]*(?:\.\d+)?(?:e-\d+)?|{'|'.join(WORDS)})"
FILES = ["README.md", "CONTRIBUTING.md", "CITATION.cff", "tox.ini", "mha/cli/demo.py", "mha/cli/grade.py"]
PAGES = [*FILES, *(path.relative_to(pages.ROOT).as_posix() for path in pages.ROOT.glob("docs/**/*.md"))]
TEXTS = {path: " ".join(pages.text(path).split()) for path in PAGES}


def files(pattern):
    """The number of files."""
    return len([*pages.ROOT.glob(pattern)])


def written(path, pattern):
    """Numbers in a file that cannot be imported here."""
    return [int(number) for number in re.search(pattern, pages.text(path)).groups()]


def bound(dtype, plain, gradient=False):
    """The rule's bound where the right number is 1; plain: what plain NumPy gives."""
    return rules.bound(dtype, np.ones(1), np.array([plain], float), gradient=gradient)


QUICK, FULL = ([call.case for call in kernel_cases(suite=suite)] for suite in ("quick", "full"))
TOKENS = [number for case in QUICK for number in (case.queries, case.keys)]
ROUNDED = bound("float32", 1)
PAIRS, NARROW, BEYOND = written("backends/torch/engine/flexible.py", r"LEAST = 2\*\*(\d+)[^`]*range\((\d+), (\d+)\)")
# What the pages say, with {} for each number, and the numbers.
SAID = {
    "attention on {} backends": [len(dispatch.FRAMEWORKS)],
    "attention over {} backends": [len(dispatch.FRAMEWORKS)],
    "{} short notebooks": [files("docs/course/*.ipynb")],
    "{} chapters": [files("backends/numpy/*.py") - len(["__init__", "arrays", "facts"])],
    "in {} languages": [len(languages.LANGUAGES)],
    "every option in {} dtypes": [len(dispatch.FRAMEWORKS["numpy"].dtypes)],
    "{} kinds of input": [sum(len(table.probes) for table in rows.TABLES)],
    "in {} schemes": [len(schemes.SCHEMES)],
    "one layer and one call; {}, `decode-...`, are": [files("vectors/decode*.safetensors")],
    "There are {}, most with B = 2": [files("vectors/*.safetensors")],
    "There are {}, of a few kilobytes": [files("vectors/kernels/*.safetensors")],
    "heads from {} to {} wide": [NARROW, BEYOND - 1],
    "2<sup>{}</sup> pairs of a query and a key: {} tokens": [PAIRS, 2 ** (PAIRS // 2)],
    "agree in {} calls": [1 + len(same_layer.MAGNITUDES)],
    "{} tokens one by one, {} at once, and one more": [decoding.LATER.index(3), 3],
    "the heads on {} sentences, and judges the pruned model on {} others": written(
        "examples/pruning.py", r"MEASURED, JUDGED = (\d+), (\d+)"
    ),
    "array of more than {} MiB": [source.LARGE // 2**20],
    # Kernels
    "Up to {} calls, of which": [len(QUICK)],
    "{} to {} tokens around the sizes": [min(TOKENS), max(TOKENS)],
    "{} widths, shared heads": [len({case.width for case in QUICK})],
    "and {} keys. JAX compiles": [max(case.keys for case in FULL)],
    # Comparisons
    "a ratio from {} on": [sight.BARELY],
    "in at most {} seconds. `mha.testing": [views.SECONDS],
    "{} tokens or more, if a gigabyte": [probes.MANY],
    "with steps up to {}, one after the other": [search.MOST],
    "at least {} times outside the bound": [verdicts.SURE],
    "stops after {} seconds of work": [time_budget.SECONDS],
    "at least {} rows that count": [beyond_attention.ROWS],
    # The rule
    "at most {} of the largest number; for gradients, {}.": [bound("float64", 1), bound("float64", 1, True)],
    "at most {} times the error that plain NumPy makes": [round(bound("float32", 2) - ROUNDED)],
    "(for gradients {} times), plus {} unit roundoffs": [
        round(bound("float32", 2, True) - ROUNDED), ROUNDED / rules.UNIT["float32"],
    ],
    "more than 1 / {}, and the likeliest styles leave more than {} times": [1 / half.CALM, half.FAR],
    "all rows: {}; a sample: {}; 16 rows: {}; a row: {}; a feature: {}.": [*half.LIMITS.values()],
    "{} + √n / {}.": [half.CONSTANT, 1 / half.SHARE],
    "{} times the style's": [rules.ROW],
    "simulated {} times more": [half.DRAWS],
    "err more than {} times as much": [half.BY_CHANCE],
    "rounded by more than {}:": [half.TIES],
    "at most {} \\* (1 + {} / √n)": [rules.MEAN, rules.FEW],
    # Programs and limits
    "than 1 of {} goes unnoticed": [round(1 / mutants.SHARE)],
    "{} mutants of mha": written("tests/programs/mutants.py", r"How many mutants to draw.*= (\d+),"),
    "each option alone and {} drawn together": written("tests/programs/write_all.py", r"--drawn.*default=(\d+)"),
    "{} calls of each backend": written("tests/programs/soak.py", r"\] = (\d+_\d+),"),
    "up to {} processes and {} devices": written("tox.ini", r"--distributed torch:(\d) --distributed jax:(\d)"),
    "Each level has {} points": [*{level.points for level in LEVELS}],
    "{} GB of address space, files of at most {} MB": [process.MEMORY >> 30, process.FILE_SIZE >> 20],
}  # fmt: skip


def value(number):
    """A number in digits or as a word."""
    return WORDS.index(number) + 2 if number in WORDS else float(number.replace(",", ""))


@pytest.mark.parametrize("words", SAID)
def test_the_pages_say_what_is_there(words):
    pattern = NUMBER.join(re.escape(part) for part in words.split("{}"))
    said = {(path, *map(value, found.groups())) for path, text in TEXTS.items() for found in re.finditer(pattern, text)}
    assert said, "no page says it"
    assert {(path, *SAID[words]) for path, *_ in said} == said


def test_a_number_is_read_in_digits_and_in_words():
    found = [value(number) for number in re.findall(NUMBER, "six, 1,024 and 0.125 of 1e-12 in v2")]
    assert found == [6, 1024, 0.125, 1e-12]
