"""Bugs of what measures, prunes and shows heads, which their tests must notice: planted as those in bugs.py."""

HEADS_TESTS = ["test_heads.py"]
HEADS_BUGS = {
    "columns of a kernel lie feature by feature": (
        "heads/pruning",
        r"np\.arange\(block \* width, \(block \+ 1\) \* width\)",
        "np.arange(width) * (max(blocks) + 1) + block",
    ),
    "the heads that are named are kept": ("heads/pruning", r"if head not in gone\]", "if head in gone]"),
    "rows of W_o are as wide as keys": (
        "heads/pruning",
        r"_features\(kept, config\.value_dim\)",
        "_features(kept, config.key_dim)",
    ),
    "rows of W_o are those of the first heads": (
        "heads/pruning",
        r"_features\(kept, config\.value_dim\)",
        "_features(range(len(kept)), config.value_dim)",
    ),
    "biases are not cut": ("heads/pruning", r'\(f"\{name\}\.kernel", f"\{name\}\.bias"\)', '(f"{name}.kernel",)'),
    "values are cut by the query heads": (
        "heads/pruning",
        r'"W_v": \(groups, config\.value_dim\)',
        '"W_v": (kept[: len(groups)], config.value_dim)',
    ),
    "groups are counted from the end": ("heads/pruning", r"return list\(members\)", "return list(members)[::-1]"),
    "a head reads the group of its rest": ("heads/pruning", r"head // share, \[\]", "head % share, []"),
    "widths follow from the number of heads": (
        "heads/pruning",
        r"num_heads=len\(kept\), ",
        "num_heads=len(kept), scale=config.scale or len(kept) ** -0.5, ",
    ),
    "unequal groups are taken": ("heads/pruning", r"if len\(set\(sizes\)\) > 1:", "if False:"),
    "all heads may go": ("heads/pruning", r"if len\(gone\) == H:", "if False:"),
    "a head may come twice": ("heads/pruning", r"if head in gone:", "if False:"),
    "the pruned layer is not readable": ("heads/pruning", r"attention\.seed, attention\.readable\)", "attention.seed)"),
    "gradients of samples are added with their signs": (
        "heads/importance",
        r"np\.abs\((.*)\)\.sum\(0\)",
        r"abs(\1.sum(0))",
    ),
    "gates are shared by the samples": (
        "heads/importance",
        r"np\.ones\(\(samples, config\.num_heads\),",
        "np.ones((config.num_heads,),",
    ),
    "gates are 0 where gradients are taken": (
        "heads/importance",
        r"gates = np\.ones\(\(samples",
        "gates = np.zeros((samples",
    ),
    "the sum over samples for the mean": ("heads/importance", r"return total / samples", "return total"),
    "batches count as much, whatever their size": (
        "heads/importance",
        r"total \+ found, samples \+ size",
        "total + found / size, samples + 1",
    ),
    "squares for lengths": (
        "heads/importance",
        r"np\.linalg\.norm\(change, axis=\(1, 2\)\)",
        "(change**2).sum((1, 2))",
    ),
    "a shrinking loss is a growing one": (
        "heads/importance",
        r"found\[head\] = (_value\(.*)\n",
        r"found[head] = abs(\1)\n",
    ),
    "the head that is measured alone stays": (
        "heads/importance",
        r"gates\[head\] = 0",
        "gates = 1 - np.eye(config.num_heads, dtype=gates.dtype)[0]",
    ),
    "the gradient that a loss brings is not taken": (
        "backends/numpy/arrays",
        r"return found if isinstance\(found, tuple\) else \(found, None\)",
        "return (found[0], X) if isinstance(found, tuple) else (found, None)",
    ),
}  # fmt: skip

SHOWN_TESTS = ["test_plot.py", "test_cli_heads.py"]
SHOWN_BUGS = {
    "each head has a scale of its own": ("plot/pictures", r"vmin=0, vmax=largest, ", ""),
    "the scale is that of heads that are not drawn": ("plot/pictures", r"found\)\[shown\]", "found)"),
    "hidden cells have a colour": (
        "plot/pictures",
        r"np\.ma\.masked_where\(hides\[head\], found\[head\]\)",
        "found[head]",
    ),
    "small weights are hidden": ("plot/pictures", r"hides = found == 0", "hides = found < 0.1"),
    "another sample is drawn": ("plot/pictures", r"return found\[sample\]", "return found[0]"),
    "the samples lie inside the heads": (
        "plot/pictures",
        r"found = found\.reshape\(four\)  #.*",
        "found = found.reshape(four) if found.ndim == 4 else found.reshape(number, -1, *shape[-2:]).swapaxes(0, 1)",
    ),
    "rows and columns of the hatching are swapped": ("plot/pictures", r"enumerate\(hidden\):", "enumerate(hidden.T):"),
    "a token may be a formula": ("plot/pictures", r'\.replace\("\$", r"\\\$"\)', ""),
    "names are of the keys alone": ("plot/pictures", r"_ticks\(panel\.yaxis, rows", "_ticks(panel.yaxis, columns[:Q]"),
    "a layer's input is the first one's": (
        "heads/encoder",
        r"X = self\.after\(number, X, output\)",
        "self.after(number, X, output)",
    ),
    "the norm adds no shift": (
        "heads/encoder",
        r'(LayerNorm\.weight|\{name\}\.weight"\]) \+ self\.arrays\[.*\]',
        r"\1",
    ),
    "the tangent's form of gelu": (
        "heads/encoder",
        r"return \(X \* \(1 \+ erf\)",
        "erf = np.tanh(math.sqrt(2 / math.pi) * (X + 0.044715 * X**3))\n    return (X * (1 + erf)",
    ),
    "padding counts in the mean": ("heads/encoder", r"np\.where\(valid\[:, :, None\], X, 0\)\.sum\(1\)", "X.sum(1)"),
    "the first layer is shown": ("cli/heads", r"model\.attentions\[layer\]\(X", "model.attentions[0](X"),
    "any model is a BERT": ("heads/encoder", r"if kind\[name\] != expected:", "if False:"),
}  # fmt: skip
