"""TensorFlow with Keras as a backend, in data: imports nothing. `dispatch.Framework` has what the core asks."""

TITLE = "TensorFlow"
ALIASES = ("tf", "keras")
NEEDS = ("tensorflow", "keras")
ARRAYS = ("tensorflow", "keras")
DTYPES = ("float32", "float64", "float16", "bfloat16")
LAYERS = ("keras.layers.MultiHeadAttention", "keras.layers.GroupQueryAttention")
METHOD = "call"
PACKAGES = ("tensorflow>=2.18", "keras>=3.15")
SECONDS = 40
COMPILES = True
LACKS = {
    "arrays that change": "nothing writes to its tensors",
    "a state of training": "a call says whether it trains",
    "kept gradients": "a tape returns its gradients",
    "a section of the next edition": "the book's next edition has its chapter on attention for PyTorch and JAX alone",
}
TF32_OFF = "tf.config.experimental.enable_tensor_float_32_execution(False)"
ALONE = {
    "engine/calls.py": "the framework compiles a call as a whole",
    "engine/compiled.py": "the framework compiles a call as a whole",
    "engine/decoding.py": "an array takes no assignment, but a compiled function may write to it",
    "engine/pieces.py": "the framework compiles a loop over pieces, of which only a call knows the sizes",
    "layer.py: MultiHeadAttention.__call__": "Keras wraps what `call` raises in words of its own",
    "layer.py: MultiHeadAttention.compute_mask": "Keras passes masks on by itself",
    "layer.py: MultiHeadAttention.get_config": "Keras's saver makes layers from their options",
    "arrays.py: refuse_masks": "Keras hangs masks of its own on arrays",
    "arrays.py: shape_of, must_fit": "a size may be learnt only in a call",
    "engine/pooling.py: AttentionPooling.pool_block": "heads keep an axis of their own",
    "learn/d2l: MultiHeadAttention.pooling": "a file of Keras's saver may tell of another",
    "learn/d2l: MultiHeadAttention.__init__": "Keras's saver makes layers from their options",
}
