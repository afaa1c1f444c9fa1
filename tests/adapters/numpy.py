"""NumPy for the tests: it differentiates and trains by `mha` alone, and compiles nothing."""

import numpy as np

import adapters


class Adapter(adapters.Adapter):
    """NumPy."""

    measures = (("kernel", "none"), ("random", "next_draw"), ("mask", "none"))

    def convert(self, X):
        return X

    def changed(self, layer):
        layer.W_v.kernel = layer.W_v.kernel.astype("float64")
        return layer

    def train(self, attention, inputs, target, steps, rate):
        losses = []
        for _ in range(steps):
            output = attention(*inputs)
            losses.append(((output - target) ** 2).mean())
            gradients = attention.gradients(*inputs, cotangent=2 * (output - target) / target.size)
            attention.weights = {name: X - rate * gradients[name] for name, X in attention.weights.items()}
        return losses

    def save(self, attention, other, folder):
        np.savez(folder / "weights.npz", **attention.weights)
        with np.load(folder / "weights.npz") as file:
            other.weights = dict(file)

    def precisions(self):
        yield np.errstate(all="raise")

    def named_arrays(self, layer):
        parts = ("W_q", "W_k", "W_v", "W_o")
        return {f"{name}.{kind}": getattr(getattr(layer, name), kind) for name in parts for kind in ("kernel", "bias")}
