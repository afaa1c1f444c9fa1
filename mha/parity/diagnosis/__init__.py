"""Find where results differ, and why: comparisons, the search for known mistakes, and the mistakes that would pass."""
