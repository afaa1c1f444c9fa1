"""Bugs of a layer of PyTorch whose sequence is split over ranks, which its tests must notice: planted as in bugs.py."""

SEQUENCE_TESTS = ["test_sequence_over_ranks.py"]
RING, SEQUENCE, EXCHANGE, SPLIT = (
    f"backends/torch/parallel/{name}" for name in ("ring", "sequence", "exchange", "split")
)
SEQUENCE_BUGS = {
    "the causal order begins anew on each rank": (
        SEQUENCE,
        r"\(offset=hiding\.offset \+ rows\.first_query\)\n\n",
        "(offset=hiding.offset)\n\n",
    ),
    "keys are turned as if they were the first": (SEQUENCE, r"hiding\.offset, rows\.first_key\)", "hiding.offset, 0)"),
    "what is seen is not told to other ranks": (SEQUENCE, r"seen = anywhere\((.*), mesh\)", r"seen = \1"),
    "weights have the gradients of this rank alone": (
        SEQUENCE,
        r"lambda name, X: shared\(X, mesh\)",
        "lambda name, X: X",
    ),
    "gates have the gradients of this rank alone": (
        SEQUENCE,
        r"else shared\(head_gates, mesh\)",
        "else head_gates",
    ),
    "a bias of one row has the gradients of this rank alone": (SEQUENCE, r"if not rows\.of_bias:", "if False:"),
    "masks in lists count as one row": (SEQUENCE, r'arguments\.known\("mask", mask, "bool"\)', "mask"),
    "a causal order may differ": (SEQUENCE, r'"causal": bool\(causal\)', '"causal": 0'),
    "a need of gradients may differ": (SEQUENCE, r'facts\["requires_grad"\] = .*', "pass"),
    "lengths may differ": (
        SEQUENCE,
        r"again = any\(X is not None for X in given\.values\(\)\) or",
        "again =",
    ),
    "weights may differ": (SPLIT, r'agree\(mesh, \{"the digest.*', "pass"),
    "one column is the first rank's": (SEQUENCE, r"flags\.expand\(X\.shape\[:2\]\)", "flags"),
    "lengths travel in the dtype of each rank": (SEQUENCE, r"lengths\.to\(torch\.int64\)", "lengths"),
    "padding reaches weights where there are no keys": (SEQUENCE, r" and 0 not in \(sum.*\):", ":"),
    "the merge without its maximum": (RING, r"torch\.where\(most == -math\.inf, 0, most\)", "0 * most"),
    "what was pooled is not weighed anew": (RING, r"pooled \* again", "pooled"),
    "the sum is not weighed anew": (RING, r"total \* again", "total"),
    "gradients of keys stay where they are": (RING, r"by_pairs = self\.passed\(by_pairs, owner\)", "pass"),
    "NaN becomes 0": (RING, r"\(pooled / total\)", "torch.nan_to_num(pooled / total)"),
    "a backward pass drops other weights": (
        RING,
        r"manual_seed\(self\.seed\)",
        "manual_seed(int(torch.randint(2**62, ())))",
    ),
    "the softmax takes nothing from gradients": (RING, r"by_scores\.sub_\(own_shares\)\.mul_", "by_scores.mul_"),
    "each rank's keys are placed as the first": (
        RING,
        r"hiding = blocks\.part\(self\.hiding\._replace\(score_bias=score_bias\), keys=slice\(first, first",
        "hiding = blocks.part(self.hiding._replace(score_bias=score_bias), keys=slice(0, 0",
    ),
    "of the biases only those of the first ranks have gradients": (
        RING,
        r"return slice\(first \+ seen\.start, first \+ seen\.stop\)",
        "return slice(seen.start, seen.stop)",
    ),
    "gradients of keys of one rank alone": (EXCHANGE, r"torch\.stack\(found\)\.sum\(0\)", "found[0]"),
    "as many rows are taken of each rank": (EXCHANGE, r"part\[:count\]", "part"),
}
