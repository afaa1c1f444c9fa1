"""The operations of each framework that a submission's arrays and layers need; each is imported on use."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = Any


class Framework:
    """The operations of NumPy; a subclass has those of another framework.

    name, module: of the framework, and of its functions of arrays.
    """

    name = module = "numpy"

    @property
    def xp(self) -> Any:
        """The functions of arrays."""
        return importlib.import_module(self.module)

    def array(self, X: np.ndarray) -> Array:
        """Make an array of the framework."""
        return self.xp.array(X)

    def numpy(self, X: Array) -> np.ndarray:
        """Return an array as NumPy's; raises TypeError if it is none."""
        return plain(np.asarray(X))

    def permute(self, X: Array, axes: Sequence[int]) -> Array:
        """Return X with its axes in another order."""
        return self.xp.transpose(X, tuple(axes))

    def softmax(self, X: Array) -> Array:
        """Return the softmax over the last axis."""
        exponentials = np.exp(X - X.max(-1, keepdims=True))
        return exponentials / exponentials.sum(-1, keepdims=True)

    def prepare(self, layer: Any, call: Callable[[], Any]) -> None:
        """Make a layer's weights, if its first call does, and switch training off."""

    def gradients(self, loss: Callable[[dict[str, Array]], Array], arrays: dict[str, Array], weights: Any) -> Any:
        """The gradients of a loss, by name, by arrays and by a layer's weights; None for what does not matter to it.

        The loss gets the weights, too, if the framework differentiates by nothing but arguments.
        """
        raise NotImplementedError  # in NumPy, submissions have `backward`


class _Torch(Framework):
    name = module = "torch"

    def array(self, X: np.ndarray) -> Array:
        return self.xp.tensor(X)

    def numpy(self, X: Array) -> np.ndarray:
        return plain(X.detach().cpu().numpy() if isinstance(X, self.xp.Tensor) else np.asarray(X))

    def permute(self, X: Array, axes: Sequence[int]) -> Array:
        return X.permute(*axes)

    def softmax(self, X: Array) -> Array:
        return self.xp.softmax(X, -1)

    def prepare(self, layer: Any, call: Callable[[], Any]) -> None:
        if isinstance(layer, self.xp.nn.Module):
            layer.eval()
            if any(isinstance(X, self.xp.nn.parameter.UninitializedParameter) for X in layer.parameters()):
                call()

    def gradients(self, loss: Any, arrays: dict[str, Array], weights: Any) -> Any:
        everything = arrays | weights
        for X in everything.values():
            if X.is_leaf:
                X.requires_grad_(True)
        total = loss(arrays)
        if not total.requires_grad:
            return dict.fromkeys(everything)
        found = self.xp.autograd.grad(total, list(everything.values()), allow_unused=True)
        return dict(zip(everything, found, strict=True))


class _Jax(Framework):
    name, module = "jax", "jax.numpy"

    def softmax(self, X: Array) -> Array:
        import jax

        return jax.nn.softmax(X, -1)

    def gradients(self, loss: Any, arrays: dict[str, Array], weights: Any) -> Any:
        import jax

        return jax.grad(loss)(arrays | weights)


class _TensorFlow(Framework):
    name = module = "tensorflow"

    def array(self, X: np.ndarray) -> Array:
        return self.xp.constant(X)

    def softmax(self, X: Array) -> Array:
        return self.xp.nn.softmax(X, -1)

    def prepare(self, layer: Any, call: Callable[[], Any]) -> None:
        call()

    def gradients(self, loss: Any, arrays: dict[str, Array], weights: Any) -> Any:
        with self.xp.GradientTape() as tape:
            for X in arrays.values():
                tape.watch(X)
            total = loss(arrays)
        everything: dict[str, Any] = {}
        for name, X in (arrays | weights).items():
            value = getattr(X, "value", X)  # of Keras's variables; of TensorFlow's, a method
            everything[name] = X if callable(value) else value
        found = tape.gradient(total, list(everything.values()))
        return dict(zip(everything, found, strict=True))


class _MLX(Framework):
    name, module = "mlx", "mlx.core"

    def softmax(self, X: Array) -> Array:
        return self.xp.softmax(X, -1)

    def prepare(self, layer: Any, call: Callable[[], Any]) -> None:
        if hasattr(layer, "eval"):
            layer.eval()

    def gradients(self, loss: Any, arrays: dict[str, Array], weights: Any) -> Any:
        return self.xp.grad(loss)(arrays | weights)


class _MXNet(Framework):
    name, module = "mxnet", "mxnet.numpy"

    def array(self, X: np.ndarray) -> Array:
        return self.xp.array(X, dtype=X.dtype)

    def numpy(self, X: Array) -> np.ndarray:
        return plain(X.asnumpy())

    def softmax(self, X: Array) -> Array:
        import mxnet

        return mxnet.npx.softmax(X, axis=-1)

    def prepare(self, layer: Any, call: Callable[[], Any]) -> None:
        if hasattr(layer, "initialize"):
            layer.initialize()
            call()

    def gradients(self, loss: Any, arrays: dict[str, Array], weights: Any) -> Any:
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


FRAMEWORKS = {one.name: one for one in (Framework(), _Torch(), _Jax(), _TensorFlow(), _MLX(), _MXNet())}
