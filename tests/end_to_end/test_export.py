"""What Tessera exports is what transformers loads: the same names, tied weights, and a model that has learnt.

Everything here is judged by transformers, with masks made in the test.
"""

import pytest
import torch
from safetensors.torch import load_file
from tessera_runs import metrics, tessera, train, write_run_file
from transformers import AutoTokenizer, BertForMaskedLM


def load(folder):
    """The exported model; every key of the file is wanted and every wanted key is there."""
    model, info = BertForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model.eval()


def masked_loss(model, tokenizer, texts, seed=3):
    """Mean over 15% of the tokens, drawn here, each replaced by [MASK]."""
    encoded = tokenizer(texts, truncation=True, max_length=32, padding=True, return_tensors="pt")
    special = torch.isin(encoded.input_ids, torch.tensor(tokenizer.all_special_ids))
    drawn = torch.rand(encoded.input_ids.shape, generator=torch.Generator().manual_seed(seed)) < 0.15
    targets = drawn & ~special
    labels = encoded.input_ids.masked_fill(~targets, -100)
    encoded["input_ids"] = encoded.input_ids.masked_fill(targets, tokenizer.mask_token_id)
    with torch.no_grad():
        return model(**encoded, labels=labels).loss.item()


@pytest.fixture(scope="module")
def runs(minilm, data, tmp_path_factory):
    """Folder with `start` (MiniLM with its random head, after a step at learning rate 0) and `trained` (60 steps)."""
    folder = tmp_path_factory.mktemp("export")
    wikitext = data / "wikitext-2"
    run_file = write_run_file(folder, {
        "model": {"path": str(minilm), "init": "pretrained"},
        "task": "mlm",
        "data": {"train": str(wikitext / "train-00000-of-00001.parquet"), "max_length": 32},
        "training": {"max_steps": 60, "seed": 42},
        "deepspeed": {"train_batch_size": 8, "zero_optimization": {"stage": 3},
                      "optimizer": {"type": "AdamW", "params": {"lr": 2e-4, "weight_decay": 0.01}}},
        "output": "trained",
    })
    train(run_file, 2, {"training.max_steps": 1, "output": folder / "start", "deepspeed.optimizer.params.lr": 0})
    train(run_file, 2, {"output": folder / "trained"}, timeout=300)
    return folder


@pytest.fixture(scope="module")
def held_back(data):
    import pyarrow.parquet as pq

    table = pq.read_table(data / "wikitext-2" / "validation-00000-of-00001.parquet")
    return [text for text in table["text"].to_pylist() if len(text) > 80][:64]


def test_transformers_loads_every_key_and_ties_the_decoder(runs):
    model = load(runs / "trained" / "export")
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert torch.equal(model.cls.predictions.decoder.bias, model.cls.predictions.bias)


def test_a_step_at_learning_rate_0_leaves_the_pretrained_weights(runs, minilm):
    """Weight decay is scaled by the learning rate, so nothing may move."""
    exported, original = load_file(runs / "start" / "export" / "model.safetensors"), load_file(minilm / "model.safetensors")
    compared = 0
    for name, value in original.items():
        if name.startswith("pooler.") or "position_ids" in name:
            continue
        assert torch.equal(exported["bert." + name], value), name
        compared += 1
    assert compared == len([name for name in exported if name.startswith("bert.")]) == 5 + 6 * 16


def test_the_tokenizer_comes_along(runs, minilm):
    text = "The Tessera, a tile of a mosaic (1 of 22,700,000)."
    assert AutoTokenizer.from_pretrained(runs / "trained" / "export")(text) == AutoTokenizer.from_pretrained(minilm)(text)


def test_transformers_finds_a_lower_loss_on_held_back_text(runs, held_back, minilm):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    before = masked_loss(load(runs / "start" / "export"), tokenizer, held_back)
    after = masked_loss(load(runs / "trained" / "export"), tokenizer, held_back)
    assert 9 < before < 13  # a random head knows nothing: about ln(30522) = 10.3
    assert after < before - 1


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_the_checkpoint_command_exports_the_same_weights(runs, tmp_path, dtype):
    result = tessera("checkpoint", "export", runs / "trained" / "checkpoints", "--to", tmp_path / "out", "--dtype", dtype)
    assert result.code == 0, str(result)
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    expected = load_file(runs / "trained" / "export" / "model.safetensors")
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert exported.keys() == expected.keys()
    for name, value in exported.items():
        assert value.dtype == kind and torch.equal(value, expected[name].to(kind)), name
    assert load(tmp_path / "out").dtype == kind


def test_the_exported_model_can_be_trained_on(runs, tmp_path, data):
    """The head is there now, so nothing is random and the loss begins where the other run ended."""
    run_file = write_run_file(tmp_path, {
        "model": {"path": str(runs / "trained" / "export"), "init": "pretrained"},
        "task": "mlm",
        "data": {"train": str(data / "wikitext-2" / "train-00000-of-00001.parquet"), "max_length": 32},
        "training": {"max_steps": 2},
        "deepspeed": {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0}}},
        "output": "out",
    })
    result = train(run_file, 1)
    assert "not in the weights" not in result.err and "not in the model" not in result.err
    assert metrics(tmp_path / "out")[0]["loss"] < metrics(runs / "trained")[0]["loss"] - 1


def test_held_back_loss_is_reported_and_is_near_that_of_transformers(runs, tmp_path, held_back):
    """Other masks (80% [MASK], 10% random, 10% left), other draws: so only near."""
    (tmp_path / "held_back.txt").write_text("".join(text.strip() + "\n" for text in held_back))
    export = runs / "trained" / "export"
    run_file = write_run_file(tmp_path, {
        "model": {"path": str(export), "init": "pretrained"},
        "task": "mlm",
        "data": {"train": str(tmp_path / "held_back.txt"), "eval": str(tmp_path / "held_back.txt"), "max_length": 32},
        "training": {"max_steps": 1},
        "deepspeed": {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0}}},
        "output": "out",
    })
    reported = [float(train(run_file, ranks, {"output": tmp_path / f"out{ranks}"}).out.split("held-back text")[1].split()[0])
                for ranks in (1, 2)]
    assert reported[0] == pytest.approx(reported[1], abs=1e-4)  # however many ranks share it
    assert reported[0] == pytest.approx(masked_loss(load(export), AutoTokenizer.from_pretrained(export), held_back), rel=0.1)
