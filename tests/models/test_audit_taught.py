"""What `parity.audit` does not know, and what `layers=` teaches it; and the page that shows it."""

import pages
import pytest
import safetensors.torch
import torch
from small_llama import Attention, Model, tokens
from small_llama_mistakes import Interleaved

import mha
from mha import parity
from mha.models.frameworks import torch as taps

from .verdicts import LAYERS, verdicts

pytestmark = pytest.mark.backends("torch")


def test_projections_that_are_no_plain_arrays_are_not_known():
    model = Model()
    model.layers[1].self_attn.k_proj = torch.nn.utils.parametrizations.weight_norm(model.layers[1].self_attn.k_proj)
    report = parity.audit(model, *tokens())
    assert verdicts(report) == dict(zip(LAYERS, ("same", "not known", "same"), strict=True))
    assert "parametrised" in report.unknown[0].note
    assert not report
    adapted, quantised, scaled = (torch.nn.Linear(3, 4) for _ in range(3))
    adapted.lora_A = torch.nn.Linear(3, 2)
    quantised.weight = torch.nn.Parameter(torch.ones(4, 3, dtype=torch.int8), requires_grad=False)
    scaled.factor = torch.nn.Parameter(torch.ones(4))
    reasons = {
        "": torch.nn.Linear(3, 4, dtype=torch.bfloat16), "adapted": adapted, "quantised": quantised,
        "adapted: it has factor, too": scaled, "on the meta device": torch.nn.Linear(3, 4, device="meta"),
        "without weights yet": torch.nn.LazyLinear(4),
    }  # fmt: skip
    assert {reason: taps.odd(module) for reason, module in reasons.items()} == {reason: reason for reason in reasons}


def test_a_layer_that_does_not_run_is_not_called():
    model = Model()
    model.layers[1].forward = lambda x, seen, past: (x, None)
    report = parity.audit(model, *tokens())
    assert report
    assert verdicts(report)[LAYERS[1]] == "not called"
    assert "1 not called" in str(report)


def test_a_layer_that_runs_in_part_is_not_known():
    class Fused(Attention):
        def forward(self, x, seen, past=None):
            self.q_proj(x)
            return x, None

    report = parity.audit(Model(Fused), *tokens())
    assert verdicts(report)[LAYERS[1]] == "not known"
    assert "only W_q" in report.unknown[0].note
    assert not report


class Another(torch.nn.Module):
    """Attention without projections that are modules."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool

    def forward(self, x):
        return x + self.pool(x)


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: torch.softmax(x @ x.transpose(1, 2), -1) @ x,
        lambda x: (x @ x.transpose(1, 2)).softmax(-1) @ x,
    ],
    ids=["torch.softmax", "Tensor.softmax"],
)
def test_attention_in_no_known_layer_is_listed(pool):
    model = Model()
    model.layers[2].mlp = Another(pool)
    report = parity.audit(model, *tokens())
    assert not report
    assert [row.path for row in report.unknown] == ["layers.2.mlp"]
    left_out = parity.audit(model, *tokens(), layers={"layers.2.mlp": None})
    assert left_out
    assert "1 left out" in str(left_out)


def test_a_softmax_of_rows_is_noted_with_its_module():
    model = Model()
    model.layers[2].mlp = Another(lambda x: x.flatten(0, 1).softmax(-1).view_as(x))
    report = parity.audit(model, *tokens())
    assert report, report
    assert report.notes == ("a softmax of rows is no attention, and was not judged: in layers.2.mlp",)


def test_no_known_layer_is_an_error_that_lists_what_was_found():
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn.*model_type is 'roformer'.*layers="):
        parity.audit(Model(model_type="roformer"), *tokens())
    with pytest.raises(ValueError, match="none was found"):
        parity.audit(torch.nn.Linear(3, 4), torch.ones(2, 3))


TAUGHT = {"num_heads": 6, "causal": True, "rotary": mha.Rotary(10)}
NAMES = {"W_q": "q_proj", "W_k": "k_proj", "W_v": "v_proj", "W_o": "o_proj"}


@pytest.mark.parametrize(
    "lesson", [NAMES | TAUGHT, {"scheme": "llama"} | TAUGHT], ids=["names of projections", "a scheme"]
)
def test_layers_are_taught(lesson):
    for mistaken, wrong in ((Attention, []), (Interleaved, [LAYERS[1]])):
        for model in (Model(mistaken), Model(mistaken, model_type="a model of my own")):
            for like in (None, Model(), Model().state_dict()):
                report = parity.audit(model, *tokens(), like=like, layers={"layers.*.self_attn": lesson})
                assert [row.path for row in report.wrong] == wrong
                assert {row.verdict for row in report.layers} <= {"same", "differs"}


def test_packed_projections_are_taught():
    names = {"W_q": "qkv", "W_k": "qkv", "W_v": "qkv", "W_o": "o_proj"}
    layers = {LAYERS[1]: names | TAUGHT | {"num_key_value_heads": 2}}
    model = Model(Plain)
    report = parity.audit(model, *tokens(), layers=layers)
    assert report, report
    model.layers[1].self_attn.inner.scores = lambda q, k: q @ k.transpose(2, 3)
    report = parity.audit(model, *tokens(), layers=layers)
    passed = {row.name: row.passed for row in report.first.report.rows}
    assert passed == {"W_q": True, "W_k": True, "W_v": True, "merged": False, "output": False}


class Plain(torch.nn.Module):
    """Attention whose queries, keys and values are packed in one projection."""

    def __init__(self):
        super().__init__()
        self.qkv, self.o_proj = torch.nn.Linear(30, 100), torch.nn.Linear(60, 30)
        self.inner = Attention()

    def forward(self, x, seen, past=None):
        q, k, v = self.qkv(x).split((60, 20, 20), -1)
        inner = self.inner
        q, k = (inner.turn(inner.split(X, heads), 0) for X, heads in ((q, 6), (k, 2)))
        scores = inner.scores(q, inner.share(k)).masked_fill(~seen, -torch.inf)
        pooled = torch.softmax(scores, -1).nan_to_num() @ inner.share(inner.split(v, 2))
        return self.o_proj(inner.merge(pooled)), None


class Normed(torch.nn.Module):
    """Attention as in timm, with norms of queries and keys."""

    def __init__(self, norm):
        super().__init__()
        self.qkv, self.proj = torch.nn.Linear(12, 36), torch.nn.Linear(12, 12)
        self.q_norm, self.k_norm = norm(4), norm(4)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)  # (B, H, T, d)
        pooled = torch.nn.functional.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.proj(pooled.transpose(1, 2).flatten(2))  # (B, T, H*d)


@pytest.mark.parametrize("kind", ["RMSNorm", "LayerNorm", "LayerNorm without shift"])
def test_norms_in_a_layer_are_taught_or_named(kind):
    options = {"bias": False} if "without" in kind else {}
    norm = getattr(torch.nn, kind.split()[0])
    torch.manual_seed(5)
    model, X = torch.nn.Sequential(Normed(lambda d: norm(d, eps=1e-6, **options))), torch.randn(2, 7, 12)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    packed = {"W_q": "qkv", "W_k": "qkv", "W_v": "qkv", "W_o": "proj", "num_heads": 3}
    qk_norm = mha.Norm("rms" if kind == "RMSNorm" else "layer", 1e-6)
    timm = {"scheme": "timm", "num_heads": 3, "qk_norm": qk_norm}
    if kind == "LayerNorm":
        for lesson in (packed, timm):
            with pytest.raises(ValueError, match=r"0\.q_norm\.bias: its norms of queries and keys add a shift"):
                parity.audit(model, X, layers={"0": lesson})
        return
    with pytest.raises(ValueError, match=r"it has 0\.q_norm, of which layers= says nothing; add q_norm='q_norm'"):
        parity.audit(model, X, layers={"0": packed})
    norms = {"q_norm": "q_norm", "k_norm": "k_norm", "qk_norm": qk_norm}
    for lesson in (packed | norms, timm):
        assert parity.audit(model, X, layers={"0": lesson})


class Convolved(torch.nn.Module):
    """Attention over (B, D, T), or (B, D, h, w), whose projections are convolutions; window: over so many tokens."""

    def __init__(self, axes, packed, window=1, grown=1.0):
        super().__init__()
        made = torch.nn.Conv1d if axes == 1 else torch.nn.Conv2d
        names = {"qkv": 36, "out": 12} if packed else {"q": 12, "k": 12, "v": 12, "out": 12}
        for name, size in names.items():
            self.add_module(name, made(12, size, window, padding=window // 2))
        self.grown = grown

    def forward(self, X):
        found = [part(X) for name, part in self.named_children() if name != "out"]
        q, k, v = found if len(found) == 3 else found[0].chunk(3, 1)
        q, k, v = (Z.flatten(2).unflatten(1, (3, 4)).swapaxes(2, 3) for Z in (q, k, v))  # (B, H, T, d)
        merged = torch.nn.functional.scaled_dot_product_attention(self.grown * q, k, v)
        return self.out(merged.swapaxes(2, 3).reshape(X.shape))  # (B, D, T), or (B, D, h, w)


@pytest.mark.parametrize(("axes", "packed"), [(1, True), (2, False)])
def test_projections_that_are_convolutions_over_one_token_are_taught(axes, packed):
    torch.manual_seed(1)
    X = torch.randn(2, 12, *(5, 3)[:axes])
    names = dict.fromkeys(("W_q", "W_k", "W_v"), "qkv") if packed else {"W_q": "q", "W_k": "k", "W_v": "v"}
    layers = {"0": {**names, "W_o": "out", "num_heads": 3}}
    report = parity.audit(torch.nn.Sequential(Convolved(axes, packed)), X, layers=layers)
    assert verdicts(report) == {"0": "same"}
    assert report.layers[0].note == ""  # how the kernels lie is known
    report = parity.audit(torch.nn.Sequential(Convolved(axes, packed, grown=2.0)), X, layers=layers)
    assert verdicts(report) == {"0": "differs"}
    assert "why: no scale" in str(report)
    assert report.mended.wrong == ()  # what it should give goes on in its own axes
    with pytest.raises(ValueError, match="it is of a convolution over several tokens"):
        parity.audit(torch.nn.Sequential(Convolved(axes, packed, 3)), X, layers=layers)


def test_a_function_of_the_module_teaches_a_layer():
    def layer(module):
        arrays = {f"{name}.weight": getattr(module, name).weight for name in NAMES.values()}
        return mha.from_native(arrays, scheme="llama", num_heads=6, rotary=mha.Rotary(10)), {"causal": True}

    for mistaken, wrong in ((Attention, []), (Interleaved, [LAYERS[1]])):
        report = parity.audit(Model(mistaken), *tokens(), layers={"layers.*.self_attn": layer})
        assert [row.path for row in report.wrong] == wrong
        assert {row.verdict for row in report.layers} <= {"same", "differs"}
    assert report.mended.wrong == ()
    with pytest.raises(TypeError, match="returns a int"):
        parity.audit(Model(), *tokens(), layers={LAYERS[1]: lambda module: 3})


@pytest.mark.parametrize(
    ("layers", "error", "words"),
    [
        ({"blocks.*.attn": {}}, ValueError, "fits no module"),
        ({LAYERS[0]: {"W_q": "q_proj"}}, ValueError, "has no W_k, W_v, W_o"),
        ({LAYERS[0]: NAMES | {"heads": 3}}, ValueError, "'heads'"),
        ({LAYERS[0]: NAMES | {"W_o": "out"}}, ValueError, "W_o='out'"),
        ({LAYERS[0]: {"scheme": "llamma"}}, ValueError, "scheme"),
        ({LAYERS[0]: 3}, TypeError, "a int"),
        ([LAYERS[0]], TypeError, "layers is a list"),
    ],
)
def test_what_is_taught_wrongly_is_refused(layers, error, words):
    with pytest.raises(error, match=words):
        parity.audit(Model(), *tokens(), layers=layers)


# The page


class Named(torch.nn.Module):
    """A model whose names no table knows, and a pooler that attends, too."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.embed = torch.nn.Embedding(37, 30)
        block = torch.nn.ModuleDict({"attn": torch.nn.ModuleDict({
            "to_q": torch.nn.Linear(30, 24), "to_k": torch.nn.Linear(30, 24), "to_v": torch.nn.Linear(30, 24),
            "out": torch.nn.Linear(24, 30)})})  # fmt: skip
        self.blocks = torch.nn.ModuleList([block])
        self.pooler = Another(lambda x: torch.softmax(x @ x.transpose(1, 2), -1) @ x)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            q, k, v = (
                block["attn"][name](x).view(*x.shape[:2], 6, -1).transpose(1, 2) for name in ("to_q", "to_k", "to_v")
            )
            scores = q @ k.transpose(2, 3) / 2
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
            x = x + block["attn"]["out"]((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))  # (B, T, D)
        return self.pooler(x)


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    class Generating(Model):
        def generate(self, ids, attention_mask, max_new_tokens):
            found = self(ids, attention_mask)
            for _ in range(max_new_tokens - 1):
                ids = found["logits"][:, -1:].argmax(-1)
                attention_mask = torch.cat((attention_mask, attention_mask[:, -1:]), 1)
                found = self(ids, attention_mask, found["past_key_values"])

    model, (ids, mask) = Generating(), tokens()
    (tmp_path / "checkpoint_dir").mkdir()
    safetensors.torch.save_file(model.state_dict(), tmp_path / "checkpoint_dir" / "model.safetensors")
    (tmp_path / "checkpoint_dir" / "config.json").write_text(model.config.to_json_string())
    monkeypatch.chdir(tmp_path)
    taught, audited, _, watched, compared = pages.code("docs/porting.md")
    names = {"model": model, "input_ids": ids, "mask": mask}
    exec(audited, names)
    assert names["report"]
    exec(watched, names)
    assert names["report"]
    assert all(row.calls == 20 for row in names["report"].layers)
    other = Generating()
    other.layers[1].after.eps = 0.1
    exec(compared, names | {"theirs": model, "ours": other})
    exec(taught, names | {"model": Named(), "tokens": ids})
    assert names["report"]
    shown = " ".join(capsys.readouterr().out.split())
    assert "3 layers" in shown
    assert "the difference begins at layers.1.after: its input is the same, its output differs" in shown
