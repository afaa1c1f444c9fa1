"""Bugs of lines that MLX's folder has: replacements in its text.

A group: the tests that must notice its bugs, and these by name, each with patterns and what takes their places.
"""

GROUPS = {
    "what MLX alone has": (
        "mlx calls parity",
        {
            "a NaN cotangent comes through what hides": (
                r"mx\.where\(condition, cotangent, zero\)",
                "condition * cotangent",
            ),
            "a hidden tangent counts": (r"return mx\.where\(primals\[0\], tangents\[1\], .*", "return tangents[1]"),
            "exponentials of float32 in float64": (
                r"return mx\.power\(mx\.array\(math\.e, X\.dtype\), X\)",
                "return mx.exp(X)",
            ),
            "MLX's own softmax in float64": (
                r"(def softmax\(scores\):\n.*\n)",
                r"\1    return mx.softmax(scores, -1)\n",
            ),
            "sums that add up rounding errors": (
                r"return parts\.sum\(2, keepdims=True\) \+ .*",
                "return X.sum(2, keepdims=True)",
            ),
            "the last keys are not summed": (r" \+ X\[:, :, whole:\]\.sum\(2, keepdims=True\)", ""),
            "the gradient of a softmax forgets its sum": (r"\(cotangent - total\(output \* cotangent\)\)", "cotangent"),
            "MLX's own sigmoid in float64": (r"return \(1 \+ mx\.tanh\(X / 2\)\) / 2", "return mx.sigmoid(X)"),
            "MLX's own sines in float64": (
                r"cos, sin = part \* .*",
                "cos, sin = (rotary.magnitude * one(2 * halves) for one in (mx.cos, mx.sin))",
            ),
            "weights stay lazy": (
                r"evaluated\(canonical\(tensor\(weights\[name\]\)\)\)",
                "canonical(1 * tensor(weights[name]))",
            ),
            "caches in place stay lazy": (r"(output, \*arrays =) evaluated\((\[.*\])\)", r"\1 \2"),
            "caches of the lesson stay lazy": (r"cache\.after\(\*evaluated\((\[.*\])\)\)", r"cache.after(*\1)"),
            "slots that are taken stay lazy": (r"return evaluated\((mx\.take_along_axis\(.*\))\)", r"return \1"),
            "samples that are taken stay lazy": (r"return evaluated\(X\[rows\]\)", "return X[rows]"),
            "the output of what pulls back stays lazy": (
                r"return evaluated\((output_of\(\*arrays\.values\(\)\))\)",
                r"return \1",
            ),
            "gradients stay lazy": (r"return evaluated\((\{name: canonical.*\})\)", r"return \1"),
            "the products of a layer are transposed": (
                r"return X @ mx\.contiguous\(Y\.swapaxes\(-1, -2\)\)",
                "return (X @ mx.contiguous(Y.swapaxes(-1, -2)))[::-1]",
            ),
            "a product sends other gradients": (r"return cotangent @ mx\.contiguous\(Y\), ", "return 0 * X, "),
            "a product forgets the bias": (r'return found \+ self\.bias if "bias" in self else found', "return found"),
            "bfloat16 is read as integers": (
                r"np\.array\(X\.view\(mx\.uint16\)\)\.view\(ml_dtypes\.bfloat16\)",
                "np.array(X.view(mx.uint16)).astype(ml_dtypes.bfloat16)",
            ),
            "float64 becomes float32": (
                r"else array\.dtype\.name\)",
                'else array.dtype.name.replace("float64", "float32"))',
            ),
            "what is copied is shared": (r"return mx\.array\(X\) if array is None else tensor\(array\)", "return X"),
            "memory is shared with NumPy": (r"return np\.array\(X\)  #", "return np.asarray(X)  #"),
        },
    ),
    "pieces in MLX": (
        "blocks mlx dropout_pieces memory vjp dropout",
        {
            "pieces do not wait": (r"return where\(mx\.array\(True\), X, .*", "return X"),
            "pieces of the backward pass do not wait": (r"behind\(found\[:3\], X\)", "X"),
            "a piece takes what it waits for": (r"where\(mx\.array\(True\), X, ", "where(mx.array(False), X, "),
            "gradients of keys go to the first": (
                r"total\[cut\] \+= X",
                "total[cut if cut is ... or cut[1] != places[1][1] else (ALL, slice(X.shape[1]))] += X",
            ),
            "gradients of pieces replace each other": (r"total\[cut\] \+= X", "total[cut] = X"),
            "the bias of the first queries in every MLX piece": (
                r"zip\(\(block, seen\), X\.shape",
                "zip((slice(block.stop - block.start), seen), X.shape",
            ),
            "one mask for all pieces of MLX": (
                r"mx\.random\.split\(drawn_key\(\), len\(pieces\)\)",
                "[drawn_key()] * len(pieces)",
            ),
            "pieces draw again for gradients": (r"with drawing\(key\):\n            cut", "if True:\n            cut"),
            "a part of the samples draws as the first": (
                r"_drawn\.key, key = mx\.random\.split\(_drawn\.key\)",
                "key = _drawn.key",
            ),
            "gradients draw what another call would": (
                r"with drawing\(key\):\n            return own",
                "if True:\n            return own",
            ),
            "kept weights do not grow": (r"weights / \(1 - self\.dropout\)", "weights"),
            "what is kept and what is dropped confused": (r"bernoulli\(1 - self\.dropout", "bernoulli(self.dropout"),
            "dropout when MLX is not training": (r"if not \(training and self\.dropout\):", "if not self.dropout:"),
            "a kernel that drops nothing, in training": (r" and not \(training and self\.dropout\)\n", r"\n"),
            "weights of a pooling get no gradient in pieces": (
                r"own = tree_flatten\(self\.trainable_parameters\(\)\)",
                "own = []",
            ),
            "a transformed call changes the layer": (r"own = twin\(layer\)  #", "own = layer  #"),
            "weights that were assigned after the call count in MLX": (
                r"function_of\(twin\(layer\), (.*)\n.*copied.*",
                r"function_of(layer, \1",
            ),
            "no gradient through the weights of MLX": (
                r"self\.drop\(weights, training\)",
                "self.drop(mx.stop_gradient(weights), training)",
            ),
            "scores in float32 whatever the dtype in MLX": (
                r"return X\.astype\(mx\.float32\) if X\.dtype in \(mx\.float16, mx\.bfloat16\) else X",
                "return X.astype(mx.float32)",
            ),
        },
    ),
    "kernels and views in MLX": (
        "mlx options sinks blocks bounds calls poolings cache cache_long",
        {
            "the kernel forgets the scale of the layer": (
                r"scale = 1 / math\.sqrt\(q\.shape\[3\]\) if self\.scale is None else self\.scale",
                "scale = 1 / math.sqrt(q.shape[3])",
            ),
            "the kernel forgets the cap of the layer": (r"and self\.softcap is None and not", "and not"),
            "the kernel forgets the sinks": (r"mask=mask, sinks=sinks\)", "mask=mask)"),
            "the kernel forgets the bias": (r"mask = where\(visible, bias, .*", "pass"),
            "a row of a bias without keys is no number": (r"mx\.where\(sees, -math\.inf, 0\)", "-math.inf"),
            "a row without keys has the mean of all values": (
                r"return pooled if visible is None else where\(sees, pooled, 0\)",
                "return pooled",
            ),
            "the kernel takes float64": (
                r"self\.is_plain\(call\) and queries\.dtype == mx\.float32 and few",
                "self.is_plain(call) and few",
            ),
            "the kernel takes a replaced pooling": (
                r"return type\(self\) is DotProductAttention and self",
                "return isinstance(self, DotProductAttention) and self",
            ),
            "views are not rotated": (r"turned = config\.qk_norm or config\.rotary or", "turned = config.qk_norm or"),
            "views are not normed": (r"turned = config\.qk_norm or", "turned ="),
            "values of views are not normed": (
                r"or config\.value_norm or config\.temperature or",
                "or config.temperature or",
            ),
            "views are not tempered": (r"or config\.temperature or config\.output_gate\n", "or config.output_gate\n"),
            "views are not gated": (r"or config\.temperature or config\.output_gate\n", "or config.temperature\n"),
            "views have no head gates": (r"if turned or call\.head_gates is not None or not", "if turned or not"),
            "keys of views have heads of their own": (
                r"config\.num_heads if X is W_q else config\.num_key_value_heads",
                "config.num_heads",
            ),
            "views are merged in another order": (
                r"pooled\.transpose\(0, 2, 1, 3\)\.reshape\(B, Q, H \* dv\)",
                "pooled.transpose(0, 2, 3, 1).reshape(B, Q, H * dv)",
            ),
            "an offset below 0 counts as 0 in MLX": (
                r"call\.offset\) is not int or call\.offset != 0",
                "call.offset) is not int or call.offset > 0",
            ),
            "a lone token of MLX sees all slots": (r"k, v = k\[:, :, call\.step\.used\], v\[.*\]", "pass"),
            "a lone token of MLX forgets its sinks": (
                r"if call\.sinks is None and isinstance\(pooling",
                "if isinstance(pooling",
            ),
            "a lone token of MLX is not scaled": (r"scores = widen\(q\) \* scale @", "scores = widen(q) @"),
            "what is written is no constant": (r"\*map\(mx\.stop_gradient, \(keys, values\)\)", "keys, values"),
        },
    ),
    "options in MLX": (
        "positions rotations sinks options output_gate blocks",
        {
            "positions below 0 are warm in MLX": (r"mx\.maximum\(places, 0\) \+ temperature", "places + temperature"),
            "sines are not magnified in MLX": (r"part \* \(2 \* tan\)", "2 * tan / (1 + tan * tan)"),
            "cosines are not magnified in MLX": (r"part \* \(1 - tan \* tan\)", "(1 - tan * tan) / (1 + tan * tan)"),
            "sinks of other heads in MLX": (r"sinks=self\.sinks\.", "sinks=self.sinks[::-1]."),
            "the output gate is of other heads in MLX": (r"(qkv\(self\.W_g\(queries\))", r"\1[..., ::-1]"),
            "a gate that is not a number counts in MLX": (r"sees \| ~mx\.isnan\(gates\)", "sees | True"),
            "sinks get no gradient in pieces": (r'items\(\) if name != "mask"', 'items() if name == "score_bias"'),
        },
    ),
    "layers of MLX that change": (
        "mlx frozen native threads own_model",
        {
            "plans are parameters": (r'object\.__setattr__\(self, "plans", Plans\(\)\)', "self.plans = Plans()"),
            "a layer draws numbers when it is made": (
                r"nn\.Module\.__init__\(self\)  #.*",
                "super().__init__(in_size, out_size, bias)",
            ),
        },
    ),
}
