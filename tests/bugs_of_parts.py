"""Bugs of a layer's parts, which their tests must notice: planted as those in bugs.py."""

PARTS_TESTS = ["test_parts.py"]
PARTS_BUGS = {
    "W_o's bias is added by every part": (
        "parallel/parts",
        r"np\.zeros_like\(X\) if name == ONCE and index else X",
        "X",
    ),
    "the bias of W_o in the last part alone": (
        "parallel/parts",
        r"if name == ONCE and index else X",
        "if name == ONCE and index < count - 1 else X",
    ),
    "columns are interleaved over the parts": (
        "parallel/parts",
        r"return np\.split\(X, count, SPLIT\[name\]\)\[index\]",
        "return X[index::count] if SPLIT[name] == 0 else X[..., index::count]",
    ),
    "rows of W_o are interleaved over the parts": (
        "parallel/parts",
        r"return np\.split\(X, count, SPLIT\[name\]\)\[index\]",
        "return X[index::count] if SPLIT[name] == 0 else np.split(X, count, -1)[index]",
    ),
    "parts in the opposite order": ("parallel/parts", r"\)\[index\]", ")[count - 1 - index]"),
    "biases stay whole": ("parallel/parts", r'\("kernel", "bias"\)', '("kernel",)'),
    "heads of keys stay whole": (
        "parallel/parts",
        r"config\.num_key_value_heads // count\n",
        "config.num_key_value_heads\n",
    ),
    "groups may be torn": (
        "parallel/parts",
        r'for name in \("num_heads", "num_key_value_heads"\)',
        'for name in ("num_heads",)',
    ),
    "only the first bias of W_o counts": (
        "parallel/parts",
        r"np\.add\.reduce\(parts\)\.astype\(parts\[0\]\.dtype\)",
        "parts[0].copy()",
    ),
    "what heads share may differ": ("parallel/parts", r"not np\.array_equal\(", "0 * np.array_equal("),
    "the whole keeps the first part's memory": ("parallel/parts", r"else parts\[0\]\.copy\(\)", "else parts[0]"),
    "parts of other layers are joined": ("parallel/parts", r"if config != first:", "if False:"),
    "an index beyond the last part": ("parallel/parts", r"if not 0 <= index < count:", "if not index < count:"),
}
