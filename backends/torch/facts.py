"""PyTorch as a backend, in data: imports nothing. `dispatch.Framework` has what the core asks."""

TITLE = "PyTorch"
ALIASES = ("pytorch",)
NEEDS = ("torch",)
ARRAYS = ("torch",)
DTYPES = ("float32", "float64", "float16", "bfloat16")
LAYERS = ("torch.nn.MultiheadAttention",)
CACHES = ("transformers.DynamicCache", "transformers.StaticCache")
METHOD = "forward"
PACKAGES = ("torch>=2.12",)
SECONDS = 9
PARALLEL = ("plan", "parallelize", "gather", "save", "load")
RANKS = True
USES_DEVICE = True
# `torch.backends.fp32_precision = "ieee"`, which is newer, changes nothing where an older switch was used.
TF32_OFF = 'torch.set_float32_matmul_precision("highest")'
ALONE = {
    "arrays.py: use_device": "where its layers are, they are by the name of a device",
    "engine/decoding.py": "inside its compiler a token is written at a place that is known later",
    "engine/flexible.py": "on a GPU, windows, caps and sinks have a kernel that is compiled from functions",
    "engine/kernels.py": "on a GPU it has several kernels, of which some are wrong",
    "models/frameworks/torch_kernels.py": "models call kernels in several ways, also by names of `transformers`",
    "weights.py: canonical": "a kernel is stored as (out, in)",
}
