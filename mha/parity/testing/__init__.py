"""Tools for other people's tests: `assert_parity` runs the cases of `mha parity` on an implementation of theirs."""

from mha.parity.testing.check import Outcome, assert_parity

__all__ = ["Outcome", "assert_parity"]
