"""Case files as tests write, read, check and damage them."""

import numpy as np
import pytest
from commands import refused

from mha.parity import case_files


def failed(case, backend):
    """Where a backend is outside the bounds of a case."""
    return [result.where for result in case_files.check(case, backend) if not result.passed]


def written_and_read(path, case):
    """The case as it is read again from a file, which must be the same."""
    case_files.write(path, case)
    found = case_files.read(path)
    assert case_files.to_bytes(found) == path.read_bytes()
    assert (found.name, found.config, found.bounds) == (case.name, case.config, case.bounds)
    for part in ("weights", "inputs", "call", "expected"):
        arrays, again = getattr(case, part), getattr(found, part)
        assert list(again) == list(arrays) or (part == "call" and again.keys() == arrays.keys())
        for name, X in arrays.items():
            np.testing.assert_array_equal(again[name], X, name)
    return found


def refusal(path, data):
    """The error of a file with these bytes, in one line that begins with its path; by the command too."""
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"^\S") as raised:
        case_files.read(path)
    refused(f"mha: {raised.value}\n", "case", "check", str(path), "--backends", "numpy")
    assert str(raised.value).startswith(f"{path} ")
    assert str(raised.value).isprintable()
    return str(raised.value)
