"""Bugs of the comparison page, planted as those of bugs.py are."""

PAGE_TESTS = ["test_page.py"]
PAGE_BUGS = {
    "what is replaced is not marked": ("page/lessons", r'if change == "equal"', 'if change in ("equal", "replace")'),
    "line breaks are differences": ("page/lessons", r" if not found\[0\]\.isspace\(\)", ""),
    "marks go on over the end of a line": ("page/lessons", r'\.strip\(" "\) == ""', '.strip() == ""'),
    "names of frameworks are not aligned": ("page/lessons", r'"setup": "__init__", ', ""),
    "decorators are left out": ("page/lessons", r'return min\(\[node\.lineno, .*\]\)', "return node.lineno"),
    "the number of a step's line counts the docstring": ("page/lessons", r"else statement \+ 1\]", "else statement]"),
    "stages of the split are mixed up": ("page/lessons", r'\("transpose_qkv", 1\)', '("transpose_qkv", 2)'),
    "data may end its element": ("page/make", r'\.replace\("<", "\\\\u003c"\)', ""),
    "the best of parity is shown": ("page/make", r'max\(math\.inf if', "min(math.inf if"),
    "failures of parity are not counted": ("page/make", r'\+= not one\["passed"\]', "+= 0"),
    "a script is left out": ("page/make", r'"texts\.js", ', ""),
    "hides and attends are mixed up": ("page/measures", r'return "hides"', 'return "attends"'),
    "NaN counts as zeros": ("page/measures", r"if np\.isnan\(weights\)\.all\(\)", "if False"),
    "kernels are the other way round": ("page/measures", r"shape\[0\] == in_size", "shape[1] == in_size"),
    "one failing fact ends all": ("page/worker", r"except Exception as error", "except KeyError as error"),
    "a process that fails is passed over": ("page/differences", r"if ended\.returncode:", "if False:"),
    "failures end well": ("cli/page", r"typer\.Exit\(1 if said else 0\)", "typer.Exit(0)"),
    "no report is looked at": ("cli/page", r'        page\.worst\(told\["results"\]\)\n', ""),
}  # fmt: skip
