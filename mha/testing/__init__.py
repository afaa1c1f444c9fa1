"""For test suites elsewhere: `assert_parity` runs the cases of `mha parity` on an implementation that is not ours."""

from mha.testing.check import Outcome, assert_parity

__all__ = ["Outcome", "assert_parity"]
