"""`training.activation_checkpointing: true` changes what is kept, not one bit of what is computed."""

import pytest
from tessera_runs import losses_and_norms, tessera, train, train_arguments, write_run_file

CHECKPOINTING = {"training.activation_checkpointing": "true"}
CONTIGUOUS = {"deepspeed.activation_checkpointing.partition_activations": "true",
              "deepspeed.activation_checkpointing.contiguous_memory_optimization": "true",
              "deepspeed.activation_checkpointing.number_checkpoints": 2,  # the tiny model's layers
              "deepspeed.activation_checkpointing.cpu_checkpointing": "true"}


@pytest.mark.sample("0-2", "3-1")
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("stage", [0, 3])
def test_loss_and_gradient_norm_have_the_bits_of_a_run_without(tiny_run, tmp_path, stage, accumulation):
    """Two ranks, dropout 0.1 as in the model's config.json."""
    run_file = write_run_file(tmp_path, tiny_run)
    settings = {"deepspeed.zero_optimization.stage": stage, "deepspeed.gradient_accumulation_steps": accumulation}
    train(run_file, 2, {**settings, "output": tmp_path / "without"})
    train(run_file, 2, {**settings, **CHECKPOINTING, "output": tmp_path / "with"})
    without = losses_and_norms(tmp_path / "without")
    assert len(without) == 10
    assert losses_and_norms(tmp_path / "with") == without


def test_the_kept_inputs_may_lie_in_one_buffer(tiny_run, tmp_path):
    tiny_run["data"]["padding"] = "longest"  # inputs of another size at each step
    run_file = write_run_file(tmp_path, tiny_run)
    profile = {"deepspeed.activation_checkpointing.profile": "true"}
    train(run_file, 2, {"output": tmp_path / "without"})
    result = train(run_file, 2, {**CHECKPOINTING, **CONTIGUOUS, **profile, "output": tmp_path / "with"})
    assert losses_and_norms(tmp_path / "with") == losses_and_norms(tmp_path / "without")
    assert "step 10: 2 activation checkpoints" in result.err, str(result)


def test_the_kept_inputs_may_lie_in_a_file(tiny_run, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    nvme = {"deepspeed.activation_checkpointing.nvme_path": disk, "deepspeed.aio.block_size": 4096}
    run_file = write_run_file(tmp_path, tiny_run)
    train(run_file, 2, {"output": tmp_path / "without"})
    train(run_file, 2, {**CHECKPOINTING, **nvme, "output": tmp_path / "with"})
    assert losses_and_norms(tmp_path / "with") == losses_and_norms(tmp_path / "without")
    assert list(disk.iterdir()) == []


def test_a_buffer_that_is_too_small_names_the_key(tiny_run, tmp_path):
    settings = {**CHECKPOINTING, **CONTIGUOUS, "deepspeed.activation_checkpointing.number_checkpoints": 1,
                "output": tmp_path / "out"}
    result = tessera(*train_arguments(write_run_file(tmp_path, tiny_run), 1, settings))
    assert result.code == 2, str(result)
    assert "activation_checkpointing.number_checkpoints" in result.err, str(result)
