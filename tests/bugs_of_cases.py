"""Bugs of case files, which their tests must notice: planted as those in bugs.py, which has the rest."""

CASE_TESTS = ["test_case_files.py", "test_vectors.py"]
CASE_BUGS = {
    "the results are those of the layer's dtype": (
        "parity/case_files",
        r'in_dtype\(layer, "float64"\), wide_inputs, given \| wide',
        "layer, named, given",
    ),
    "gradients have the bound of outputs": ("parity/case_files", r"gradient=gradient in gradients", "gradient=False"),
    "what overflows has no bound": ("parity/case_files", r"if not bounds\[key\] < math\.inf:", "if False:"),
    "the traced output is not compared": ("parity/case_files", r'found, \{"output": traced\}, ', "found, "),
    "the output alone is not compared": (
        "parity/case_files",
        r', \{"output": attention\(\*arrays, \*\*call\)\}',
        "",
    ),
    "an array that is not known is passed over": ("parity/case_files", r"if unknown := .*:", "if unknown := []:"),
    "shapes of results are not looked at": ("parity/case_files", r"\)\.shape != shape or came", ") is None or came"),
    "dtypes of results are not looked at": ("parity/case_files", r" or came\.dtype != dtype:", ":"),
    "bounds may be below 0": ("parity/case_files", r"told\[name\], 0\)", "told[name])"),
    "a mask may hold any bytes": ("parity/case_files", r"mask\.view\(np\.uint8\)\.max\(\) > 1", "False"),
    "bfloat16 is rounded as it is read": ("parity/case_files", r"if error\(narrow, X\):", "if False:"),
    "any file of ours is a case file": ("parity/case_files", r"\)\) != FORMAT:", ")) is None:"),
    "numbers lie as they come": ("weights/safetensors_writer", r"sorted\((arrays\.items\(\)), key=.*\):", r"\1:"),
    "the file is written in place": (
        "cli/case",
        r"terminal\.write\(path, (.*)\)\n",
        r'open(path, "wb").write(\1)\n',
    ),
    "the last step that is off is named": ("cli/case", r"first, \*_ = _failed", "*_, first = _failed"),
    "wrong numbers end well": ("cli/case", r"typer\.Exit\(1 if failures else 0\)", "typer.Exit(0)"),
}  # fmt: skip
