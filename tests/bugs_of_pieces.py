"""Bugs of calls that are computed in pieces: planted as those in bugs.py, which says how they are written."""

# Of what is computed without weights.
PARTS = "numpy", "torch", "tensorflow", "mxnet"  # which cut by `blocks.part`
BLOCKS_TESTS = ["test_reference.py", "test_loops.py", "test_blocks.py"]
BLOCKS_BUGS = {
    "a block forgets its place": [(r"(offset|tf\.cast\(offset, tf\.int64\)) \+ (\w+\.(arange|range))", r"\2")],
    "a query that sees nothing counts as seeing": [(r"sees = first < last", "sees = first <= last")],
    "unseen positions keep what they hold": [
        (r"queries, keys, values = blank\(queries, keys, values, (sees, seen|\*used\(.*\))\)", "pass"),
    ],
    "lengths of the first queries in every block": {
        **{
            name: [(r"valid_lens\[samples, queries\]", "valid_lens[samples, : len(valid_lens[0, queries])]")]
            for name in ("numpy", "torch", "tensorflow", "mxnet")
        },
        "jax": [
            (r"hiding\.valid_lens\[:, None, :, None\]",
             "jnp.tile(hiding.valid_lens[:, :size], (1, -(-Q // size)))[:, :Q, None][:, None]"),
        ],
    },
    "causal order ends before the block does": {
        **{
            name: [(r"highest \+ num_queries \+ right", "highest + num_queries - 1 + right")]
            for name in ("numpy", "torch", "mxnet")
        },
        "tensorflow": [(r"tf\.reduce_max\(offset\) \+ num_queries \+ right", "tf.reduce_max(offset) + 1 + right")],
        "jax": [(r"jnp\.minimum\(offset\.max\(\), K - right\) \+ size \+ right", "(offset.max() + size + right) // 2")],
    },
    "a block misses the first key of its window": {
        **{
            name: [(r"min\(lowest - left, num_keys - 1\)", "min(lowest - left + 1, num_keys - 1)")]
            for name in ("numpy", "torch", "mxnet")
        },
        "tensorflow": [(r"tf\.reduce_min\(offset\) - left", "tf.reduce_min(offset) - left + 1")],
        "jax": [(r"clip\(offset - left", "clip(offset - left + 1")],
    },
    "a call misses the first key of its window": {
        "jax": [(r"clip\(hiding\.offset - left", "clip(hiding.offset - left + 1")],
    },
    "blocks of a window that see other keys are taken as alike": {
        "torch": [(r"size == keys\.start - before\.start == (keys\.stop - before\.stop)", r"size == \1")],
    },
    "a window's rows of a group in another order": {
        "torch": [(r"\.repeat\(1, 1, BH // BG, 1\)", ".repeat_interleave(BH // BG, 2)")],
    },
    "the kernel's mask of groups in another order": {
        "torch": [(r"visible\.expand\(B, heads, -1, -1\)", "visible.expand(B, heads, -1, -1).transpose(0, 1)")],
    },
    "the kernel forgets the scale": {"torch": [(r"is_causal=ordered, scale=self\.scale", "is_causal=ordered")]},
    "a causal order with an offset is left to the kernel": {
        "torch": [(r"return isinstance\(hiding\.offset, int\) and hiding\.offset == 0", "return True")],
    },
    "a bias of other blocks": {"torch": [(r"(score_bias\.split\(first\.stop, 2\))", r"\1[::-1]")]},
    "keys of a chunk from its beginning": {
        "tensorflow": [(r"seen\.start - start : seen\.stop - start", "0 : seen.stop - seen.start")],
    },
    "gates are forgotten where no weights are kept": {
        "tensorflow": [(r"pooled = pooled \* tf\.reshape\(tf\.broadcast_to\(head_gates.*", "pass")],
        "jax": [(r"pooled = pooled \* jnp\.broadcast_to\(head_gates.*", "pass")],
    },
    "a part forgets where its keys begin": {
        **{name: [(r"offset \+ first_query - first_key", "offset + first_query")] for name in PARTS},
        "jax": [(r"offset=hiding\.offset - first", "offset=hiding.offset")],
    },
    "a part forgets where its queries begin": {
        **{name: [(r"offset \+ first_query - first_key", "offset - first_key")] for name in PARTS},
        "jax": [(r" \+ piece % counts\[2\] \* size", "")],
    },
    "lengths forget where the keys of a part begin": {
        **{name: [(r"else valid_lens - first_key", "else valid_lens")] for name in PARTS},
        "jax": [(r"hiding\.valid_lens - first", "hiding.valid_lens")],
    },
    "the bias of the first keys in every part": {"jax": [(r"cut\(X, first, size, 3\)", "X[:, :, :, :size]")]},
    "the bias of the first queries in every block": {
        **{
            name: [
                (r"    each = zip\(\(samples",
                 "    queries = queries if queries.stop is None else slice(0, queries.stop - (queries.start or 0))\n"
                 "    each = zip((samples"),
            ]
            for name in ("numpy", "torch")
        },
        "tensorflow": [(r"\(s \* P \+ p\) \* C \+ c", "(s * P + p) * C")],
        "jax": [(r"hiding\.mask, hiding\.score_bias, offset", "hiding.mask, of_first(hiding.score_bias), offset"),
                (r"    arrays = \[", "    of_first = lambda X: X if X is None or X.shape[2] == 1 else jnp.tile(\n"
                 "        X[:, :, :size], (1, 1, -(-Q // size), 1))[:, :, :Q]\n    arrays = [")],
        "mxnet": [(r"zip\(\(block, seen\), score_bias", "zip((slice(block.stop - block.start), seen), score_bias")],
    },
    "gates of other heads in groups of samples": {
        "mxnet": [(r"broadcast_to\(head_gates", "broadcast_to(head_gates[..., ::-1]")],
    },
    "gradients of a bias go to its first keys": {
        "mxnet": [(r"(total\[)cut(\] \+=)", r"\1(*cut[:3], slice(X.shape[3])) if X.ndim == 4 else cut\2")],
    },
    "rows of a group in another order": {
        "tensorflow": [
            (r"folded = tf\.reshape\(queries, (.*)\)  #",
             r"folded = tf.reshape(tf.transpose(tf.reshape(queries, (BG, -1, Q, d)), (0, 2, 1, 3)), \1)  #"),
        ],
    } | {
        name: [
            (r"pairs\.reshape\(BG, (BH // BG) \* Q, -1\)",
             r"pairs.reshape(BG, Q, \1, -1).swapaxes(1, 2).reshape(BG, \1 * Q, -1)"),
        ]
        for name in ("numpy", "torch", "jax", "mxnet")
    },
}  # fmt: skip

# Of dropout in pieces.
PIECES_TESTS = ["test_dropout_pieces.py"]
PIECES_BUGS = {
    "one mask for all pieces of a head": {
        "tensorflow": [(r"stateless_fold_in\((.*), piece\)", r"stateless_fold_in(\1, 0)")],
        "jax": [(r"fold_in\(key, piece\)", "fold_in(key, piece // counts[2])")],
        "mxnet": [(r"self\.seed \+ block\.start", "self.seed")],
    },
    "one mask for all groups": {"jax": [(r"fold_in\(key, piece\)", "fold_in(key, piece % counts[2])")]},
    "kept weights that do not grow in pieces": {
        "tensorflow": [(r"(stateless_dropout\(weights, self\.dropout, .*\))", r"\1 * (1 - self.dropout)")],
        "mxnet": [(r"kept / \(1 - self\.dropout\)", "kept")],
    },
    "what is kept and what is dropped in pieces confused": {
        "tensorflow": [(r"stateless_dropout\(weights, self\.dropout", "stateless_dropout(weights, 1 - self.dropout")],
        "mxnet": [(r'"float32"\) >= self\.dropout', '"float32") >= 1 - self.dropout')],
    },
    "the kernel, which drops nothing, is taken in training": {
        "torch": [(r"return type\(self\) is DotProductAttention and .*", "return type(self) is DotProductAttention")],
    },
}

# Of what those gradients keep in memory.
MEMORY_TESTS = ["test_memory.py"]
MEMORY_BUGS = {
    "scores are kept for the backward pass": {
        "numpy": [
            (r"(?s)(def pool_backward.*?for block, seen in )self\.pieces\(queries, keys, hiding\)",
             r"\1[(slice(0, queries.shape[1]), slice(0, keys.shape[1]))]"),
        ],
        "torch": [(r"checkpoint\(function, \*inputs, use_reentrant=False\)", "function(*inputs)")],
        "tensorflow": [(r" +@pieces\.recomputed\n", "")],
        "jax": [(r"again = functools\.partial\(jax\.checkpoint.*", "again = lambda function: function")],
        "mxnet": [
            (r"return _Recomputed\.call\(.*",
             "parts = [(queries[:, block], keys[:, seen], values[:, seen]) for block, seen in pieces]\n"
             "        return np.concatenate([pool_some(*cuts, *X) for cuts, X in zip(pieces, parts)], 1)"),
        ],
    },
    "a kernel that keeps the scores is taken": {"torch": [(r"keeps = .*", "keeps = False")]},
    "keys are copied for every head": {
        "torch": [(r"\.expand\(-1, sizes\[1\], -1, -1\)", ".repeat(1, sizes[0] * sizes[1] // X.shape[0], 1, 1)")],
    },
}  # fmt: skip
