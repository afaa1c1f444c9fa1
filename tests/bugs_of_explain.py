"""Bugs of `mha explain` and of its texts: planted as those in bugs.py, which says how they are written."""

EXPLAIN_TESTS = ["test_explain.py", "test_cli_explain.py", "test_cli_demo.py"]
EXPLAIN_BUGS = {
    "a line is one too far": ("explain/lines", r"increment_lineno\(tree, first - 1\)", "increment_lineno(tree, first)"),
    "the first statement of a name is taken": ("explain/lines", r"max\(found or returned", "min(found or returned"),
    "any statement of a name is taken": ("explain/lines", r'if calls in \{"", \*_called\(one\)\}', "if True"),
    "the last line of a function is not run": (
        "explain/lines",
        r"if isinstance\(statement, ast\.Return\) and statement\.value",
        "if False",
    ),
    "keys are split into the heads of queries": ("explain/path", r'zip\("qkv", \(H, G, G\)', 'zip("qkv", (H, H, G)'),
    "groups are repeated from before they are turned": (
        "explain/path",
        r'\("rotate_k", "norm_k", "split_k"\)',
        '("split_k", "norm_k")',
    ),
    "values are as wide as keys": ("explain/path", r'\("v", "K", G, "dv"\)', '("v", "K", G, "d")'),
    "grouped heads have the letter of all": ("explain/path", r'else "G"', 'else "H"'),
    "an axis of one stands for itself": ("explain/path", r"'1' if size == 1 else axis", "axis"),
    "gates are forgotten on the way back": ("explain/path", r'pooled = traced\["head_gated"\]', "pass"),
    "a causal order is forgotten": ("explain/path", r'"causal": causal, ', '"causal": False, '),
    "explaining takes a seed from layers that follow": ("explain/path", r'"seed": 0', '"seed": None'),
    "inputs are turned into the layer's dtype": (
        "explain/path",
        r"to_numpy\(X\), backend=lesson",
        "to_numpy(X), config.dtype, backend=lesson",
    ),
    "meanings are in English": ("explain/path", r"catalogue\(language\)", "catalogue()"),
    "the example attends to padding": ("explain/example", r"\[2, 1\]", "[2, 2]"),
    "the example has the usual scale": ("explain/example", r"scale=math\.log\(3\), ", ""),
    "the command speaks English": (
        "cli/explain",
        r"texts, shapes = catalogue\(language\)",
        "texts, shapes = catalogue()",
    ),
    "a matrix has the name of another": ("cli/explain", r"divmod\(number, H\)", "divmod(number, H)[::-1]"),
    "one colour for both heads": ("cli/explain", r"j \* H // len\(row\)", "0"),
    "three lengths for two samples": ("cli/explain", r"if len\(parts\) != batch:", "if False:"),
    "--values takes sizes": ("cli/explain", r"if values and typed:", "if False:"),
    "JSON has every array": ("cli/explain", r"if values else \{\}\)", "if True else {})"),
    "a wide character counts as one column": ("tables", r"cell_len\(lines\[-1\]", "len(lines[-1]"),
    "a line begins with a closing mark": ("tables", r"\[\{CLOSING\}\]\*\\s\*", r"\\s*"),
}

LANGUAGE_TESTS = ["test_languages.py"]
LANGUAGE_BUGS = {
    "a language that is not there is English": ("languages/__init__", r"if language not in LANGUAGES:", "if False:"),
}
