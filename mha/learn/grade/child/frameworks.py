"""The operations of each framework that a submission's arrays and layers need; each is imported on use."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = Any


class Framework:
    """The operations of NumPy; a subclass has those of another framework.

    xp: the namespace of its functions.
    """

    name = "numpy"

    @property
    def xp(self) -> Any:
        """The functions of arrays."""
        return np

    def array(self, X: np.ndarray) -> Array:
        """Make an array of the framework."""
        return X.copy()

    def numpy(self, X: Array) -> np.ndarray:
        """Return an array as NumPy's; raises TypeError if it is none."""
        return plain(np.asarray(X))

    def reshape(self, X: Array, shape: Sequence[int]) -> Array:
        """Return X in another shape."""
        return self.xp.reshape(X, tuple(shape))

    def permute(self, X: Array, axes: Sequence[int]) -> Array:
        """Return X with its axes in another order."""
        return self.xp.transpose(X, tuple(axes))

    def softmax(self, X: Array) -> Array:
        """Return the softmax over the last axis."""
        exponentials = np.exp(X - X.max(-1, keepdims=True))
        return exponentials / exponentials.sum(-1, keepdims=True)

    def where(self, visible: Array, X: Array, number: float) -> Array:
        """Put a number where something is not visible."""
        return self.xp.where(visible, X, self.xp.zeros_like(X) + number)

    def arange(self, n: int) -> Array:
        """Return 0 .. n - 1."""
        return self.xp.arange(n)

    def concatenate(self, parts: Sequence[Array]) -> Array:
        """Put arrays side by side, along the last axis."""
        return self.xp.concatenate(list(parts), -1)

    def prepare(self, layer: Any, call: Callable[[], Any]) -> None:
        """Make a layer's weights, if its first call does, and switch training off."""

    def gradients(
        self, loss: Callable[[dict[str, Array]], Array], arrays: dict[str, Array], weights: dict[str, Any]
    ) -> dict[str, Any] | None:
        """The gradients of a loss, by name, by arrays and by a layer's weights; None if the framework has none."""
        return None


class Torch(Framework):
    """PyTorch."""

    name = "torch"

    @property
    def xp(self) -> Any:
        """The functions of tensors."""
        import torch

        return torch

    def array(self, X: np.ndarray) -> Array:
        """Make a tensor."""
        return self.xp.from_numpy(X.copy())

    def numpy(self, X: Array) -> np.ndarray:
        """Return a tensor as NumPy's array."""
        return plain(X.detach().cpu().numpy() if isinstance(X, self.xp.Tensor) else np.asarray(X))

    def permute(self, X: Array, axes: Sequence[int]) -> Array:
        """Return X with its axes in another order."""
        return X.permute(*axes)

    def softmax(self, X: Array) -> Array:
        """Return the softmax over the last axis."""
        return self.xp.softmax(X, -1)

    def concatenate(self, parts: Sequence[Array]) -> Array:
        """Put tensors side by side, along the last axis."""
        return self.xp.cat(list(parts), -1)

    def prepare(self, layer: Any, call: Callable[[], Any]) -> None:
        """Call a layer once if it is lazy, and switch training off."""
        if isinstance(layer, self.xp.nn.Module):
            layer.eval()
            if any(isinstance(X, self.xp.nn.parameter.UninitializedParameter) for X in layer.parameters()):
                call()

    def gradients(self, loss: Any, arrays: dict[str, Array], weights: dict[str, Any]) -> dict[str, Any] | None:
        """The gradients of a loss; those of what it does not depend on are None."""
        everything = arrays | weights
        for X in everything.values():
            if X.is_leaf:
                X.requires_grad_(True)
        total = loss(arrays)
        if not total.requires_grad:
            return dict.fromkeys(everything)
        found = self.xp.autograd.grad(total, list(everything.values()), allow_unused=True)
        return dict(zip(everything, found, strict=True))


class Jax(Framework):
    """JAX, with Flax."""

    name = "jax"

    @property
    def xp(self) -> Any:
        """The functions of arrays."""
        import jax.numpy

        return jax.numpy

    def array(self, X: np.ndarray) -> Array:
        """Make an array."""
        return self.xp.asarray(X)

    def softmax(self, X: Array) -> Array:
        """Return the softmax over the last axis."""
        import jax

        return jax.nn.softmax(X, -1)

    def gradients(self, loss: Any, arrays: dict[str, Array], weights: dict[str, Any]) -> dict[str, Any] | None:
        """The gradients of a loss that takes all arrays, weights among them."""
        import jax

        return jax.grad(loss)(arrays | weights)


class TensorFlow(Framework):
    """TensorFlow, with Keras."""

    name = "tensorflow"

    @property
    def xp(self) -> Any:
        """The functions of tensors."""
        import tensorflow

        return tensorflow.experimental.numpy

    def array(self, X: np.ndarray) -> Array:
        """Make a tensor."""
        import tensorflow

        return tensorflow.constant(X)

    def reshape(self, X: Array, shape: Sequence[int]) -> Array:
        """Return X in another shape."""
        import tensorflow

        return tensorflow.reshape(X, tuple(shape))

    def permute(self, X: Array, axes: Sequence[int]) -> Array:
        """Return X with its axes in another order."""
        import tensorflow

        return tensorflow.transpose(X, list(axes))

    def softmax(self, X: Array) -> Array:
        """Return the softmax over the last axis."""
        import tensorflow

        return tensorflow.nn.softmax(X, -1)

    def where(self, visible: Array, X: Array, number: float) -> Array:
        """Put a number where something is not visible."""
        import tensorflow

        return tensorflow.where(visible, X, tensorflow.cast(number, X.dtype))

    def arange(self, n: int) -> Array:
        """Return 0 .. n - 1."""
        import tensorflow

        return tensorflow.range(n)

    def concatenate(self, parts: Sequence[Array]) -> Array:
        """Put tensors side by side, along the last axis."""
        import tensorflow

        return tensorflow.concat(list(parts), -1)

    def prepare(self, layer: Any, call: Callable[[], Any]) -> None:
        """Call a layer once, which makes its weights."""
        call()

    def gradients(self, loss: Any, arrays: dict[str, Array], weights: dict[str, Any]) -> dict[str, Any] | None:
        """The gradients of a loss; those of what it does not depend on are None."""
        import tensorflow

        with tensorflow.GradientTape() as tape:
            for X in arrays.values():
                tape.watch(X)
            total = loss(arrays)
        everything: dict[str, Any] = {}
        for name, X in (arrays | weights).items():
            value = getattr(X, "value", X)  # of Keras's variables; of TensorFlow's, a method
            everything[name] = X if callable(value) else value
        found = tape.gradient(total, list(everything.values()))
        return dict(zip(everything, found, strict=True))


class MLX(Framework):
    """MLX."""

    name = "mlx"

    @property
    def xp(self) -> Any:
        """The functions of arrays."""
        import mlx.core

        return mlx.core

    def array(self, X: np.ndarray) -> Array:
        """Make an array."""
        return self.xp.array(X)

    def softmax(self, X: Array) -> Array:
        """Return the softmax over the last axis."""
        return self.xp.softmax(X, -1)

    def prepare(self, layer: Any, call: Callable[[], Any]) -> None:
        """Switch training off."""
        if hasattr(layer, "eval"):
            layer.eval()

    def gradients(self, loss: Any, arrays: dict[str, Array], weights: dict[str, Any]) -> dict[str, Any] | None:
        """The gradients of a loss that takes all arrays, weights among them."""
        return self.xp.grad(loss)(arrays | weights)


class MXNet(Framework):
    """MXNet, with Gluon."""

    name = "mxnet"

    @property
    def xp(self) -> Any:
        """The functions of arrays."""
        import mxnet

        return mxnet.np

    def array(self, X: np.ndarray) -> Array:
        """Make an array."""
        return self.xp.array(X, dtype=X.dtype)

    def numpy(self, X: Array) -> np.ndarray:
        """Return an array as NumPy's."""
        return plain(X.asnumpy())

    def softmax(self, X: Array) -> Array:
        """Return the softmax over the last axis."""
        import mxnet

        return mxnet.npx.softmax(X, axis=-1)

    def prepare(self, layer: Any, call: Callable[[], Any]) -> None:
        """Make the weights of a block."""
        if hasattr(layer, "initialize"):
            layer.initialize()
            call()

    def gradients(self, loss: Any, arrays: dict[str, Array], weights: dict[str, Any]) -> dict[str, Any] | None:
        """The gradients of a loss."""
        import mxnet

        for X in arrays.values():
            X.attach_grad()
        with mxnet.autograd.record(train_mode=False):
            total = loss(arrays)
        total.backward()
        return {name: X.grad for name, X in arrays.items()} | {name: X.grad() for name, X in weights.items()}


def plain(X: np.ndarray) -> np.ndarray:
    """Return numbers or booleans; raises TypeError if an array holds anything else."""
    if X.dtype.kind not in "fiub":
        if X.dtype.kind == "V":  # bfloat16
            return X.astype(np.float32)
        raise TypeError(f"a result holds {X.dtype}, expected numbers")
    return X


FRAMEWORKS = {one.name: one for one in (Framework(), Torch(), Jax(), TensorFlow(), MLX(), MXNet())}
