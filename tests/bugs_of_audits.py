"""Bugs of what judges whole models; groups as in `bugs_of_mha.py`."""

# fmt: off
GROUPS = {
    "calls of models": ("mha/parity/whole", "audit_calls", {
        "padding is not read": (r"seen = np\.broadcast_to\(of_keys != 0", "seen = np.broadcast_to(of_keys == of_keys"),
        "padding is inverted": (r"np\.broadcast_to\(of_keys != 0", "np.broadcast_to(of_keys == 0"),
        "rows of padding count": (
            r"rows = np\.broadcast_to\(own\[:, -Q:\] != 0", "rows = np.broadcast_to(own[:, -Q:] == own[:, -Q:]"),
        "rows of the first tokens are taken": (r"own\[:, -Q:\]", "own[:, :Q]"),
        "no layer is causal": (r'given\["causal"\] = attends\.causal', 'given["causal"] = False'),
        "tokens after a cache begin at 0": (r'given\["offset"\] = before', 'given["offset"] = 0'),
        "biases are left out": (r"if attends\.bias:", "if False:"),
        "a table of biases looks both ways": (r"bidirectional=not attends\.causal", "bidirectional=True"),
        "another stack's table": (r"return max\(names, key=shared\)", "return min(names, key=shared)"),
        "positions of padding count": (r"places = np\.where\(real, places, -1\)", "places = places"),
        "positions are not read": (r"own = X\.reshape\(-1, Q\)\.astype\(np\.int64\)", "own = None"),
        "positions of earlier calls are forgotten": (
            r"earlier, own = self\.history\.positions, None", "earlier, own = None, None"),
        "pictures' positions are those of a text": (r"if \(X\[:1\] != X\)\.any\(\):", "if False:"),
        "a text's own positions count as a picture's": (r"X = X\[-3:\]", "X = X"),
        "what lies beside a text is nothing to it": (r"for name in attends\.without:", "for name in ():"),
        "types of texts are pictures": (r"is not None and X\.any\(\):", "is not None:"),
        "packed texts see each other": (r'"segments": segments, "key_segments": segments', ""),
        "what begins again is always packed": (r"return attends\.causal and not together\(.*", "return attends.causal"),
        "what begins again is never packed": (r"return attends\.causal and not together\(.*", "return False"),
        "a mask by slots has all slots": (r"mask = mask\[\.\.\., :K\]", "mask = mask"),
        "a window counts beside such a mask": (r"config = dataclasses\.replace\(config, window=None\)", "pass"),
        "mended rows of padding, too": (
            r'return np\.where\(asked\.matters\("output"\), right,', "return np.where(True, right,"),
        "one mask for all kinds of layers": (r"X\.get\(kind\) if isinstance", "next(iter(X.values())) if isinstance"),
    }),
    "texts in a row": ("mha/parity/whole", "audit_packed", {
        "texts are apart or a mistake": (r"one\.ratio > 1 and \(library or not apart\)", "False"),
        "no text is a leak": (r"one\.ratio > 1 and \(library or not apart\)", "one.ratio > 1"),
        "texts that see each other are not said": (r"if apart or one\.ratio > 1:", "if True:"),
        "padding is a text": (r"\(1 \+ int\(\(np\.diff\(row\) < 1\)", "(1 + int((np.diff(row) != 1)"),
        "a mask beside them is nothing": (r"reasons \+ \[name for name", "reasons or [name for name"),
    }),
    "what own layers are called with": ("mha/parity/whole/calls/own_layers.py", "audit_own_layers", {
        "arguments that are not read are passed over": (r"if not is_default\(X, default\):", "if False:"),
        "what a class adds is forgotten": (r"given = with_added\(name, given, base\)", "pass"),
        "a class is its base, whatever runs": (r"elif kind is not None and not taught:", "elif False:"),
        "another mask counts": (r"and arrays and X is not base\[key\]:", "and False:"),
        "a cache is read after the call": (r"return cache\.to\(\"numpy\"\)", "return cache"),
    }),
    "Flax' own layers": ("backends/jax/commands/taps.py", "audit_own_layers", {
        "the order is not read": (r'        found\["causal"\] = True\n', "        pass\n"),
        "the cache is not read": (r"if not decode:", "if True:"),
        "the cache has the new token already": (r"np\.asarray\(index - 1\)", "np.asarray(index)"),
        "an audit leaves its token in the cache": (r"nnx\.update\(model, before\)", "pass"),
        "a full cache is read": (r"if index > keys\.shape\[1\]:", "if False:"),
        "an audit leaves its token in bound variables": (r"return _bound_again\(model\)\(", "return model("),
    }),
    "kernels of models": ("mha/parity/whole", "audit_pieces", {
        "all of a checkpoint is read": (
            r"for name in of_layer if name not in found\}", "for name in arrays if name not in found}"),
        "kernels are never turned": (r'return X\.T if axes == "oi" else X', "return X"),
    }),
    "telling a sink": ("mha/parity/whole/calls/sinks.py", "audit_pieces", {
        "what is watched stays so": (r"del own\[name\]", "pass"),
        "what was set before is not set back": (r"own\[name\] = kept", "pass"),
        "an output is never mended": (r"return output if instead is None else instead", "return output"),
    }),
    "histories of caches": ("mha/parity/whole", "audit_calls", {
        "a cache from before passes as empty": (r"if length is not None and history\.tokens != length:", "if False:"),
        "a cache that was not seen is empty": (r"\(None, History\(known=False\)\)", "(None, History())"),
        "beams are not followed": (r'    "reorder_cache": History\.select,\n', ""),
        "cropped caches are not followed": (r'    "crop": History\.crop,\n', ""),
        "keys of another sequence are cropped": (r"if not one\.cross:", "if True:"),
        "values stay with the sample that had them": (
            r"one\.keys, one\.values = one\.keys\[rows\], one\.values\[rows\]", "one.keys = one.keys[rows]"),
        "an empty cache has the history of another": (r"if length == 0:", "if False:"),
        "a cache keeps what follows it": (r"vars\(cache\)\.pop\(name, None\)", "pass"),
        "tokens of a pair of arrays are counted by another axis": (r"first\.shape\[-2\]", "first.shape[-1]"),
    }),
    "caches of models": ("mha/parity/whole", "audit", {
        "keys of earlier calls are forgotten": (
            r"inputs\[name\] = np\.concatenate\(\[getattr\(earlier, name\), inputs\[name\]\], 1\)", "pass"),
        "nothing is kept for later calls": ("if not self.once:", "if False:"),
        "a cache that is returned is not followed": (
            r"for cache in \(self\.cache, made\):", "for cache in (self.cache,):"),
    }),
    "judging models": ("mha/parity/whole mha/parity/mended mha/parity/same", "audit audit_taught real/audit", {
        "angles are exact": ("False, angles=True", "False"),
        "a call that is wrong is taken for right": (r"if one\.ratio > 1:", "if one.ratio > 1e9:"),
        "the last wrong call is shown": (
            r'row\.verdict != "same" and path not in self\.mend', 'row.verdict == "not known"'),
        "the last call is shown": (r"row\.judged\.ratio >= one\.ratio", "row.judged.ratio < 0"),
        "weights are the model's own": (r"if like is None:", "if True:"),
        "half precision is judged as float32": (
            r'if dtype == "float64" and config\.rotary is not None:', 'if dtype != "float32":'),
        "float64 is judged by exact angles": (r'if dtype == "float64" and config\.rotary is not None:', "if False:"),
        "rows count everywhere": (r"None, rows, False, angles", "None, None, False, angles"),
        "the projections are not compared": (r"for role in PROJECTED if role in", "for role in () if role in"),
        "one packed part for all": (r"if place\.part:", "if False:"),
        "nothing is mended": (r"return mended\(tap, asked\)", "return None"),
        "moved by nothing": (r"found\[name\] = float\(far\.max\(\)\)", "found[name] = 0.0"),
        "all is explained": (r"if left <= SMALL \* apart:", "if True:"),
        "nothing is explained": (r"if left <= SMALL \* apart:", "if False:"),
        "one wrong layer is the model's mistake": (
            r"if len\(self\.wrong\) < 2 or len\(self\.wrong\) < len\(compared\):", "if False:"),
        "no mistake is the model's": (r"return bool\(set\.intersection\(\*named\)\)", "return False"),
    }),
    "layers of models": ("mha/parity/whole", "audit audit_taught real/audit", {
        "unknown layers pass": (r'not verdicts & \{"differs", "not known"\}', 'not verdicts & {"differs"}'),
        "a report of nothing is true": (r'return "same" in verdicts and', "return"),
        "what is left out counts": (r"if not self\.left_out\(row\)\}", "}"),
        "a softmax elsewhere is overlooked": (
            r"for path, \(pool, axes\) in others\.items\(\) if axes > 2", "for path, (pool, axes) in ()"),
        "a softmax of rows is attention": (r"if axes > 2\]", "if axes > 1]"),
        "attention in an idle layer is overlooked": (r"\(self\.stack\[-1\], self\.open\)",
            "(self.stack[-1], self.layers)"),
        "shared layers count twice": (
            r"first\.setdefault\(id\(self\.modules\.get\(path, path\)\), path\)", "first.setdefault(path, path)"),
        "layers are paired by order alone": (r"if path in alike or len\(alike\) == 1:", "if False:"),
        "layers are never paired by order": (
            r"if len\(found\) < len\(paths\) and len\(paths\) == len\(layers\):", "if False:"),
        "layer 10 comes before layer 2": (
            r"return \[int\(X\) if X\.isdigit\(\) else X for X in .*\]", "return [prefix]"),
        "quantised projections are read": (
            r"if \(why := self\.odd\(self\.modules\[place\.name\]\)\)", "if (why := '')"),
        "any part's call is the model's": (
            r"path in self\.wholes if self\.wholes else not self\.stack", "not self.stack"),
        "what fails here ends the model's call": (r"except Exception as error:", "except KeyError as error:"),
        "a layer that runs in part is not called": (r"elif ran:", "elif False:"),
        "a taught rotation is ignored": (
            r'options = \{"rotary": None\} \| options', 'options = options | {"rotary": None}'),
        "a taught order is ignored": (r'lesson\.get\("causal", False\)', "False"),
        "prefixes have the model around": (
            r'prefix\.removeprefix\(f"\{self\.inside\}\."\) if self\.inside else prefix', "prefix"),
    }),
    "names of one's own": ("mha/weights/projections.py", "audit_like audit_taught", {
        "sizes do not show how kernels lie": (r"shown\[role\] or said_way or kernel\.way", "said_way or kernel.way"),
        "what nothing shows is taken as (out, in)": (r"if unsure and whose:", "if False:"),
        "keys and values in one are keys": (r"return \(at, 3\) if self\.packed else \(at - 1, 2\)", "return (at, 3)"),
        "a bias that is missing is none": (r"elif any\(biases\.values\(\)\):", "elif False:"),
    }),
    "how kernels lie": ("mha/weights/kernels.py", "audit_like audit_taught", {
        "kernels are taken as (in, out)": (r'X\.T if way == "io" else X', 'X if way == "io" else X.T'),
        "a class of one's own lies as PyTorch's": (r'return "oi" if any\(.*\) else ""', 'return "oi"'),
        "sizes that differ pass": (r"if self\.X\.shape not in \(expected, expected\[::-1\]\):", "if False:"),
        "a convolution takes (B, tokens, features)": (r"(X\.shape\[:2\]\)), True", r"\1, False"),
        "a convolution over several tokens is over one": (r"    if convolves:\n", "    if False:\n"),
    }),
    "which layer is which": ("mha/parity/whole/layers", "audit_like audit_taught", {
        "what has no order is paired by order": (r"if not \(is_sequence.*:", "if False:"),
        "names of a scheme come first": (r"if path in named and path not in by_config:", "if False:"),
        "kernels never lie as they are used": (r"return ways\[votes > 0\]", "return self"),
        "a bias that is missing is not said": (r"notes\.extend\(without_biases\(.*\)\)", "notes.extend([])"),
    }),
    "watching PyTorch": ("backends/torch/commands/taps.py", "audit audit_taught", {
        "dropout stays on": (r"if func in DROPOUT:", "if False:"),
        "hooks stay": (r"        for handle in handles:\n            handle\.remove\(\)\n", ""),
        "the fast path stays off": (
            r"    finally:\n        torch\.backends\.mha\.set_fastpath_enabled\(fast\)", "    finally:\n        pass"),
        "the fast path is always on afterwards": (r"set_fastpath_enabled\(fast\)", "set_fastpath_enabled(True)"),
        "parametrised projections are plain": (r'if hasattr\(module, "parametrizations"\):', "if False:"),
        "adapted projections are plain": (
            r'any\("base_layer" in name or "lora" in name\.lower\(\) for name in own\)', "False"),
        "quantised projections are plain": (r" and X\.dtype\.itemsize > 1", ""),
        "kernels are overlooked": (r"elif func in KERNELS:", "elif False:"),
        "a softmax of tensors is overlooked": (r", torch\.Tensor\.softmax\)", ")"),
        "a training step has no gradients": (
            r"\n            yield\n", "\n            with torch.no_grad():\n                yield\n"),
        "mended outputs are float64": (r"dtype=output\.dtype, ", ""),
    }),
}
# Those whose tests need PyTorch.
TORCH = (
    "caches of models", "judging models", "layers of models", "names of one's own", "which layer is which",
    "watching PyTorch", "texts in a row", "what own layers are called with",
)  # fmt: skip
