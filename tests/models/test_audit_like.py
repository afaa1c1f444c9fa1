"""`layers=` and `like=` together in `parity.audit`: which arrays are those of a layer, and how their kernels lie."""

import audited
import numpy as np
import pytest
from audited import D, d

from mha import arrays, parity
from mha.core import dispatch
from mha.models.audit.layers.reference import adapter_of
from mha.weights import projections

from .verdicts import mistakes

TAUGHT = [
    pytest.param(f"{name}.taught", marks=pytest.mark.backends(one["BACKEND"]))
    for name, one in audited.SAID.items()
    if "taught" in one["KINDS"]
]
NAMES = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out": "merge"}
RENAMED = {"W_q": "query", "W_k": "key", "W_v": "value", "W_o": "merge"}
PACKED = {"W_q": "qkv", "W_k": "qkv", "W_v": "qkv", "W_o": "to_out"}
KEYS_VALUES = {"W_k": "to_kv", "W_v": "to_kv"}


@pytest.fixture
def right(backend):
    """A function that makes a model by its name, with its kernels (in, out) and biases by module: (model, arrays)."""

    def make(name):
        one = audited.make(name)
        taps = adapter_of(backend)
        own = taps.arrays(taps.prepare(one.model, one.args, one.kwargs))
        found = {}
        for array, X in own.items():
            module, _, kind = array.rpartition(".")
            X = np.asarray(arrays.to_numpy(X))
            if kind == "bias":
                found[array] = X.reshape(-1)  # (out,)
            elif kind in ("weight", "kernel") and module.rpartition(".")[2] in NAMES:
                inward = X.T if kind == "weight" else X  # (in, out), (in, H, d) or (H, d, out)
                found[module] = inward.reshape(D, D)
        return one, {name: X for name, X in found.items() if name.removesuffix(".bias") in found}

    with dispatch.load(backend).context("float32"):
        yield make


def called(own, kernel, change=lambda X: X):
    """The arrays, kernels by this name."""
    return {
        name if name.endswith(".bias") else f"{name}.{kernel}": change(X) if X.ndim > 1 else X
        for name, X in own.items()
    }


def said(one, **like):
    """What is taught of the layers, and of like=."""
    return {path: lesson | {"like": like} for path, lesson in one.layers.items()}


def audit_of(one, like, layers=None):
    return parity.audit(one.model, *one.args, like=like, layers=layers or one.layers, **one.kwargs)


def transposed(own, one):
    """The arrays with the last kernel of the last layer transposed."""
    wrong = f"{one.paths[-1]}.to_out"
    return own | {wrong: own[wrong].T}


@pytest.mark.parametrize("kind", TAUGHT)
def test_each_framework_is_judged_by_arrays_of_others(right, kind):
    one, own = right(kind)
    for like in (own, transposed(own, one)):
        for arrays_of_like in (called(like, "kernel"), called(like, "weight", np.transpose)):
            report = audit_of(one, arrays_of_like)
            expected = ["same", "same" if like is own else "differs"]
            assert [row.verdict for row in report.layers] == expected, report
            assert report.weighed
    assert any("transposed" in name for name in mistakes(report)), report


@pytest.mark.backends("torch")
def test_a_kernel_lies_as_its_name_says_unless_somebody_says_it(right):
    one, own = right("torch.taught")
    report = audit_of(one, called(own, "weight", np.transpose))
    assert any("taken as (out, in)" in note and "axes='io'" in note for note in report.notes)
    assert not audit_of(one, called(own, "weight"))
    report = audit_of(one, called(own, "weight"), said(one, axes="io"))
    assert report
    assert not report.notes
    with pytest.raises(ValueError, match=r"nothing says whether.*to_q of shape \(15, 15\).*axes='io'"):
        audit_of(one, own)
    assert audit_of(one, own, said(one, axes="io"))
    assert not audit_of(one, own, said(one, axes="oi"))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("like", [{}, {"path": "{}.mixer"}], ids=["by order", "by path"])
def test_paths_and_names_of_another_model(right, like):
    one, own = right("torch.taught")
    for arrays_of_one, expected in ((own, ["same", "same"]), (transposed(own, one), ["same", "differs"])):
        other = {}
        for name, X in called(arrays_of_one, "kernel").items():
            _, at, module, array = name.split(".")
            other[f"{at}.mixer.{NAMES[module]}.{array}"] = X
        report = audit_of(one, other, said(one, **RENAMED, **like))
        assert [row.verdict for row in report.layers] == expected
        assert any("order of their paths" in note for note in report.notes) == (not like)
    unnumbered = {
        name.replace("blocks.0", "last").replace("blocks.1", "first"): X for name, X in called(own, "kernel").items()
    }
    with pytest.raises(ValueError, match=r"no number says which layer.*blocks\.0 might be first"):
        audit_of(one, unnumbered)
    with pytest.raises(ValueError, match=r"do not fit.*blocks\.0.*no kernel of query, key, value, merge at '0\.mixer'"):
        audit_of(one, called(own, "kernel"), said(one, **RENAMED, path="{}.mixer"))


@pytest.mark.backends("torch")
def test_names_of_ones_own_come_before_those_of_a_scheme_that_has_no_biases(right):
    one, own = right("torch.taught")
    names = {"to_q": "q", "to_k": "k", "to_v": "v", "to_out": "o"}  # as T5's
    other = {}
    for name, X in called(own, "kernel").items():
        path, _, rest = name.partition(".to_")
        module, _, array = f"to_{rest}".partition(".")
        other[f"{path}.{names[module]}.{array}"] = X
    report = audit_of(one, other, said(one, W_q="q", W_k="k", W_v="v", W_o="o"))
    assert [row.verdict for row in report.layers] == ["same", "same"], report


@pytest.mark.backends("torch")
@pytest.mark.parametrize("turned", [False, True])
def test_projections_that_are_packed_on_one_side(right, turned):
    one, own = right("torch.taught")
    for parts, of in ((PACKED, {"qkv": "qkv"}), (KEYS_VALUES, {"to_kv": "kv"})):
        for arrays_of_one, expected in ((own, ["same", "same"]), (transposed(own, one), ["same", "differs"])):
            like = called(arrays_of_one, "weight", np.ndarray.copy if turned else np.transpose)
            for path in one.paths:
                for name, letters in of.items():
                    packed = [like[f"{path}.to_{letter}.weight"] for letter in letters]
                    like[f"{path}.{name}.weight"] = np.concatenate(packed, 1 if turned else 0)
                    like[f"{path}.{name}.bias"] = np.concatenate([like[f"{path}.to_{one}.bias"] for one in letters])
            report = audit_of(one, like, said(one, **parts))
            assert [row.verdict for row in report.layers] == expected


@pytest.mark.backends("torch")
def test_what_does_not_fit_says_which_path_lacks_what(right):
    one, own = right("torch.taught")
    like = called(own, "kernel")
    less = {name: X for name, X in like.items() if "blocks.1.to_k" not in name}
    wide = {name: np.zeros((D, D + 1), "f4") if "1.to_v.kernel" in name else X for name, X in like.items()}
    twice = {f"{part}.{name.partition('.')[2]}": X for part in ("a", "b", "c") for name, X in like.items()}
    for other, words in (
        (less, r"for blocks\.1, in the arrays of like there is no kernel of to_k at 'blocks\.1'"),
        (wide, r"blocks\.1\.to_v\.kernel of the arrays of like has shape \(15, 16\), expected \(15, 15\)"),
        (twice, r"for blocks\.0, in the arrays of like there are 6 layers, at"),
    ):
        with pytest.raises(ValueError, match=f"like= and layers= do not fit each other: {words}"):
            audit_of(one, other)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("like", "error", "words"),
    [
        (3, TypeError, "like=3"),
        ({"W_x": "q"}, ValueError, "W_x"),
        ({"W_q": 3}, ValueError, "expected strings"),
        ({"axes": "ab"}, ValueError, "axes of like"),
        ("blocks.{}.{}", ValueError, "has 1 numbers for 2"),
    ],
)
def test_what_is_said_wrongly_of_like_is_refused(right, like, error, words):
    one, own = right("torch.taught")
    layers = {path: lesson | {"like": like} for path, lesson in one.layers.items()}
    with pytest.raises(error, match=words):
        audit_of(one, called(own, "kernel"), layers)


@pytest.mark.backends("torch")
def test_weights_of_a_frameworks_own_layer_have_other_names_in_like(right):
    import torch

    one = audited.make("torch.encoder")
    like, state = {}, one.model.state_dict()
    for at, path in enumerate(one.paths):
        q, k, v = state[f"{path}.in_proj_weight"].chunk(3)
        like |= {f"{at}.query.w": q.T, f"{at}.key.w": k.T, f"{at}.value.w": v.T}  # (in, out)
        like[f"{at}.merge.w"] = state[f"{path}.out_proj.weight"].T
    layers = {"layers.*.self_attn": {"like": RENAMED}}
    assert audit_of(one, like, layers)
    like["1.value.w"] = like["1.value.w"].T
    assert [row.verdict for row in audit_of(one, like, layers).layers] == ["same", "differs"]
    with pytest.raises(ValueError, match=r"like= alone for layers\.0\.linear1"):
        audit_of(one, like, {"layers.*.linear1": {"like": RENAMED}})
    assert isinstance(like["0.key.w"], torch.Tensor)


# What is taken from the model itself


def by_hand(change=lambda model: None):
    """The model by hand, changed."""
    from audited import of_torch

    one = of_torch.taught("")
    change(one.model)
    return one


@pytest.mark.backends("torch")
def test_a_bias_that_is_missing_is_said():
    def bare(model):
        model.blocks[1].to_k.bias = model.blocks[1].to_q.bias = None

    def of_queries(model):
        model.blocks[1].to_q.bias = None

    report = audit_of(by_hand(bare), None)
    assert report
    assert any("no bias: to_q, to_k in 1 layer (blocks.1)" in note for note in report.notes), report.notes
    assert not audit_of(by_hand(), None).notes
    assert "a bias which was left out, is not seen" in " ".join(str(report).split())
    report = audit_of(by_hand(of_queries), by_hand().model)
    assert [row.verdict for row in report.layers] == ["same", "differs"]
    assert any("W_q.bias" in name for name in mistakes(report)), mistakes(report)
    report = audit_of(by_hand(bare), by_hand().model)
    assert any("W_k of blocks.1 has no bias" in note for note in report.notes)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("inward", [False, True], ids=["(out, in)", "(in, out)"])
def test_a_class_of_ones_own_lies_as_most_of_its_kernels_are_used(inward):
    import torch

    class Mapped(torch.nn.Module):
        def __init__(self, linear, inward):
            super().__init__()
            self.weight, self.bias, self.inward = linear.weight, linear.bias, inward

        def forward(self, x):
            return x @ (self.weight if self.inward else self.weight.T) + self.bias

    def mapped(model, wrong=""):
        for block in model.blocks:
            for name in NAMES:
                other = block is model.blocks[1] and name == wrong
                setattr(block, name, Mapped(getattr(block, name), inward != other))

    report = audit_of(by_hand(mapped), None)
    assert report
    axes = "(in, out)" if inward else "(out, in)"
    assert all(f"of Mapped are taken as {axes}" in row.note for row in report.layers)
    for wrong, named in (("to_v", "W_v"), ("to_out", "W_o")):
        report = audit_of(by_hand(lambda model, wrong=wrong: mapped(model, wrong)), None)
        assert [row.verdict for row in report.layers] == ["same", "differs"]
        assert any(f"{named}.kernel" in name for name in mistakes(report)), mistakes(report)
        assert report.mended.wrong == ()


@pytest.mark.backends("torch")
def test_a_pattern_finds_the_modules_that_have_the_projections():
    one = by_hand()
    lesson = one.layers["blocks.*"]
    assert audit_of(one, None, {"*": lesson})
    with pytest.raises(ValueError, match="no module has all of to_q, to_k, to_v, out"):
        audit_of(one, None, {"*": lesson | {"W_o": "out"}})


# Arrays alone


def test_taps_are_judged_by_arrays_with_names_of_their_own():
    rng = np.random.default_rng(3)
    X, own, taps = audited.inputs(), {}, {}
    for at, name in enumerate(("tap_0", "tap_1")):
        kernels = {one: rng.normal(size=(D, D), scale=0.4).astype("f4") for one in NAMES}
        q, k, v = (X @ kernels[one] for one in ("to_q", "to_k", "to_v"))
        output = audited.attend(np, softmax, q, k, v, "") @ kernels["to_out"]
        taps[name] = {"queries": X, "output": output.astype("f4")}
        own |= {f"encoder.{at}.{one}.kernel": kernel for one, kernel in kernels.items()}
    layers = {"*": audited.TAUGHT}
    assert parity.audit_taps(taps, own, layers)
    turned = own | {"encoder.1.to_v.kernel": own["encoder.1.to_v.kernel"].T}
    report = parity.audit_taps(taps, turned, layers)
    assert [row.verdict for row in report.layers] == ["same", "differs"]
    assert any("by the order of their paths: tap_0 with encoder.0" in note for note in report.notes)
    assert parity.audit_taps(taps, own, {"tap_0": audited.TAUGHT | {"like": "encoder.{}"}, "tap_1": None})
    with pytest.raises(ValueError, match=r"do not fit.*for tap_0.*no kernel of to_q, .*to_out at 'encoder\.2'"):
        parity.audit_taps(taps, own, {"tap_0": audited.TAUGHT | {"like": "encoder.2"}})


def softmax(scores):
    """The softmax over keys."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def parts(**more):
    return projections.Parts({"W_q": "q", "W_k": "k", "W_v": "v", "W_o": "o"}, **more)


def test_sizes_show_how_kernels_lie():
    G = 2
    mine = {"q": (D, 2 * D), "k": (D, G * d), "v": (D, G * d), "o": (2 * D, D)}  # (in, out)
    rng = np.random.default_rng(0)
    inward = {name: rng.normal(size=shape) for name, shape in mine.items()}
    model = projections.read_arrays({f"{name}.kernel": X for name, X in inward.items()}, "", parts(), {})
    for other in (inward, {name: X.T for name, X in inward.items()}):
        found = projections.read_arrays(
            {f"{name}.weight": X for name, X in other.items()}, "", parts(), {}, model, whose="like"
        )
        assert all(np.array_equal(found.arrays[f"{to}.weight"], inward[name].T) for to, name in
                   (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("o_proj", "o")))  # fmt: skip
        assert found.guessed == ()
    square = inward | {"q": rng.normal(size=(D, D))}
    with pytest.raises(ValueError, match=r"q\.w of like has shape"):
        projections.read_arrays({f"{name}.w": X for name, X in square.items()}, "", parts(), {}, model, whose="like")
