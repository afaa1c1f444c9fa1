"""Records of models that cut the same computation into modules at other places: no difference, and it hides none."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from mha import parity

pytestmark = pytest.mark.backends("torch")
B, T, V, D, H, d, M, LAYERS = 2, 11, 29, 15, 3, 5, 23, 3


class Activated(nn.Linear):
    """A layer with its activation, as Keras has it."""

    def forward(self, x):
        return functional.relu(super().forward(x))


class Scaled(nn.Embedding):
    """An embedding that scales."""

    def forward(self, ids):
        return super().forward(ids) * D**0.5


class Attention(nn.Module):
    def __init__(self, cuts, mistake):
        super().__init__()
        self.cuts, self.mistake = cuts, mistake
        self.norm = nn.LayerNorm(D) if "norm" in cuts else nn.Identity()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias="bias" not in cuts) for _ in range(4))
        self.beside = [nn.Parameter(torch.zeros(D), requires_grad=False) for _ in range(4)]

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (X(y) + by.to(y.dtype) for X, by in zip((self.q, self.k, self.v), self.beside, strict=False))
        shape = (d, H) if "order" in self.cuts else (H, d)
        q, k, v = (X.unflatten(2, shape) for X in (q, k, v))  # (B, T, H, d), or (B, T, d, H)
        q, k, v = (X.mT if "order" in self.cuts else X for X in (q, k, v))  # (B, T, H, d)
        seen = torch.ones(T, T).tril(1 if self.mistake == "mask" else 0).bool()
        scale = (1.0 if self.mistake == "scale" else d**-0.5) * (4.0 if "scale" in self.cuts else 1.0)
        pooled = functional.scaled_dot_product_attention(
            *(X.transpose(1, 2) for X in (q, k, v)), attn_mask=seen, scale=scale
        ).transpose(1, 2)  # (B, T, H, d)
        merged = (pooled.mT if "order" in self.cuts else pooled).flatten(2)  # (B, T, D)
        found = self.o(merged) + self.beside[3].to(x.dtype)
        return x + found if "residual" in self.cuts else found


class Block(nn.Module):
    def __init__(self, cuts, mistake):
        super().__init__()
        self.cuts, self.mistake = cuts, mistake
        if "norm" not in cuts:
            self.before = nn.LayerNorm(D)
        self.attn, self.after = Attention(cuts, mistake), nn.LayerNorm(D, 1e-3 if mistake == "eps" else 1e-5)
        self.f1, self.f2 = (Activated if "act" in cuts else nn.Linear)(D, M), nn.Linear(M, D)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        found = self.attn(x if "norm" in self.cuts else self.before(x))
        x = found if "residual" in self.cuts or self.mistake == "residual" else x + found
        y = self.f1(self.after(x))
        y = y if "act" in self.cuts else functional.relu(y)
        return x + self.f2(self.drop(y) if "drop" in self.cuts else y)


class Model(nn.Module):
    def __init__(self, cuts, mistake, at):
        super().__init__()
        self.cuts = cuts
        self.embed = (Scaled if "embed" in cuts else nn.Embedding)(V, D)
        self.blocks = nn.ModuleList(Block(cuts, mistake if one == at else "") for one in range(LAYERS))
        self.last, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        x = x if "embed" in self.cuts else x * D**0.5
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


def model(cuts="", mistake="", at=1):
    """A model in these cuts, with the weights of every other one, and a mistake in a layer."""
    made, random = Model(cuts.split(), mistake, at).eval(), np.random.default_rng(17)
    drawn = {
        name: torch.tensor(random.normal(0.3 * name.endswith("bias"), 0.4, X.shape), dtype=torch.float32)
        for name, X in Model([], "", 0).named_parameters() if "beside" not in name
    }  # fmt: skip
    order = torch.arange(D).reshape(H, d).T.reshape(-1) if "order" in cuts else torch.arange(D)
    for at_layer in range(LAYERS):
        attn = f"blocks.{at_layer}.attn"
        for name in "qkv":
            for part in ("weight", "bias"):
                drawn[f"{attn}.{name}.{part}"] = drawn[f"{attn}.{name}.{part}"][order]
        drawn[f"{attn}.o.weight"] = drawn[f"{attn}.o.weight"][:, order]
        if "scale" in cuts:
            for part in ("weight", "bias"):
                drawn[f"{attn}.q.{part}"] = drawn[f"{attn}.q.{part}"] / 4
        if "bias" in cuts:
            made.blocks[at_layer].attn.beside = [drawn.pop(f"{attn}.{name}.bias") for name in "qkvo"]
        if "norm" in cuts:
            for part in ("weight", "bias"):
                drawn[f"{attn}.norm.{part}"] = drawn.pop(f"blocks.{at_layer}.before.{part}")
    if mistake == "kernel":
        drawn[f"blocks.{at}.attn.o.weight"] = drawn[f"blocks.{at}.attn.o.weight"].T
    made.load_state_dict(drawn, strict=False)
    return made


def recorded(cuts="", mistake="", at=1, dtype=torch.float32, **options):
    """A record of one call."""
    return called(model(cuts, mistake, at).to(dtype), **options)


def called(made, **options):
    """A record of one call of a model."""
    ids = np.random.default_rng(5).integers(V, size=(B, T))
    with parity.record(made, **options) as record:
        made(torch.tensor(ids))
    return record


CUTS = {
    "act": "the output of blocks.{}.f1", "scale": "the output of blocks.{}.attn.q",
    "bias": "the output of blocks.{}.attn.v", "order": "the input of blocks.{}.attn.o",
    "norm residual": "the output of blocks.{}.attn", "embed": "the output of embed",
}  # fmt: skip
PLACES = {
    "kernel": {("blocks.1.attn.o", "output")}, "mask": {("blocks.1.attn.o", "input")},
    "scale": {("blocks.1.attn.o", "input")}, "eps": {("blocks.1.after", "output")},
    "residual": {("blocks.1.after", "input")},
}  # fmt: skip
QUICK = {("act", "kernel"), ("scale", "mask"), ("bias", "scale"), ("embed act", "eps"), ("act", "residual")}


@pytest.mark.parametrize("cuts", CUTS)
def test_the_same_model_in_other_cuts_is_the_same(cuts):
    for a, b in ((recorded(), recorded(cuts)), (recorded(cuts), recorded())):
        report = parity.compare_records(a, b)
        assert report, report
        assert CUTS[cuts] in report.cuts
        assert report.first is None
        assert report.verdict.startswith("the same: ")
        said = " ".join(str(report).split())
        assert "cut elsewhere, which is no difference: " in said
        assert "DIFFERS" not in said


def test_dropout_is_no_cut():
    report = parity.compare_records(recorded(), recorded("drop"))
    assert report
    assert report.cuts == ()


@pytest.mark.parametrize(
    ("cuts", "mistake"),
    [pytest.param(cuts, mistake, marks=() if (cuts, mistake) in QUICK else pytest.mark.long("torch"))
     for cuts in ("act", "scale", "bias", "embed act") for mistake in PLACES],
)  # fmt: skip
def test_a_mistake_behind_other_cuts_is_named(cuts, mistake):
    for a, b in ((recorded(), recorded(cuts, mistake)), (recorded(cuts), recorded("", mistake))):
        report = parity.compare_records(a, b)
        assert not report
        assert (report.first.path, report.first.what) in PLACES[mistake], report


@pytest.mark.parametrize("cuts", ["order", "order bias", "order bias scale"])
@pytest.mark.parametrize("mistake", ["mask", "kernel"])
def test_a_mistake_of_the_first_layer_is_named_behind_heads_in_another_order(mistake, cuts):
    report = parity.compare_records(recorded(), recorded(cuts, mistake, 0))
    path, what = next(iter(PLACES[mistake]))
    assert (report.first.path, report.first.what) == (path.replace("1", "0"), what), report


def test_another_cut_with_a_mistake_of_its_own_differs():
    wrong = model("act")
    with torch.no_grad():
        wrong.blocks[1].f1.weight.copy_(wrong.blocks[1].f1.weight.flip(0))
    report = parity.compare_records(recorded(), called(wrong))
    assert (report.first.path, report.first.what) == ("blocks.1.f1", "output"), report


def test_an_activation_that_nothing_makes_up_for_differs():
    missing = model()
    missing.blocks[2].f1.forward = lambda x, own=missing.blocks[2].f1.forward: -functional.relu(-own(x))
    report = parity.compare_records(recorded("act"), called(missing))
    assert (report.first.path, report.first.what) == ("blocks.2.f1", "output"), report


def test_half_precision_does_not_blame_another_cut():
    for cuts in ("act", "scale", "order"):
        report = parity.compare_records(recorded(), recorded(cuts, dtype=torch.bfloat16))
        assert report.first is None, report
    named = parity.compare_records(recorded(), recorded("act", "residual", dtype=torch.bfloat16)).first
    assert (named.path, named.what) == ("blocks.1.after", "input")


def test_paths_leave_modules_out():
    wrong = recorded("", "kernel")
    assert parity.compare_records(recorded(), wrong).first.path == "blocks.1.attn.o"
    report = parity.compare_records(recorded(), recorded("act"), {"blocks.{}.f1": None})
    assert report
    assert report.cuts == ()
    assert not [row for row in report.rows if row.path.endswith("f1")]
    assert "left out, as paths says: blocks.0.f1, blocks.1.f1, blocks.2.f1" in " ".join(str(report).split())
    inner = parity.compare_records(recorded(), wrong, {"blocks.{}.attn": None, "blocks.{}.attn.q": "blocks.{}.attn.q"})
    assert [row.path for row in inner.rows if ".attn" in row.path] == [f"blocks.{at}.attn.q" for at in range(LAYERS)]
    with pytest.raises(ValueError, match=r"paths has 'enc.\{\}', which fits no module"):
        parity.compare_records(recorded(), wrong, {"enc.{}": None})


LESSON = {"W_q": "q", "W_k": "k", "W_v": "v", "W_o": "o", "num_heads": H, "causal": True}


@pytest.mark.parametrize("pair", [False, True], ids=["of both", "of each"])
def test_layers_teach_the_attention_of_records(pair):
    layers = {"blocks.*.attn": LESSON}
    layers = (None, layers) if pair else layers
    right, wrong = recorded(), recorded("", "scale", weights=True)
    report = parity.compare_records(right, wrong, layers=layers)
    assert [row.path for row in report.wrong] == ["blocks.1.attn"]
    assert report.layer.path == "blocks.1.attn"
    assert "why: no scale" in str(report)
    assert parity.compare_records(right, recorded(weights=True), layers=layers)


class Small(nn.Module):
    """Attention behind a norm: its kernels hardly read feature 0, which the norm multiplies by a factor."""

    def __init__(self, factor):
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.norm, self.head = nn.Embedding(V, D), nn.LayerNorm(D), nn.Linear(D, V)
        self.attn = nn.MultiheadAttention(D, H, batch_first=True)
        with torch.no_grad():
            self.norm.weight[0] = factor
            self.attn.in_proj_weight[:, 0] *= 1e-3

    def forward(self, ids):
        x = self.embed(ids)
        y = self.norm(x)
        return self.head(x + self.attn(y, y, y)[0])


def test_attention_that_is_right_does_not_tell_of_what_enters_it():
    a, b = (called(Small(factor).eval(), weights=True) for factor in (2.0, -2.0))
    report = parity.compare_records(a, b)
    assert report.wrong == ()
    assert report.first is not None, report
    assert (report.first.path, report.first.what) == ("norm", "output"), report
    after = next(row for row in report.rows if (row.path, row.what) == ("attn", "output"))
    assert report.first.far > 100 * after.far > 1e4 * 2**-24, report  # of the rounding, and of what would show


def test_layers_say_what_is_wrong_with_them():
    a, b = recorded(), recorded(weights=True)
    with pytest.raises(ValueError, match="layers has 'enc', which fits no module of A or B"):
        parity.compare_records(a, b, layers={"enc": LESSON})
    with pytest.raises(ValueError, match="layers says W_q='to_q', but"):
        parity.compare_records(a, b, layers={"blocks.*.attn": LESSON | {"W_q": "to_q"}})
    with pytest.raises(ValueError, match="but no record has weights"):
        parity.compare_records(a, recorded(), layers={"blocks.*.attn": LESSON})
    with pytest.raises(TypeError, match="layers is a list, expected a dict by paths, or a pair of them"):
        parity.compare_records(a, b, layers=[LESSON])


def test_weights_are_asked_for_only_where_they_are_missing():
    words = "record B with weights=True"
    assert words in " ".join(str(parity.compare_records(recorded(), recorded("", "mask"))).split())
    report = parity.compare_records(recorded(), recorded("", "mask", weights=True))
    said = " ".join(str(report).split())
    assert words not in said
    assert "no attention layer of the model is known" in said
    assert "layers={" in said
    blind = parity.compare_records(recorded(), recorded("act", weights=True, dtype=torch.bfloat16))
    assert "weights=True" not in blind.verdict
