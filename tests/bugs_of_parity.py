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
TWO_TESTS = ["test_compare_layers.py", "test_compare_files.py"]
TWO_BUGS = {
    "half precision that was trained apart is the same": ("parity/relations", r"!= fits\(there, dtype\)", "or True"),
    "a few rows tell all": ("parity/relations", r"\(slice\(ROWS\), slice\(None\)\)", "(slice(ROWS),)"),
    "orders of columns are taken the other way": ("parity/relations", r"lexsort\(second\)\] = np\.lexsort\(first\)",
                                                  "lexsort(first)] = np.lexsort(second)"),
    "halves and neighbours are mixed up": ("parity/relations", r"reshape\(shape\)\.T", "reshape(shape[::-1]).T"),
    "a factor of nearly 1 explains noise": ("parity/relations", r"abs\(factor - 1\) > 0\.02", "True"),
    "weights alone tell": ("parity/two_layers", r"return self\.agree and", "return"),
    "outputs alone tell": ("parity/two_layers", r"return self\.agree and all\(.*\)", "return self.agree"),
    "rounded weights are judged in float64": ("parity/two_layers", r'report\.rounded or "float64"', '"float64"'),
    "no window hides anything": ("parity/two_layers", r"offsets = \[0, .*\]", "offsets = [0]"),
    "bias of zeros is missing": ("parity/two_layers", r'zeros = name\.endswith', 'zeros = not name.endswith'),
    "layer 10 comes before layer 2": ("parity/two_files", r"int\(X\) if X\.isdigit\(\) else X", "X"),
    "an error names no side": ("parity/two_files", r"_\{self\.side\}", ""),
    "pairs turn as in the other file": ("parity/two_files", r"interleaved=pairs", "interleaved=False"),
    "what nobody asked for is passed over": ("parity/two_files", r"if all\(name != lacking", "if not all(True"),
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
