"""What is taken for the options of today's models elsewhere: planted as bugs, as in bugs.py, which has the rest."""

MODERN_TESTS = ["test_options.py"]
MODERN_BUGS = {
    "heads of keys are tiled, not repeated": {
        "numpy": [(r"np\.repeat\(X, times, 0\)", "np.tile(X, (times, 1, 1))")],
        "torch": [(r"X\.repeat_interleave\(times, 0\)", "X.repeat(times, 1, 1)")],
        "tensorflow": [(r"tf\.repeat\(X, times, 0\)", "tf.tile(X, (times, 1, 1))")],
        "jax": [(r"jnp\.repeat\(X, times, 0\)", "jnp.tile(X, (times, 1, 1))")],
        "mxnet": [
            (r"(np\.broadcast_to\(X\[:, None\].*\))\.reshape\(BG \* times", r"\1.swapaxes(0, 1).reshape(BG * times"),
        ],
    },
    "rotary components are paired the other way": [(r"if rotary\.interleaved:", "if not rotary.interleaved:")],
    "the rotation is off by one": [(r"rotate\(q, positions", "rotate(q, 1 + positions")],
    "the rotation begins again at every offset": [
        (r"rotate\(q, positions\(q, offset\)", "rotate(q, positions(q)"),
    ],
    "another base": [(r"rotary\.angles\(\)", "[angle**0.5 for angle in rotary.angles()]")],
    "angles in half precision": {
        "numpy": [(r"np\.array\(rotary\.angles\(\)\)", 'np.array(rotary.angles(), "float32")')],
        "torch": [(r"dtype=torch\.float64, device", "dtype=torch.float32, device")],
        "tensorflow": [(r"(= tf\.cast\(places, )tf\.float64(.*), tf\.float64\)", r"\1tf.float32\2, tf.float32)")],
        "jax": [(r"if dtype == np\.float64:", "if True:")],
        "mxnet": [(r'"float64"', '"float32"')],
    },
    "the norm comes after the rotation": [
        (r"q, k = self\.q_norm\(q\), self\.k_norm\(k\)", "bare, q, k = q, self.q_norm(q), self.k_norm(k)"),
        (r"q = rotate\(q, (.*)\)  #", r"q = self.q_norm(rotate(bare, \1)) if config.qk_norm else rotate(q, \1)  #"),
    ],
    "keys have no norm": [(r"self\.q_norm\(q\), self\.k_norm\(k\)", "self.q_norm(q), k")],
    "the norm of queries for that of keys": [(r"self\.k_norm\(k\)", "self.q_norm(k)")],
    "1 is added to the scale of a norm": [
        (r"(widen\(self\.scale\)|widen\(tf.*\(self\.scale\)\)|wide / roots \* scale)", r"(1 + \1)"),
    ],
    "RMS norm for layer norm": [(r'if self\.kind == "layer":', "if False:")],
    "another epsilon": [(r"\+ self\.eps\)", "+ 1e-6)")],
    "the default scale for the model's own": [(r"if self\.scale is None else self\.scale", "")],
    "the cap comes after the bias": [
        (r"scores = scores \+ widen\(score_bias\)",
         "scores = scores + widen(score_bias) if self.softcap is None else cap("
         "self.scores(queries, keys) + widen(score_bias), self.softcap)"),
    ],
    "the cap is forgotten": [(r"scores = cap\(scores, self\.softcap, visible\)", "scores = scores")],
    "the bias is scaled too": [(r"\+ widen\(score_bias\)", "+ 0.5 * widen(score_bias)")],
    "minus infinity does not hide": [(r"(four_axes\(score_bias\)) != -(np|math)\.inf", r"(\1 == \1) | (\1 != \1)")],
    "the window is one wider to the left": [(r"each_key \+ left >=", "each_key + left + 1 >=")],
    "the window is one wider to the right": [(r"each_key - right <=", "each_key - right - (right > 0) <=")],
    "the window is symmetric": [
        (r"left, right = window or \(None, None\)", "left, right = (window[:1] * 2) if window else (None, None)"),
    ],
    "causal order is off by one": [(r"(?m)^        right = 0$", "        right = 1")],
    "gates of other heads": {
        "numpy": [(r"broadcast_to\(head_gates", "broadcast_to(head_gates[..., ::-1]")],
        "torch": [(r"broadcast_to\(head_gates", "broadcast_to(head_gates.flip(-1)")],
        "tensorflow": [(r"broadcast_to\(head_gates", "broadcast_to(head_gates[..., ::-1]")],
        "jax": [(r"broadcast_to\(head_gates", "broadcast_to(head_gates[..., ::-1]")],
        "mxnet": [(r"broadcast_to\(_over\(head_gates", "broadcast_to(_over(head_gates[..., ::-1]")],
    },
    "gates are forgotten": [(r"pooled = pooled \* gates", "pooled = pooled * 1")],
    "the gradient of a group is that of its first head": {
        "numpy": [(r"X\.shape\[2\]\)\.sum\(1\)", "X.shape[2])[:, 0]")],
    },
    "the gradient of a norm forgets its root": {
        "numpy": [(r"by_X = by_normalized - normalized \* .*", "by_X = by_normalized")],
    },
    "the gradient of a layer norm forgets its mean": {"numpy": [(r'if norm\.kind == "layer":', "if False:")]},
    "gradients are not turned back": {"numpy": [(r"rotate\(by_k, -positions", "rotate(by_k, positions")]},
    "the gradient of a cap is 1": {"numpy": [(r"by_biased \* \(1 - \(capped / self\.softcap\) \*\* 2\)", "by_biased")]},
}  # fmt: skip

# Of today's options in pieces: what a window, groups of heads and a bias need of each.
OPTIONS_BUGS = {
    "a block misses the first key of its window": {
        "tensorflow": [(r"tf\.reduce_min\(offset\) - left", "tf.reduce_min(offset) - left + 1")],
    },
    "keys that were cut off still count for the offset": {
        "tensorflow": [(r"offset \+ first_query - first_key", "offset + first_query")],
    },
    "keys of a chunk from its beginning": {
        "tensorflow": [(r"seen\.start - start : seen\.stop - start", "0 : seen.stop - seen.start")],
    },
    "queries of a group folded the other way round": {
        "tensorflow": [
            (r"folded = tf\.reshape\(queries, (.*)\)  #",
             r"folded = tf.reshape(tf.transpose(tf.reshape(queries, (BG, -1, Q, d)), (0, 2, 1, 3)), \1)  #"),
        ],
    },
    "the bias of the first block for all": {
        "tensorflow": [(r"\(s \* P \+ p\) \* C \+ c", "(s * P + p) * C")],
    },
    "gates are forgotten where no weights are kept": {
        "tensorflow": [(r"pooled = pooled \* tf\.reshape\(tf\.broadcast_to\(head_gates.*", "pass")],
    },
}  # fmt: skip
