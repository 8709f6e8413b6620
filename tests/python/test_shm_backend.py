"""The shared-memory backend as torch.distributed sees it, beside gloo: the same collectives, the same results."""

from pathlib import Path

import pytest
from ranks import run_for_json, run_ranks

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("count", [2, 3])
def test_every_collective_gives_what_gloo_gives(count):
    expected = run_for_json(HERE / "shm_collectives.py", "gloo", count=count)
    got = run_for_json(HERE / "shm_collectives.py", "shm", count=count)
    for rank in range(count):
        assert len(got[rank][0]) > 250 and len(got[rank][0]) == len(expected[rank][0])
        for ours, theirs in zip(got[rank][0], expected[rank][0]):
            assert ours == theirs
        assert got[rank][1] == pytest.approx(expected[rank][1], rel=1e-6)


PROGRAM = """
import os, signal, torch, torch.distributed as dist, tessera.world
dist.init_process_group("shm")
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(100))
"""


def test_a_rank_that_dies_is_an_error_at_once_that_names_it(tmp_path):
    program = tmp_path / "dies.py"
    program.write_text(PROGRAM)
    said = run_ranks(program, fails=True, timeout=60)
    assert "rank 1 went away during _ALLGATHER_BASE" in said or "rank 1 went away during ALLREDUCE" in said


DEEPSPEED_PROGRAM = """
import torch, deepspeed
deepspeed.init_distributed(dist_backend="shm")
tensor = torch.full((3,), float(deepspeed.comm.get_rank() + 1))
deepspeed.comm.all_reduce(tensor)
print(torch.distributed.get_backend(), tensor.tolist())
"""


def test_deepspeed_programs_may_name_it(tmp_path):
    program = tmp_path / "names.py"
    program.write_text(DEEPSPEED_PROGRAM)
    assert run_ranks(program, timeout=60).strip().splitlines()[-1] == "shm [3.0, 3.0, 3.0]"
