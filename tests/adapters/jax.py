"""JAX, with Flax's linen modules, for the tests."""

import functools

import jax
import numpy as np
import optax
from flax import linen, serialization
from jax.experimental import sparse

import adapters
from mha.backends.jax.engine import calls
from mha.core import dispatch


class Adapter(adapters.Adapter):
    """JAX and Flax."""

    beside = ("linen.MultiHeadDotProductAttention", "nnx.MultiHeadAttention", "jax.nn.dot_product_attention")
    beside_groups = ("nnx.MultiHeadAttention", "jax.nn.dot_product_attention")
    measures = (
        ("kernel", "(in, out)"),
        ("training", "error"),
        ("mask", "attends"),
        ("random", "same_draw"),
        ("compiled", "each_size"),
    )
    replaces_weights = compiles_each_kind = True
    integers = ("uint8", "int8", "uint16", "int16", "uint32", "int32")  # those of 64 bits need x64

    def convert(self, X):
        return jax.numpy.asarray(X)

    def not_dense(self, X):
        yield sparse.BCOO.fromdense(X)
        yield jax.random.split(jax.random.key(0), X.shape)

    def call(self, attention, *inputs):
        module, variables = attention.layer.unbind()
        with jax.enable_x64(attention.config.dtype == "float64"):
            return module.apply(variables, *inputs)

    def compile(self, layer):
        module, variables = layer.unbind()
        return functools.partial(jax.jit(module.apply), variables)

    def forget_programs(self):
        calls.PLANS.clear()
        calls.program.cache_clear()
        calls._pull.clear_cache()

    def compile_with_gradient(self, attention, callee):
        if callee is attention.layer:
            module, variables = attention.layer.unbind()
            callee = functools.partial(module.apply, variables)

        @functools.partial(jax.jit, static_argnames="causal")
        def compiled(queries, keys, values, valid_lens, mask, causal):
            return self.pull_back(lambda X: callee(X, keys, values, valid_lens, mask=mask, causal=causal), queries)

        def both(*arrays_and_causal):
            *arrays, causal = arrays_and_causal
            with dispatch.load("jax").context(attention.config.dtype):
                return compiled(*arrays, causal=causal)

        return both

    def map(self, function, *arrays):
        with jax.enable_x64(arrays[0].dtype == "float64"):
            return jax.vmap(function)(*arrays)

    def weights_of_model(self, attention, X):
        class Model(linen.Module):
            attention: linen.Module

            def __call__(self, X):
                return self.attention(X, X, X)

        return len(jax.tree.leaves(Model(attention).init(jax.random.key(0), X)))

    def pull_back(self, function, X, cotangent=None):
        with jax.enable_x64(X.dtype == "float64"):
            output, pull_back = jax.vjp(function, X)
            return output, *pull_back(output if cotangent is None else cotangent)

    def gradient_by_kernel(self, attention, *inputs, cotangent):
        module, variables = attention.layer.unbind()
        with dispatch.load("jax").context(attention.config.dtype):
            loss = jax.jit(jax.grad(lambda variables: (module.apply(variables, *inputs) * cotangent).sum()))
            return loss(variables)["params"]["W_q"]["kernel"]

    def train(self, attention, inputs, target, steps, rate):
        module, variables = attention.layer.unbind()

        @jax.jit
        @jax.value_and_grad
        def loss_of(variables):
            return ((module.apply(variables, *inputs) - target) ** 2).mean()

        with dispatch.load("jax").context(attention.config.dtype):
            optimizer = optax.sgd(rate)
            state = optimizer.init(variables)
            losses = []
            for _ in range(steps):
                loss, gradients = loss_of(variables)
                updates, state = optimizer.update(gradients, state)
                variables = optax.apply_updates(variables, updates)
                losses.append(float(loss))
        attention.layer = module.bind(variables)  # a module holds no weights: those of the loop become the layer's
        return losses

    def save(self, attention, other, folder):
        (folder / "weights.msgpack").write_bytes(serialization.to_bytes(attention.layer.variables))
        module, variables = other.layer.unbind()
        other.layer = module.bind(serialization.from_bytes(variables, (folder / "weights.msgpack").read_bytes()))

    def precisions(self):
        yield jax.default_matmul_precision("bfloat16")
        yield jax.enable_x64(True)

    def changed(self, layer):
        module, variables = layer.unbind()
        del variables["params"]["W_v"]
        return module.bind(variables)

    def named_arrays(self, layer):
        return layer.variables

    def numbers(self, layer):
        return [np.asarray(X) for X in jax.tree.leaves(layer.variables)]

    def start(self, layer, *inputs):
        keys = {"params": jax.random.PRNGKey(0), "dropout": jax.random.PRNGKey(1)}
        return layer.bind(layer.init(keys, *inputs), rngs=keys)

    def call_book(self, layer, *inputs, training=False):
        return layer(*inputs, training=training)

    def call_without_start(self, layer, *inputs):
        return layer.apply({}, *inputs)

    def call_book_in_threads(self, layer):
        return self.compile_book(layer)

    def compile_book(self, layer):
        return self.compile(layer)

    def make_again(self, d2l, attention, folder):
        return attention.clone(name="again").bind(attention.variables)

    def kernel(self, pooling, name):
        return pooling.variables["params"][name]["kernel"]

    def normal(self, d2l, *shape):
        return d2l.normal(d2l.get_key(), shape)
