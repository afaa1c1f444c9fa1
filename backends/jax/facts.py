"""JAX with Flax as a backend, in data: imports nothing. `dispatch.Framework` has what the core asks."""

TITLE = "JAX"
ALIASES = ("flax",)
NEEDS = ("jax", "flax")
ARRAYS = ("jax", "jaxlib", "flax")
DTYPES = ("float32", "float64", "float16", "bfloat16")
LAYERS = ("flax.linen.MultiHeadDotProductAttention", "flax.linen.MultiHeadAttention", "flax.nnx.MultiHeadAttention")
CACHES = ("flax.linen", "flax.nnx")
METHOD = "__call__"
PACKAGES = ("jax>=0.10.1", "flax>=0.12.8")
SECONDS = 75
COMPILES = True
LACKS = {
    "arrays that change": "nothing writes to its arrays",
    "64 bits everywhere": "outside of a context, it makes 32 bits of int64 and float64",
    "layers that change": "the parts of Flax's modules are fixed when they are made",
    "a state of training": "a call says whether it trains",
    "kept gradients": "a call returns its gradients",
    "frozen weights": "a gradient is asked for by what it is by",
}
PARALLEL = ("plan", "attend", "gather", "save", "load")
DEVICES = ("XLA_FLAGS", "--xla_force_host_platform_device_count=")
USES_DEVICE = True
TF32_OFF = 'jax.config.update("jax_default_matmul_precision", "highest") or JAX_DEFAULT_MATMUL_PRECISION=highest'
ALONE = {
    "arrays.py: use_device": "a process with several kinds of devices computes at one of them by its name",
    "engine/calls.py": "the framework compiles a call as a whole",
    "engine/kernels.py": "the framework hands calls of attention to a kernel of a GPU only if it is asked to",
    "engine/decoding.py": "an array takes no assignment, but a compiled function may write to it",
    "engine/pieces.py": "the framework compiles a loop over pieces, of which only a call knows the sizes",
    "models/frameworks/flax_modules.py": "only a call shows parts; modules may be copies, or inside a transformation",
    "learn/d2l/next/nnx.py": "the book's next edition has modules of NNX, not of linen",
    "arrays.py: refuse_to_narrow": "arrays of 64 bits become narrower by themselves",
    "learn/d2l: get_key": "random numbers take a key",
    "learn/d2l: DotProductAttention.__init__, AdditiveAttention.__init__": "Flax makes a module from its fields",
    "learn/d2l: MultiHeadAttention.__init__": "Flax makes a module from its fields",
    "learn/d2l: MultiHeadAttention.__call__": "weights are returned",
}
