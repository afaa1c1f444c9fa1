"""NumPy as a backend, in data: imports nothing. `dispatch.Framework` has what the core asks."""

TITLE = "NumPy"
ALIASES = ("np",)
NEEDS = ("numpy",)
ARRAYS = ("numpy",)
DTYPES = ("float32", "float64", "float16", "bfloat16")
SECONDS = 3
LACKS = {
    "arrays of its own": "its arrays are those that every backend takes",
    "automatic differentiation": "it only computes: `gradients.py` has the gradient of each step, derived by hand",
    "a compiler": "it computes one operation at a time",
    "a compiler of calls": "it has no compiler",
    "a state of training": "a call says whether it trains",
    "kept gradients": "a call returns its gradients",
    "frozen weights": "its layer has gradients of all weights",
    "a section of the book": "the book has no section for it",
    "a section of the next edition": "the book has no section for it",
    "models of its own": "it has no models",
}
ALONE = {
    "hiding.py: softmax": "no softmax of its own",
    "pooling.py: AdditiveAttention.features": "shared by the forward and the backward pass",
    "heads.py: HeadNorm.normalize": "shared by the forward and the backward pass",
    "heads.py: sigmoid": "no sigmoid of its own",
    "gradients.py: through_steps, through_pooling, through_weights, through_products, through_features, through_gate, "
    "through_dense, through_norm, sum_to_shape, add_by_name, twin_of": "no automatic differentiation",
    "weights.py: Dense, matmul": "no layers of its own",
}
