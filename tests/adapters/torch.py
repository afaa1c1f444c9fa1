"""PyTorch for the tests."""

import contextlib
import copy
import pickle

import torch

import adapters


class Adapter(adapters.Adapter):
    """PyTorch."""

    beside = ("nn.MultiheadAttention", "F.scaled_dot_product_attention")
    beside_groups = ("F.scaled_dot_product_attention",)
    beside_segments = ("flex_attention, compiled",)
    by_kernel = True
    measures = (
        ("kernel", "(out, in)"),
        ("training", "drops"),
        ("mask", "hides"),
        ("no_keys", "nan"),
        ("heads", "error"),
        ("lazy", "eager"),
    )

    def convert(self, X):
        return torch.from_numpy(X)

    def not_dense(self, X):
        yield X.to_sparse()
        yield X.to_mkldnn()
        yield torch.nested.nested_tensor(list(X))
        yield torch.nested.nested_tensor(list(X), layout=torch.jagged)
        yield torch.quantize_per_tensor(X, 0.1, 0, torch.quint8)
        yield X.to("meta")

    def seed(self, seed):
        torch.manual_seed(seed)

    def compile(self, layer):
        torch.compiler.reset()  # or the versions that earlier tests compiled count against torch's limit
        return torch.compile(layer, backend="eager")  # which traces, and needs no C++ compiler

    def compile_with_gradient(self, attention, callee):
        torch.compiler.reset()
        # "aot_eager" traces both passes as the default does, without a C++ compiler, which not every machine has. The
        # layer is one graph; the mha layer looks at the values of lengths and masks, where a graph has to end.
        compiled = torch.compile(callee, backend="aot_eager", fullgraph=callee is attention.layer)

        def both(queries, keys, values, valid_lens, mask, causal):
            return self.pull_back(lambda X: compiled(X, keys, values, valid_lens, mask=mask, causal=causal), queries)

        return both

    def map(self, function, *arrays):
        return torch.func.vmap(function)(*arrays)

    def weights_of_model(self, attention, X):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.attention = attention

            def forward(self, X):
                return self.attention(X, X, X)

        model = Model()
        model(torch.tensor(X))
        return len(list(model.parameters()))

    def pull_back(self, function, X, cotangent=None):
        output = function(X.requires_grad_())
        (gradient,) = torch.autograd.grad(output, X, output if cotangent is None else cotangent)
        return output, gradient

    def gradient_by_kernel(self, attention, *inputs, cotangent):
        attention.layer.eval()  # no matter: a layer that evaluates still sends gradients
        (attention(*inputs) * cotangent).sum().backward()
        return attention.layer.W_q.weight.grad.T

    def train(self, attention, inputs, target, steps, rate):
        optimizer = torch.optim.SGD(attention.layer.parameters(), rate)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(attention.layer(*inputs), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def save(self, attention, other, folder):
        torch.save(attention.layer.state_dict(), folder / "weights.pt")
        other.layer.load_state_dict(torch.load(folder / "weights.pt"))

    @contextlib.contextmanager
    def training(self, layer):
        layer.train()
        yield
        assert layer.training
        assert layer.attention.training

    def evaluate(self, layer):
        layer.eval()

    def gather(self, layer, number):
        for parameter in layer.parameters():
            parameter.grad = torch.full_like(parameter, number)
        return lambda: [parameter.grad.numpy() for parameter in layer.parameters()]

    def freeze(self, layer):
        layer.requires_grad_(False)

    def changed(self, layer):
        layer.W_v.double()
        return layer

    def without_gradients(self):
        return [torch.no_grad(), torch.inference_mode()]

    def precisions(self):
        yield torch.autocast("cpu", dtype=torch.bfloat16)
        yield adapters.reverting(torch.set_default_dtype, torch.float64, torch.float32)

    def named_arrays(self, layer):
        return layer.state_dict()

    def call_book(self, layer, *inputs, training=False):
        layer.train(training)
        return layer(*inputs), adapters.attention_weights(layer)

    def compile_book(self, layer):
        torch.compiler.reset()
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        return lambda *inputs: (compiled(*inputs), adapters.attention_weights(layer))

    def make_again(self, d2l, attention, folder):
        config = attention.config
        again = d2l.MultiHeadAttention(config.num_hiddens, config.num_heads, config.dropout)
        again.load_state_dict(attention.state_dict())
        return again

    def copies(self, layer, folder):
        yield copy.deepcopy(layer)
        torch.save(layer, folder / "layer.pt")
        yield torch.load(folder / "layer.pt", weights_only=False)
        yield pickle.loads(pickle.dumps(layer))

    def kernel(self, pooling, name):
        return getattr(pooling, name).weight.T
