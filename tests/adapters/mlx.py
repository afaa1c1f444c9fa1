"""MLX for the tests."""

import contextlib
import copy
import functools
import pickle

import mlx.core as mx
from mlx import nn, optimizers
from mlx.utils import tree_flatten

import adapters


class Adapter(adapters.Adapter):
    """MLX."""

    beside = ("nn.MultiHeadAttention", "fast.scaled_dot_product_attention")
    beside_groups = ("fast.scaled_dot_product_attention",)
    by_kernel = True
    measures = (("kernel", "(out, in)"), ("training", "drops"), ("heads", "error"), ("lazy", "eager"))

    def convert(self, X):
        return mx.array(X, mx.bool_ if X.dtype == bool else getattr(mx, X.dtype.name))

    def seed(self, seed):
        mx.random.seed(seed)

    def compile(self, layer):
        # With inputs=layer.state, tracing puts other arrays into the layer, which other threads would meet.
        return mx.compile(lambda *inputs, **named: layer(*inputs, **named))

    def compile_with_gradient(self, attention, callee):
        @functools.partial(mx.compile, inputs=attention.layer.state)
        def compiled(queries, keys, values, valid_lens, mask, causal):
            return self.pull_back(lambda X: callee(X, keys, values, valid_lens, mask=mask, causal=causal), queries)

        return compiled

    def map(self, function, *arrays):
        return mx.vmap(function)(*arrays)

    def weights_of_model(self, attention, X):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.attention = attention

            def __call__(self, X):
                return self.attention(X, X, X)

        model = Model()
        model(mx.array(X))
        return len(self.named_arrays(model))

    def pull_back(self, function, X, cotangent=None):
        (output,), (gradient,) = mx.vjp(function, [X], [function(X) if cotangent is None else cotangent])
        return output, gradient

    def gradient_by_kernel(self, attention, *inputs, cotangent):
        gradients = nn.value_and_grad(attention.layer, lambda: (attention(*inputs) * cotangent).sum())()[1]
        return gradients["W_q"]["weight"].T

    def train(self, attention, inputs, target, steps, rate):
        loss_of = nn.value_and_grad(attention.layer, lambda: nn.losses.mse_loss(attention.layer(*inputs), target))
        optimizer, losses = optimizers.SGD(rate), []
        for _ in range(steps):
            loss, gradients = loss_of()
            optimizer.update(attention.layer, gradients)
            losses.append(loss.item())
        return losses

    def save(self, attention, other, folder):
        attention.layer.save_weights(str(folder / "weights.npz"))  # safetensors takes no float64 of MLX'
        other.layer.load_weights(str(folder / "weights.npz"))

    @contextlib.contextmanager
    def training(self, layer):
        layer.train()
        yield
        assert layer.training
        assert layer.attention.training

    def evaluate(self, layer):
        layer.eval()

    def freeze(self, layer):
        layer.freeze()

    def changed(self, layer):
        layer.W_v.set_dtype(mx.float16)
        return layer

    def named_arrays(self, layer):
        return dict(tree_flatten(layer.parameters()))

    def copies(self, layer, folder):
        yield copy.deepcopy(layer)
        yield pickle.loads(pickle.dumps(layer))

    def kernel(self, pooling, name):
        return getattr(pooling, name).weight.T
