"""LoRA and DoRA from the command line: PEFT's own training, its folders in both directions, the same bits at every stage, merged models."""

import json
import re

import peft
import pytest
import torch
import transformers
from fixtures import STAGES
from safetensors.torch import load_file
from tessera_runs import losses_and_norms, metrics, tessera, train, train_arguments
from test_causal_lm import DOCUMENTS, LETTERS, run_of

TARGETS = {"llama": ["q_proj", "v_proj", "down_proj"], "gpt2": ["c_attn", "c_fc"]}


def peft_model(model, folder, family, **options):
    """The model with an adapter whose matrices are all random, and the adapter's folder."""
    torch.manual_seed(3)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=12, target_modules=TARGETS[family],
                                                         init_lora_weights=False, fan_in_fan_out=family == "gpt2", **options))
    adapted.save_pretrained(str(folder))
    return adapted


def trained_by_torch(model, steps=20):
    """The losses of a plain loop over the documents, all in each step."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0)
    cls, sep, first = (LETTERS.index(token) for token in ("[CLS]", "[SEP]", "a"))
    rows = [torch.tensor([[cls, *(first + letter for letter in document), sep]]) for document in DOCUMENTS]
    losses = []
    for _ in range(steps):
        sums = [torch.nn.functional.cross_entropy(model(row).logits[0, :-1], row[0, 1:], reduction="sum") for row in rows]
        loss = sum(sums) / sum(row.shape[1] - 1 for row in rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def same_weights(got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.sample("llama-3", "gpt2-0", "dora of gpt2-3")
@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("family, options", [("llama", {}), ("gpt2", {}), ("llama", {"use_rslora": True, "modules_to_save": ["lm_head"]}),
                                             ("llama", {"use_dora": True}), ("gpt2", {"use_dora": True, "use_rslora": True})],
                         ids=["llama", "gpt2", "rslora and a whole module", "dora", "dora of gpt2"])
def test_peft_trains_alike(tmp_path, family, options, stage):
    model, run_file = run_of(tmp_path, family, packing="none")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    adapted = peft_model(model, tmp_path / "adapter", family, **options)
    train(run_file, 2, {"output": tmp_path / "out", "deepspeed.zero_optimization.stage": stage, "adapter.path": tmp_path / "adapter"})
    want = trained_by_torch(adapted)
    assert [row["loss"] for row in metrics(tmp_path / "out")] == pytest.approx(want, rel=1e-5)
    assert want[-1] < 0.95 * want[0]
    export = tmp_path / "out" / "export"
    same_weights(load_file(export / "adapter_model.safetensors"), peft.get_peft_model_state_dict(adapted))
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    again = peft.PeftModel.from_pretrained(base, str(export))
    same_weights(peft.get_peft_model_state_dict(again), peft.get_peft_model_state_dict(adapted))
    row = torch.arange(5, 15)[None]
    torch.testing.assert_close(again(row).logits, adapted(row).logits, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(value, before[name]) for name, value in transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict().items())
    shown = tessera("checkpoint", "show", tmp_path / "out" / "checkpoints").out
    assert ("lora_magnitude_vector" in shown) == ("use_dora" in options), shown
    assert "trainable parameters only" in shown and "lora_A.weight" in shown and "embed_tokens" not in shown and "wte.weight [" not in shown, shown


@pytest.mark.sample("dora")
@pytest.mark.parametrize("dora", ["false", "true"], ids=["lora", "dora"])
def test_the_same_bits_at_every_stage_and_offloaded(tmp_path, dora):
    _, run_file = run_of(tmp_path, "llama", packing="fill")
    more = {"deepspeed.train_batch_size": 8, "training.max_steps": 6, "adapter.rank": 4, "adapter.dropout": 0.1, "adapter.use_dora": dora,
            "deepspeed.bf16.enabled": "true"}
    for stage in STAGES:
        train(run_file, 2, {**more, "deepspeed.zero_optimization.stage": stage, "output": tmp_path / f"stage{stage}"})
    bits = [losses_and_norms(tmp_path / f"stage{stage}") for stage in STAGES]
    assert len(bits[0]) == 6 and bits[0][0] != bits[0][-1]
    assert bits[1:] == [bits[0]] * 3
    for name, others in {"offloaded": {"deepspeed.zero_optimization.offload_optimizer.device": "cpu", "deepspeed.zero_optimization.offload_param.device": "cpu"},
                         "recomputed": {"training.activation_checkpointing": "true"}}.items():
        train(run_file, 2, {**more, **others, "deepspeed.zero_optimization.stage": 3, "output": tmp_path / name})
        assert losses_and_norms(tmp_path / name) == bits[0], name


def test_a_new_adapter_changes_nothing_at_first(tmp_path):
    model, run_file = run_of(tmp_path, "llama", packing="none")
    train(run_file, 1, {"output": tmp_path / "out", "training.max_steps": 1, "adapter.rank": 8})
    assert metrics(tmp_path / "out")[0]["loss"] == pytest.approx(trained_by_torch(model, 1)[0], rel=1e-5)
    config = json.loads((tmp_path / "out" / "export" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (8, 16)  # alpha: twice the rank where nothing is said
    assert sorted(config["target_modules"]) == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    weights = load_file(tmp_path / "out" / "export" / "adapter_model.safetensors")
    a = weights["base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"]
    assert a.shape == (8, 64) and a.abs().max() < 1 / 8 + 0.01 and a.std() == pytest.approx(1 / 8 / 3 ** 0.5, rel=0.1)  # uniform in 1 / sqrt(64)


@pytest.mark.sample("fp32-llama", "bf16-gpt2")
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("precision", [{}, {"deepspeed.bf16.enabled": "true"}], ids=["fp32", "bf16"])
def test_a_new_dora_begins_with_the_lengths_of_the_rows(tmp_path, family, precision):
    model, run_file = run_of(tmp_path, family, packing="none")
    one_step = {**precision, "training.max_steps": 1, "deepspeed.optimizer.params.lr": 0}
    train(run_file, 2, {**one_step, "output": tmp_path / "whole"})
    train(run_file, 2, {**one_step, "output": tmp_path / "out", "adapter.rank": 4, "adapter.use_dora": "true", "deepspeed.zero_optimization.stage": 3})
    assert metrics(tmp_path / "out")[0]["loss"] == pytest.approx(metrics(tmp_path / "whole")[0]["loss"], rel=5e-3 if precision else 1e-6)
    config = json.loads((tmp_path / "out" / "export" / "adapter_config.json").read_text())
    assert config["use_dora"] is True
    weights = load_file(tmp_path / "out" / "export" / "adapter_model.safetensors")
    layer = {"llama": "model.layers.1.mlp.down_proj", "gpt2": "transformer.h.1.mlp.c_fc"}[family]
    weight = model.get_parameter(f"{layer}.weight")
    torch.testing.assert_close(weights[f"base_model.model.{layer}.lora_magnitude_vector"], weight.norm(dim=0 if family == "gpt2" else 1).detach(), rtol=1e-5, atol=0)


def test_what_a_dora_trains_is_counted(tmp_path):
    _, run_file = run_of(tmp_path, "llama", packing="none")
    trained = []
    for dora in ("false", "true"):
        result = train(run_file, 1, {"output": tmp_path / dora, "training.max_steps": 1, "adapter.rank": 4, "adapter.targets": "q_proj", "adapter.use_dora": dora})
        trained.append(int(re.search("an adapter of ([\\d,]+) parameters", result.err)[1].replace(",", "")))
    assert trained == [2 * 4 * (32 + 32), 2 * 4 * (32 + 32) + 2 * 32]  # two layers; a magnitude for each of 32 rows


@pytest.mark.sample("lora")
@pytest.mark.parametrize("dora", ["false", "true"], ids=["lora", "dora"])
def test_a_run_resumes_to_the_same_bits(tmp_path, dora):
    _, run_file = run_of(tmp_path, "llama", packing="fit")
    more = {"deepspeed.train_batch_size": 4, "deepspeed.zero_optimization.stage": 3, "adapter.rank": 4, "adapter.use_dora": dora}
    train(run_file, 2, {**more, "training.max_steps": 10, "output": tmp_path / "whole"})
    train(run_file, 2, {**more, "training.max_steps": 4, "output": tmp_path / "parts"})
    train(run_file, 2, {**more, "training.max_steps": 10, "output": tmp_path / "parts"}, resume="auto")
    assert losses_and_norms(tmp_path / "parts") == losses_and_norms(tmp_path / "whole")


@pytest.mark.sample("lora-gpt2", "dora-llama")
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("options", [{}, {"use_dora": True}], ids=["lora", "dora"])
def test_merged_models(tmp_path, family, options):
    model, _ = run_of(tmp_path, family)
    adapted = peft_model(model, tmp_path / "adapter", family, **options)
    if options:
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "magnitude" in name:
                    parameter.mul_(torch.linspace(0.5, 1.5, len(parameter)))  # else they are the lengths that there are
        adapted.save_pretrained(str(tmp_path / "adapter"))
    result = tessera("checkpoint", "merge", tmp_path / "adapter", "--model", tmp_path / "model", "--to", tmp_path / "merged")
    assert result.code == 0, str(result)
    merged, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not any(info.values()), info
    want = adapted.merge_and_unload().state_dict()
    for name, value in merged.state_dict().items():
        torch.testing.assert_close(value, want[name], rtol=1e-6, atol=1e-6)
    assert tessera("checkpoint", "verify", tmp_path / "merged").code == 0
    texts = [tessera("generate", "--prompt", "a b c", "--max-new-tokens", 8, *flags).out for flags in (
        ["--model", tmp_path / "merged"], ["--model", tmp_path / "model", "--adapter", tmp_path / "adapter"], ["--model", tmp_path / "model"])]
    assert texts[0] == texts[1] != texts[2], texts


def test_generate_from_an_exported_adapter(tmp_path):
    _, run_file = run_of(tmp_path, "llama", packing="none")
    train(run_file, 1, {"output": tmp_path / "out", "training.max_steps": 3, "adapter.rank": 4})
    result = tessera("generate", "--model", tmp_path / "out" / "export", "--prompt", "a b", "--max-new-tokens", 4)
    assert result.code == 0 and result.out.startswith("a b"), str(result)


@pytest.mark.parametrize("settings, what", [
    ({"adapter.rank": 4, "adapter.targets": "q_prok"}, "no linear layer of the model is called 'q_prok'"),
    ({"adapter.rank": 4, "adapter.modules_to_save": "heed"}, "no module of the model is called 'heed'"),
    ({"adapter.rank": -1}, "adapter.rank"), ({"adapter.path": "nowhere"}, "adapter_config.json"),
    ({"adapter.rank": 4, "adapter.dropout": 1}, "adapter.dropout"),
    ({"adapter.rank": 4, "adapter.use_dora": "true", "adapter.targets": "embed_tokens"}, "no linear layer of the model is called 'embed_tokens'"),
], ids=str)
def test_what_makes_no_sense_is_refused(tmp_path, settings, what):
    _, run_file = run_of(tmp_path, "llama")
    result = tessera(*train_arguments(run_file, 1, {"output": tmp_path / "out", **settings}))
    assert result.code == 2, str(result)
    assert what in result.err, str(result)


@pytest.mark.parametrize("change, what", [
    ({"peft_type": "IA3"}, "the adapter is of type 'IA3'"), ({"lora_bias": True}, "'lora_bias', which is not supported"), ({"bias": "all"}, "trains biases"),
    ({"rank_pattern": {"q_proj": 8}}, "'rank_pattern', which is not supported"), ({"r": 0}, "'r' is 0"), ({"target_modules": None}, "names none"),
    ({"r": 5}, "has shape"),
], ids=str)
def test_adapters_that_are_not_supported_are_refused(tmp_path, change, what):
    model, run_file = run_of(tmp_path, "llama")
    peft_model(model, tmp_path / "adapter", "llama")
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    result = tessera(*train_arguments(run_file, 1, {"output": tmp_path / "out", "adapter.path": tmp_path / "adapter"}))
    assert result.code == 2, str(result)
    assert what in result.err, str(result)


def test_a_dora_without_its_magnitudes_is_not_merged(tmp_path):
    model, _ = run_of(tmp_path, "llama")
    peft_model(model, tmp_path / "adapter", "llama")
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "use_dora": True}))
    result = tessera("checkpoint", "merge", tmp_path / "adapter", "--model", tmp_path / "model", "--to", tmp_path / "merged")
    assert result.code == 2 and "the adapter has no magnitude of 'model.layers.0.mlp.down_proj'" in result.err, str(result)
    assert not (tmp_path / "merged").exists()


def test_an_adapter_of_another_model_is_not_merged(tmp_path):
    model, _ = run_of(tmp_path, "llama")
    peft_model(model, tmp_path / "adapter", "llama")
    (tmp_path / "other").mkdir()
    run_of(tmp_path / "other", "gpt2")
    result = tessera("checkpoint", "merge", tmp_path / "adapter", "--model", tmp_path / "other" / "model", "--to", tmp_path / "merged")
    assert result.code == 2 and "and the model no such weight" in result.err, str(result)
    assert not (tmp_path / "merged").exists()
