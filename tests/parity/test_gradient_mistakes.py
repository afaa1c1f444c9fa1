"""Mistakes in gradients: each is named where it is made by PyTorch's own differentiation, and unknown ones are not."""

import re

import numpy as np
import pytest

import mha
from mha import parity
from mha.core.call import call_of
from mha.core.options.config import numpy_dtype
from mha.parity.diagnosis.mistakes.of_gradients import GRADIENT_MISTAKES
from mha.parity.diagnosis.pipeline.backward import backward
from mha.parity.diagnosis.pipeline.plan import make_plan
from mha.parity.diagnosis.search import time_budget
from mha.parity.rule.problem import problem

OPTIONS = {
    "num_hiddens": 24, "num_heads": 6, "num_key_value_heads": 2, "bias": True, "qk_norm": "rms", "softcap": 1.5,
    "rotary": mha.Rotary(4, base=50.0),
}  # fmt: skip
LENGTHS = [7, 4, 5]


@pytest.mark.parametrize("case", parity.CASES[:-1], ids=lambda case: case.name)
def test_the_pieces_are_the_gradients(case):
    for dtype in case.dtypes:
        *inputs, cotangent = case.inputs(dtype)
        asked = problem(case.layer("numpy", dtype), *inputs, case.call(dtype), cotangent)
        with np.errstate(all="ignore"):
            found = backward(make_plan(asked, dtype), asked.cotangent).gradients()
        assert found.keys() == asked.oracle_gradients.keys()
        for name, X in found.items():
            expected = asked.expected(f"gradient.{name}")
            X = X if X.size == expected.X.size else X.sum(0)  # gates of all samples
            assert expected.ratio(X.reshape(expected.X.shape)) <= 1, (name, dtype)


def values_of(X, gradient):
    """An array with the numbers of X, to the last bit, and the gradient of another."""
    return (gradient - gradient.detach()) + X.detach()


class Port:
    """Attention in PyTorch with all the options, in places of which a mistake changes the gradients alone.

    changed: functions by place; what they are given is what comes through there.
    """

    def __init__(self, layer, **changed):
        import torch

        self.torch, self.config, self.changed = torch, layer.config, changed
        self.weights = {name: self.leaf(X) for name, X in layer.weights.items()}

    def leaf(self, X):
        return self.torch.tensor(X.astype("float32")).to(getattr(self.torch, self.config.dtype)).requires_grad_()

    def at(self, place, X, *more):
        return self.changed[place](X, *more) if place in self.changed else X

    def heads(self, role, X, heads):
        projected = X @ self.weights[f"W_{role}.kernel"] + self.weights[f"W_{role}.bias"]
        X = projected.reshape(*X.shape[:2], heads, -1).transpose(1, 2)  # (B, H, T, d)
        if role == "v":
            return self.at("v", X)
        roots = (X.square().mean(-1, keepdim=True) + self.config.qk_norm.eps).sqrt()
        X = X / self.at("roots", roots) * self.weights[f"{role}_norm.scale"]
        return self.at(role, self.at("turned", self.turned(X), X, self.turned))

    def turned(self, X, sign=1):
        n = self.config.rotary.dim // 2
        angles = np.outer(np.arange(X.shape[2]), self.config.rotary.base ** (-np.arange(n) / n)) * sign
        cos, sin = (self.torch.tensor(f(angles), dtype=X.dtype) for f in (np.cos, np.sin))
        a, b, rest = X[..., :n], X[..., n : 2 * n], X[..., 2 * n :]
        return self.torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def __call__(self, *inputs, lengths=LENGTHS, loss=lambda output: output.sum()):
        torch, H, G = self.torch, self.config.num_heads, self.config.num_key_value_heads
        inputs = [self.leaf(X) for X in inputs]
        given = [self.at(name, X) for name, X in zip(("queries", "keys", "values"), inputs, strict=True)]
        q, k, v = (self.heads(role, X, n) for role, X, n in zip("qkv", given, (H, G, G), strict=True))
        k, v = (self.at("shared", X.repeat_interleave(H // G, 1), X) for X in (k, v))
        raw, scale, c = q @ k.transpose(2, 3), q.shape[-1] ** -0.5, self.config.softcap
        raw = self.at("scaled", raw * scale, raw, q, k)
        scores = self.at("capped", c * torch.tanh(raw / c), raw)
        seen = torch.arange(k.shape[2]) < torch.tensor(lengths)[:, None, None, None]
        shares = self.at("hidden", scores.masked_fill(~seen, -np.inf), scores, seen)
        if self.config.sinks:
            column = self.weights["sinks"][:, None, None].expand(*shares.shape[:3], 1)
            shares = torch.cat([shares, column], -1)  # (B, H, Q, K + 1)
        shares = shares.softmax(-1)[..., : k.shape[2]]
        shares = self.at("weights", self.at("softmax", shares, scores, seen))
        merged = self.at("pooled", shares @ v).transpose(1, 2).reshape(*inputs[0].shape[:2], -1)  # (B, Q, H*d)
        output = merged @ self.weights["W_o.kernel"] + self.weights["W_o.bias"]
        loss(output).backward()
        leaves = dict(zip(("queries", "keys", "values"), inputs, strict=True)) | self.weights
        empty = {name: torch.zeros_like(X) for name, X in leaves.items() if X.grad is None}
        gradients = {name: mha.to_numpy(empty.get(name, X.grad)) for name, X in leaves.items()}
        return {"output": mha.to_numpy(output.detach())} | self.at("found", gradients)


def hooked(change):
    """A function that changes the gradient on its way through an array."""

    def through(X, *more):
        X.register_hook(change)
        return X

    return through


def detached(X, *more):
    return X.detach()


def frozen(name):
    return lambda found: found | {f"{name}.{kind}": 0 * found[f"{name}.{kind}"] for kind in ("kernel", "bias")}


def transposed(*names):
    return lambda found: found | {f"{name}.kernel": found[f"{name}.kernel"].T for name in names}


def divided(number, *kinds):
    return lambda found: {
        name: (X / np.float32(number)).astype(X.dtype) if name.endswith(kinds) else X for name, X in found.items()
    }


def without_sum(shares, scores, seen):
    """What its gradient is: p * by_p."""
    return values_of(shares, shares.detach() * scores)


def all_keys(counted):
    """The weights as the shares of all keys, as the backward pass makes them from the scores alone."""

    def through(shares, scores, seen):
        numbers = scores.exp()
        sums = (numbers if counted else numbers * seen).detach().sum(-1, keepdim=True)
        p = (numbers / sums).detach()

        def by_scores(by_shares):
            return p * (by_shares - (p * by_shares).sum(-1, keepdim=True))

        scores_alone = scores * 1
        scores_alone.register_hook(by_scores)
        return values_of(shares, scores_alone)

    return through


def of_one(first, second):
    """Scaled scores whose gradients by queries and by keys have these factors."""

    def through(scaled, raw, q, k):
        return values_of(scaled, first * (q @ k.detach().mT) + second * (q.detach() @ k.mT))

    return through


def first_of_group(shared, X):
    B, G, K, d = X.shape
    times = shared.shape[1] // G
    kept = X[:, :, None] + X.detach()[:, :, None] * 0  # (B, G, 1, K, d)
    rest = X.detach()[:, :, None].expand(B, G, times - 1, K, d)
    import torch

    return torch.cat([kept, rest], 2).reshape(shared.shape)  # (B, H, K, d)


def turned_again(result, X, turned):
    """Its gradient is turned forward: what is turned back would turn forward."""
    return values_of(result, turned(X, -1))


def added(fill):
    """Scores with a mask of this number added where a key is hidden."""

    def through(filled, scores, seen):
        hidden = fill * (~seen).to(scores.dtype) if fill > -np.inf else seen.to(scores.dtype).log()
        return scores + hidden

    return through


def filled(fill):
    return lambda minus_infinity, scores, seen: scores.masked_fill(~seen, fill)


without_nans = lambda X, *more: X.nan_to_num()  # noqa: E731
NAN, UNIFORM, ADDED = "rows without keys are NaN", "rows without keys are uniform", {"hidden": added(-np.inf)}
SCALE = 4**-0.5
KINDS = {"kernels": [".kernel"], "biases": [".bias"], "kernels and biases": [".kernel", ".bias"]}
MADE = {
    ("queries are detached", "after the projection"): {"q": detached},
    ("queries are detached", "before the projection"): {"queries": detached},
    ("keys are detached", "after the projection"): {"k": detached},
    ("keys are detached", "before the projection"): {"keys": detached},
    ("values are detached", "after the projection"): {"v": detached},
    ("values are detached", "before the projection"): {"values": detached},
    ("attention weights are detached", ""): {"weights": detached},
    **{("a projection gets no gradient", name): {"found": frozen(name)} for name in ("W_q", "W_k", "W_v", "W_o")},
    ("a projection gets no gradient", "biases alone"): {"found": divided(np.inf, ".bias")},
    ("the cap's derivative is forgotten", ""): {"capped": values_of},
    ("gradients forget what hides keys", ""): {"softmax": all_keys(False)},
    ("gradients forget what hides keys", "and sums have all keys"): {"softmax": all_keys(True)},
    ("the gradient of the softmax lacks its sum", ""): {"softmax": without_sum},
    ("the scale is forgotten in gradients", "of both"): {"scaled": of_one(1, 1)},
    ("the scale is forgotten in gradients", "of queries"): {"scaled": of_one(1, SCALE)},
    ("the scale is forgotten in gradients", "of keys"): {"scaled": of_one(SCALE, 1)},
    ("the scale is applied twice in gradients", ""): {"scaled": of_one(SCALE**2, SCALE**2)},
    ("gradients of kernels are transposed", "of all"): {"found": transposed("W_q", "W_k", "W_v", "W_o")},
    ("gradients of kernels are transposed", "of W_q, W_k and W_v"): {"found": transposed("W_q", "W_k", "W_v")},
    **{
        ("gradients of kernels are transposed", name): {"found": transposed(name)}
        for name in ("W_q", "W_k", "W_v", "W_o")
    },
    **{
        ("gradients of weights are means", f"{kind} {how}"): {"found": divided(number, *ends)}
        for how, number in (("over samples", 3), ("over tokens", 7), ("over both", 21))
        for kind, ends in KINDS.items()
    },
    ("gradients are added twice", "those of weights"): {"found": divided(0.5, ".kernel", ".bias", ".scale")},
    ("gradients are added twice", "all"): {"found": divided(0.5, "")},
    ("gradients of shared heads are not summed", "the first of each group"): {"shared": first_of_group},
    ("gradients of shared heads are not summed", "their mean"): {name: hooked(lambda G: G / 3) for name in "kv"},
    ("gradients are not turned back", "not at all"): {"turned": lambda result, X, turned: values_of(result, X)},
    ("gradients are not turned back", "turned again"): {"turned": turned_again},
    (NAN, "a mask is added"): ADDED,
    (NAN, "a mask is added, the loss leaves them out"): ADDED | {"loss": "left out"},
    (NAN, "a mask is added, what is pooled becomes 0"): ADDED | {"pooled": without_nans},
    (NAN, "a mask is added, weights become 0"): ADDED | {"weights": without_nans},
    (NAN, "hidden scores are filled in"): {},
    (NAN, "hidden scores are filled in, the loss leaves them out"): {"loss": "left out"},
    (NAN, "hidden scores are filled in, what is pooled becomes 0"): {"pooled": without_nans},
    (UNIFORM, "hidden scores are filled in"): {"hidden": filled(-1e9)},
    (UNIFORM, "a mask is added"): {"hidden": added(-1e9)},
    (UNIFORM, "a mask of -10000 is added"): {"hidden": added(-1e4)},
    ("sinks get no gradient", ""): {"found": lambda found: found | {"sinks": 0 * found["sinks"]}},
    ("a norm is a constant in gradients", ""): {"roots": detached},
    ("dropout's scale in gradients alone", "of attention weights, p 0.2"): {"weights": hooked(lambda G: G / 0.8)},
    ("dropout's scale in gradients alone", "of what is pooled, p 0.5"): {"pooled": hooked(lambda G: G / 0.5)},
}  # fmt: skip
LOSSES = {
    "over samples": lambda output: output.sum() / 3,
    "over tokens": lambda output: output.mean(1).sum(),
    "over both": lambda output: output.mean((0, 1)).sum(),
    "over all numbers": lambda output: output.mean(),
}


def made(dtype="float32", **options):
    """A layer whose queries and keys have 4 columns to a head, and inputs of it."""
    layer = mha.MultiHeadAttention(**OPTIONS | options, dtype=dtype, seed=0, backend="numpy")
    random = np.random.default_rng(1)
    layer.weights = {
        name: X if X.ndim == 2 else random.normal(1, 0.3, X.shape).astype(X.dtype) for name, X in layer.weights.items()
    }
    return layer, [random.normal(size=(3, 7, 24)).astype(numpy_dtype(dtype)) for _ in range(3)]


SQUARE = {"num_key_value_heads": 6}
OTHERS = {
    "gradients of kernels are transposed": SQUARE,
    "sinks get no gradient": {"sinks": True},
}  # options, by mistake


WITHOUT_KEYS = [7, 0, 5]


def without_nan(output):
    """The sum of the rows that are no NaN."""
    return output[~output.isnan().any(-1)].sum()


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ["W_q.kernel", "W_v.kernel", "keys"])
@pytest.mark.parametrize("as_bias", [False, True])
def test_one_gradient_of_nan_is_enough_and_how_keys_are_hidden_does_not_matter(name, as_bias, backend):
    layer, inputs = made()
    found = Port(layer, **ADDED)(*inputs, lengths=WITHOUT_KEYS)
    seen = np.broadcast_to(np.arange(7) < np.array(WITHOUT_KEYS)[:, None, None], (3, 7, 7))
    call = {"score_bias": np.where(seen, 0, -np.inf).astype("float32")} if as_bias else {"mask": seen}
    report = parity.compare(layer, {"output": found["output"], f"gradient.{name}": found[name]}, *inputs, **call)
    assert report.first.name == f"gradient.{name}"
    assert report.diagnosis.alternatives == ((NAN,),), report


@pytest.mark.backends("torch")
def test_nan_of_another_cause_is_not_blamed_on_rows_without_keys(backend):
    layer, inputs = made()
    found = Port(layer, **ADDED)(*inputs, lengths=WITHOUT_KEYS)
    found["keys"][0, 2, 1] = np.nan  # in a sample that has keys
    assert not parity.compare(layer, found, *inputs, WITHOUT_KEYS).diagnosis.known
    found = layer.gradients(*inputs, LENGTHS)  # every query sees keys
    found["W_q.kernel"] = np.full_like(found["W_q.kernel"], np.nan)
    assert not parity.compare(layer, found, *inputs, LENGTHS).diagnosis.known


@pytest.mark.backends("torch")
def test_the_port_is_right(backend):
    layer, inputs = made()
    assert parity.compare(layer, Port(layer)(*inputs), *inputs, LENGTHS)


QUICK = [
    ("gradients of kernels are transposed", "W_q"), ("gradients forget what hides keys", ""),
    ("gradients are added twice", "all"), ("gradients of weights are means", "biases over tokens"),
    (NAN, "a mask is added"),
]  # fmt: skip


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("case", "dtype"),
    [*((case, "float32") for case in MADE),
     *(pytest.param(case, "bfloat16", marks=[] if case in QUICK else pytest.mark.long("torch")) for case in MADE)],
    ids=str,
)  # fmt: skip
def test_a_mistake_in_gradients_is_named(case, dtype, backend):
    layer, inputs = made(dtype, **OTHERS.get(case[0], {}))
    changed, lengths = dict(MADE[case]), WITHOUT_KEYS if case[0] in (NAN, UNIFORM) else LENGTHS
    loss = {"loss": without_nan} if changed.pop("loss", None) else {}
    report = parity.compare(layer, Port(layer, **changed)(*inputs, lengths=lengths, **loss), *inputs, lengths)
    assert report.first.name.startswith("gradient.")
    assert (case[0],) in report.diagnosis.alternatives, report
    if dtype == "float32":
        assert report.diagnosis.mistakes == (case[0],), report
        assert case[1] in report.diagnosis.explanations[0].how[0].split(" or ")


@pytest.mark.backends("torch")
@pytest.mark.parametrize("how", LOSSES)
def test_a_mean_is_named(how, backend):
    layer, inputs = made()
    found = Port(layer)(*inputs, loss=LOSSES[how])
    assert (("the loss is a mean",), how) in [
        (one.mistakes, one.how[0]) for one in parity.diagnose(layer, found, *inputs, LENGTHS).explanations
    ]


def test_every_form_is_made_here():
    forms = {(one.name, how) for one in GRADIENT_MISTAKES for how in one.forms}
    made_here = {*MADE, *(("the loss is a mean", how) for how in LOSSES)}
    assert forms == {one for one in made_here if not one[0].startswith("dropout")}


def test_unknown_mistakes_in_gradients_get_no_name():
    layer, inputs = made()
    right = layer.gradients(*inputs, LENGTHS)
    random = np.random.default_rng(4)
    for name, size in (("queries", 1e-3), ("W_k.kernel", 1.0)):
        noise = size * random.normal(size=right[name].shape).astype("float32")
        found = {"output": layer(*inputs, LENGTHS)} | right | {name: right[name] * (1 + noise)}
        report = parity.compare(layer, found, *inputs, LENGTHS)
        assert not report
        assert report.diagnosis.mistakes == (), report
        loss = "they are compared with those of the output's sum, without cotangent=; "
        assert f"tries among known mistakes in gradients gives these numbers; {loss}first to" in report.diagnosis.note
        ones = np.ones_like(found["output"])
        assert loss not in parity.diagnose(layer, found, *inputs, LENGTHS, cotangent=ones).note
        note = parity.diagnose(layer, {name: found[name]}, *inputs, LENGTHS).note
        assert "give the output, too, which may differ; first to differ" in note


def test_what_was_not_tried_in_gradients_is_counted(monkeypatch):
    layer, inputs = made()
    found = {"output": layer(*inputs, LENGTHS), "W_o.kernel": -layer.gradients(*inputs, LENGTHS)["W_o.kernel"]}
    diagnosis = parity.diagnose(layer, found, *inputs, LENGTHS)
    assert diagnosis.tried > 400
    assert "there was no time" not in diagnosis.note
    monkeypatch.setattr(time_budget, "SECONDS", 0)
    note = parity.diagnose(layer, found, *inputs, LENGTHS).note
    match = re.search(
        r"none of 0 tries .*; (\d+) forms and (\d+) pairs of mistakes were not tried, there was no time", note
    )
    assert sum(map(int, match.groups())) == diagnosis.tried


def test_what_is_computed_once_is_what_each_mistake_computes_by_itself():
    layer, inputs = made(**SQUARE)
    plan = make_plan(problem(layer, *inputs, call_of("compare", LENGTHS, {})._asdict()), "float32")
    known = backward(plan, None)
    known.gradients()
    for mistake in GRADIENT_MISTAKES:
        for how, change in mistake.forms.items():
            after, alone = change(known), change(backward(plan, None))
            if after is None:
                continue
            for name, X in alone.gradients().items():
                assert np.array_equal(after.gradients()[name], X), (mistake.name, how, name)


# Changed afterwards, without a framework

KERNELS = transposed("W_q", "W_k", "W_v", "W_o")


def without_keys_and_values(found):
    nothing = {name: 0 * found[name] for name in ("keys", "values")}
    return frozen("W_k")(frozen("W_v")(found)) | nothing


def changed(change):
    """The gradients of a layer, changed, beside its output; and a function that compares them."""
    layer = mha.MultiHeadAttention(24, 4, bias=True, seed=0, backend="numpy")
    inputs = [np.random.default_rng(at).normal(size=(3, 7, 24)).astype("float32") for at in range(3)]
    found = {"output": layer(*inputs, LENGTHS)} | change(layer.gradients(*inputs, LENGTHS))
    return found, lambda theirs: parity.compare(layer, theirs, *inputs, LENGTHS)


@pytest.mark.parametrize(("change", "mistakes"), [
    (lambda found: divided(3, ".kernel")(KERNELS(found)),
     {"gradients of kernels are transposed", "gradients of weights are means"}),
    (without_keys_and_values, {"keys are detached", "values are detached"}),
])  # fmt: skip
def test_two_mistakes_are_named_at_one_place_and_at_two(change, mistakes):
    found, compared = changed(change)
    assert mistakes in [{*names} for names in compared(found).diagnosis.alternatives]


@pytest.mark.parametrize("name", ["W_q.kernel", "W_o.bias"])
def test_every_gradient_has_to_fit(name):
    found, compared = changed(KERNELS)
    report = compared(found)
    assert report.diagnosis.mistakes == ("gradients of kernels are transposed",)
    bounds = {row.name: row.bound for row in report.rows}
    found[name] = found[name].copy()
    found[name].flat[5] += 3 * bounds[f"gradient.{name}"]
    assert compared(found).diagnosis.mistakes == ()


def test_a_gradient_of_another_shape_is_no_mistake_but_a_transpose_is_said():
    layer = mha.MultiHeadAttention(24, 4, query_size=11, seed=1, backend="numpy")
    X = np.random.default_rng(0).normal(size=(2, 5, 24)).astype("float32")
    inputs = X[..., :11], X, X
    right = layer.gradients(*inputs)["W_q.kernel"]
    hint = "; kernels are (in, out): pass its transpose"
    for given, said in ((right.T, hint), (right[:, :23], ""), (right[None], "")):
        report = parity.compare(layer, {"gradient.W_q.kernel": given}, *inputs)
        assert report.first.note == f"it has shape {given.shape}, expected (11, 24){said}"
