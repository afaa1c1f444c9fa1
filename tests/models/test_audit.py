"""`parity.audit` and `parity.watch` of models of PyTorch: the wrong layer and its mistake are named, no other is."""

import json

import numpy as np
import pytest
import safetensors.torch
import small_llama
import torch
import torch.utils.checkpoint
from small_llama import Attention, Model, tokens
from small_llama_mistakes import IN_A_CALL, Interleaved, NoCache, PositionsFromZero

from mha import parity
from mha.core import dispatch

from .verdicts import LAYERS, mistakes, verdicts

pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_right_model_is_right(dtype):
    ids, mask = tokens()
    report = parity.audit(Model(dtype=dtype), ids, attention_mask=mask)
    assert report
    assert verdicts(report) == dict.fromkeys(LAYERS, "same")
    assert report.first is None
    assert report.mended is None
    assert not report.unknown
    assert all(row.calls == row.call == 1 and row.ratio <= 0.5 for row in report.layers)
    assert "weights were not judged" in str(report)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_right_model_is_right_at_far_positions(dtype):
    ids, _ = tokens()
    places = torch.arange(8000, 8000 + ids.shape[1])[None]
    report = parity.audit(Model(dtype=dtype), ids, position_ids=places)
    assert report, report
    assert len(parity.audit(Model(dtype=dtype), ids, position_ids=places + torch.tensor([[0] + [1] * 12])).wrong) == 3


def test_a_report_names_the_device(monkeypatch):
    module, asked = dispatch.load("torch"), []
    assert json.loads(parity.audit(Model(), *tokens()).to_json())["device"] == "cpu"
    monkeypatch.setattr(module, "device", lambda place: asked.append(place) or "cuda (X), float32 products in float32")
    report = parity.audit(Model(), *tokens())
    assert asked == [torch.device("cpu")]
    words = " ".join(str(report).split())
    assert (
        "against the model's own weights, computed at cuda (X), float32 products in float32 layer kind ratio" in words
    )


def test_what_a_port_does_in_padding_does_not_count():
    class Blank(Attention):
        def merge(self, x):
            return super().merge(x) * mask[:, :, None]

    ids, mask = tokens()
    mask = mask.flip(1)  # on the right, where rows of padding see what comes before
    assert parity.audit(Model(Blank), ids, attention_mask=mask)


@pytest.mark.parametrize("mistaken", IN_A_CALL, ids=lambda kind: kind.__name__)
def test_the_wrong_layer_and_its_mistake_are_named(mistaken):
    ids, mask = tokens()
    report = parity.audit(Model(mistaken), ids, attention_mask=mask)
    assert not report
    assert verdicts(report) == dict(zip(LAYERS, ("same", "differs", "same"), strict=True))
    assert report.first.path == LAYERS[1]
    assert any(known in name for name in mistakes(report) for known in IN_A_CALL[mistaken]), report


def test_what_mending_moves_is_what_the_mistake_moved():
    ids, mask = tokens()
    wrong = Model(Interleaved)
    report = parity.audit(wrong, ids, attention_mask=mask)
    right = Model()
    with torch.no_grad():
        far = (right(ids, mask)["logits"] - wrong(ids, mask)["logits"])[mask.bool()].abs().max()
    assert not report.shared
    assert report.mended.paths == (LAYERS[1],)
    assert report.mended.wrong == ()
    assert report.mended.moved["logits"] >= 0.99 * float(far)
    assert "no other layer is wrong" in str(report.mended)


def test_what_is_left_of_the_difference_is_said():
    wrong, (ids, mask) = Model(Interleaved), tokens(T=11, B=1)
    mask[:] = 1
    report = parity.audit(wrong, ids, mask, like=Model().train())
    assert "it explains all of the difference" in report.mended.explains
    wrong.layers[2].after.eps = 0.3
    report = parity.audit(wrong, ids, mask, like=Model())
    assert "is left, which has other reasons; the rest begins at layers.2.after" in report.mended.explains


def test_two_wrong_layers_are_both_named():
    model = Model(Interleaved)
    model.layers[2].self_attn.merge = lambda x: x.reshape(len(x), x.shape[2], -1)
    ids, mask = tokens()
    report = parity.audit(model, ids, attention_mask=mask)
    assert [row.path for row in report.wrong] == LAYERS[1:]
    assert report.mended.wrong == ()
    assert not report.shared


def test_a_mistake_of_all_layers_is_the_models():
    model = Model()
    for layer in model.layers:
        layer.self_attn.share = lambda x: x.repeat(1, 3, 1, 1)
    ids, mask = tokens()
    report = parity.audit(model, ids, attention_mask=mask)
    assert len(report.wrong) == 3
    assert report.shared
    assert "it is the model's" in str(report)


# Many calls


def decoded(model, steps=(5, 1, 1, 3)):
    ids, mask = (X[:1] for X in tokens(T=sum(steps)))  # padded on the left
    with parity.watch(model) as report:
        past, at = None, 0
        for step in steps:
            past = model(ids[:, at : at + step], mask[:, : at + step], past)["past_key_values"]
            at += step
        assert report.layers == ()
    return report


def test_a_right_decoder_is_right_at_each_token():
    report = decoded(Model())
    assert report
    assert all(row.calls == 4 for row in report.layers)


def test_of_right_calls_the_worst_is_shown():
    model, (ids, _) = Model(), tokens()
    alone = [parity.audit(model, (ids + at) % 37).layers[0].ratio for at in (0, 1, -1)]
    with parity.watch(model) as report:
        for at in (0, 1, -1):
            model((ids + at) % 37)
    assert report.layers[0].ratio == max(alone)
    assert report.layers[0].call == 1 + alone.index(max(alone))
    assert len({*alone}) == 3
    assert max(alone) != alone[-1]


@pytest.mark.parametrize("mistaken", [PositionsFromZero, NoCache])
def test_mistakes_of_a_cache_are_found_at_the_first_decoded_token(mistaken):
    report = decoded(Model(mistaken))
    assert [row.path for row in report.wrong] == [LAYERS[1]]
    assert report.first.call == 2
    assert report.mended is None
    assert "in call 2 of 4" in str(report)


def test_a_cache_from_before_is_not_known():
    model, (ids, mask) = Model(), tokens()
    past = model(ids[:, :9], mask[:, :9])["past_key_values"]
    report = parity.audit(model, ids[:, 9:], mask, past)
    assert set(verdicts(report).values()) == {"not known"}
    assert "before this was watched" in report.layers[0].note
    assert not report


def test_a_training_step_runs_without_dropout_and_with_gradients():
    model, (ids, mask) = Model().train(), tokens()
    with parity.watch(model) as report:
        first = model(ids, mask)["logits"]
        second = model(ids, mask)["logits"]
        second.sum().backward()
    assert report
    assert torch.equal(first, second)
    assert model.training
    assert model.layers[0].self_attn.q_proj.weight.grad is not None
    assert not torch.equal(model(ids, mask)["logits"], model(ids, mask)["logits"])


def test_each_call_of_a_shared_layer_is_judged():
    model = Model()
    model.layers[1] = model.layers[2] = model.layers[0]
    report = parity.audit(model, *tokens())
    assert [(row.path, row.calls) for row in report.layers] == [(LAYERS[0], 3)]


def test_autocast_is_judged_in_the_dtype_that_is_computed_in():
    with torch.autocast("cpu", torch.bfloat16):
        report = parity.audit(Model(), *tokens())
        wrong = parity.audit(Model(Interleaved), *tokens())
    assert report
    assert [row.path for row in wrong.wrong] == [LAYERS[1]]


# What is true


def test_weights_are_judged_by_a_checkpoint(tmp_path):
    model, (ids, mask) = Model(), tokens()
    others = {"places": torch.arange(5)}  # of a dtype that no weight has
    safetensors.torch.save_file(model.state_dict() | others, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(model.config.to_json_string())
    wrong = Model()
    with torch.no_grad():
        wrong.layers[1].self_attn.o_proj.weight[3, 5] += 0.5
    renamed = {f"model.{name}": X for name, X in model.state_dict().items()}
    for like in (tmp_path, str(tmp_path), tmp_path / "model.safetensors", model.state_dict(), renamed, model):
        assert parity.audit(model, ids, mask, like=like)
        report = parity.audit(wrong, ids, mask, like=like)
        assert [row.path for row in report.wrong] == [LAYERS[1]]
        assert report.weighed
    assert "weights were not judged" not in str(parity.audit(model, ids, mask, like=model))
    assert parity.audit(wrong, ids, mask)
    less = {name: X for name, X in model.state_dict().items() if "layers.1." not in name}
    assert verdicts(parity.audit(model, ids, mask, like=less))[LAYERS[1]] == "not known"


def test_the_configuration_of_the_checkpoint_counts(tmp_path):
    model, other = Model(), small_llama.Config(rope_theta=500000.0)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(other.to_json_string())
    report = parity.audit(model, *tokens(), like=tmp_path)
    assert len(report.wrong) == 3
    assert "another base" in mistakes(report)


@pytest.mark.parametrize(
    ("like", "error", "words"),
    [
        (3, TypeError, "like is a int"),
        ("/nowhere/at/all", FileNotFoundError, "nowhere"),
        ({}, ValueError, "no attention layer"),
    ],
)
def test_like_that_is_nothing_of_the_kind_is_refused(like, error, words):
    with pytest.raises(error, match=words):
        parity.audit(Model(), *tokens(), like=like)


# The report as data, and the model afterwards


def test_a_wrong_layer_is_saved_as_a_case_file(tmp_path):
    report = parity.audit(Model(Interleaved), *tokens())
    report.first.save(tmp_path / "layer.safetensors")
    case = parity.case_files.read(tmp_path / "layer.safetensors")
    assert all(result.passed for result in parity.case_files.check(case, "numpy"))
    right = Model().layers[1].self_attn.q_proj.weight.detach().numpy().T
    assert np.array_equal(case.weights["W_q.kernel"], right)
    with pytest.raises(ValueError, match="is same; only a layer that differs is saved"):
        report.layers[0].save(tmp_path / "other.safetensors")


def test_the_report_is_json():
    found = json.loads(parity.audit(Model(Interleaved), *tokens()).to_json())
    assert not found["same"]
    assert found["first"] == LAYERS[1]
    assert [row["verdict"] for row in found["layers"]] == ["same", "differs", "same"]
    assert "interleaved" in found["layers"][1]["why"][0]
    assert "the model's output moves" in found["mended"]


def test_what_short_calls_do_not_show_is_said():
    ids, _ = tokens(T=5)
    report = parity.audit(Model(), ids)
    assert "the table of angles is too short" in {one.mistake for one in report.unseen}


def test_a_model_that_fails_stays_as_it_was(request):
    request.addfinalizer(lambda: torch.backends.mha.set_fastpath_enabled(True))
    model = Model().train()
    model.layers[2].mlp.register_forward_hook(lambda *given: 1 / 0)
    for fast in (False, True):
        torch.backends.mha.set_fastpath_enabled(fast)
        before = hooks(model)
        with pytest.raises(ZeroDivisionError):
            parity.audit(model, *tokens())
        assert hooks(model) == before
        assert torch.backends.mha.get_fastpath_enabled() == fast
        assert all(module.training for module in model.modules())


def hooks(model):
    """How many hooks each module has."""
    return [(len(one._forward_hooks), len(one._forward_pre_hooks)) for one in model.modules()]


@pytest.mark.parametrize("model", [3, "model", np.ones(3)])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(TypeError, match=r"model is a|models of numpy cannot be watched; give what .* to .*audit_taps"):
        parity.audit(model, 1)


@pytest.mark.parametrize("in_place", [False, True], ids=["wrapped", "in place"])
def test_a_compiled_model_is_judged_eagerly_and_the_report_says_so(in_place):
    model = Model(Interleaved)
    if in_place:
        model.layers[1].compile()
    else:
        model = torch.compile(model)
    report = parity.audit(model, *tokens())
    assert [row.path.replace("_orig_mod.", "") for row in report.wrong] == [LAYERS[1]]
    assert report.notes == ("the eager path was judged: what a compiler makes of the model was not",)
    assert not parity.audit(Model(Interleaved), *tokens()).notes


# Models inside of others


class Whole(Model):
    """A model as transformers knows it."""

    def save_pretrained(self, folder):
        """Write nothing."""


class Around(torch.nn.Module):
    """A model of one's own around another one, whose arguments have other names."""

    def __init__(self, inner):
        super().__init__()
        self.encoder, self.head = inner, torch.nn.Linear(37, 2)

    def forward(self, batch):
        return self.head(self.encoder(*batch)["logits"])


@pytest.mark.parametrize(("mistaken", "wrong"), [(Attention, []), (Interleaved, [f"encoder.{LAYERS[1]}"])])
def test_a_model_inside_of_another_one_is_judged_by_its_own_call(mistaken, wrong):
    ids, mask = tokens()
    for inner in (Whole(mistaken), Model(mistaken)):
        for like in (None, Model().state_dict()):
            mask = mask if isinstance(inner, Whole) else torch.ones_like(mask)  # which nothing else says
            report = parity.audit(Around(inner), (ids, mask), like=like)
            assert [row.path for row in report.wrong] == wrong, report
            assert not report.unknown


def test_parts_that_are_computed_again_do_not_count():
    model, (ids, mask) = Whole().train(), tokens()
    layer = model.layers[1]
    own = layer.forward
    layer.forward = lambda *given: torch.utils.checkpoint.checkpoint(own, *given, use_reentrant=False)
    with parity.watch(model) as report:
        model(ids, mask)["logits"].sum().backward()
    assert report
    assert [row.calls for row in report.layers] == [1, 1, 1]


def test_an_error_of_the_judge_is_no_error_of_the_model(monkeypatch):
    def fails(*given):
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr("mha.models.audit.watching.judge_texts", fails)
    report = parity.audit(Model(), *tokens())
    assert set(verdicts(report).values()) == {"not known"}
    assert "ZeroDivisionError: a mistake of ours" in report.layers[0].note
