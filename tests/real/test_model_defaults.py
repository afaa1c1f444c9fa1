"""What a `config.json` leaves out is what the configuration classes of `transformers` put there.

A file with three names, and the whole file that their class makes of it, describe the same layers.
"""

import json

import pytest

from mha.weights import models
from mha.weights.models.kinds import GATED, KINDS, NOT_ROTATING
from mha.weights.models.plain import PLAIN

SAID = {"num_attention_heads": 8, "hidden_size": 64, "num_hidden_layers": 8}
ELSEWHERE = "ministral3", "qwen2_vl", "qwen2_5_vl", *NOT_ROTATING  # a file of Ministral 3 has to say its temperature
HYBRID = {"granitemoehybrid": {"layer_types": [*["mamba"] * 3, "attention"] * 2}}  # by default, no layer has attention
ROTATING = "llama", "neox", "phi3", "phi", "modernbert"
CASES = [(scheme, kind, {}) for scheme in ROTATING for kind in KINDS[scheme] if kind not in ELSEWHERE]
CASES += [("opt", "lfm2", {}), ("opt", "lfm2_moe", {}), ("bert", "esm", {"position_embedding_type": "rotary"})]
# GPT-NeoX has the base under another name. In transformers 5.23, the base that a file of OLMo 3 says counts for layers
# without a window only, since `convert_rope_params_to_dict` pops it twice; in ours it is that of all layers.
CASES += [(scheme, kind, {"rope_theta": 7.0}) for scheme, kind, _ in CASES if kind not in ("gpt_neox", "olmo3")]


@pytest.mark.parametrize(("scheme", "kind", "more"), CASES)
def test_what_a_file_leaves_out_is_what_their_class_puts_there(scheme, kind, more):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    said = SAID | HYBRID.get(kind, {}) | more
    whole = json.loads(CONFIG_MAPPING[kind](**said).to_json_string(use_diff=False))
    for layer in (3, 7) if kind in (*GATED, *HYBRID) else range(8):  # their other layers have no softmax
        prefix = f"model.layers.{layer}.self_attn."
        found, expected = (
            models.options_in(model, scheme, prefix)
            for model in (json.loads(json.dumps(said | {"model_type": kind})), whole)
        )
        if "num_key_value_heads" not in found:  # the arrays show it
            expected.pop("num_key_value_heads", None)
        if "scale" not in found and "scale" in expected:
            assert expected.pop("scale") == pytest.approx(found["key_dim"] ** -0.5)
        assert found == expected


PLAIN_KINDS = [(scheme, kind) for scheme in PLAIN for kind in PLAIN[scheme]]


@pytest.mark.parametrize(("scheme", "kind"), PLAIN_KINDS)
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_plain_kinds_have_the_heads_of_their_class(scheme, kind, stack):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    said = {"attention_type": "original_full"} if kind == "big_bird" else {}
    config, prefix = CONFIG_MAPPING[kind](**said), f"{stack}.layers.1.self_attn."
    found = models.options_in(said | {"model_type": kind}, scheme, prefix)
    for difference in (False, True):
        whole = json.loads(config.to_json_string(use_diff=difference))
        assert models.options_in(whole | {"model_type": kind}, scheme, prefix) == found
