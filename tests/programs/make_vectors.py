"""Write tests/layer/mxnet.safetensors: what MXNet computes where nothing was done to make it run.

Run in the tox environment versions-py311-oldest-mxnet (NumPy 1.23.5, MXNet 1.9.1), from the root of the checkout:
`.tox/versions-py311-oldest-mxnet/bin/python tests/programs/make_vectors.py`. Every other environment compares itself
with this file.
"""

import importlib.metadata
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import mha
from mha.core.import_mxnet import is_needed

WIDTHS = {"query_size": 7, "key_size": 5, "value_size": 3, "key_dim": 4, "value_dim": 2, "bias": True}
# Options of the layer, and what hides keys; B = 2, Q = 3, K = 5.
CASES = {
    "dot-float64": ({"dtype": "float64", **WIDTHS}, {"valid_lens": [4, 2]}),
    "dot-float32": ({"dtype": "float32", **WIDTHS}, {"valid_lens": [[1, 5, 0], [9, 2, 3]], "causal": True}),
    "additive-float64": ({"dtype": "float64", "pooling": "additive", **WIDTHS}, {"valid_lens": [[1, 5, 0], [9, 2, 3]]}),
    "additive-float32": ({"dtype": "float32", "pooling": "additive", **WIDTHS}, {"valid_lens": [0, 2]}),
}
FILE = Path(__file__).parents[1] / "layer" / "mxnet.safetensors"


def main() -> None:
    if is_needed():
        raise SystemExit(f"NumPy is {np.__version__}, expected < 1.24, on which MXNet runs as it stands")
    random = np.random.default_rng(20170612)
    tensors = {}
    for case, (options, hiding) in CASES.items():
        attention = mha.MultiHeadAttention(6, 2, backend="mxnet", **options)
        dtype = options["dtype"]
        attention.weights = {name: random.normal(size=X.shape).astype(dtype) for name, X in attention.weights.items()}
        shapes = {"queries": (2, 3, 7), "keys": (2, 5, 5), "values": (2, 5, 3), "cotangent": (2, 3, 6)}
        inputs = {name: random.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
        *arguments, cotangent = inputs.values()
        output, shares = attention(*arguments, **hiding, return_weights=True)
        parts = {
            "input": inputs,
            "layer": attention.weights,
            "result": {"output": output, "weights": shares},
            "gradient": attention.gradients(*arguments, **hiding, cotangent=cotangent),
        }
        for part, arrays in parts.items():
            tensors |= {f"{case}/{part}/{name}": np.ascontiguousarray(X) for name, X in arrays.items()}
    versions = {"numpy": np.__version__, "mxnet": importlib.metadata.version("mxnet")}
    FILE.parent.mkdir(exist_ok=True)
    save_file(tensors, FILE, {"cases": json.dumps(CASES), **versions})


if __name__ == "__main__":
    main()
