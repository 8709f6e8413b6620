"""QLoRA from the command line: transformers, PEFT and bitsandbytes train alike, the same bits at every stage, bytes that are sharded."""

import json

import peft
import pytest
import test_causal_lm
import torch
import transformers
from fixtures import STAGES
from safetensors.torch import load_file
from tessera_runs import largest_difference, losses_and_norms, metrics, tessera, train, train_arguments, write_run_file
from test_adapters import TARGETS, peft_model, same_weights, trained_by_torch
from test_causal_lm import LETTERS

# Widths are multiples of 64, the block of NF4: see tests/kernels/test_nf4_parity.py.
MODELS = {
    "llama": (transformers.LlamaConfig, {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
                                         "num_key_value_heads": 2, "max_position_embeddings": 64}),
    "gpt2": (transformers.GPT2Config, {"n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
                                       "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}),
}
NF4 = {"model.quantization": "nf4"}


def run_of(folder, family, **data):
    return test_causal_lm.run_of(folder, family, models=MODELS, **data)[1]


def quantized_by_bitsandbytes(folder):
    how = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                          bnb_4bit_compute_dtype=torch.float32)
    return transformers.AutoModelForCausalLM.from_pretrained(folder / "model", quantization_config=how, dtype=torch.float32, device_map="cpu")


def nf4_bytes(numel):
    """Of the codes, the codes of the scales, the scales of those and the mean: Dettmers et al. 2023, section 3."""
    scales = -(-numel // 64)
    return 33 * scales + 4 * -(-scales // 256) + 4


@pytest.mark.sample("llama-dora")
@pytest.mark.parametrize("options", [{}, {"use_dora": True}], ids=["lora", "dora"])
@pytest.mark.parametrize("family", MODELS)
def test_bitsandbytes_trains_alike(tmp_path, family, options):
    run_file = run_of(tmp_path, family, packing="none")
    base = quantized_by_bitsandbytes(tmp_path)
    kept = sum(parameter.dtype == torch.uint8 for parameter in base.parameters())
    assert kept == {"llama": 14, "gpt2": 8}[family]  # all linear layers of the blocks, and no other
    adapted = peft_model(base, tmp_path / "adapter", family, **options).train()  # in evaluation bitsandbytes computes in bf16 on some CPUs
    outputs = {(stage, ranks): tmp_path / f"stage{stage}-{ranks}" for stage in (0, 3) for ranks in (1, 2)}
    for (stage, ranks), output in outputs.items():
        train(run_file, ranks, {**NF4, "output": output, "deepspeed.zero_optimization.stage": stage, "adapter.path": tmp_path / "adapter"})
    train(run_file, 1, {"output": tmp_path / "full", "adapter.path": tmp_path / "adapter"})
    assert len({str(losses_and_norms(outputs[stage, 2])) for stage in (0, 3)}) == 1
    want = trained_by_torch(adapted)
    assert want[-1] < 0.95 * want[0]
    for output in outputs.values():
        assert [row["loss"] for row in metrics(output)] == pytest.approx(want, rel=1e-5)
        same_weights(load_file(output / "export" / "adapter_model.safetensors"), peft.get_peft_model_state_dict(adapted))
    # Beside full weights the losses are others: what was compared was quantized.
    assert abs(metrics(tmp_path / "full")[0]["loss"] / want[0] - 1) > 1e-4
    again = peft.PeftModel.from_pretrained(quantized_by_bitsandbytes(tmp_path), str(outputs[3, 2] / "export"))
    same_weights(peft.get_peft_model_state_dict(again), peft.get_peft_model_state_dict(adapted))


@pytest.mark.parametrize("family", MODELS)
def test_a_new_dora_begins_with_the_lengths_of_the_rows_that_are_kept(tmp_path, family):
    """Those of the weights made whole again, so that nothing changes at first."""
    run_file = run_of(tmp_path, family, packing="none")
    one_step = {**NF4, "training.max_steps": 1, "deepspeed.optimizer.params.lr": 0, "adapter.rank": 4}
    for dora in ("false", "true"):
        train(run_file, 2, {**one_step, "output": tmp_path / dora, "adapter.use_dora": dora, "deepspeed.zero_optimization.stage": 3})
    assert metrics(tmp_path / "true")[0]["loss"] == pytest.approx(metrics(tmp_path / "false")[0]["loss"], rel=1e-6)
    adapted = peft.get_peft_model(quantized_by_bitsandbytes(tmp_path), peft.LoraConfig(task_type="CAUSAL_LM", r=4, use_dora=True, target_modules=TARGETS[family]))
    want = {name: value for name, value in peft.get_peft_model_state_dict(adapted).items() if name.endswith("magnitude_vector")}
    got = load_file(tmp_path / "true" / "export" / "adapter_model.safetensors")
    full = load_file(tmp_path / "model" / "model.safetensors")
    assert len(want) == 2 * len(TARGETS[family])
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-5, atol=0)
        weight = full[name.removeprefix("base_model.model.").replace("lora_magnitude_vector", "weight")]
        assert (value / weight.norm(dim=0 if family == "gpt2" else 1) - 1).abs().max() > 1e-3  # those before were others


@pytest.mark.sample("dora")
@pytest.mark.parametrize("dora", ["false", "true"], ids=["lora", "dora"])
def test_the_same_bits_at_every_stage_and_offloaded(tmp_path, dora):
    run_file = run_of(tmp_path, "llama", packing="fill")
    more = {**NF4, "adapter.use_dora": dora, "deepspeed.train_batch_size": 8, "training.max_steps": 6, "adapter.rank": 4, "adapter.dropout": 0.1, "deepspeed.bf16.enabled": "true"}
    for stage in STAGES:
        train(run_file, 2, {**more, "deepspeed.zero_optimization.stage": stage, "output": tmp_path / f"stage{stage}"})
    bits = [losses_and_norms(tmp_path / f"stage{stage}") for stage in STAGES]
    assert len(bits[0]) == 6 and bits[0][0] != bits[0][-1]
    assert bits[1:] == [bits[0]] * 3
    offload = "deepspeed.zero_optimization.offload_"
    (tmp_path / "swap").mkdir()
    nvme = {f"{offload}{what}.{key}": value for what in ("optimizer", "param") for key, value in (("device", "nvme"), ("nvme_path", tmp_path / "swap"))}
    for name, others in {"cpu": {f"{offload}optimizer.device": "cpu", f"{offload}param.device": "cpu"},
                         "nvme": {**nvme, f"{offload}param.max_in_cpu": 0},
                         "let go": {"deepspeed.zero_optimization.stage3_max_live_parameters": 0},
                         "recomputed": {"training.activation_checkpointing": "true"}}.items():
        train(run_file, 2, {**more, **others, "deepspeed.zero_optimization.stage": 3, "output": tmp_path / name})
        assert losses_and_norms(tmp_path / name) == bits[0], name


def state_of(run_file, output, ranks, stage, **more):
    train(run_file, ranks, {"output": output, "training.max_steps": 1, "adapter.rank": 4, "deepspeed.zero_optimization.stage": stage, **more})
    return metrics(output)[-1]["model_state_bytes"]


def test_the_bytes_of_a_rank_are_those_of_the_formula(tmp_path):
    run_file = run_of(tmp_path, "llama", packing="fill")
    h, kv, ffn, vocab, layers, rank = 64, 32, 128, len(LETTERS), 2, 4
    matrices = [(h, h), (kv, h), (kv, h), (h, h), (ffn, h), (ffn, h), (h, ffn)]
    quantized = layers * sum(nf4_bytes(rows * columns) for rows, columns in matrices)
    whole = 4 * (2 * vocab * h + h + layers * 2 * h)  # embeddings, head and norms in fp32
    adapter = layers * sum(rank * (rows + columns) for rows, columns in matrices)
    padding = 32 * 4 * 100  # at most, of all parameters
    for stage, ranks, want in ((0, 1, quantized + whole + 16 * adapter), (0, 2, quantized + whole + 16 * adapter),
                               (2, 2, quantized + whole + 4 * adapter + 12 * adapter / 2), (3, 2, (quantized + whole + 16 * adapter) / 2)):
        got = state_of(run_file, tmp_path / f"{stage}-{ranks}", ranks, stage, **NF4)
        assert want <= got < want + padding, (stage, ranks, got, want)
    full = state_of(run_file, tmp_path / "full", 1, 0)
    numel = layers * sum(rows * columns for rows, columns in matrices)
    assert full - state_of(run_file, tmp_path / "again", 1, 0, **NF4) == pytest.approx(4 * numel - quantized, abs=padding)


def test_a_run_resumes_to_the_same_bits(tmp_path):
    run_file = run_of(tmp_path, "llama", packing="fit")
    more = {**NF4, "deepspeed.train_batch_size": 4, "adapter.rank": 4}
    train(run_file, 2, {**more, "training.max_steps": 10, "deepspeed.zero_optimization.stage": 3, "output": tmp_path / "whole"})
    train(run_file, 2, {**more, "training.max_steps": 4, "deepspeed.zero_optimization.stage": 3, "output": tmp_path / "parts"})
    train(run_file, 2, {**more, "training.max_steps": 10, "deepspeed.zero_optimization.stage": 1, "output": tmp_path / "parts"}, resume="auto")
    assert losses_and_norms(tmp_path / "parts") == losses_and_norms(tmp_path / "whole")
    shown = tessera("checkpoint", "show", tmp_path / "parts" / "checkpoints").out
    assert "trainable parameters only" in shown and "lora_A.weight" in shown and "q_proj.weight" not in shown, shown
    result = train(run_file, 2, {**more, "model.quantization": "none", "training.max_steps": 11, "output": tmp_path / "parts"}, resume="auto")
    assert "was trained beside weights of model.quantization nf4, and this run's is none" in result.err, str(result)


# Of heads of 64, so that what a rank's heads give is whole blocks of 64; 320 features are 5 of them.
CUT_MODELS = {
    "llama": (transformers.LlamaConfig, {"hidden_size": 64, "intermediate_size": 320, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 64,
                                         "num_key_value_heads": 2, "max_position_embeddings": 64}),
    "gpt2": (transformers.GPT2Config, {**MODELS["gpt2"][1], "n_embd": 256, "n_inner": 320}),
}


@pytest.mark.sample("llama-dora")
@pytest.mark.parametrize("dora", ["false", "true"], ids=["lora", "dora"])
@pytest.mark.parametrize("family", CUT_MODELS)
def test_tensor_ranks_have_parts_of_the_bytes_of_one_process(tmp_path, family, dora):
    run_file = test_causal_lm.run_of(tmp_path, family, models=CUT_MODELS, packing="fill")[1]
    more = {**NF4, "adapter.rank": 4, "adapter.use_dora": dora, "deepspeed.train_batch_size": 4, "training.max_steps": 20, "deepspeed.optimizer.params.lr": 3e-4}
    train(run_file, 1, {**more, "output": tmp_path / "one"})
    want, state = metrics(tmp_path / "one"), {}
    for tensor, ranks in ((2, 4), (4, 4)):
        for stage in (0, 3):
            output = tmp_path / f"{tensor}-{stage}"
            train(run_file, ranks, {**more, "parallel.tensor": tensor, "deepspeed.zero_optimization.stage": stage, "output": output})
            assert largest_difference(metrics(output), want) < 1e-5, (tensor, stage)
            state[tensor, stage] = metrics(output)[-1]["model_state_bytes"]
        assert losses_and_norms(tmp_path / f"{tensor}-0") == losses_and_norms(tmp_path / f"{tensor}-3")
    train(run_file, 1, {**more, "model.quantization": "none", "output": tmp_path / "full"})
    assert largest_difference(metrics(tmp_path / "full")[:1], want[:1]) > 1e-4  # what was compared was quantized
    assert state[2, 3] < 0.55 * state[2, 0] < 0.4 * want[-1]["model_state_bytes"]
    # Over other tensor ranks the run goes on as one process.
    parts = tmp_path / "parts"
    for steps, ranks, tensor in ((6, 2, 2), (12, 4, 4), (20, 1, 1)):
        train(run_file, ranks, {**more, "parallel.tensor": tensor, "training.max_steps": steps, "output": parts}, **({"resume": "auto"} if steps > 6 else {}))
    assert largest_difference(metrics(parts), want) < 1e-5


def test_what_ends_within_a_block_is_not_cut(tmp_path):
    run_file = run_of(tmp_path, "llama")
    result = tessera(*train_arguments(run_file, 2, {**NF4, "adapter.rank": 4, "parallel.tensor": 2, "output": tmp_path / "out"}))
    assert result.code == 2 and "has 32 columns, and NF4 keeps 64 numbers of a row together" in result.err, str(result)


def test_modules_that_are_trained_whole_are_not_quantized(tmp_path):
    run_file = run_of(tmp_path, "llama")
    train(run_file, 1, {**NF4, "output": tmp_path / "out", "training.max_steps": 2, "adapter.rank": 4, "adapter.targets": "q_proj",
                        "adapter.modules_to_save": "[lm_head, down_proj]"})
    weights = load_file(tmp_path / "out" / "export" / "adapter_model.safetensors")
    assert weights["base_model.model.model.layers.1.mlp.down_proj.weight"].shape == (64, 128)
    assert all(weight.dtype == torch.float32 for weight in weights.values())


def test_an_adapter_is_merged_into_full_weights_and_that_is_said(tmp_path):
    run_file = run_of(tmp_path, "llama")
    train(run_file, 1, {**NF4, "output": tmp_path / "out", "training.max_steps": 3, "adapter.rank": 4})
    result = tessera("checkpoint", "merge", tmp_path / "out" / "export", "--to", tmp_path / "merged")
    assert result.code == 0 and "full precision" in result.out + result.err, str(result)
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    want = peft.PeftModel.from_pretrained(base, str(tmp_path / "out" / "export")).merge_and_unload().state_dict()
    for name, value in transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").state_dict().items():
        torch.testing.assert_close(value, want[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("settings, what", [
    ({"model.quantization": "nf4"}, "quantized weights cannot be trained: there is no adapter to train"),
    ({"model.quantization": "nf5", "adapter.rank": 4}, "nf4"), ({"model.quantisation": "nf4", "adapter.rank": 4}, "did you mean 'quantization'?"),
    ({"model.quantization": "nf4", "adapter.rank": 4, "adapter.modules_to_save": "[model]"}, "no frozen linear layer whose weight could be quantized"),
], ids=str)
def test_what_makes_no_sense_is_refused(tmp_path, settings, what):
    run_file = run_of(tmp_path, "llama")
    result = tessera(*train_arguments(run_file, 1, {"output": tmp_path / "out", **settings}))
    assert result.code == 2, str(result)
    assert what in result.err, str(result)


def test_the_dry_run_and_the_estimate_count_quantized_weights(tmp_path):
    run_file = run_of(tmp_path, "llama")
    numel = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64)  # of two layers
    result = tessera(*train_arguments(run_file, 1, {**NF4, "adapter.rank": 4, "output": tmp_path / "out"}), "--dry-run")
    assert result.code == 0 and f"{numel:,} of them as NF4" in result.out, str(result)

    def rows(*flags):
        report = json.loads(tessera("estimate", "--model", tmp_path / "model", "--dtype", "fp32", "--lora", 4, "--json", *flags).out)
        terms = [{term["what"]: term["bytes"] for term in row["terms"]} for row in report["rows"] if row["stage"] == 0]
        return report["model"], terms[0]
    model, quantized = rows("--quantization", "nf4")
    assert (model["quantized"], model["trained"]) == (numel, 2 * 4 * (2 * (64 + 64) + 2 * (32 + 64) + 3 * (128 + 64)))
    _, full = rows()
    kept = 2 * (2 * nf4_bytes(64 * 64) + 2 * nf4_bytes(32 * 64) + 3 * nf4_bytes(128 * 64))
    assert full["parameters"] - quantized["parameters"] == 4 * numel - kept
    assert quantized["dequantized weight"] == 4 * 128 * 64 and "dequantized weight" not in full
    refused = tessera("estimate", "--model", tmp_path / "model", "--quantization", "nf4")
    assert refused.code == 2 and "there is no adapter" in refused.err, str(refused)


@pytest.fixture(scope="module")
def larger_model(tmp_path_factory):
    """111 M parameters, 103 M of them in linear layers, in bf16."""
    folder = tmp_path_factory.mktemp("larger")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=8192, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
                                      num_key_value_heads=16, max_position_embeddings=256, tie_word_embeddings=True)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(LETTERS) + "\n")
    (folder / "train.txt").write_text((" ".join("abcdefghijklmnopqrstuvwxyz" * 10) + "\n") * 16)
    return folder


@pytest.mark.sample("3-True-nf4")
@pytest.mark.parametrize("stage, recomputes, quantization", [(0, False, "nf4"), (3, True, "nf4"), (0, True, "none")], ids=str)
def test_the_peak_is_what_the_estimate_says(tmp_path, larger_model, stage, recomputes, quantization):
    deepspeed = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                 "zero_optimization": {"stage": stage, "stage3_max_live_parameters": 0}}
    run_file = write_run_file(tmp_path, {
        "model": {"path": str(larger_model), "quantization": quantization}, "task": "clm", "adapter": {"rank": 8},
        "data": {"train": str(larger_model / "train.txt"), "max_length": 256},
        "training": {"max_steps": 2, "device": "cpu", "activation_checkpointing": recomputes}, "deepspeed": deepspeed})
    train(run_file, 1, {"output": tmp_path / "out"}, timeout=300)
    peak = metrics(tmp_path / "out")[-1]["peak_memory_bytes"]
    (tmp_path / "ds_config.json").write_text(json.dumps(deepspeed))
    flags = ["--activation-checkpointing"] if recomputes else []
    result = tessera("estimate", "--model", larger_model, "--lora", 8, "--quantization", quantization, "--config", tmp_path / "ds_config.json",
                     "--length", 256, "--json", *flags)
    assert result.code == 0, str(result)
    estimate = json.loads(result.out)["config"]
    assert estimate["bytes"]["device"] == pytest.approx(peak, rel=0.1), estimate["terms"]
