"""What an engine tells the programs that ask, as DeepSpeed does."""

import json
import subprocess
from pathlib import Path

import pytest
from peers import PYTHON, run_deepspeed_for_json
from ranks import run_for_json


@pytest.fixture(scope="module")
def told():
    return run_for_json(Path(__file__).with_name("told_runs.py"))


def test_the_gradient_norm_is_a_tensor_and_infinite_where_the_step_was_skipped(told):
    found = told["gradient_norms"]
    skipped = found["skipped"]
    assert skipped > 2
    assert found["kinds"] == ["NoneType", *["float"] * skipped, "Tensor", "Tensor"]
    assert found["values"][:skipped] == ["inf"] * skipped
    assert all(0 < float(value) < 100 for value in found["values"][skipped:])


def test_small_parameters_can_be_read_at_any_time_at_stage_3(told):
    names = ["small.weight", "small.bias", *(f"blocks.{block}.{name}" for block in (0, 1) for name in ("0.weight", "0.bias", "1.bias"))]
    assert told["small_parameters"] == {"torch.float32": names, "torch.bfloat16": names}
    none, without_the_matrix, first = told["small_parameters_within_limits"]
    assert none == []
    assert without_the_matrix == names[1:]
    assert first == ["small.weight", "small.bias"]


def numbers_in(line):
    """{name: milliseconds} of a line of wall_clock_breakdown."""
    parts = line.split(" | ")
    assert parts[0] == "time (ms)", line
    return {name: float(value) for name, value in (part.split(": ") for part in parts[1:] if "mem_" not in part and "peak" not in part)}


def test_wall_clock_breakdown_prints_the_times_of_micro_batches_and_steps(told):
    found = told["step_times"]
    assert found["none"] == []
    micro, whole = ["fwd_microstep", "bwd_microstep", "step_microstep"], ["fwd", "bwd", "step"]
    times = [numbers_in(line) for line in found["times"]]
    assert [[*each] for each in times] == [micro, micro, whole] * 2
    for first, second, step in (times[:3], times[3:]):
        for part, of_micro in zip(whole, micro):
            assert step[part] > 0
            assert step[part] == pytest.approx(first[of_micro] + second[of_micro], rel=0.2, abs=0.05)
    assert all("mem_allocated" in line for line in found["memory"]) and len(found["memory"]) == 6


def test_the_comms_logger_has_the_engines_collectives(told):
    """Two ranks: of each unit the whole gradient is reduced, and the whole unit comes together, half of it a message."""
    found = told["collectives"]
    bytes_of_units = [(4 * 12 + 12) * 4, *[(12 * 12 + 12 + 2 * 12) * 4] * 2]  # `small`, with the root; two blocks
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        sizes = {int(size): count for size, count in found["by stage"]["1"][name].items()}
        if name == "all_gather_into_tensor":
            assert sizes.pop(8 * (1 + 10)) == 1  # the step's squares of the norm, and which of the ten parameters had a gradient
        assert sum(sizes.values()) == 3
        padded = sum(2 * size * count for size, count in sizes.items())
        assert sum(bytes_of_units) <= padded < 4 * sum(bytes_of_units)  # parameters and shards are padded
    assert list(found["by stage"]["3"]) == ["reduce_scatter_tensor"]
    assert found["table"][0].split()[:2] == ["Comm.", "Op"] and "reduce_scatter_tensor" in found["table"]
    assert not found["off"]


MACS = 2 * (4 * 12 + 2 * 12 * 12)  # two rows through three linear layers
PARAMS = 4 * 12 + 12 + 2 * (12 * 12 + 12 + 2 * 12)


@pytest.mark.parametrize("stage", ["0", "3"])
def test_the_flops_profiler_counts_the_step_that_it_is_told_to(told, stage):
    before, at, after = told["flops_of_a_step"][stage]
    assert before == after == []
    assert at[0] == "Flops profile of step 1"
    assert f"{'parameters:':<40} {PARAMS}" in at
    assert f"{'forward MACs:':<40} {MACS} MACs" in at
    assert any(line.startswith("backward time:") for line in at) and any(line.startswith("step time:") for line in at)
    assert any("0.1 (Linear)" in line or "1 (Linear)" in line for line in at)
    linear = next(line for line in at if line.strip().startswith("small (Linear)"))
    assert f"{2 * 4 * 12}  {100 * 2 * 4 * 12 / MACS:.1f}%" in linear
    assert "MACs      Linear" in "\n".join(at)


def test_the_profile_goes_into_a_file(told):
    lines = told["flops_of_a_step"]["file"]
    assert lines[0] == "Flops profile of step 0" and not any("(Linear)" in line for line in lines)


TIMES = ["forward", "backward", "step"]


def test_csv_files_have_the_events_of_each_step_and_go_on(told):
    found = told["monitors"]
    assert found["enabled"] and sorted(found["csv"]) == sorted(
        [f"Train_Samples_elapsed_time_ms_{part}.csv" for part in TIMES] + ["Train_Samples_lr.csv"])
    # 2 ranks of 2 rows and 2 micro batches; then another engine of the same folder
    assert found["csv"]["Train_Samples_lr.csv"] == "step,lr\n8,0.1\n16,0.1\n8,0.1\n"
    header, *rows = found["csv"]["Train_Samples_elapsed_time_ms_forward.csv"].splitlines()
    assert header == "step,elapsed_time_ms_forward" and [row.split(",")[0] for row in rows] == ["8", "16"]
    assert all(float(row.split(",")[1]) > 0 for row in rows)


def test_one_event_file_is_written_by_rank_0(told):
    (name, content), = told["monitors"]["board"].items()
    assert name.startswith("events.out.tfevents.")
    content = bytes.fromhex(content)
    assert b"brain.Event:2" in content and content.count(b"Train/Samples/lr") == 2


@pytest.mark.peers
@pytest.mark.skipif(not PYTHON.exists(), reason="reads with TensorBoard itself: make peers-test")
def test_tensorboard_reads_the_events(told, tmp_path):
    (name, content), = told["monitors"]["board"].items()
    (tmp_path / name).write_bytes(bytes.fromhex(content))
    text = ("import json, sys\n"
            "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
            "events = EventAccumulator(sys.argv[1])\nevents.Reload()\n"
            "print(json.dumps({tag: [[each.step, each.value] for each in events.Scalars(tag)] for tag in events.Tags()['scalars']}))\n")
    result = subprocess.run([PYTHON, "-c", text, tmp_path], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert sorted(found) == sorted([f"Train/Samples/elapsed_time_ms_{part}" for part in TIMES] + ["Train/Samples/lr"])
    assert found["Train/Samples/lr"] == [[8, pytest.approx(0.1)], [16, pytest.approx(0.1)]]
    assert "DATA_LOSS" not in result.stderr


def test_the_profile_of_a_model(told):
    found = told["model_profiles"]
    assert found["numbers"] == [2 * MACS, MACS, PARAMS]
    assert found["text"] == ["1.34 K", f"{MACS} MACs", f"{PARAMS}"]
    assert found["lines"][0] == "Flops profile of step 1" and found["trains"] is False


@pytest.mark.peers
@pytest.mark.skipif(not PYTHON.exists(), reason="compares with DeepSpeed itself: make peers-test")
def test_the_macs_and_parameters_of_a_model_are_deepspeeds():
    """Products, convolutions and attention; what DeepSpeed counts of activations and norms besides are no MACs."""
    program = Path(__file__).with_name("profile_peer.py")
    ours, theirs = run_for_json(program, count=1), run_deepspeed_for_json(program, count=1)
    assert ours == theirs and all(macs > 0 for macs, _ in ours)


def test_a_schedule_without_an_optimizer_is_left_out(told):
    """As DeepSpeed does: transformers' Trainer takes the optimizer out of a configuration that it evaluates with, and not the schedule."""
    found = told["schedule_without_optimizer"]
    assert found["found"] == [None, [2, 1]]
    assert found["said"].count("'scheduler' is not used, since there is no optimizer") == 1


@pytest.mark.parametrize("stage", range(4))
def test_no_sync_says_once_where_it_reduces_all_the_same(told, stage):
    assert told["no_sync"][str(stage)].count("are reduced in each backward all the same") == (1 if stage >= 2 else 0)


def test_the_version_is_in_the_log_of_those_who_listen(told):
    found = told["version"]
    assert "DeepSpeed info: version=0.19.8+tessera, git-hash=" in found["said"]
    assert "DeepSpeed info" not in found["quiet"]
