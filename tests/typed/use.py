"""A user's code, as type checkers see the installed package: nothing in `right` is wrong, each line of `wrong` is.

An `ignore` that ignores nothing is an error too, so that mypy and pyright must each find every mistake. `right` is run.
"""

import os
from collections.abc import Callable
from typing import Any, assert_type

import numpy as np
from mha.names import BackendName, FloatName, KindName, SchemeName

import mha
from mha import parity

X = np.ones((2, 3, 12), "float32")


def right(backend: BackendName | None = None, dtype: FloatName = "float32") -> None:
    """A user's code, and the types of its results."""
    attention = mha.MultiHeadAttention(12, 3, pooling="dot", dtype=dtype, backend=backend)
    assert_type(attention.backend, BackendName)
    assert_type(attention.config.dtype, FloatName)
    assert_type(attention(X, X, X), Any)  # an array of the framework that X is of
    assert_type(attention(X, X, X, [3, 2], causal=True, return_weights=True), tuple[Any, Any])
    assert_type(attention(X, X, X, return_weights=attention.config.bias), Any)
    output, cache = attention(X, X, X, causal=True, cache=attention.cache(2, 6))
    assert_type(output, Any)
    assert_type(cache, mha.Cache)
    assert_type(attention(X, X, X, cache=cache, return_weights=True), tuple[Any, Any, mha.Cache])
    assert_type(attention(X, cache=attention.cache_of(X)), tuple[Any, mha.Cache])
    assert_type(attention.vjp(X, X, X), tuple[Any, Callable[[Any], dict[str, Any]]])
    assert_type(attention.gradients(X, X, X), dict[str, Any])
    assert_type(attention.trace(X, X, X), dict[str, Any])
    assert_type(attention.trace(X, cache=attention.cache_of(X)), dict[str, Any])
    mha.MultiHeadAttention(12, 3, rotary=mha.Rotary(), qk_norm="rms", window=(3, None), num_key_value_heads=1)
    assert_type(attention(X, X, X, score_bias=mha.alibi(3, 3), offset=2, head_gates=np.ones(3, "float32")), Any)
    attention.weights = {name: array / 2 for name, array in attention.weights.items()}

    for name, known in mha.backends().items():
        if known.installed:
            assert_type(attention.to(name).backend, BackendName)
    if (told := os.environ.get("MHA_BACKEND", "numpy")) in mha.backends():  # a str that is looked up is a name
        mha.MultiHeadAttention(12, 3, backend=told)
    for written in (np.float32, np.dtype("float64"), X.dtype):
        mha.ones((2, 3), written)
        mha.MultiHeadAttention(12, 3, dtype=written)
    assert_type(mha.to_numpy(mha.tensor([1, 2], "int8")), np.ndarray)
    assert_type(mha.parity.ratio(attention, attention(X, X, X), X, X, X), float)
    report = mha.parity.compare(attention, {"output": attention(X, X, X)}, X, X, X, [3, 2], causal=True, layout="BHTd")
    assert_type(report, parity.Report)
    assert_type(report.rows[0].ratio, float)
    assert_type(report.first, parity.Row | None)
    assert_type(report.diagnosis.mistakes, tuple[str, ...])
    assert_type(mha.parity.diagnose(attention, X, X, X, X, others={"other": attention}), parity.Diagnosis)
    assert_type(parity.CATALOGUE[0].name, str)
    assert_type(parity.plan("numpy")[0].run()[0].passed, bool)
    outcome = mha.testing.assert_parity(attention, backend, cases=["no lengths"])
    assert_type(outcome, mha.testing.Outcome)
    assert_type(outcome.reports, dict[str, parity.Report])
    for scheme in mha.weights.SCHEMES:
        assert_type(scheme, SchemeName)


class TorchDtype:
    """The class of `torch.float32`, as PyTorch describes it."""

    is_floating_point: bool


class TensorFlowDtype:
    """The class of `tf.float32`, as TensorFlow describes it."""

    @property
    def as_numpy_dtype(self) -> Any:
        return np.float32


def frameworks(kind: KindName, torch: TorchDtype, tensorflow: TensorFlowDtype) -> None:
    """Code that needs a framework, and so is not run."""
    attention = mha.MultiHeadAttention(12, 3, dtype=torch)
    assert_type(attention.to_native(kind), Any)
    assert_type(mha.from_native(attention.layer, scheme="auto"), mha.MultiHeadAttention)
    assert_type(mha.load("model.safetensors", "torch", scheme="bert", prefix="encoder"), mha.MultiHeadAttention)
    mha.zeros(3, tensorflow)


def wrong(attention: mha.MultiHeadAttention, told: str) -> None:
    """The mistakes that are promised to be found."""
    mha.MultiHeadAttention(12)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    mha.MultiHeadAttention(12, 3, head_dim=4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    mha.MultiHeadAttention(12, 3, backend="pytorch")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.MultiHeadAttention(12, 3, backend=told)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.MultiHeadAttention(12, 3, pooling="scaled dot")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.MultiHeadAttention(12, 3, qk_norm="l2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.MultiHeadAttention(12, 3, window=4)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.MultiHeadAttention(12, 3, rotary=10000.0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.MultiHeadAttention(12, 3, dtype="float23")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.MultiHeadAttention(12, 3, dtype="int8")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.MultiHeadAttention(12, 3, dtype=float)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.MultiHeadAttention(12, 3, dtype=X)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    attention(X, X, X, return_weights=True).sum()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    _, _, _ = attention(X, X, X, return_weights=True)  # type: ignore[misc]  # pyright: ignore[reportAssignmentType, reportUnknownVariableType]
    attention(X, X, X, return_weights="yes")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    attention(X, X, X, attn_mask=None)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    attention.to("pytorch")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    attention.to_native("torch.nn.MultiHeadAttention")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    attention.config.pooling = "additive"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    attention.weights = {"W_q.kernel": None}  # type: ignore[dict-item]  # pyright: ignore[reportAttributeAccessIssue]
    attention.heads()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

    mha.tensor([1, 2], "int7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.ones((2, 3), backend="tf")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.backends()["tf"]  # type: ignore[index]  # pyright: ignore[reportArgumentType]
    mha.from_native({}, scheme="gpt-2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.load("model.safetensors", "pytorch")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.load("model.safetensors", scheme="gpt-2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.weights.load("model.safetensors", scheme="gpt-2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.weights.SCHEMES["gpt-2"]  # type: ignore[index]  # pyright: ignore[reportArgumentType]
    mha.parity.check_case("torch", parity.CASES[0], "float23")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.parity.compare(attention, X, X, X)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    mha.parity.compare(attention, X, X, X, X, layout=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.parity.ration()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    mha.testing.assert_parity(attention, suite="slow")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.testing.assert_parity(attention, dtypes=["int8"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    mha.testing.assert_kernel(mha.ones, layout="BHDT")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    mha.parity.compare_kernel(X, X, X, X, casual=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    mha.MultiHeadAtention(12, 3)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


if __name__ == "__main__":
    right()
