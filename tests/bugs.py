"""The bugs that `plant_bugs.py` plants, as replacements in the source, and the tests that must notice them.

A pattern is a regular expression. Of a backend's bug, replacements are the same for every backend where the line is,
else by backend; a replacement's words in capitals are written each backend's way.
"""

from bugs_of_cases import CASE_BUGS, CASE_TESTS
from bugs_of_explain import EXPLAIN_BUGS, EXPLAIN_TESTS, LANGUAGE_BUGS, LANGUAGE_TESTS
from bugs_of_heads import HEADS_BUGS, HEADS_TESTS, SHOWN_BUGS, SHOWN_TESTS
from bugs_of_models import LAYOUT_BUGS, LAYOUT_TESTS, MODERN_BUGS, MODERN_TESTS, NATIVE_BUGS, NATIVE_TESTS
from bugs_of_page import PAGE_BUGS, PAGE_TESTS
from bugs_of_parallel_jax import BATCH_BUGS, DEVICES_BUGS, DEVICES_TESTS
from bugs_of_parity import (
    COMPARE_BUGS,
    COMPARE_TESTS,
    DIAGNOSE_BUGS,
    DIAGNOSE_TESTS,
    TESTING_BUGS,
    TESTING_TESTS,
    TWO_BUGS,
    TWO_TESTS,
)
from bugs_of_parts import PARTS_BUGS, PARTS_TESTS
from bugs_of_pieces import BLOCKS_BUGS, BLOCKS_TESTS, MEMORY_BUGS, MEMORY_TESTS, PIECES_BUGS, PIECES_TESTS
from bugs_of_sequence import SEQUENCE_BUGS, SEQUENCE_TESTS
from bugs_of_split_heads import FAILING_BUGS, FAILING_TESTS, SPLIT_HEADS_BUGS, SPLIT_HEADS_TESTS

from mha import dispatch

Replacements = list[tuple[str, str]]
Bugs = dict[str, Replacements | dict[str, Replacements]]
PackageBugs = dict[str, tuple[str, str, str]]

# 1. Bugs of backends, for whose replacements every file of the backend is searched, and mha/blocks.py.

# Of single frameworks, and the tests that must notice them.
OWN_TESTS = [
    "test_poolings.py", "test_frozen.py", "test_half_precision.py", "test_calls.py",
    "test_split_over_devices.py",
]  # fmt: skip
OWN_BUGS: Bugs = {
    "the scores of a replaced pooling are ignored": {
        "torch": [(r"type\(self\) is DotProductAttention", "isinstance(self, DotProductAttention)")],
    },
    "heads that were split over devices are taken": {"torch": [(r"calls\.whole_heads\(.*\)", "pass")]},
    "calls with NumPy arrays are recorded": {"torch": [(r"if not tracked:", "if False:")]},
    "frozen weights have no gradients": {"mxnet": [(r'parameter\.grad_req = "write"', "pass")]},
    "frozen weights are thawed": {"mxnet": [(r"twin = copy\.deepcopy\(layer, kept\)", "twin = layer")]},
    "gradients of biases are summed in half precision": {
        "numpy": [(r"widen\(by_output\)\.sum\(axes\)", "by_output.sum(axes)")],
    },
}

# Of what pulls gradients back through a call.
VJP_TESTS = ["test_vjp.py"]
VJP_BUGS: Bugs = {
    "gradients forget the dropout of the call": {
        "numpy": [(r"kept = self\.drop\(.*\)", "kept = np.ones_like(weights)")],
    },
    "gradients drop what another call would": {
        "numpy": [(r"copied\(again\)", "again")],
        "tensorflow": [(r"pulled = compiled\.prepare\(_pulled, \*same_call",
                        "other = None if seed is None else seed + 1, inputs, checked\n"
                        "    pulled = compiled.prepare(_pulled, *same_call[:3], *other")],
    },
    "gradients can be pulled back once": {
        "torch": [(r"retain_graph=True", "retain_graph=False")],
        "mxnet": [(r"weights \* npx\.dropout\(np\.ones_like\(weights\)", "npx.dropout(weights")],
    },
    "weights that were assigned after the call count": {
        "numpy": [(r"twin = copy\.deepcopy\(layer\)", "twin = layer")],
        "torch": [(r"twin = copy\.deepcopy\(layer\)", "twin = layer")],
        "mxnet": [(r"twin = _twin\(layer\)", "twin = layer")],
        "tensorflow": [(r"\[tf\.convert_to_tensor\(X\.value\) for X in variables\]", "[X.value for X in variables]")],
    },
    "inputs that change after the call count": {
        "numpy": [(r"return X\.copy\(\)", "return X")],
        "torch": [(r"return X\.detach\(\)\.clone\(\)", "return X"), (r"detach\(\)\.clone\(\)\.req", "detach().req")],
        "mxnet": [(r"(def copied.*\n.*\n    return) X\.copy\(\)", r"\1 X")],
    },
}  # fmt: skip

# Of everything that a call computes.
TESTS = [
    "test_dropout.py", "test_reference.py", "test_loops.py", "test_own_layers.py", "test_layer.py", "test_calls.py",
    "test_parity.py",
]  # fmt: skip
BUGS: Bugs = {
    "split without permuting": [
        (r"X = .*\(.*0, 2, 1, 3\)+  # \(B, H, T, d\)", "X = RESHAPE(X, (B, num_heads, T, width // num_heads))"),
    ],
    "merge without permuting": [
        (r"X = .*\(.*0, 2, 1, 3\)+  # \(B, T, H, d\)", "X = RESHAPE(X, (BH // num_heads, T, num_heads, d))"),
    ],
    "lengths tiled over heads, not repeated": [
        (r"(visible = \S*broadcast_to\(.*\))  # \(B, H, Q, K\)", r"\1; visible = SWAP(visible)"),
    ],
    "length counts one key too many": [(r"each_key < ", "each_key <= ")],
    "length counts one key too few": [(r"each_key < ", "each_key + 1 < ")],
    "causal hides the query's own key": [(r"each_key - right <= each_query", "each_key - right < each_query")],
    "causal forgotten where there are lengths": [
        (r"if causal or 0 in", "if (causal and valid_lens is None) or 0 in"),
    ],
    "causal order ends at the last key": [
        (r"each_key - right <=", "each_key - right - (keys.shape[1] - queries.shape[1]) <="),
    ],
    "length of the first sample for all": [(r"\[:, None, :, None\]\)", "[:1, None, :, None])")],
    "mask means hide": [
        (r"conditions\.append\(four_axes\(mask\)\)", "conditions.append(four_axes(mask) == False)"),
    ],
    "mask of the first head for all": [
        (r"conditions\.append\(four_axes\(mask\)\)", "conditions.append(four_axes(mask)[:, :1])"),
    ],
    "mask of the first sample for all": [
        (r"conditions\.append\(four_axes\(mask\)\)", "conditions.append(four_axes(mask)[:1])"),
    ],
    "mask of the first query for all": [
        (r"conditions\.append\(four_axes\(mask\)\)", "conditions.append(four_axes(mask)[:, :, :1])"),
    ],
    "no scale": [(r"1 / math\.sqrt\(queries\.shape\[-1\]\)", "1.0")],
    "scale by d, not its root": [(r"math\.sqrt\(queries\.shape\[-1\]\)", "queries.shape[-1]")],
    "scale by the number of keys": [(r"math\.sqrt\(queries\.shape\[-1\]\)", "math.sqrt(keys.shape[1])")],
    "square kernels not transposed": {
        "numpy": [(r"arrays\[name\]", "(ARRAY)")], "torch": [(r"arrays\[name\]", "(ARRAY)")],
        "tensorflow": [(r"arrays\[name\]", "(ARRAY)")], "mxnet": [(r"arrays\[name\]", "(ARRAY)")],
        "jax": [(r"tensor\(array\) for name", "tensor(array.T if len(set(array.shape)) == 1 else array) for name")],
    },
    "keys projected in place of values": [
        (r"self\.W_v\(values\)", "self.W_v(values if keys.shape != values.shape else keys)"),
    ],
    "bias of the values dropped": [(r"self\.W_v\(values\)", "self.W_v(values) - self.W_v(values * 0)")],
    "bias of the output dropped": [
        (r"output = self\.W_o\(merged\)", "output = self.W_o(merged) - self.W_o(merged * 0)"),
    ],
    "dropout when not training": {
        "numpy": [(r"if not training or self\.dropout == 0", "if self.dropout == 0")],
        "torch": [(r"self\.dropout, training\)", "self.dropout, True)")],
        "tensorflow": [(r"self\.dropping\(weights, training=training\)", "self.dropping(weights, training=True)")],
        "jax": [(r"deterministic=not training", "deterministic=False"), (r"if training and layer", "if layer")],
        "mxnet": [(r"if not training:\n            return weights", "if False:\n            return weights")],
    },
    "dropout without growing the kept": [
        (r"self\.drop\(weights, training\)", "self.drop(weights, training) * (1 - self.dropout)"),
    ],
    "weights returned after dropout": [
        (r"( +)(weights = visible_softmax\(scores, visible\).*)", r"\1\2\n\1weights = self.drop(weights, training)"),
    ],
    "weak mask fill": [(r"hidden = .*", "hidden = FILL(-10.0)")],
    "fill of float16 in every dtype": [(r"hidden = .*", "hidden = FILL(-65504.0)")],
    "the book's fill, empty rows uniform": [
        (r"hidden = .*", "hidden = FILL(-1e6)"),
        (r"    return \S*where\(visible, weights, .*", "    return weights"),
    ],
    "fill of minus infinity, empty rows NaN": [
        (r"hidden = .*", 'hidden = FILL(-float("inf"))'),
        (r"    return \S*where\(visible, weights, .*", "    return weights"),
    ],
    "empty rows uniform": [(r"    return \S*where\(visible, weights, .*", "    return weights")],
    "softmax over the queries": {
        "numpy": [(r"exponentials\.sum\(-1", "exponentials.sum(-2")],
        "torch": [(r"(torch\.softmax\(.*), -1\)", r"\1, -2)")],
        "tensorflow": [(r"(tf\.nn\.softmax\(.*), -1\)", r"\1, -2)")],
        "jax": [(r"(jax\.nn\.softmax\(.*), -1\)", r"\1, -2)")],
        "mxnet": [(r"(npx\.softmax\(.*)\)", r"\1, axis=-2)")],
    },
    "padding not blanked": [(r"if visible is None:(\n +return queries, keys, values)", r"if True:\1")],
    "queries without keys not blanked": [(r"queries = \S*where\(sees, queries, .*", "queries = queries")],
    "unseen values not blanked": [(r"values = \S*where\(seen, values, .*", "values = values")],
    "additive scores without tanh": [(r"\w+\.tanh\(", "(")],
    "scores in float32 whatever the dtype": {
        "numpy": [(r"np\.promote_types\(X\.dtype, np\.float32\)", "np.float32")],
        "torch": [(r"torch\.promote_types\(X\.dtype, torch\.float32\)", "torch.float32")],
        "tensorflow": [(r"tf\.cast\(X, tf\.float32\) if .*", "tf.cast(X, tf.float32)")],
        "jax": [(r"jnp\.promote_types\(X\.dtype, jnp\.float32\)", "jnp.float32")],
        "mxnet": [(r"onp\.promote_types\(X\.dtype, onp\.float32\)", '"float32"')],
    },
    "no gradient through the weights": {
        "numpy": [(r"by_biased = weights \*", "by_biased = 0 * weights *")],
        "torch": [(r"self\.drop\(weights, training\)", "self.drop(weights.detach(), training)")],
        "tensorflow": [(r"self\.drop\(weights, training\)", "self.drop(tf.stop_gradient(weights), training)")],
        "jax": [(r"self\.drop\(weights, training\)", "self.drop(jax.lax.stop_gradient(weights), training)")],
        "mxnet": [(r"self\.drop\(weights, training\)", "self.drop(weights.detach(), training)")],
    },
}  # fmt: skip

# How each backend writes what the replacements above leave open.
WAYS = {
    "RESHAPE(X, ": {"tensorflow": "tf.reshape(X, "} | dict.fromkeys(("numpy", "torch", "jax", "mxnet"), "X.reshape("),
    "SWAP(visible)": {"tensorflow": "tf.transpose(visible, (1, 0, 2, 3))"}
    | dict.fromkeys(("numpy", "torch", "jax", "mxnet"), "visible.swapaxes(0, 1)"),
    "FILL": {
        "numpy": "scores.dtype.type",
        "torch": "scores.new_tensor",
        "tensorflow": "(lambda fill: tf.constant(fill, scores.dtype))",
        "jax": "scores.dtype.type",
        "mxnet": "(lambda fill: np.full_like(scores, fill))",
    },
    "ARRAY": dict.fromkeys(
        dispatch.FRAMEWORKS, "arrays[name].T if len(set(arrays[name].shape)) == 1 else arrays[name]"
    ),
}


# 2. Bugs of mha itself: module, pattern, replacement.

# Of what reads and writes weights.
WEIGHTS_TESTS = [
    "test_schemes.py", "test_schemes_refused.py", "test_schemes_named.py", "test_checkpoints.py", "test_files.py",
    "test_files_malformed.py",
]  # fmt: skip
WEIGHTS_BUGS: PackageBugs = {
    "kernels (out, in) are not turned": ("weights/schemes", r"return array\.T  # \(in, out\)", "return array"),
    "GPT-2's kernels are turned": ("weights/scheme_table", r'"c_proj", "io"\)', '"c_proj", "oi")'),
    "packed parts are values, keys, queries": (
        "weights/schemes",
        r"part, count = place\.part",
        r"\g<0>; part = 2 - part",
    ),
    "packed parts are taken along the inputs": (
        "weights/schemes",
        r'np\.split\(array, count, place\.axes\.index\("o"\)\)',
        'np.split(array, count, array.ndim - 1 - place.axes.index("o"))',
    ),
    "heads and their widths are swapped": (
        "weights/schemes",
        r"array\.reshape\(len\(array\), -1\)",
        "array.swapaxes(1, 2).reshape(len(array), -1)",
    ),
    "heads and their widths are swapped in W_o": (
        "weights/schemes",
        r"array\.reshape\(-1, array\.shape\[2\]\)",
        "array.swapaxes(0, 1).reshape(-1, array.shape[2])",
    ),
    "any bias may be missing": ("weights/schemes", r"if biased not in .*:", "if False:"),
    "arrays beside the projections are passed over": ("weights/schemes", r"    if foreign:", "    if False:"),
    "groups of queries are taken": ("weights/sizes", r"if keys != queries and not .*:", "if False:"),
    "NaN is taken": ("weights/schemes", r"checks\.finite\(name, arrays\[name\]\)", "pass"),
    "the source's memory is shared": ("weights/schemes", r"(none\[weight\]\)\))\.copy\(\)", r"\1"),
    "a prefix may end anywhere": ("weights/schemes", r'prefix\.endswith\("\."\)', "True"),
    "arrays may lie on each other": ("weights/safetensors_reader", r"if entry\.start != end:", "if False:"),
    "a file may go on after its arrays": ("weights/safetensors_reader", r"if size != end:", "if size < end:"),
    "a name may come twice": ("weights/safetensors_reader", r"if count > 1:", "if False:"),
    "any length of the header is believed": (
        "weights/safetensors_reader",
        r"if header_size > min\(LIMIT, size - 8\):",
        "if False:",
    ),
    "a cut is not noticed": ("weights/safetensors_reader", r"if len\(data\) != length:", "if False:"),
    "a shape may claim what it likes": ("weights/safetensors_reader", r"if dtype in _BYTES and .*:", "if False:"),
    "nobody is asked which way round kernels are": (
        "weights/checkpoints",
        r"if \(chosen, scheme\) == .*:",
        "if False:",
    ),
    "arrays may have several dtypes": (
        "weights/checkpoints",
        r"if len\(dtypes := (.*)\) > 1:",
        r"if len(dtypes := \1) < 0:",
    ),
    "any layout is taken": ("weights/own_format", r" if layout in LAYOUTS:", ":"),
    "a header of ours may have any length": ("weights/own_format", r"if source\.header_size > .*:", "if False:"),
    "an interrupted save leaves its temporary file": ("weights/files", r"except BaseException:", "except Exception:"),
    "every array is read": ("weights/checkpoints", r"for name in track\(names\)", "for name in source.entries"),
}

# Of what all other tests measure by.
RULES_TESTS = ["test_rules.py"]
RULES_BUGS: PackageBugs = {
    "16 units made 1,600": ("parity/rules", r"\+ 16 \* UNIT", "+ 1600 * UNIT"),
    "a unit twice as large": ("parity/rules", r'"bfloat16": 2\.0\*\*-8', '"bfloat16": 2.0**-7'),
    "1e-12 made 1e-9": ("parity/rules", "1e-12", "1e-9"),
    "1e-10 of gradients made 1e-7": ("parity/rules", "1e-10", "1e-7"),
    "the factor 8 made 400": ("parity/rules", r"else 8\)", "else 400)"),
    "the factor 16 of gradients made 800": ("parity/rules", r"\(16 if gradient", "(800 if gradient"),
    "every result judged as a gradient": ("parity/suite", r"gradient=name in by_all", "gradient=True"),
    "every gradient measured against the largest": ("parity/rules", r" if shifts else 0\.0", ""),
    "every bias of scores measured so": ("parity/rules", r" and gradients\[name\]\.shape\[-1\] == 1", ""),
    "a bound of NaN passes": (
        "parity/suite",
        r"return self\.error <= self\.bound < np\.inf",
        "return not (self.error > self.bound or self.bound == np.inf)",
    ),
    "a bound without end passes": ("parity/suite", r"self\.bound < np\.inf", "self.bound"),
    "a bound that says nothing hides behind the others": ("parity/rules", r"if not bound < math\.inf:", "if False:"),
    "padding checked without NaN": (
        "parity/suite",
        r"= np\.nan, np\.nan, np\.inf",
        "= 1e3, 1e3, 1e3",
    ),
    "padding of keys checked without NaN": ("parity/suite", r"= np\.nan, np\.nan, np\.inf", "= np.nan, 1e3, np.inf"),
    "padding not checked in gradients": (
        "parity/suite",
        r"outputs\(attention\(\), call, \*X\) \| gradients\(.*\*X\) for",
        "outputs(attention(), call, *X) for",
    ),
    "half precision left out of the cases": ("parity/cases", r", dtypes=DTYPES", ""),
    "half precision left out of the plan": ("parity/suite", r"\.DTYPES if", ".DTYPES[:2] if"),
    "half precision left out of what is exact": ("parity/suite", r"for dtype in known\]", "for dtype in known[:2]]"),
    "hidden keys not checked": ("parity/suite", r'"hidden keys": hidden, ', ""),
    "weights of hidden keys not checked": ("parity/suite", r' +found\["weights"\] = weights\[~visible\]\n', ""),
    "output alone not checked": ("parity/suite", r', "output alone": alone', ', "output alone": output'),
    "the answer by hand not checked": ("parity/suite", r", 16 \* UNIT\[dtype\]\)", ", 1600 * UNIT[dtype])"),
}

# Of the short cuts of checks, of seeds and initial weights, of readable layers, and of what lets MXNet be imported.
OTHER_TESTS = [
    "test_checks.py", "test_initial_weights.py", "test_mxnet_import.py", "test_seeds.py", "test_readable.py",
]  # fmt: skip
OTHER_BUGS: PackageBugs = {
    "all layers draw from one seed": ("seeds", r"_count \+= 1", "pass"),
    "manual_seed counts for nothing": ("seeds", r"SeedSequence\(\(start, count\)\)", "SeedSequence(count)"),
    "manual_seed does not begin anew": ("seeds", r"_start, _count = seed, 0\n\n", "_start = seed\n\n"),
    "a layer that cannot be made takes a seed": (
        "layer",
        r"        self\.config = config\n",
        "        self.config = config\n        seed = seeds.next_seed() if seed is None else seed\n",
    ),
    "a readable layer is the fast one": ("layer", r"Lesson if self\.readable else self\._module\.", ""),
    "a readable layer of another backend is not": ("layer", r"self\.seed, self\.readable\)", "self.seed)"),
    "the longest of the first lengths": ("checks", r"valid_lens\.max\(\)", "valid_lens.ravel()[:FEW].max()"),
    "the shortest of the last lengths": ("checks", r"valid_lens\.min\(\)", "valid_lens.ravel()[-FEW:].min()"),
    "one array three times fits if the queries do": ("calls", r" and len\(set\(widths\)\) == 1", ""),
    "Glorot by fan-in alone": ("weights/canonical", r"6 / sum\(shape\)", "3 / shape[0]"),
    "packages named mxnet... see MXNet's NumPy": (
        "import_mxnet",
        r'fullname\.partition\("\."\)\[0\] != "mxnet"',
        'not fullname.startswith("mxnet")',
    ),
    "parts named mxnet of other packages see MXNet's NumPy": (
        "import_mxnet",
        r'fullname\.partition\("\."\)\[0\] != "mxnet"',
        '"mxnet" not in fullname.split(".")',
    ),
}

# Of what is measured.
BENCH_TESTS = ["test_bench.py"]
BENCH_BUGS: PackageBugs = {
    "the maximum of the rounds, not the median": ("bench/worker", r"1e3 \* statistics\.median\(", "1e3 * max("),
    "the mean of the rounds, not the median": ("bench/worker", r"1e3 \* statistics\.median", "1e3 * statistics.mean"),
    "the largest overhead, not the median": ("bench/worker", r"1e6 \* statistics\.median\(", "1e6 * max("),
    "ratios the other way round": ("bench/worker", r"one\[name\] / one\[REFERENCE\]", "one[REFERENCE] / one[name]"),
    "outputs are not compared": ("bench/worker", r"{} if results\.output is None else .*", "{}"),
    "gradients are not compared": ("bench/worker", r"if results\.by_input else", "if False else"),
    "the floor counts H heads of keys": ("bench/cases", r"\(self\.G or self\.H\)", "self.H"),
    "the floor knows no window": ("bench/cases", r"= self\.window or \(None, None\)", "= None, None"),
    "a window sees one key less": ("bench/cases", r"after >= -left", "after > -left"),
    "the layer is beside itself": ("bench/worker", r"backend, simpler, kind\)", "backend, shape, kind)"),
    "the layer without its option is compared": ("bench/worker", r"return Results\(\)", "return step()"),
}


# Of what is said: errors, and what commands print.
SAID_TESTS = [
    "test_bad_inputs.py", "test_imports.py", "test_native_layers_inside.py", "test_cli.py", "test_cli_narrow.py",
    "test_cli_weights.py", "test_tensorflow_start.py",
]  # fmt: skip
SAID_BUGS: PackageBugs = {
    "the two fixes are those of the other dtype": ("calls", r"\.astype\(\"\{expected\}", '.astype("{came}'),
    "an older PyTorch is told to be installed": ("dispatch", r"torch>=2\.4", "torch>=2.3"),
    "only the module itself is looked into": ("native", r"left\.append\(\(path \+ name, part\)\)", "pass"),
    "the way to a layer inside begins anew": ("native", r"found\.append\(path \+ name\)", "found.append(name)"),
    "a class is any of its name": (
        "native",
        r"_class\(name\) is kind",
        'name.endswith(getattr(kind, "__name__", "-"))',
    ),
    "the first of several kinds is taken": ("native", r"if len\(meant\) > 1:", "if False:"),
    "a value of a file is taken for an option's": ("cli/options", r" \{re\.escape\(value\)\}\(\?!\\w\)", ""),
    "settings keep their names": ("cli/options", r"return re\.sub\(.*, typed, text\)", "return text"),
    "long words are broken": ("tables", r"break_long_words=False", "break_long_words=True"),
    "hyphens break words": ("tables", r"break_on_hyphens=False", "break_on_hyphens=True"),
    "a table that does not fit is cut": ("tables", r"if self\._least\(\) <= options\.max_width:", "if True:"),
    "lines wider than the terminal are cut": ("cli/terminal", r"crop=False", "crop=True"),
    "TensorFlow's start is seen": ("backends/tensorflow/start", r'"-v", ', ""),
    "what a failing start says is not seen": (
        "backends/tensorflow/start",
        r"stdout=stderr",
        "stdout=subprocess.DEVNULL",
    ),
    "TF_CPP_MIN_LOG_LEVEL=0 is passed over": ("backends/tensorflow/start", r'os\.environ\[LEVEL\] == "0"', "False"),
}


# 3. Which tests must notice which bugs.

BACKEND_GROUPS = [
    (BLOCKS_BUGS, BLOCKS_TESTS),
    (PIECES_BUGS, PIECES_TESTS),
    (MEMORY_BUGS, MEMORY_TESTS),
    (OWN_BUGS, OWN_TESTS),
    (VJP_BUGS, VJP_TESTS),
    (MODERN_BUGS, MODERN_TESTS),
    (BATCH_BUGS, DEVICES_TESTS),
    (BUGS, TESTS),
]
PACKAGE_GROUPS = {
    "weights": (WEIGHTS_BUGS, WEIGHTS_TESTS),
    "layouts": (LAYOUT_BUGS, LAYOUT_TESTS),
    "layers of frameworks": (NATIVE_BUGS, NATIVE_TESTS),
    "rules": (RULES_BUGS, RULES_TESTS),
    "case files": (CASE_BUGS, CASE_TESTS),
    "comparisons": (COMPARE_BUGS, COMPARE_TESTS),
    "two layers and two files": (TWO_BUGS, TWO_TESTS),
    "diagnoses": (DIAGNOSE_BUGS, DIAGNOSE_TESTS),
    "tests elsewhere": (TESTING_BUGS, TESTING_TESTS),
    "mha explain": (EXPLAIN_BUGS, EXPLAIN_TESTS),
    "languages": (LANGUAGE_BUGS, LANGUAGE_TESTS),
    "the rest of mha": (OTHER_BUGS, OTHER_TESTS),
    "mha page": (PAGE_BUGS, PAGE_TESTS),
    "mha bench": (BENCH_BUGS, BENCH_TESTS),
    "heads": (HEADS_BUGS, HEADS_TESTS),
    "heads that are shown": (SHOWN_BUGS, SHOWN_TESTS),
    "parts of a layer": (PARTS_BUGS, PARTS_TESTS),
    "a split sequence": (SEQUENCE_BUGS, SEQUENCE_TESTS),
    "split heads": (SPLIT_HEADS_BUGS, SPLIT_HEADS_TESTS),
    "ranks that end": (FAILING_BUGS, FAILING_TESTS),
    "devices of JAX": (DEVICES_BUGS, DEVICES_TESTS),
    "what is said": (SAID_BUGS, SAID_TESTS),
}
