"""`mha kernel`: its report, its files and its exit code, on right, wrong and raising kernels and wrong commands."""

import os
from xml.etree import ElementTree

import plain_kernel
import pytest
from commands import refused, run, run_installed

FILE = """
import sys

import numpy as np
import sys
sys.path.append(HELPERS)
import plain_kernel
from beside import HALF

def right(q, k, v, causal=False):
    return plain_kernel.attend(q, k, v, causal)

def wrong(q, k, v, causal=False):
    return plain_kernel.attend(q, k, v, causal, wrong="tiled heads")

def raises(q, k, v):
    if q.shape[2] != k.shape[2]:
        raise IndexError("boo")
    return plain_kernel.attend(q, k, v)

def causal_alone(q, k, v):
    return plain_kernel.attend(q, k, v, causal=True)

def unseen(q, k, v, **others):
    return plain_kernel.attend(q, k, v, **others)

class Kernels:
    @staticmethod
    def transposed(q, k, v):
        return plain_kernel.attend(*(X.swapaxes(1, 2) for X in (q, k, v)))[0].swapaxes(1, 2)
"""
FEW = ("--dtype", "float32", "--backend", "numpy")


@pytest.fixture
def file(tmp_path):
    (tmp_path / "beside.py").write_text("HALF = 0.5\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text("import no_such_module\n", encoding="utf-8")
    path = tmp_path / "of_kernels.py"
    path.write_text(FILE.replace("HELPERS", repr(os.path.dirname(plain_kernel.__file__))), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "arguments",
    [
        ("right",), ("causal_alone", "--causal"), ("Kernels.transposed", "--layout", "BTHD"),
        ("raises", "--equal-lengths"), ("unseen", "--takes", "mask", "--takes", "lengths", "--no-empty-rows"),
        ("right", "--no-groups", "--head-dim", "64", "--multiple-of", "32"), ("right", "--case", "plain"),
    ],
)  # fmt: skip
def test_a_right_kernel(file, arguments):
    name, *options = arguments
    result = run("kernel", f"{file}:{name}", *FEW, *options)
    assert result.exit_code == 0, result.output
    assert " the same in " in result.output
    assert "not offered, so not seen: " in result.output


def test_options_reach_the_kernel(file):
    result = run("kernel", f"{file}:unseen", *FEW, "--takes", "mask", "--no-empty-rows")
    assert "left out, empty_rows=False: float32, mask that hides a row and a sample" in result.output
    result = run("kernel", f"{file}:right", *FEW, "--no-groups")
    assert "left out, groups=False: float32, 6 heads of 2" in result.output
    assert run("kernel", f"{file}:causal_alone", *FEW, "--lower-right", "--case", "33 queries, 65 keys").exit_code == 1
    assert run("kernel", f"{file}:right", *FEW, "--suite", "full", "--case", "32 tokens").exit_code == 0


def test_a_wrong_kernel(file, tmp_path):
    xml, page = tmp_path / "kernel.xml", tmp_path / "kernel.html"
    result = run("kernel", f"{file}:wrong", *FEW, "--junit", str(xml), "--html", str(page))
    assert result.exit_code == 1
    assert "wrong differs in " in result.output
    assert "why: heads of keys are tiled" in result.output
    root = ElementTree.fromstring(xml.read_bytes())
    assert root.get("name") == "mha kernel"
    cases = list(root.iter("testcase"))
    assert {case.get("classname") for case in cases} == {"numpy.output", "numpy.lse"}
    assert int(root[0].get("failures")) == len(list(root.iter("failure"))) > 5
    assert len(cases) == int(root[0].get("tests"))
    html = page.read_text(encoding="utf-8")
    assert "<title>mha kernel</title>" in html
    assert html.index("why: heads of keys are tiled") < html.index("<table")
    assert "#" * 20 not in html[: html.index("wrong differs in")]
    assert len(html) < 1_000_000


def test_a_kernel_that_raises(file, tmp_path):
    xml = tmp_path / "kernel.xml"
    result = run("kernel", f"{file}:raises", *FEW, "--junit", str(xml))
    assert result.exit_code == 1
    assert "IndexError: boo" in result.output
    failures = list(ElementTree.fromstring(xml.read_bytes()).iter("failure"))
    assert len(failures) == 3
    assert failures[0].get("message").startswith("IndexError: boo")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{file}",), "expected a Python file and the name of a function in it"),
        (("{file}:",), "expected a Python file"),
        (("{file}:none",), "there is no none in"),
        (("{file}:HALF",), "kernel is 0.5 (float), expected a function"),
        (("no_such_file.py:right",), "there is no file no_such_file.py"),
        (("{folder}/broken.py:right",), "cannot be imported: ModuleNotFoundError"),
        (("{file}:right", "--layout", "THB"), "layout is 'THB'"),
        (("{file}:right", "--backend", "torhc"), "did you mean 'torch'?"),
        (("{file}:right", "--case", "nothing"), "cases has 'nothing'"),
        (("{file}:right", "--causal", "--lower-right"), "expected one of them"),
        (("{file}:right", "--html", "{folder}"), "which is no regular file"),
        (("{file}:right", "--suite", "slow"), "suite is 'slow'"),
    ],
)
def test_a_wrong_command(file, tmp_path, arguments, words):
    refused(words, "kernel", *(text.format(file=file, folder=tmp_path) for text in arguments))


def test_the_installed_command(file):
    ran = run_installed("kernel", f"{file}:right", *FEW, "--case", "plain")
    assert ran.returncode == 0, ran.stderr
    assert b"1 case the same" in ran.stdout
