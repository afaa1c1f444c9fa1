"""Records of models of two frameworks, with other names and other orders of calls: the place of a mistake is named."""

import itertools

import numpy as np
import pytest
from recorded import PATHS, recorded

from mha import parity

from .verdicts import place

pytestmark = pytest.mark.all_backends
OTHERS = [name for name in PATHS if name != "torch"]
PLACES = {"scale": ("blocks.1.attention.o_proj", "input"), "eps": ("blocks.1.after", "output")}


@pytest.fixture(scope="module")
def torch_record():
    return recorded("torch", weights=True)


@pytest.mark.parametrize("framework", OTHERS)
def test_a_right_port_is_the_same_and_its_modules_are_paired(framework, torch_record, tmp_path):
    recorded(framework, path=tmp_path / "theirs", weights=True)
    for a, b in ((torch_record, tmp_path / "theirs"), (tmp_path / "theirs", torch_record)):
        report = parity.compare_records(a, b)
        assert report, report
        assert max(row.ratio for row in report.rows) < 0.75
    attention, norm = PATHS[framework]
    partners = parity.compare_records(torch_record, tmp_path / "theirs").partners
    assert partners["norm"] == norm
    assert [partners[f"blocks.{at}.attention"] for at in range(2)] == [attention.format(at) for at in range(2)]


@pytest.mark.parametrize(("framework", "mistake"), list(zip(OTHERS, itertools.cycle(PLACES), strict=False)))
def test_the_place_of_a_mistake_is_named(framework, mistake, torch_record):
    report = parity.compare_records(torch_record, recorded(framework, mistake))
    assert place(report) == PLACES[mistake], report
    assert report.first.ratio > 2, report
    assert report.first.other.startswith(PATHS[framework][0].format(1).rpartition(".")[0]), report


def test_queries_keys_and_values_in_another_order_are_paired_by_contents(torch_record):
    partners = parity.compare_records(torch_record, recorded("keras", "scale")).partners
    attention = "blocks.1.attention."
    assert [partners[f"{attention}{name}_proj"] for name in "qkv"] == [
        f"layers_.1.attend.to_{name}" for name in ("queries", "keys", "values")
    ]


def test_paths_pair_what_is_inside_of_them(torch_record):
    paths = {"blocks.{}.attention": "layers_.{}.attend"}
    report = parity.compare_records(torch_record, recorded("keras"), paths)
    assert report
    assert report.partners["blocks.1.attention"] == "layers_.1.attend"


def test_a_module_of_linen_wants_a_call():
    from recorded import of_linen

    message = r"whose parts only a call shows; .* call=\(variables, x\)"
    with pytest.raises(TypeError, match=message), parity.record(of_linen.Decoder()):
        pass


def test_a_reference_of_another_framework_is_not_called():
    import audited
    import torch
    from mlx.utils import tree_flatten

    one = audited.make("mlx.described", "scale")
    arrays = {name: torch.tensor(np.array(X)) for name, X in tree_flatten(one.model.parameters())}
    like = torch.nn.Module()  # it raises if it is called
    like.layers = torch.nn.ModuleList(torch.nn.ModuleDict({"self_attn": torch.nn.ModuleDict()}) for _ in range(2))
    for name, X in arrays.items():
        part, _, kernel = name.rpartition(".")
        place, _, last = part.rpartition(".")
        linear = torch.nn.Linear(X.shape[1], X.shape[0], bias=False)
        linear.load_state_dict({kernel: X})
        like.get_submodule(place)[last] = linear
    report = parity.audit(one.model, *one.args, like=like)
    assert [row.verdict for row in report.layers] == ["same", "differs"]
    assert report.truth == "the Module of like"
    assert report.mended.moved
    assert report.mended.explains == ""
