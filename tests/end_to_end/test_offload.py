"""Offload of `tessera train`: the bits of a run without, and a model larger than memory, under a limit of the process's
memory (RLIMIT_DATA, which counts what a process may write to: heap, stacks and private mappings, not the mapped
libraries and weights)."""

import json
import resource

import pytest
from safetensors import safe_open
from tessera_runs import losses_and_norms, metrics, tessera, train, write_run_file

LIMIT = 384 << 20
LAYERS, HIDDEN = 32, 512


@pytest.fixture
def large_run(tiny_bert, texts, tmp_path):
    """BERT with 101 M parameters, whose 16 bytes a parameter are four times the limit."""
    config = json.loads((tiny_bert / "config.json").read_text())
    config.update(hidden_size=HIDDEN, intermediate_size=4 * HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=8)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config))
    params = LAYERS * (12 * HIDDEN * HIDDEN + 13 * HIDDEN)
    assert 16 * params >= 4 * LIMIT
    return write_run_file(tmp_path, {
        "model": {"path": str(model), "init": "random"}, "tokenizer": str(tiny_bert), "task": "mlm",
        "training": {"max_steps": 3, "async_save": False},
        "data": {"train": str(texts / "train.parquet"), "max_length": 32},
        "deepspeed": {"train_batch_size": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3},
                      "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}})


def limited():
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))


def nvme(path):
    block = {"device": "nvme", "nvme_path": str(path)}
    return {"offload_optimizer": {**block, "pipeline_read": True, "pipeline_write": True},
            "offload_param": {**block, "max_in_cpu": 0}, "sub_group_size": 1 << 20, "stage": 3,
            "stage3_max_live_parameters": 10_000_000}


def sets(path, output):
    zero = json.dumps(nvme(path))
    return ["--set", f"deepspeed.zero_optimization={zero}", "--set", f"output={output}"]


# Of the blocks offload_optimizer and offload_param.
DEVICES = [(1, "cpu", "none"), (1, "nvme", "none"), (2, "cpu", "none"), (2, "nvme", "none"), (3, "cpu", "none"), (3, "nvme", "none"),
           (3, "none", "cpu"), (3, "none", "nvme"), (3, "cpu", "cpu"), (3, "cpu", "nvme"), (3, "nvme", "cpu"), (3, "nvme", "nvme")]


@pytest.mark.sample("2")
@pytest.mark.parametrize("ranks", [1, 2])
def test_bert_has_the_same_bits_with_every_offload(tiny_run, tmp_path, ranks):
    """Thirty steps in bf16, dropout on, against stage 0 without offload."""
    run_file = write_run_file(tmp_path, tiny_run)
    swap = tmp_path / "swap"
    swap.mkdir()
    settings = {"training.max_steps": 30, "training.save_steps": 1000, "deepspeed.bf16.enabled": "true"}
    train(run_file, ranks, {**settings, "output": tmp_path / "base"})
    for stage, optimizer, param in DEVICES:
        zero = {"stage": stage, "sub_group_size": 4096}
        for block, device in (("offload_optimizer", optimizer), ("offload_param", param)):
            zero[block] = {"device": device, "nvme_path": str(swap)}
        zero["offload_param"]["max_in_cpu"] = 0
        zero["offload_optimizer"]["pipeline_read"] = stage != 2
        zero["stage3_max_live_parameters"] = 0 if optimizer == "nvme" else 10**9
        output = tmp_path / f"stage{stage}-{optimizer}-{param}"
        train(run_file, ranks, {**settings, "deepspeed.zero_optimization": json.dumps(zero), "output": output})
        assert losses_and_norms(output) == losses_and_norms(tmp_path / "base"), output.name
    assert not any(swap.iterdir())


def test_a_model_of_four_times_the_memory_trains_and_is_exported(large_run, tmp_path):
    swap = tmp_path / "swap"
    swap.mkdir()
    refused = tessera("train", large_run, preexec=limited, env={"OMP_NUM_THREADS": 1})
    assert refused.code == 2 and "ulimit" in refused.err, str(refused)
    assert "stage 3, optimizer and parameters on nvme" in refused.err and "would fit" in refused.err, str(refused)

    result = tessera("train", large_run, *sets(swap, tmp_path / "limited"), preexec=limited, env={"OMP_NUM_THREADS": 1},
                     timeout=300)
    assert result.code == 0, str(result)
    unlimited = tessera("train", large_run, "--set", f"output={tmp_path / 'unlimited'}", env={"OMP_NUM_THREADS": 1},
                        timeout=300)
    assert unlimited.code == 0, str(unlimited)
    assert [(line["loss"], line["grad_norm"]) for line in metrics(tmp_path / "limited")] == \
           [(line["loss"], line["grad_norm"]) for line in metrics(tmp_path / "unlimited")]
    assert not any(swap.iterdir())

    exported = tessera("checkpoint", "export", tmp_path / "limited/checkpoints", "--to", tmp_path / "hf", preexec=limited)
    assert exported.code == 0, str(exported)
    with safe_open(tmp_path / "hf/model.safetensors", "pt") as file:
        assert file.get_tensor("bert.encoder.layer.31.output.dense.weight").shape == (HIDDEN, 4 * HIDDEN)


def test_a_limit_of_the_configuration(large_run, tmp_path):
    """tessera.host_memory_limit: refused before anything begins; with the check off, when there is no more to be had."""
    def refusal(limit, check):
        result = tessera("train", large_run, "--set", f"deepspeed.tessera.host_memory_limit={limit}", "--set",
                         f"output={tmp_path / 'out'}", "--set", f"training.memory_check={check}", env={"OMP_NUM_THREADS": 1})
        assert result.code == 2, str(result)
        return result.err

    assert "a limit of 1.00 MB is less than" in refusal(1_000_000, "true")
    assert "its process limit (ulimit) leaves" in refusal(LIMIT, "true")
    assert "cannot allocate another" in refusal(LIMIT, "false")
