"""T5 in C++ against transformers on the same weights: logits, loss and every parameter's gradient, fp32. The folders are made here with
transformers itself, tiny and random."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from test_causal_parity import TOOL as CAUSAL_TOOL
from test_causal_parity import VOCAB, run_tool

TOOL = CAUSAL_TOOL.parent / "seq2seq_logits_tool"
SMALL = {"vocab_size": VOCAB, "d_model": 48, "d_kv": 12, "d_ff": 80, "num_layers": 3, "num_heads": 4, "dropout_rate": 0.0, "decoder_start_token_id": 0}
MODELS = {
    "t5": SMALL,
    "t5-1.1": {**SMALL, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "uneven": {**SMALL, "num_decoder_layers": 2, "d_kv": 20, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20},
    "silu": {**SMALL, "feed_forward_proj": "gated-silu", "decoder_start_token_id": 3, "pad_token_id": 2},
}


def make_model(name):
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**MODELS[name])).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def make_input(length=41, targets=23, **more):
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(5, VOCAB, (2, targets), generator=generator)
    labels[1, targets - 6:] = -100
    return {"input_ids": torch.randint(5, VOCAB, (2, length), generator=generator), "labels": labels, **more}


def expect_equal(model, inputs, got):
    logits = model(**inputs).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten(), reduction="sum")
    loss.backward()
    logits = logits.detach()  # as large as 100 where they are not scaled
    torch.testing.assert_close(got["logits"], logits, rtol=1e-5, atol=1e-5 * max(1, logits.abs().max().item()))
    torch.testing.assert_close(got["loss_sum"], loss.detach(), rtol=1e-5, atol=1e-5)
    for name, parameter in model.named_parameters():
        scale = parameter.grad.abs().max().item()
        torch.testing.assert_close(got["grad/" + name], parameter.grad, rtol=1e-5, atol=1e-5 * scale,
                                   msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("length", [41, 300])  # beyond the largest distance that has a bucket of its own
@pytest.mark.parametrize("name", MODELS)
def test_logits_loss_and_gradients_agree(tmp_path, name, length):
    model = make_model(name)
    model.save_pretrained(tmp_path / "model")
    inputs = make_input(length)
    got, said = run_tool(tmp_path / "model", inputs, tmp_path, tool=TOOL)
    assert said == []
    expect_equal(model, inputs, got)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(tmp_path, side):
    model = make_model("t5")
    model.save_pretrained(tmp_path / "model")
    mask = torch.ones(2, 41, dtype=torch.int64)
    mask[1, slice(0, 13) if side == "left" else slice(27, None)] = 0
    inputs = make_input(attention_mask=mask)
    got, _ = run_tool(tmp_path / "model", inputs, tmp_path, tool=TOOL)
    expect_equal(model, inputs, got)


def test_an_output_layer_of_its_own(tmp_path):
    """Folders of T5 1.1 as they were published: tie_word_embeddings is false, and lm_head.weight is in the weights."""
    model = make_model("t5-1.1")
    model.save_pretrained(tmp_path / "model")
    head = torch.randn_like(model.lm_head.weight)
    weights = load_file(tmp_path / "model" / "model.safetensors")
    save_file({**weights, "lm_head.weight": head}, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config.pop("scale_decoder_outputs", None)
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    inputs = make_input()
    got, said = run_tool(tmp_path / "model", inputs, tmp_path, tool=TOOL)
    assert said == []
    hidden = model(**inputs, output_hidden_states=True).decoder_hidden_states[-1]
    torch.testing.assert_close(got["logits"], (hidden @ head.T).detach(), rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("change, what", [
    ({"feed_forward_proj": "gated-nothing"}, "the activation 'nothing', is not supported"), ({"d_kv": 0}, "'d_kv' is 0"),
    ({"decoder_start_token_id": VOCAB}, "decoder_start_token_id is 131"), ({"relative_attention_max_distance": 9}, "leaves no distances"),
], ids=str)
def test_what_makes_no_sense_is_refused(tmp_path, change, what):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "t5", **SMALL, **change}))
    with pytest.raises(AssertionError, match=what):
        run_tool(tmp_path / "model", make_input(), tmp_path, tool=TOOL)
