"""JAX, with Flax' linen modules, for the tests."""

import functools

import jax
import optax
from flax import serialization

import adapters
from mha import dispatch


class Adapter(adapters.Adapter):
    """JAX and Flax."""

    integers = ("uint8", "int8", "uint16", "int16", "uint32", "int32")  # those of 64 bits need x64

    def compile(self, layer):
        module, variables = layer.unbind()
        return functools.partial(jax.jit(module.apply), variables)

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

    def named_arrays(self, layer):
        return layer.variables
