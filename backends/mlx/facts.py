"""MLX as a backend, in data: imports nothing. `mha.dispatch.Framework` says what each line means."""

TITLE = "MLX"
NEEDS = ("mlx",)
ARRAYS = ("mlx",)
DTYPES = ("float32", "float64", "float16", "bfloat16")
LAYERS = ("mlx.nn.MultiHeadAttention",)
CACHES = ("mlx_lm.KVCache",)
FORMATS = ("mlx",)
METHOD = "__call__"
PACKAGES = ("mlx[cpu]>=0.32.2",)
SECONDS = 20
LACKS = {
    "sparse arrays": "its arrays are dense",
    "kept gradients": "a transformation returns its gradients",
    "a state of precision": "nothing outside of a call changes its dtypes",
    "commands/book.py": "the book has no section for it",
}
