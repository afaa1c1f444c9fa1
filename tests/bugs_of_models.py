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

# Of the files of models, and of what describes them.
LAYOUT_TESTS = [
    "test_layouts.py",
    "test_model_config.py",
    "test_packed_groups.py",
    "test_schemes.py",
    "test_schemes_refused.py",
]
LAYOUT_BUGS = {
    "T5 is scaled": ("weights/scheme_table", r'implied=\{"scale": 1\.0\}', "implied={}"),
    "T5 may have biases": ("weights/scheme_table", r'"weight", "oi", bias=False', '"weight", "oi"'),
    "the width of T5's heads is not looked at": ("weights/model_config", r', "key_dim": width, "scale"', ', "scale"'),
    "Meta's components are halves": ("weights/model_config", r"theta\), interleaved=True\)", "theta))"),
    "halves are taken for Meta's": ("weights/schemes", r"and not rotary\.interleaved:", "and False:"),
    "convert forgets that Meta's are interleaved": (
        "cli/weights",
        r'\["rotary"\], interleaved=True\)',
        '["rotary"], interleaved=False)',
    ),
    "Meta's rotation is never slowed down": ("weights/model_config", r' or model\.get\("use_scaled_rope"\)', ""),
    "Meta's base is 10,000": ("weights/model_config", "if theta is None or", "theta = theta or 10000\n    if"),
    "Meta's heads are not grouped": (
        "weights/model_config",
        r'num_heads if groups is None else checks\.size\("n_kv_heads", groups\)',
        "num_heads",
    ),
    "any option about attention is passed over": (
        "weights/model_config",
        r"if _ABOUT\.search\(name\) and",
        "if False and",
    ),
    "any kind of model is taken": ("weights/model_config", "if kinds and kind not in kinds:", "if False:"),
    "linear biases rotate too": ("weights/model_config", r'None if model\.get\("alibi"\) else ', ""),
    "the window is one wider": ("weights/model_config", r'(\["sliding_window"\]\)) - 1, 0\)', r"\1, 0)"),
    "every layer of a model has its window": (
        "weights/model_config",
        'return told == "sliding_attention"',
        "return True",
    ),
    "windows begin a layer later": ("weights/model_config", r"return at >= checks", "return at > checks"),
    "Gemma's windows are one layer off": ("weights/model_config", r"\(at \+ 1\) % pattern", "at % pattern"),
    "Gemma's two rotations are swapped": (
        "weights/model_config",
        'told.get\\("sliding_attention" if slides else "full_attention"\\)',
        'told.get("full_attention" if slides else "sliding_attention")',
    ),
    "1 is not added to Gemma's norms": ("weights/model_config", r"found\[FOLDED\] = True", "pass"),
    "1 is added in half precision": ("weights/checkpoints", "else np.float32", "else np.float16"),
    "the scale is not its root": ("weights/model_config", r"\*\* -0\.5", "** -1.0"),
    "all of a head of GPT-NeoX turns": ("weights/model_config", r"width = int\(width \* .*\)", "pass"),
    "a slower rotation is faster": ("weights/model_config", "angle / factor for", "angle * factor for"),
    "an argument overrides the model": (
        "weights/checkpoints",
        r"if name in told and not _same",
        "if False and not _same",
    ),
    "norms of queries and keys are swapped": (
        "weights/scheme_table",
        r'_norms\("query_ln\.scale", "key_ln\.scale"\)',
        '_norms("key_ln.scale", "query_ln.scale")',
    ),
    "heads of keys have any number": ("weights/schemes", r'sizes\.setdefault\("num_key_value_heads", told\)', "pass"),
}

# Of the frameworks' own layers: each is noticed by the tests of its backend.
NATIVE_TESTS = ["test_native_layers_refused.py", "test_native_layers_made.py", "test_native_layers.py"]
NATIVE_BUGS = {
    "groups of Keras come in reverse": (
        "backends/tensorflow/native",
        r"X\.assign\((arrays\[.*\])\)",
        r'X.assign(\1[..., ::-1, :] if kind == GROUPED and "key/kernel" in X.path else \1)',
    ),
    "a gate of Keras is passed over": ("backends/tensorflow/native", '"num_key_value_heads"\\}', '"use_gate"}'),
    "outputs of grouped queries have any width": (
        "backends/tensorflow/native",
        r'"num_hiddens": config\.query_size, ',
        "",
    ),
    "norms of Flax are forgotten": ("backends/jax/native", r"config\.qk_norm is not None, \"dtype\"", 'False, "dtype"'),
    "any epsilon is made": ("backends/jax/native", r', "qk_norm_eps": EPSILON', ', "qk_norm_eps": config.qk_norm_eps'),
    "any norm is taken": ("backends/jax/native", r"type\(norm\) is not nnx\.LayerNorm or ", ""),
    "the norm of keys has another epsilon": ("backends/jax/native", r" or norm\.epsilon != .*:", ":"),
}
