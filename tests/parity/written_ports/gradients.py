"""Ports with their own backward pass, right and wrong."""

import numpy as np
from ports import Port

from .written import LENGTHS, PLAIN, Written


class Backward(Port):
    """The output, and the gradients of its sum, by hand; heads of keys are those of queries."""

    def __call__(self, queries, keys, values, valid_lens=None, score_bias=None):
        inputs = {"W_q": queries, "W_k": keys, "W_v": values}
        q, k, v = (self.split(self.project(name, X), self.H) for name, X in inputs.items())
        raw = self.score(q, k)
        scores = self.bias(self.cap(raw), score_bias)
        seen = self.lengths(np.ones(scores.shape, bool), valid_lens)
        shares = self.softmax(scores, seen)
        merged = self.merge(shares @ v)
        output = self.project("W_o", merged)
        one = np.ones_like(output)
        found = {"output": output, "W_o.kernel": self.of_kernel(merged, one), "W_o.bias": one.sum((0, 1))}
        of_pooled = self.split(one @ self.weights["W_o.kernel"].T, self.H)
        of_scores = self.of_softmax(scores, shares, self.of_weights(of_pooled @ v.swapaxes(2, 3)))
        if score_bias is not None:
            found["score_bias"] = of_scores.sum(0, keepdims=True)
        of_scores = self.of_cap(raw, of_scores) * np.float32(self.scale)
        of_heads = {
            "W_q": of_scores @ k,
            "W_k": self.of_keys(of_scores.swapaxes(2, 3) @ q),
            "W_v": self.of_values(shares.swapaxes(2, 3) @ of_pooled),
        }
        for (name, X), short in zip(inputs.items(), ("queries", "keys", "values"), strict=True):
            of_projected = self.merge(of_heads[name])
            found[f"{name}.kernel"], found[f"{name}.bias"] = self.of_kernel(X, of_projected), of_projected.sum((0, 1))
            found[short] = of_projected @ self.weights[f"{name}.kernel"].T
        return found

    def of_kernel(self, X, by_result):
        return np.einsum("btc,bte->ce", X, by_result)

    def of_weights(self, by_weights):
        return by_weights

    def of_softmax(self, scores, shares, by_weights):
        return shares * (by_weights - (by_weights * shares).sum(-1, keepdims=True))

    def of_cap(self, raw, by_capped):
        c = self.config.softcap
        return by_capped if c is None else by_capped * (1 - np.tanh(raw / np.float32(c)) ** 2)

    def of_keys(self, by_keys):
        return by_keys

    def of_values(self, by_values):
        return by_values


class KeysDetached(Backward):
    def of_keys(self, by_keys):
        return np.zeros_like(by_keys)


class ValuesDetached(Backward):
    def of_values(self, by_values):
        return np.zeros_like(by_values)


class CapStraightThrough(Backward):
    def of_cap(self, raw, by_capped):
        return by_capped


class MaskForgottenBackwards(Backward):
    """The weights are computed anew from the scores and their logarithm of sums, without the mask."""

    def of_softmax(self, scores, shares, by_weights):
        seen = shares > 0
        total = np.where(seen, np.exp(scores), np.float32(0)).sum(-1, keepdims=True)
        return super().of_softmax(scores, np.exp(scores) / total, by_weights)


class DropoutBackwards(Backward):
    """1 / (1 - 0.1) of dropout in the backward pass alone."""

    def of_weights(self, by_weights):
        return by_weights / np.float32(0.9)


class KernelTurned(Backward):
    def of_kernel(self, X, by_result):
        return np.tensordot(by_result, X, ((0, 1), (0, 1)))


CAPPED = PLAIN | {"softcap": 1.5}

GRADIENTS = [
    Written("its own backward pass", Backward, CAPPED, LENGTHS | {"score_bias": ...}, cross=True),
    Written("detached keys", KeysDetached, PLAIN, LENGTHS, "gradients", "keys are detached"),
    Written("detached values", ValuesDetached, PLAIN, LENGTHS, "gradients", "values are detached"),
    Written(
        "a cap that gradients pass through",
        CapStraightThrough,
        CAPPED,
        {},
        "gradients",
        "the cap's derivative is forgotten",
    ),
    Written(
        "gradients without the mask",
        MaskForgottenBackwards,
        PLAIN,
        LENGTHS,
        "gradients",
        "gradients forget what hides keys",
    ),
    Written(
        "dropout's scale in gradients", DropoutBackwards, PLAIN, {}, "gradients", "dropout's scale in gradients alone"
    ),
    Written(
        "gradients of kernels transposed", KernelTurned, PLAIN, {}, "gradients", "gradients of kernels are transposed"
    ),
]
