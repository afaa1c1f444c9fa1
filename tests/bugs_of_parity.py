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
    "all roundings look alike": ("parity/precision", r"LEFT = 0\.6", "LEFT = 60"),
}  # fmt: skip
TESTING_TESTS = ["test_testing.py"]
TESTING_BUGS = {
    "cases that raise pass": ("testing/check", r"if different or raised or", "if different or"),
    "nothing compared is a success": ("testing/check", r" or not reports:", ":"),
    "only the first case counts": ("testing/check", r"for label, report in reports.items\(\) if not report\]",
                                   "for label, report in list(reports.items())[:1] if not report]"),
    "arguments that are not taken are dropped": ("testing/check", r"if missing := .*:", "if missing := []:"),
    "the implementation gets our own arrays": ("testing/implementations", r"value\.copy\(\)", "value"),
    "keys and values go by their order": ("testing/implementations", r"    if all\(named\):", "    if False:"),
    "lengths of each query are taken for padding": ("testing/implementations", r"padding\.ndim == 3:", "False:"),
    "modules are left as they were set": ("testing/implementations", r"module\.training = mode", "pass"),
    "calls that differ are taken for one": ("testing/cases", r"getattr\(case, name\) for name in \(\*CALL,",
                                            "getattr(case, name) for name in ("),
    "rows without keys are always left out": ("testing/cases", r"if not empty_rows:", "if True:"),
    "large scores are as large as they come": ("testing/cases", r"if case\.scale > 1:", "if False:"),
    "masks forget the causal order": ("testing/cases", r'if name != "score_bias"\}',
                                      'if name not in ("score_bias", "causal")}'),
    "a layer of PyTorch sees causal order turned": ("backends/torch/native", r"\.tril\(\)", ".triu()"),
    "a layer of Keras does not see padding": ("backends/tensorflow/native", r"pairs & padding\[.*\]  #", "pairs  #"),
    "a layer of Flax sees no causal order": ("backends/jax/native", r"padding\[:, None, None\], pairs, order\)",
                                             "padding[:, None, None], pairs)"),
}  # fmt: skip
