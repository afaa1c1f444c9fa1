"""`mha.testing.assert_parity` with attention modules of `transformers`, which accept more arguments than they use."""

import pytest

import mha

BERT = {"hidden_size": 24, "num_attention_heads": 4, "attn_implementation": "eager"}
LLAMA = BERT | {"num_key_value_heads": 2, "head_dim": 6}


@pytest.fixture
def bert():
    """A module that computes the attention of BERT and returns (output, weights), and a layer with its weights."""
    import torch
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertAttention

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.attention = BertAttention(BertConfig(**BERT))

        def forward(self, hidden_states, attention_mask=None, **kwargs):
            output, weights = self.attention.self(hidden_states, attention_mask=attention_mask, **kwargs)
            return self.attention.output.dense(output), weights

    module = Attention()
    return module, mha.from_native(module.attention.state_dict(), scheme="bert", num_heads=4)


@pytest.fixture
def llama():
    """The attention of LLaMA, its rotation, and a layer with its weights."""
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    torch.manual_seed(0)
    config = LlamaConfig(**LLAMA)
    module = LlamaAttention(config, 0)
    base = config.rope_parameters["rope_theta"]
    options = {"num_heads": 4, "rotary": mha.Rotary(6, base)}
    return module, LlamaRotaryEmbedding(config), mha.from_native(module.state_dict(), scheme="llama", **options)


def added(mask):
    """A mask of mha as these modules add it to the scores."""
    import torch

    return None if mask is None else torch.where(mask, 0.0, torch.finfo(torch.float32).min)


def test_a_module_is_refused_until_somebody_makes_its_mask(bert):
    module, attention = bert
    with pytest.raises(TypeError, match=r"`attention_mask`.*lambda hidden_states, mask=None: port\(hidden_states, att"):
        mha.testing.assert_parity(module, attention=attention)
    with pytest.raises(TypeError, match="Attention hides keys by `attention_mask`"):
        mha.testing.assert_parity(module.attention.self, attention=attention)
    outcome = mha.testing.assert_parity(
        lambda hidden_states, mask=None: module.eval()(hidden_states, attention_mask=added(mask)),
        "torch", attention=attention, empty_rows=False,
    )  # fmt: skip
    assert {"float32, lengths per sample", "float32, causal", "float32, mask"} <= {*outcome.reports}
    assert all([row.name for row in report.rows] == ["weights", "output"] for report in outcome.reports.values())


def test_a_module_without_its_mask_is_compared_in_calls_that_hide_nothing(bert):
    module, attention = bert
    outcome = mha.testing.assert_parity(module, attention=attention, takes=())
    assert [*outcome.reports] == ["float32, no lengths"]
    assert outcome.left_out["float32, lengths per sample"] == "it takes no valid_lens"


def test_a_function_of_a_module_may_accept_all_that_it_does_not_use(bert):
    module, attention = bert

    def port(hidden_states, mask=None, past_key_values=None, **kwargs):
        return module.eval()(hidden_states, attention_mask=added(mask), past_key_values=past_key_values, **kwargs)

    assert len(mha.testing.assert_parity(port, "torch", attention=attention, empty_rows=False).reports) > 8

    def forgets(hidden_states, mask=None, **kwargs):
        return module.eval()(hidden_states, **kwargs)

    with pytest.raises(AssertionError, match="the mask is ignored"):
        mha.testing.assert_parity(forgets, "torch", attention=attention, empty_rows=False)


def test_a_decoder_that_rotates(llama):
    import torch

    module, rotation, attention = llama

    def port(hidden_states, mask=None, **kwargs):
        positions = torch.arange(hidden_states.shape[1])[None]
        turned = rotation(hidden_states, positions)
        return module.eval()(hidden_states, position_embeddings=turned, attention_mask=added(mask), **kwargs)

    outcome = mha.testing.assert_parity(port, "torch", attention=attention, causal=True, empty_rows=False)
    assert {"float32, long sequence", "float32, no lengths", "float32, mask"} <= {*outcome.reports}
    with pytest.raises(TypeError, match="LlamaAttention hides keys by `attention_mask`"):
        mha.testing.assert_parity(module, attention=attention)
