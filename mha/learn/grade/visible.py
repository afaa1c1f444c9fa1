"""The visible tests of an assignment: numbers computed by hand, for pytest with the framework and NumPy alone."""

from mha.core.options.names import BackendName
from mha.learn.grade.levels import Level

# What a framework needs to make arrays, to read them, and to give a layer's projections the unit matrix for weights.
ARRAYS: dict[BackendName, tuple[str, str, str]] = {
    "numpy": ("", "np.array(X)", "np.asarray(X)"),
    "torch": ("import torch\n", "torch.tensor(X)", "X.detach().numpy()"),
    "tensorflow": ("import tensorflow as tf\n", "tf.constant(X)", "np.asarray(X)"),
    "jax": ("import jax\nimport jax.numpy as jnp\n", "jnp.asarray(X)", "np.asarray(X)"),
    "mxnet": ("from mxnet import np as mnp\n", "mnp.array(X, dtype=X.dtype)", "X.asnumpy()"),
    "mlx": ("import mlx.core as mx\n", "mx.array(X)", "np.array(X)"),
}
CALLS: dict[BackendName, str] = {
    "numpy": """
    for name in PROJECTIONS:
        setattr(layer, name, np.eye(num_hiddens))
    return layer(*inputs, **call)
""",
    "torch": """
    layer.eval()
    layer(*inputs)
    for name in PROJECTIONS:
        getattr(layer, name).weight.data = torch.eye(num_hiddens)
    return layer(*inputs, **call)
""",
    "tensorflow": """
    layer(*inputs)
    for name in PROJECTIONS:
        getattr(layer, name).kernel.assign(np.eye(num_hiddens))
    return layer(*inputs, **call)
""",
    "jax": """
    params = {name: {"kernel": jnp.eye(num_hiddens)} for name in PROJECTIONS}
    return layer.apply({"params": params}, *inputs, **call)
""",
    "mxnet": """
    layer.initialize()
    layer(*inputs)
    for name in PROJECTIONS:
        getattr(layer, name).weight.set_data(mnp.eye(num_hiddens))
    return layer(*inputs, *call.values())
""",
    "mlx": """
    layer.eval()
    for name in PROJECTIONS:
        getattr(layer, name).weight = mx.eye(num_hiddens)
    return layer(*inputs, **call)
""",
}
POOLED: dict[BackendName, str] = {"jax": "attention.apply({}, *inputs)", "torch": "attention.eval()(*inputs)"}
HEAD = '''"""Numbers that are computed by hand: `pytest test_attention.py`."""

{imports}

import attention as mine

PROJECTIONS = ("W_q", "W_k", "W_v", "W_o")


def array(X, dtype="float32"):
    X = np.array(X, dtype)
    return {array}


def numbers(X):
    X = X[0] if isinstance(X, tuple) else X
    return {numpy}


def close(X, expected):
    X = X if isinstance(X, np.ndarray) else numbers(X)
    assert X.shape == np.shape(expected), f"the shape is {{X.shape}}, expected {{np.shape(expected)}}"
    np.testing.assert_allclose(X, expected, rtol=1e-4, atol=1e-6)
'''
TESTS: dict[int, str] = {
    1: '''
def test_masked_softmax():
    X = array(np.log([[[1, 2, 3, 4], [1, 1, 2, 4]]]))
    close(mine.masked_softmax(X, None), [[[0.1, 0.2, 0.3, 0.4], [0.125, 0.125, 0.25, 0.5]]])
    X = array(np.log([[[1, 2, 3, 4], [1, 1, 2, 4]]]))
    close(mine.masked_softmax(X, array([3], "int32")), [[[1 / 6, 2 / 6, 3 / 6, 0], [0.25, 0.25, 0.5, 0]]])
    X = array(np.log([[[1, 2, 3, 4], [1, 1, 2, 4]]]))
    close(mine.masked_softmax(X, array([[1, 2]], "int32")), [[[1, 0, 0, 0], [0.5, 0.5, 0, 0]]])
''',
    2: '''
def test_dot_product_attention():
    # Scores, divided by sqrt(4): log(3) and 0. Weights: 3/4 and 1/4.
    queries, keys = array([[[2 * np.log(3), 0, 0, 0]]]), array([[[1, 0, 0, 0], [0, 0, 0, 0]]])
    inputs = queries, keys, array([[[4], [8]]])
    attention = mine.DotProductAttention(dropout=0.0)
    close({pooled}, [[[5]]])
''',
    3: '''
def test_heads():
    X = array(np.arange(24).reshape(2, 3, 4))  # 2 samples, 3 tokens, 2 heads of 2 features
    heads = mine.transpose_qkv(X, 2)
    first = [[0, 1], [4, 5], [8, 9], [2, 3], [6, 7], [10, 11]]  # of the first sample, head by head
    second = [[12, 13], [16, 17], [20, 21], [14, 15], [18, 19], [22, 23]]
    close(numbers(heads).reshape(12, 2), first + second)
    close(mine.transpose_output(heads, 2), np.arange(24).reshape(2, 3, 4))
''',
    4: '''
def test_one_head():
    queries, keys = array([[[2 * np.log(3), 0, 0, 0]]]), array([[[1, 0, 0, 0], [0, 0, 0, 0]]])
    inputs = queries, keys, array([[[4, 0, 0, 1], [8, 0, 4, 1]]])
    close(attended(1, inputs), [[[5, 0, 1, 1]]])
''',
    5: '''
def test_two_heads():
    # The second head sees both keys alike.
    queries, keys = array([[[2**0.5 * np.log(3), 0, 0, 0]]]), array([[[1, 0, 0, 0], [0, 0, 0, 0]]])
    inputs = queries, keys, array([[[4, 0, 4, 0], [8, 4, 8, 4]]])
    close(attended(2, inputs), [[[5, 1, 6, 2]]])
''',
    6: '''
def test_lengths_and_masks():
    queries, keys = array([[[2**0.5 * np.log(3), 0, 0, 0]]]), array([[[1, 0, 0, 0], [0, 0, 0, 0]]])
    inputs = queries, keys, array([[[4, 0, 4, 0], [8, 4, 8, 4]]])
    first, last = [[[4, 0, 4, 0]]], [[[8, 4, 8, 4]]]
    close(attended(2, inputs, valid_lens=array([1], "int32")), first)
    close(attended(2, inputs, valid_lens=None, mask=array([[False, True]], "bool")), last)
    close(attended(2, inputs, valid_lens=None, mask=None, causal=True), first)
''',
}  # fmt: skip
ATTENDED = '''

def attended(num_heads, inputs, **call):
    """A layer of num_heads heads with unit matrices for weights."""
    num_hiddens = inputs[0].shape[2]
    layer = mine.MultiHeadAttention(num_hiddens=num_hiddens, num_heads=num_heads, dropout=0.0, bias=False)
    call = call or {{"valid_lens": None}}
{called}'''
GUIDE = """# Attention, from scratch

Write what raises `NotImplementedError` in `attention.py`, level by level. Signatures and docstrings say what each
function gets and returns; keep the names. Do not use the framework's own attention.

```sh
python -m pip install {packages} pytest
pytest test_attention.py
```

| level | what to write |
|---|---|
{table}

Your work is graded with other numbers: large ones, other sizes, several samples. Do not change what comes in, and leave
dropout out where nothing is trained. If you call something by another name, say so in `attention.py`:
`NAMES = {{"W_q": "query_projection"}}`.
"""


def tests(backend: BackendName, levels: tuple[Level, ...]) -> str:
    """Write the visible tests of these levels; levels from 7 on have none."""
    numbers = [level.number for level in levels if level.number in TESTS]
    imports, array, numpy = ARRAYS[backend]
    lines = sorted(f"import numpy as np\n{imports}".splitlines(), key=lambda line: (line.startswith("from"), line))
    text = HEAD.format(imports="\n".join(lines), array=array, numpy=numpy)
    if set(numbers) & {4, 5, 6}:
        text += ATTENDED.format(called=CALLS[backend][1:])
    for number in numbers:
        text += f"\n{TESTS[number].replace('{pooled}', POOLED.get(backend, 'attention(*inputs)'))}"
    return text


def readme(packages: str, levels: tuple[Level, ...]) -> str:
    """Write the readme for students."""
    rows = []
    for level in levels:
        names = level.names if level.every else level.names[:1]
        rows.append(f"| {level.number} | {level.title}: {' and '.join(f'`{name}`' for name in names)} |")
    return GUIDE.format(packages=packages, table="\n".join(rows))
