"""A run that was stopped and resumed is the run that was never stopped, bit by bit."""

import json
import shutil
import signal

import pytest
from tessera_runs import (finish, largest_difference, losses_and_norms, metrics, start, steps_done, tessera, train,
                          train_arguments, wait_until, write_run_file)

STAGES = [0, 3]


def of_stage(stage):
    return {"deepspeed.zero_optimization.stage": stage}


@pytest.fixture(scope="module")
def folder(tiny_bert, texts, tmp_path_factory):
    """run.yaml: 50 steps of a tiny model with dropout; 20 steps an epoch, so that resuming crosses one. For each stage
    `whole<stage>`, never stopped, and `half<stage>`, ended after step 30."""
    folder = tmp_path_factory.mktemp("resume")
    run_file = write_run_file(folder, {
        "model": {"path": str(tiny_bert), "init": "pretrained"},
        "task": "mlm",
        "data": {"train": str(texts / "train.parquet"), "max_length": 32},
        "training": {"max_steps": 50, "save_steps": 1000},
        "deepspeed": {"train_batch_size": 20,
                      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
                      "scheduler": {"type": "WarmupDecayLR",
                                    "params": {"warmup_num_steps": 5, "total_num_steps": 50, "warmup_max_lr": 1e-3}}},
    })
    for stage in STAGES:
        train(run_file, 2, {**of_stage(stage), "output": folder / f"whole{stage}"})
        train(run_file, 2, {**of_stage(stage), "output": folder / f"half{stage}", "training.max_steps": 30})
    return folder


def copy_of_half(folder, stage, tmp_path):
    return shutil.copytree(folder / f"half{stage}", tmp_path / "out")


@pytest.mark.parametrize("stage", STAGES)
def test_steps_31_to_50_have_the_bits_of_the_run_that_was_not_stopped(folder, tmp_path, stage):
    output = copy_of_half(folder, stage, tmp_path)
    train(folder / "run.yaml", 2, {**of_stage(stage), "output": output}, resume="auto")
    resumed = losses_and_norms(output)
    assert len(resumed) == 50
    assert resumed == losses_and_norms(folder / f"whole{stage}")
    exported = [path / "export" / "model.safetensors" for path in (output, folder / f"whole{stage}")]
    assert exported[0].read_bytes() == exported[1].read_bytes()
    for key in ("lr", "epoch", "samples", "tokens"):
        assert [line[key] for line in metrics(output)] == [line[key] for line in metrics(folder / f"whole{stage}")]


def test_a_checkpoint_of_one_stage_resumes_at_another(folder, tmp_path):
    output = copy_of_half(folder, 0, tmp_path)
    train(folder / "run.yaml", 2, {**of_stage(3), "output": output}, resume="auto")
    assert losses_and_norms(output) == losses_and_norms(folder / "whole0")


def test_a_checkpoint_is_named_by_its_folder(folder, tmp_path):
    checkpoint = folder / "half3" / "checkpoints" / "global_step30"
    train(folder / "run.yaml", 2, {**of_stage(3), "output": tmp_path / "new"}, resume=checkpoint)
    lines = [json.loads(line) for line in (tmp_path / "new" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(31, 51))
    assert [(line["loss"].hex(), line["grad_norm"].hex()) for line in lines] == losses_and_norms(folder / "whole3", 31)


def test_metrics_of_steps_after_the_checkpoint_are_written_once(folder, tmp_path):
    """A run that is killed after step 35 and had saved at step 30 does steps 31 to 35 again."""
    output = copy_of_half(folder, 0, tmp_path)
    lines = (folder / "whole0" / "metrics.jsonl").read_text().splitlines(keepends=True)
    torn = lines[35][:20]
    (output / "metrics.jsonl").write_text("".join(lines[:35]) + torn)
    train(folder / "run.yaml", 2, {**of_stage(0), "output": output}, resume="auto")
    assert losses_and_norms(output) == losses_and_norms(folder / "whole0")


def test_nothing_is_left_to_do_when_the_run_is_complete(folder, tmp_path):
    output = shutil.copytree(folder / "whole0", tmp_path / "out")
    train(folder / "run.yaml", 2, {**of_stage(0), "output": output}, resume="auto")
    assert losses_and_norms(output) == losses_and_norms(folder / "whole0")


def test_auto_starts_where_there_is_nothing_to_resume(folder, tmp_path):
    train(folder / "run.yaml", 2, {**of_stage(0), "training.max_steps": 3, "output": tmp_path / "out"}, resume="auto")
    # the schedule's total_num_steps is given, so the first steps are those of the longer run
    assert losses_and_norms(tmp_path / "out") == losses_and_norms(folder / "whole0")[:3]


def flip_a_bit_of_a_weight(checkpoint):
    """Of its first shard; returns that file's name."""
    shard = sorted(checkpoint.glob("*.safetensors"))[0]
    content = bytearray(shard.read_bytes())
    header = int.from_bytes(content[:8], "little")
    names = json.loads(content[8:8 + header])
    name = next(name for name in names if name.startswith("weight/") and "encoder.layer.0" in name)
    content[8 + header + names[name]["data_offsets"][0] + 2] ^= 0x40  # a high bit of the first value's mantissa
    shard.write_bytes(content)
    return shard.name


def test_a_flipped_bit_is_an_error_where_the_checkpoint_is_named(folder, tmp_path):
    output = copy_of_half(folder, 0, tmp_path)
    checkpoint = output / "checkpoints" / "global_step30"
    shard = flip_a_bit_of_a_weight(checkpoint)
    result = tessera(*train_arguments(folder / "run.yaml", 2, {**of_stage(0), "output": output}, checkpoint))
    assert result.code == 2, str(result)
    assert shard in result.err and "damaged" in result.err, str(result)
    result = tessera("checkpoint", "verify", checkpoint)
    assert result.code == 2 and shard in result.err and "damaged" in result.err, str(result)

    # With nothing else to go back to, --resume auto does not begin anew in silence.
    for other in (output / "checkpoints").glob("global_step*"):
        if other != checkpoint:
            shutil.rmtree(other)
    result = tessera(*train_arguments(folder / "run.yaml", 2, {**of_stage(0), "output": output}, "auto"))
    assert result.code == 2, str(result)
    assert shard in result.err and "the only checkpoint here cannot be used" in result.err, str(result)


def test_resume_auto_goes_back_to_the_newest_whole_checkpoint(folder, tmp_path):
    """The last steps are taken again, with the same numbers."""
    settings = {**of_stage(0), "output": tmp_path / "out", "training.save_steps": 10, "training.max_steps": 30}
    train(folder / "run.yaml", 2, settings)
    damaged = tmp_path / "out" / "checkpoints" / "global_step30"
    shard = flip_a_bit_of_a_weight(damaged)
    listed = tessera("checkpoint", "ls", tmp_path / "out" / "checkpoints").out
    assert "global_step30" in listed and "global_step20" in listed, listed
    result = train(folder / "run.yaml", 2, {**settings, "training.max_steps": 50}, resume="auto")
    assert shard in result.err and "falling back to the newest intact checkpoint, global_step20" in result.err, str(result)
    assert losses_and_norms(tmp_path / "out") == losses_and_norms(folder / "whole0")


@pytest.mark.parametrize("ranks", [1, 4])
def test_another_number_of_ranks_goes_on_closely(folder, tmp_path, ranks):
    """Without dropout only the order of additions depends on the ranks."""
    settings = {**of_stage(3), "model.dropout": 0}
    train(folder / "run.yaml", 2, {**settings, "output": tmp_path / "whole"})
    train(folder / "run.yaml", 2, {**settings, "output": tmp_path / "out", "training.max_steps": 30})
    train(folder / "run.yaml", ranks, {**settings, "output": tmp_path / "out"}, resume="auto")
    assert losses_and_norms(tmp_path / "out")[:30] == losses_and_norms(tmp_path / "whole")[:30]
    assert largest_difference(metrics(tmp_path / "out"), metrics(tmp_path / "whole")) < 1e-4


def test_another_batch_size_goes_on_at_the_same_sample_or_is_refused(folder, tmp_path):
    """Step 30 is sample 200 of the second epoch's 400; with batches of 80 an epoch has 5 steps, of which none begins
    beyond its end, and none skips what the run has not seen."""
    output = copy_of_half(folder, 0, tmp_path)
    settings = {**of_stage(0), "output": output, "training.max_steps": 32, "deepspeed.train_batch_size": 80}
    result = tessera(*train_arguments(folder / "run.yaml", 2, settings, "auto"))
    assert "a bug in Tessera" not in result.err, str(result)
    assert result.code in (0, 2), str(result)
    if result.code == 0:
        last = metrics(output)[-1]
        assert last["samples"] == 600 + 2 * 80
        assert last["epoch"] == pytest.approx(1.9)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_run_goes_on_from_there(folder, tmp_path, number):
    output = tmp_path / "out"
    arguments = train_arguments(folder / "run.yaml", 2, {**of_stage(3), "output": output})
    process = start(*arguments)
    wait_until(lambda: steps_done(output) >= 5, "five steps")
    process.send_signal(number)
    result = finish(process, timeout=60)
    assert result.code == 0, str(result)  # a stop that was asked for is no failure
    assert "Traceback" not in result.err and "terminate called" not in result.err
    done = steps_done(output)
    assert 5 <= done < 50
    assert (output / "checkpoints" / "latest").read_text().strip() == f"global_step{done}"

    train(folder / "run.yaml", 2, {**of_stage(3), "output": output}, resume="auto")
    assert losses_and_norms(output) == losses_and_norms(folder / "whole3")


def test_ctrl_c_to_a_run_of_one_process_saves(folder, tmp_path):
    output = tmp_path / "out"
    process = start(*train_arguments(folder / "run.yaml", 1, {**of_stage(0), "output": output}))
    wait_until(lambda: steps_done(output) >= 5, "five steps")
    process.send_signal(signal.SIGINT)
    result = finish(process, timeout=60)
    assert result.code == 0, str(result)
    assert (output / "checkpoints" / "latest").read_text().strip() == f"global_step{steps_done(output)}"
