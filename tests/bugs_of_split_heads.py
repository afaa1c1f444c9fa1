"""Bugs of a layer of PyTorch whose heads are split over ranks, which its tests must notice: planted as in bugs.py."""

SPLIT_HEADS_TESTS = ["test_heads_over_ranks.py"]
SPLIT, RANKS, FILES = (f"backends/torch/parallel/{name}" for name in ("split", "ranks", "files"))
SPLIT_HEADS_BUGS = {
    "W_o's bias is added by every rank": (SPLIT, r"part\.W_o\.bias = None.*", "pass"),
    "W_o's bias is added by none": (SPLIT, r"if self\.config\.bias:", "if False:"),
    "columns of values are in another order": (
        SPLIT,
        r"distribute_tensor\(parameter\.detach\(\), ",
        'distribute_tensor(parameter.detach().roll(3 * (name == "W_v.weight"), 0), ',
    ),
    "masks and biases of heads are those of the first": (
        SPLIT,
        r"X\[:, own\] for X",
        "X[:, : own.stop - own.start] for X",
    ),
    "gates of heads are those of the first": (SPLIT, r"gates\[\.\.\., own\]", "gates[..., : own.stop - own.start]"),
    "gradients of what heads share are not summed": (SPLIT, r"else shared\(own, self\.heads\)", "else own"),
    "gradients of inputs are not summed": (SPLIT, r"shared\(X, mesh\) for X in \(queries", "X for X in (queries"),
    "gradients of gates, masks and biases are not summed": (
        SPLIT,
        r"\(shared\(X, self\.heads\) for X in",
        "(X for X in",
    ),
    "inputs that are one are summed three times": (
        SPLIT,
        r"queries, keys, values = once\[id\(queries\)\].*",
        "queries, keys, values = (shared(X, mesh) for X in (queries, keys, values))",
    ),
    "dropout is the same on every rank": (RANKS, r"seed \+ rank", "seed"),
    "dropout is the same in every call": (RANKS, r"int\(torch\.randint\(2\*\*62, \(\)\)\)", "7"),
    "dropout leaves ranks at other places of the generator": (
        RANKS,
        r"with torch\.random\.fork_rng\(.*\):",
        "with contextlib.nullcontext():",
    ),
    "lengths may differ from rank to rank": (
        SPLIT,
        r"lengths if whole else lengths\.shape\[:1\]",
        "lengths if lengths is None else 0",
    ),
    "offsets may differ": (SPLIT, r'"offset": hiding\.offset', '"offset": 0'),
    "only one rank may train": (SPLIT, r'return found \| \{"training": .*', "return found"),
    "the first rank alone is looked at": (
        RANKS,
        r"for rank, theirs in enumerate\(everybody\)",
        "for rank, theirs in []",
    ),
    "weights are those of the heads here": (SPLIT, r"joined\(weights, 1, mesh\)", "weights"),
    "weights are joined along queries": (SPLIT, r"joined\(weights, 1, mesh\)", "joined(weights, 2, mesh)"),
    "a split layer is copied": (SPLIT, r"def __deepcopy__\(self, memo\)", "def deepcopied(self)"),
    "steps of the part are given": (SPLIT, r"def steps\(self", "def no_steps(self"),
    "every rank loads the first part": (
        FILES,
        r"X\.placements, src_data_rank=None\)",
        "X.placements, src_data_rank=None).roll(1, 0)",
    ),
    "one array may be three on another rank": (SPLIT, r'found\["which of .*', "pass"),
    "a need of gradients may differ": (SPLIT, r'found\["requires_grad"\] = .*', "pass"),
    "what a rank refuses is not told": (RANKS, r"_exchanged\(mesh, REFUSES, \[\]\)", "pass"),
    "ranks may be out of step": (RANKS, r"if \(theirs, count\) != .*:", "if False:"),
    "only the rank that writes knows of a failure": (FILES, r"problem = problem or whole.*", "pass"),
    "gradients of gradients are those of this rank alone": (RANKS, r"    @once_differentiable\n", ""),
}
# Of ranks that end or do not answer.
FAILING_TESTS = ["distributed/test_ranks_that_fail.py"]
FAILING_BUGS = {
    "ranks do not meet before a sum": (RANKS, r"    ready\(mesh\)\n    total", "    total"),
    "a rank that ends is not named": (RANKS, r"except RuntimeError as error", "except ZeroDivisionError as error"),
}
