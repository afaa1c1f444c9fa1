"""JAX with Flax as a backend, in data: imports nothing. `mha.dispatch.Framework` says what each line means."""

TITLE = "JAX"
ALIASES = ("flax",)
NEEDS = ("jax", "flax")
ARRAYS = ("jax", "jaxlib", "flax")
DTYPES = ("float32", "float64", "float16", "bfloat16")
LAYERS = ("flax.linen.MultiHeadDotProductAttention", "flax.linen.MultiHeadAttention", "flax.nnx.MultiHeadAttention")
CACHES = ("flax.linen", "flax.nnx")
METHOD = "__call__"
PACKAGES = ("jax>=0.8", "flax>=0.12")
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
