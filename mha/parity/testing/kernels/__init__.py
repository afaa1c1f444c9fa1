"""Tools for tests of kernels: the cases, how a kernel is called, and what a failure says."""
