"""MXNet, with Gluon's blocks, for the tests."""

import contextlib
import functools

import mxnet
from mxnet import autograd, gluon, npx

import adapters


class Adapter(adapters.Adapter):
    """MXNet and Gluon."""

    measures = (("layer", "none"), ("kernel", "of_dense (out, in)"), ("training", "keeps"), ("compiled", "one_program"))
    bias = "use_bias"
    integers = ("uint8", "int8", "int32", "int64")

    def seed(self, seed):
        mxnet.random.seed(seed)

    def convert(self, X):
        return mxnet.np.array(X, dtype=X.dtype)

    def not_dense(self, X):
        yield X.as_nd_ndarray()
        yield X.as_nd_ndarray().reshape(len(X), -1).tostype("csr")

    def call(self, attention, *inputs):
        npx.set_np()  # holds in this thread alone
        return attention.layer(*inputs)

    def compile(self, layer):
        layer.hybridize()

        def compiled(*inputs):
            npx.set_np()  # holds in this thread alone
            return layer(*inputs)

        return compiled

    def compile_with_gradient(self, attention, callee):
        # The layer is a Block that reads shapes as it goes, which MXNet's symbols do not have: hybridize() passes
        # through it and compiles the dense layers in it.
        attention.layer.hybridize()

        def both(queries, keys, values, valid_lens, mask, causal):
            if callee is attention.layer:  # Gluon takes no names
                return self.pull_back(lambda X: callee(X, keys, values, valid_lens, mask, None, causal), queries)
            return self.pull_back(lambda X: callee(X, keys, values, valid_lens, mask=mask, causal=causal), queries)

        return both

    def weights_of_model(self, attention, X):
        class Model(gluon.nn.Block):
            def __init__(self):
                super().__init__()
                self.attention = attention

            def forward(self, X):
                return self.attention(X, X, X)

        model = Model()
        model(mxnet.np.array(X))
        return len(model.collect_params().values())

    def pull_back(self, function, X, cotangent=None):
        X.attach_grad()
        with autograd.record(train_mode=False):
            output = function(X)
        output.backward(output if cotangent is None else cotangent)
        return output, X.grad

    def gradient_by_kernel(self, attention, *inputs, cotangent):
        with autograd.record():
            loss = (attention(*inputs) * cotangent).sum()
        loss.backward()
        return attention.layer.W_q.weight.grad().T

    def train(self, attention, inputs, target, steps, rate):
        trainer = gluon.Trainer(attention.layer.collect_params(), "sgd", {"learning_rate": rate})
        losses = []
        for _ in range(steps):
            with autograd.record():
                loss = ((attention.layer(*inputs) - target) ** 2).sum() / target.size  # MXNet 2 takes means in float32
            loss.backward()
            trainer.step(1)
            losses.append(loss.item())
        return losses

    def save(self, attention, other, folder):
        attention.layer.save_parameters(str(folder / "weights.params"))
        other.layer.load_parameters(str(folder / "weights.params"))

    @contextlib.contextmanager
    def training(self, layer):
        with autograd.record():
            yield
            assert autograd.is_training()

    def gather(self, layer, number):
        for parameter in layer.collect_params().values():
            parameter.grad()[:] = number
        return lambda: [parameter.grad().asnumpy() for parameter in layer.collect_params().values()]

    def freeze(self, layer):
        for parameter in layer.collect_params().values():
            parameter.grad_req = "null"

    def changed(self, layer):
        layer.cast("float64")
        return layer

    def named_arrays(self, layer):
        parts, kinds = ("W_q", "W_k", "W_v", "W_o"), ("weight", "bias")
        return {f"{name}.{kind}": getattr(getattr(layer, name), kind).data() for name in parts for kind in kinds}

    def numbers(self, layer):
        return [parameter.data().asnumpy() for parameter in layer.collect_params().values()]

    def start(self, layer, *inputs):
        layer.initialize()
        return super().start(layer, *inputs)

    def call_book(self, layer, *inputs, training=False):
        with autograd.record() if training else contextlib.nullcontext():
            return layer(*inputs), adapters.attention_weights(layer)

    def call_book_in_threads(self, layer):
        def call(*inputs):
            npx.set_np()  # holds in this thread alone
            return self.call_book(layer, *inputs)

        return call

    def compile_book(self, layer):
        layer.hybridize()
        return functools.partial(self.call_book, layer)

    def make_again(self, d2l, attention, folder):
        attention.save_parameters(str(folder / "attention.params"))
        config = attention.config
        again = d2l.MultiHeadAttention(config.num_hiddens, config.num_heads, config.dropout)
        again.load_parameters(str(folder / "attention.params"))
        return again

    def kernel(self, pooling, name):
        return getattr(pooling, name).weight.data().T
