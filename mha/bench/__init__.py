"""Benchmarks of `mha bench`: time and peak memory of our layers and calls, compared with the frameworks' own."""
