"""A run that hangs is ended by the time-out of a wait, with a table of what each rank waits for and where it is."""

import os
import re
import signal
import subprocess
import sys

import pytest
from test_causal_lm import run_of
from test_expert_parallel import MODELS as MIXTURES
from test_tensor_parallel import MODELS
from tessera_runs import (REPOSITORY, TESSERA, environment, finish, free_port, rank_pids, start, steps_done, train_arguments, wait_until,
                          write_run_file)

PYTHON = {"PYTHONPATH": os.pathsep.join([str(TESSERA.parent / "python"), str(REPOSITORY / "python" / "deepspeed")]),
          "OMP_NUM_THREADS": 1, "TESSERA_TIMEOUT": 4}

PROGRAM = """
import sys, time
import torch
import deepspeed

def reads_where_a_test_looks(rank, step):
    while rank == 1 and step == 2:
        time.sleep(0.1)
    return torch.ones(2, 4)

deepspeed.init_distributed("gloo")
model = torch.nn.Linear(4, 4)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": int(sys.argv[1])}})
for step in range(4):
    loss = engine(reads_where_a_test_looks(engine.global_rank, step)).sum()
    engine.backward(loss)
    engine.step()
"""


@pytest.mark.parametrize("stage", [1, 3])
def test_a_python_program_of_which_a_rank_never_comes_back_from_its_data(tmp_path, stage):
    pytest.importorskip("torch")
    if not list((TESSERA.parent / "python" / "tessera").glob("_core*")):
        pytest.skip("tessera for Python is not built")
    (tmp_path / "program.py").write_text(PROGRAM)
    result = finish(start("launch", "--nproc", 2, "--no_python", sys.executable, "-u", "program.py", stage, cwd=tmp_path,
                          env=PYTHON), timeout=90)
    assert result.code == 1, str(result)
    assert result.err.count("What each rank waits for") == 1, str(result)
    assert re.search(r"rank 1 is not waiting in a collective: .*; the others wait for that", result.err), str(result)
    assert re.search(r'File ".*program.py", line \d+ in reads_where_a_test_looks', result.err), str(result)


def test_a_python_program_of_which_a_rank_never_comes(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, "-u", "program.py", "1"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=environment(**{**PYTHON, "RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
                         "TESSERA_TIMEOUT": 12}))
    result = finish(process, timeout=90)
    assert result.code == 1, str(result)
    assert re.search(r"warning: rank 1 did not join the run yet \(127.0.0.1:\d+, a run of 2 ranks\); waiting for another 2\.00 s", result.err), str(result)
    assert "rank 1 did not join the run within 12 s; rank 0 did" in result.err, str(result)


ONE_FEWER = """
import sys
import torch
import deepspeed

deepspeed.init_distributed("gloo")
model = torch.nn.Linear(4, 4)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": int(sys.argv[1])}})
for _ in range(4 - engine.global_rank):
    engine.backward(engine(torch.ones(2, 4)).sum())
    engine.step()
if sys.argv[2] == "goes on":
    torch.distributed.barrier()
elif sys.argv[2] == "saves":
    engine.save_checkpoint("checkpoints")
"""


@pytest.mark.sample("goes on-3", "saves-1")
@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize(("then", "said"), [
    ("ends", "rank 1 went away during the reduce-scatter of 'model': its process has ended"),
    ("goes on", "rank 1 did not join the reduce-scatter of 'model' within 4.00 s; rank 1 is not waiting in a collective"),
    ("saves", "rank 0 is waiting in the reduce-scatter of 'model' (number 3); rank 1 is waiting in the exchange of 'what a checkpoint keeps'"),
], ids=["ends", "goes on", "saves"])
def test_a_rank_that_has_one_batch_fewer_is_named(tmp_path, stage, then, said):
    """DeepSpeed's threads #7044 and #7844: there it hangs."""
    (tmp_path / "program.py").write_text(ONE_FEWER)
    result = finish(start("launch", "--nproc", 2, "--no_python", sys.executable, "-u", "program.py", stage, then, cwd=tmp_path, env=PYTHON),
                    timeout=90)
    assert result.code == 1 and said in result.err, str(result)
    assert ("  before: rank 1 had ended well, with code 0\n" in result.err) == (then == "ends"), str(result)


FAILS_AND_GOES_ON = """
import torch
import deepspeed

deepspeed.init_distributed("gloo")
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}})
for step in range(3):
    try:
        loss = engine(torch.ones(2, 3 if step == engine.global_rank == 1 else 4)).sum()
    except RuntimeError as error:
        print("caught:", type(error).__name__)
        continue
    engine.backward(loss)
    engine.step()
"""


def test_a_rank_whose_forward_fails_and_that_goes_on_is_told_of_the_others_alone(tmp_path):
    """The forward in which it learns of them fails before its modules are announced: their hooks after it are called all the same."""
    (tmp_path / "program.py").write_text(FAILS_AND_GOES_ON)
    result = finish(start("launch", "--nproc", 2, "--no_python", sys.executable, "-u", "program.py", cwd=tmp_path, env=PYTHON), timeout=90)
    assert "caught: RuntimeError" in result.out and "caught: PeerError" in result.out, str(result)
    assert "ranks wait for each other in different places" in result.err, str(result)
    assert "bug in Tessera" not in result.err, str(result)


def test_a_rank_of_tessera_train_that_is_stopped(tiny_run, tmp_path):
    output = tmp_path / "out"
    run_file = write_run_file(tmp_path, {**tiny_run, "training": {"max_steps": 100_000}})
    launcher = start(*train_arguments(run_file, 2, {"output": output}), env={"TESSERA_TIMEOUT": 3})
    wait_until(lambda: steps_done(output) >= 3, "three steps")
    os.kill(rank_pids(launcher.pid)[1], signal.SIGSTOP)
    result = finish(launcher, timeout=60)
    assert result.code == 1, str(result)
    assert result.err.count("What each rank waits for") == 1, str(result)
    assert "rank 1 does not answer: stopped, too busy, or gone" in result.err, str(result)
    assert re.search(r"^ +0 +\S+ +\w[\w-]+ of '[^']+' +\d+ +world", result.err, re.MULTILINE), str(result)
    assert "tessera::train::" in result.err, str(result)  # where rank 0 is


AXES = pytest.mark.parametrize(("family", "settings", "place", "behind"), [
    ("qwen2", {"parallel.tensor": 2}, "rank 3 (dp_shard 1, tp 1)", "2 (dp_shard 1, tp 0)"),
    ("qwen2", {"parallel.pipeline": 2, "deepspeed.train_micro_batch_size_per_gpu": 1}, "rank 3 (pp 1, dp_shard 1)", "1 (pp 0, dp_shard 1)"),
    ("qwen2", {"parallel.context": 2}, "rank 3 (dp_shard 1, cp 1)", "2 (dp_shard 1, cp 0)"),
    ("mixtral", {"parallel.expert": 2}, "rank 3 (dp_shard 1, ep 1)", "2 (dp_shard 1, ep 0)"),
], ids=["tensor", "pipeline", "context", "expert"])


def with_signal_to_rank_3(folder, family, settings, sent, code):
    """What a run of four ranks says whose rank 3 gets that signal, and which ends with that exit code."""
    _, run_file = run_of(folder, family, {**MODELS, **MIXTURES}, packing="fill")
    output = folder / "out"
    never = {"training.max_steps": 100_000, "training.save_steps": 100_000}  # so that no rank is in a checkpoint
    launcher = start(*train_arguments(run_file, 4, {"output": output, "deepspeed.train_batch_size": 4, **never, **settings}),
                     env={"TESSERA_TIMEOUT": 3})
    wait_until(lambda: steps_done(output) >= 3, "three steps")
    os.kill(rank_pids(launcher.pid)[3], sent)
    result = finish(launcher, timeout=60)
    assert result.code == code, str(result)
    return result


@AXES
def test_a_killed_rank_of_a_model_that_ranks_share_is_named_with_its_place(tmp_path, family, settings, place, behind):
    result = with_signal_to_rank_3(tmp_path, family, settings, signal.SIGKILL, 128 + signal.SIGKILL)
    assert f"{place} went away during the" in result.err, str(result)


@AXES
def test_a_stopped_rank_of_a_model_that_ranks_share_is_named_with_its_place(tmp_path, family, settings, place, behind):
    """Of the other ranks of its axis of the model, and of its data axis."""
    result = with_signal_to_rank_3(tmp_path, family, settings, signal.SIGSTOP, 1)
    assert f"{place} does not answer: stopped, too busy, or gone" in result.err, str(result)
    assert behind in result.err, str(result)
