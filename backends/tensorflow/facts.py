"""TensorFlow with Keras as a backend, in data: imports nothing. `mha.dispatch.Framework` says what each line means."""

TITLE = "TensorFlow"
ALIASES = ("tf", "keras")
NEEDS = ("tensorflow", "keras")
ARRAYS = ("tensorflow", "keras")
DTYPES = ("float32", "float64", "float16", "bfloat16")
LAYERS = ("keras.layers.MultiHeadAttention", "keras.layers.GroupQueryAttention")
METHOD = "call"
PACKAGES = ("tensorflow>=2.18", "keras>=3.6")
SECONDS = 40
COMPILES = True
LACKS = {
    "arrays that change": "nothing writes to its tensors",
    "a state of training": "a call says whether it trains",
    "kept gradients": "a tape returns its gradients",
}
