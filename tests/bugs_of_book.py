"""Bugs of the book's names, and of what its next edition has beside the layer.

A group: the rooms that are searched; the tests that must notice its bugs; and patterns, with their replacements, by the
name of the bug."""

# Groups of bugs in `mha` itself that only a framework notices.
TORCH = ("model of the next edition",)

# fmt: off
OF_MODEL = {  # on each framework
    "queries are keys": (r"q, k, v = \(transpose_qkv", "k, q, v = (transpose_qkv"),
    "waves are not added": (r'return rows \+ self\.P.*', "return rows"),
    "learned positions begin at the second": (r"\[:T\]\n", "[1 : T + 1]\n"),
    "three projections have no bias": (r"3 \* config\.num_hiddens, config\.bias", "3 * config.num_hiddens, False"),
    "the last projection has no bias": (r"(self\.proj = .*)config\.bias", r"\1False"),
    "embeddings are large": (r"model\.STD", "1.0"),
    "what follows a character is itself": (r"(windows|batch)\[:, 1:\]", r"\1[:, :-1]"),
}
GROUPS = {
    "NNX": ("backends/jax/commands/nnx.py", "d2l_next", {
        "nothing is dropped": (r"return self\.dropping\(weights\)", "return weights"),
        "dropout has another rate": (r"nnx\.Dropout\((.*), rngs", r"nnx.Dropout(\1 / 2, rngs"),
        "weights come by head": (r"weights\.reshape\(B", "weights.swapaxes(0, 1).reshape(B"),
        "keys are projected as values": (r"getattr\(self, name\)", 'getattr(self, name.replace("W_k", "W_v"))'),
        "a layer forgets lengths": (r"values, valid_lens, return", "values, None, return"),
        "a pooling forgets lengths": (r"values, visible\)", "values)"),
        "there are no biases": (r"use_bias=bias", "use_bias=False"),
        "biases are always there": (r"use_bias=bias", "use_bias=True"),
        "a seed is not taken": (r"if rngs is None else rngs", "if True else rngs"),
        "keys are made before queries": (r"(self\.W_q = .*\n) +(self\.W_k = .*\n)", r"\2        \1"),
        "a layer is as wide as it has heads": (r"self\.options\.num_hiddens\)", "self.options.num_heads)"),
    }),
    "a printed layer of NNX": ("backends/jax/commands/native.py", "d2l_next", {
        "a layer of NNX has no weights yet": (
            r"isinstance\(layer, nnx\.Module\) or layer\.scope", "getattr(layer, 'scope', None)"),
        "every variable of NNX is a weight": (r"nnx\.state\(layer, nnx\.Param\)", "nnx.state(layer)"),
    }),
    "next edition in PyTorch": ("backends/torch/commands/next_book.py", "d2l_next_model", OF_MODEL | {
        "windows come in their order": (r"shuffle=train", "shuffle=False"),
        "every window comes at random": (r"shuffle=train", "shuffle=True"),
        "a step starts from the last one's gradients": (r"optimizer\.zero_grad\(\)", "pass"),
        "nothing is trained": (r"optimizer\.step\(\)", "pass"),
        "a GPU is there": (r"if torch\.cuda\.device_count\(\) > i", "if True"),
    }),
    "next edition in JAX": ("backends/jax/commands/next_book.py", "d2l_next_model", OF_MODEL | {
        "windows come in their order": (r"self\.random\.permutation\((.*)\)\n", r"\1\n"),
        "a smaller batch comes last": (r"windows\[: len.*\]", "windows"),
        "losses are added up": (r"\[:, :, None\], -1\)\.mean", "[:, :, None], -1).sum"),
        "nothing is trained": (r"optimizer\.update\(model, gradients\)", "pass"),
        "weights are dropped": (r"lambda weights: weights", "lambda weights: weights / 2"),
    }),
    "model of the next edition": ("mha/d2l/next", "d2l_next_model", {
        "a block sees what comes": (r"causal=True", "causal=False"),
        "a block forgets its rows": (r"rows = rows \+ attended", "rows = attended"),
        "pairs are halves": (r"interleaved=True", "interleaved=False"),
        "no model has linear biases": (r'if self\.pos == "alibi"', "if False"),
        "every model rotates": (r'if pos == "rope"', "if True"),
        "sines come after cosines": (r"\[np\.sin\(angles\), np\.cos\(angles\)\]", "[np.cos(angles), np.sin(angles)]"),
        "waves of a kind lie together": (r"np\.stack\(", "np.concatenate("),
        "a window lacks what follows": (r"self\.num_steps \+ 1\)", "self.num_steps)"),
        "one validates on what is trained with": (r"every\[self\.num_train : .*\]", "every[: self.num_val]"),
        "any length is taken": (r"self\.max_len < T", "False"),
    }),
    "helpers of the next edition": ("mha/d2l", "d2l_next_model", {
        "letters keep their case": (r"read\(\)\)\.lower\(\)", "read())"),
        "digits stay": (r"\^A-Za-z", "^A-Za-z0-9"),
        "characters are numbered as they come": (r"\.most_common\(\)", ".items()"),
        "any number of windows is promised": (r"if windows < .*:", "if False:"),
        "no batch may be full": (r"if self\.num_train < self\.batch_size:", "if False:"),
        "any text is the book's": (r"\)\) != SHA1:", ')) == "":'),
        "a text is always fetched": (r"if not path\.exists\(\):", "if True:"),
        "heights begin at one": (r"np\.arange\(len\(line\)\)", "np.arange(1, len(line) + 1)"),
        "lines without a format are left out": (r"if len\(heights\) > len\(fmts\):", "if False:"),
        "places are left out": (r"if len\(places\) != len\(heights\):", "if False:"),
        "what was drawn stays": (r"axes\.cla\(\)", "pass"),
        "lines have no names": (r"axes\.legend\(legend\)", "pass"),
        "both axes have one scale": (r"yscale=yscale", "yscale=xscale"),
        "a method has another name": (r"setattr\(owner, function\.__name__", 'setattr(owner, "added"'),
        "why a framework is missing is not said": (r"if why is None:", "if True:"),
    }),
}
