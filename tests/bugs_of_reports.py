"""Bugs of what reports say: layers and steps written another way, reasons, prints; groups as in `bugs_of_mha.py`."""

# fmt: off
GROUPS = {
    "layers that compute the same": ("mha/parity/same mha/parity/why mha/parity/files", "same_layers", {
        "outputs in half precision tell alone": (r"exact or kept", "True"),
        "each weight has to come from A's": (r"exact or kept", "kept"),
        "what is written another way has no rounding": (r'dtypes\.append\("float32"\)', "pass"),
        "one call tells all": (r"\*\(further_calls\(.*\) if further else \(\)\)", ""),
        "no temperature grows": (r", \*floors\]", "]"),
        "heads are repeated one after the other": (r"np\.repeat\(heads, more, 0\)", "np.tile(heads, (more, 1))"),
        "a table of biases needs no order of heads": (r"len\(order\) in ours\.shape", "False"),
        "a cache fits any way of writing": (r'CACHED = \("W_k".*\)', "CACHED = ()"),
    }),
    "steps that are written another way": ("mha/parity/described mha/parity/why", "rewritten_steps", {
        "later steps need not be right": (r"right = later is None or .*", "right = True"),
        "what no later step shows is taken back": (r">= CLEAR", ">= -1"),
        "products do not tell": (r"elif known and \(product := .*\):", "elif False:"),
        "a cap takes a shift back": (r"asked\.config\.sinks or \(.*\)", "asked.config.sinks"),
        "sinks take a shift back": (r"asked\.config\.sinks or ", ""),
        "weights are no result": (r'if name == "weights" and all', 'if name == "nothing" and all'),
        "what is open is sure": (r"if wrong\[0\]\.name in ways\.open:", "if False:"),
        "what is strange is searched for": (r"if all\(row\.name in ways\.strange for", "if False and all(1 for"),
    }),
    "what a mistake leaves": ("mha/parity/mistakes mha/parity/search mha/parity/why", "emptied_rows diagnose", {
        "a mask is never NaN": (r'    \("where it hides all, there is NaN", divided_by_nothing\),\n', ""),
        "a mask is never added": (r"LARGE = \(.*\)", "LARGE = ()"),
        "rows that count without keys are a consequence": (r"self\.all_see and ", ""),
        "what is left counts beside what needs nothing": (r"exact = usual if .*", "exact = [one for _, one in both]"),
        "one formula is several": (r"of_one_formula\(problem, (.*), mistakes\)", r"\1"),
    }),
    "reports of each argument": ("mha/parity/unseen mha/call", "reports", {
        "segments of longer calls are those of the shorter": (r", usual=lambda tokens: \(-1, 3\)", ""),
        "segments of keys are left out of longer calls": ("if Q != K:", "if False:"),
        "positions below 0 hide nothing in a probe": (r"\.hidden is not None and X\.size", ".hidden == 0"),
        "calls without queries have mistakes": (r"if not asked\.visible\.size:", "if False:"),
        "samples in which no row counts are looked at": (r"counted if counted\.size else", ""),
        "printing draws seeds": (r'"numpy", asked\.layer\.seed\)', '"numpy")'),
        "features are left out of the narrow call": (r"np\.concatenate\(\[tokens, others\]\)", "others"),
        "the sample in which least is seen is left out": (r"int\(counted\[seen\.argmin\(\)\]\)", "last"),
    }),
}
