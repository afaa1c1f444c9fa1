"""Bugs of comparisons and diagnoses, planted as those of bugs.py are."""

COMPARE_TESTS = ["test_compare.py"]
COMPARE_BUGS = {
    "what is hidden counts": ("parity/layouts", r'visible if name in PAIRS and name != "weights" else', ""),
    "hidden weights do not count": ("parity/layouts", r' and name != "weights" else', " else"),
    "gradients are measured as outputs": ("parity/problem", r"gradient=True, scale=scale", "scale=1e9"),
    "the index is not in their own layout": ("parity/comparison", r"np\.unravel_index\(places\[at\], X\.shape\)", "at"),
    "heads come after rows in every layout": ("parity/layouts", r'"\(B, H, T, d\)": \(\(B, H, T, d\), lambda X: X\)',
                                              '"(B, H, T, d)": ((B, H, T, d), lambda X: X[:, ::-1])'),
    "a report is true unless all differs": ("parity/report", r"return all\(row\.passed", "return any(row.passed"),
    "the offset is left out of a comparison": ("parity/comparison", r'"offset": offset', '"offset": 0'),
}  # fmt: skip
DIAGNOSE_TESTS = ["test_diagnose.py"]
DIAGNOSE_BUGS = {
    "a part that changes is not computed again": ("parity/mistakes", r"not BEHIND\[part\]\.isdisjoint", "part in set"),
    "what is merely near is called the same": ("parity/search", r"self\.ratio <= 1 and self\.left <= PART", "True"),
    "one sample tells all": ("parity/search", r"SAMPLES = 3", "SAMPLES = 1"),
    "no pairs are tried": ("parity/search", r"if pairs and further", "if False and further"),
    "scores that a mistake hides count": ("parity/search", r"plan\.hiding is self\.plan\.hiding", "True"),
    "another number of heads is not regrouped": ("parity/pipeline", r"X if X\.shape\[1\] == heads", "X if True"),
    "padding is an error of rounding": ("parity/diagnosis", r"np\.where\(problem\.matters\(name\), X, 0\)", "X"),
    "all roundings look alike": ("parity/precision", r"LEFT = 0\.6", "LEFT = 60"),
}  # fmt: skip
