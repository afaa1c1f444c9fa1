"""MLX as a backend, in data: imports nothing. `dispatch.Framework` has what the core asks."""

TITLE = "MLX"
NEEDS = ("mlx",)
ARRAYS = ("mlx",)
DTYPES = ("float32", "float64", "float16", "bfloat16")
LAYERS = ("mlx.nn.MultiHeadAttention",)
CACHES = ("mlx_lm.KVCache",)
FORMATS = ("mlx",)
METHOD = "__call__"
PACKAGES = ("mlx[cpu]>=0.32.4",)
SECONDS = 4
LACKS = {
    "sparse arrays": "its arrays are dense",
    "kept gradients": "a transformation returns its gradients",
    "a state of precision": "nothing outside of a call changes its dtypes",
    "a section of the book": "the book has no section for it",
    "a section of the next edition": "the book has no section for it",
}
TF32_OFF = "MLX_ENABLE_TF32=0 in the environment"
ALONE = {
    "engine/recomputing.py": "the framework has no function that computes a block again after another one",
    "weights/frameworks: unpacked": "files of the framework hold quantised layers",
    "arrays.py: evaluate": "arrays are lazy, and evaluated in their own thread alone",
    "hiding.py: where": "a cotangent that is no number comes through that of the framework",
    "hiding.py: softmax": "its own is of float32 accuracy, and adds up rounding errors",
    "hiding.py: exponential": "its own is of float32 accuracy, and slow",
    "hiding.py: total": "sums add up rounding errors",
    "pooling.py: next_key, draw_key, drawing": "nobody can set the state of random numbers back, for a second pass",
    "heads.py: sigmoid": "its own is of float32 accuracy",
    "gradients.py: function_of": "functions are transformed",
    "gradients.py: gradients_of": "a cotangent is told before the forward pass",
    "weights.py: canonical": "a kernel is stored as (out, in)",
    "weights.py: Dense": "its own draws numbers, and is slow on a CPU",
    "weights.py: product": "its own is slow on a CPU",
    "weights.py: twin, put": "a transformed function gives a layer other arrays",
}
