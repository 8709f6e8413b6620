"""What Tessera exports is what transformers loads: the same names, tied weights, and a model that has learnt.

Everything here is judged by transformers, with masks made in the test.
"""

import pytest
import torch
from model_folders import ENGLISH
from safetensors.torch import load_file
from tessera_runs import tessera, train, write_run_file
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
def trained(minilm_runs):
    return minilm_runs / "stage3"


@pytest.fixture(scope="module")
def start(minilm_runs):
    """MiniLM with the random head from which `trained` began: exported after a step at learning rate 0."""
    train(minilm_runs / "run.yaml", 2, {"training.max_steps": 1, "output": minilm_runs / "start",
                                        "deepspeed.optimizer.params.lr": 0, "deepspeed.zero_optimization.stage": 3})
    return minilm_runs / "start"


@pytest.fixture(scope="module")
def held_back():
    return [text for text in (ENGLISH / "held_back.txt").read_text().splitlines() if len(text) > 80][:64]


def test_transformers_loads_every_key_and_ties_the_decoder(trained):
    model = load(trained / "export")
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert torch.equal(model.cls.predictions.decoder.bias, model.cls.predictions.bias)


def test_a_step_at_learning_rate_0_leaves_the_pretrained_weights(start, minilm):
    """Weight decay is scaled by the learning rate, so nothing may move."""
    exported, original = load_file(start / "export" / "model.safetensors"), load_file(minilm / "model.safetensors")
    compared = 0
    for name, value in original.items():
        if name.startswith("pooler.") or "position_ids" in name:
            continue
        assert torch.equal(exported["bert." + name], value), name
        compared += 1
    assert compared == len([name for name in exported if name.startswith("bert.")]) == 5 + 6 * 16


def test_the_tokenizer_comes_along(trained, minilm):
    text = "The Tessera, a tile of a mosaic (1 of 22,700,000)."
    assert AutoTokenizer.from_pretrained(trained / "export")(text) == AutoTokenizer.from_pretrained(minilm)(text)


def test_transformers_finds_a_lower_loss_on_held_back_text(start, trained, held_back, minilm):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    before = masked_loss(load(start / "export"), tokenizer, held_back)
    after = masked_loss(load(trained / "export"), tokenizer, held_back)
    assert 9 < before < 13  # a random head knows nothing: about ln(30522) = 10.3
    assert after < before - 1


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_the_checkpoint_command_exports_the_same_weights(trained, tmp_path, dtype):
    result = tessera("checkpoint", "export", trained / "checkpoints", "--to", tmp_path / "out", "--dtype", dtype)
    assert result.code == 0, str(result)
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    expected = load_file(trained / "export" / "model.safetensors")
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert exported.keys() == expected.keys()
    for name, value in exported.items():
        assert value.dtype == kind and torch.equal(value, expected[name].to(kind)), name
    assert load(tmp_path / "out").dtype == kind


def test_the_exported_model_can_be_trained_on(trained, tmp_path, held_back):
    """The head is there now, so nothing is random, and the loss on held-back text begins near that which transformers
    finds: only near, as the masks are others (80% [MASK], 10% a random token, 10% left)."""
    (tmp_path / "held_back.txt").write_text("".join(text.strip() + "\n" for text in held_back))
    export = trained / "export"
    run_file = write_run_file(tmp_path, {
        "model": {"path": str(export), "init": "pretrained"},
        "task": "mlm",
        "data": {"train": str(tmp_path / "held_back.txt"), "eval": str(tmp_path / "held_back.txt"), "max_length": 32},
        "training": {"max_steps": 1, "eval_at_start": True},
        "deepspeed": {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}},
        "output": str(tmp_path / "out"),
    })
    result = train(run_file, 1)
    assert "not in the weights" not in result.err and "not in the model" not in result.err
    reported = float(result.out.split("held-out text")[1].split()[0])
    assert reported == pytest.approx(masked_loss(load(export), AutoTokenizer.from_pretrained(export), held_back), rel=0.1)


def weights_of(folder):
    """Of all files of an export, whatever its format."""
    weights = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".safetensors":
            weights.update(load_file(path))
        elif path.suffix == ".bin":
            weights.update(torch.load(path, weights_only=True))
    return weights


@pytest.mark.parametrize("format_, index", [("safetensors", "model.safetensors.index.json"),
                                            ("bin", "pytorch_model.bin.index.json")])
@pytest.mark.parametrize("size", ["5GB", "20MB"])
def test_files_cut_by_size_and_state_dicts_load_in_transformers(trained, tmp_path, format_, index, size):
    output = tmp_path / "export"
    result = tessera("checkpoint", "export", trained / "checkpoints", "--to", output, "--format", format_,
                     "--max-shard-size", size)
    assert result.code == 0, str(result)
    files = [path for path in output.iterdir() if path.suffix in (".safetensors", ".bin")]
    assert (output / index).exists() == (size == "20MB") == (len(files) > 1)
    largest_tensor = 30522 * 384 * 4
    assert all(path.stat().st_size < max(20e6, largest_tensor) * 1.01 for path in files) or size == "5GB"
    want, got = load(trained / "export").state_dict(), load(output).state_dict()
    assert all(torch.equal(got[name], value) for name, value in want.items())


def test_the_weights_alone_in_fp32(trained, tmp_path):
    """What DeepSpeed's zero_to_fp32 is for: shared tensors under all their names, nothing beside the weights."""
    output = tmp_path / "weights"
    result = tessera("checkpoint", "export", trained / "checkpoints", "--to", output, "--format", "bin", "--weights-only")
    assert result.code == 0, str(result)
    assert [path.name for path in output.iterdir()] == ["pytorch_model.bin"]
    weights, want = weights_of(output), load(trained / "export").state_dict()
    assert all(value.dtype == torch.float32 for value in weights.values())
    assert weights["cls.predictions.decoder.weight"].data_ptr() == weights["bert.embeddings.word_embeddings.weight"].data_ptr()
    assert all(torch.equal(weights[name], value) for name, value in want.items() if name in weights)
    assert set(want) - set(weights) <= {"bert.embeddings.position_ids"}


@pytest.mark.parametrize("option, value", [("--format", "onnx"), ("--max-shard-size", "5 elephants"), ("--dtype", "int4")])
def test_an_export_that_cannot_be_meant_is_refused(trained, tmp_path, option, value):
    result = tessera("checkpoint", "export", trained / "checkpoints", "--to", tmp_path / "export", option, value)
    assert result.code == 2 and value in result.err and option in result.err, str(result)
