"""Tools for other people's tests: `assert_parity` for layers, `assert_kernel` for kernels, each with many cases."""

from mha.parity.testing.check import Outcome, assert_parity
from mha.parity.testing.kernels.check_kernel import KernelOutcome, assert_kernel, kernel_cases

__all__ = ["KernelOutcome", "Outcome", "assert_kernel", "assert_parity", "kernel_cases"]
