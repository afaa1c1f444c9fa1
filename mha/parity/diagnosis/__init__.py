"""Where do results differ, and why? Comparisons, the search for known mistakes, and what a comparison does not show."""
