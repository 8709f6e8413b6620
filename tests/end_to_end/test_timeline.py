"""`tessera train --trace`: the file that it writes, against what the run is known to do."""

import json
from collections import Counter

import pytest
from tessera_runs import tessera, train_arguments, write_run_file
from test_causal_lm import run_of
from test_tensor_parallel import MODELS

LAYERS, STEPS, ACCUMULATION = 2, 3, 2


@pytest.fixture(scope="module")
def traces(tiny_bert, texts, tmp_path_factory):
    """By stage: the complete events of two ranks."""
    found = {}
    for stage in (1, 3):
        folder = tmp_path_factory.mktemp(f"stage{stage}")
        run_file = write_run_file(folder, {
            "model": {"path": str(tiny_bert), "init": "random"}, "task": "mlm", "output": str(folder / "out"),
            "data": {"train": str(texts / "train.parquet"), "max_length": 32}, "training": {"max_steps": STEPS, "seed": 1},
            "deepspeed": {"train_batch_size": 8, "gradient_accumulation_steps": ACCUMULATION,
                          "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
                          "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}})
        result = tessera(*train_arguments(run_file, 2), "--trace", folder / "timeline.json", cwd=folder)
        assert result.code == 0, result
        assert str(folder / "timeline.json") in result.out
        events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
        found[stage] = [event for event in events if event["ph"] == "X"]
    return found


def names(events, rank, lane):
    return Counter(event["name"] for event in events if event["pid"] == rank and event["cat"] == lane)


@pytest.mark.sample("0-3", "1-1")
@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("rank", [0, 1])
def test_every_pass_and_step_is_there(traces, stage, rank):
    found = names(traces[stage], rank, "compute")
    assert found["backward"] == STEPS * ACCUMULATION
    assert found["step"] == STEPS
    assert found["next batches"] == STEPS
    for layer in range(LAYERS):
        assert found[f"forward of 'bert.encoder.layer.{layer}'"] == STEPS * ACCUMULATION
        assert names(traces[stage], rank, "optimizer")[f"update of bert.encoder.layer.{layer}"] == STEPS


def test_stage_1_reduces_at_the_boundary_and_gathers_after_the_step(traces):
    for rank in (0, 1):
        assert names(traces[1], rank, "reduce")["reduce-scatter of 'bert.encoder.layer.0'"] == STEPS
        assert names(traces[1], rank, "gather")["all-gather of 'bert.encoder.layer.0'"] == STEPS


def test_stage_3_gathers_for_forward_and_backward_and_reduces_each_backward(traces):
    """The unit that backward begins with is still there from forward."""
    for rank in (0, 1):
        gathers = names(traces[3], rank, "gather")["all-gather of 'bert.encoder.layer.0'"]
        assert STEPS * ACCUMULATION <= gathers <= 2 * STEPS * ACCUMULATION
        assert names(traces[3], rank, "reduce")["reduce-scatter of 'bert.encoder.layer.0'"] == STEPS * ACCUMULATION


def test_what_moves_on_an_axis_of_the_mesh_says_so(tmp_path):
    """Tensor ranks add up two hidden states a layer in each direction, and one more of the embeddings and of the head's input."""
    _, run_file = run_of(tmp_path, "llama, 2 key heads, tied", MODELS, packing="fill")
    settings = {"parallel.tensor": 2, "deepspeed.zero_optimization.stage": 1, "deepspeed.train_batch_size": 4, "training.max_steps": STEPS}
    result = tessera(*train_arguments(run_file, 4, settings), "--trace", tmp_path / "timeline.json", "--set", f"output={tmp_path / 'out'}")
    assert result.code == 0, result
    events = [event for event in json.loads((tmp_path / "timeline.json").read_text())["traceEvents"] if event["ph"] == "X"]
    for rank in range(4):
        found = names(events, rank, "reduce") + names(events, rank, "gather")
        assert found["reduce-scatter of 'model.layers.0' in group dp_shard"] == STEPS
        on_axis = sum(count for name, count in found.items() if name.endswith(" in group tp"))
        assert on_axis >= STEPS * 2 * (2 * LAYERS + 1), found


@pytest.mark.parametrize("stage", [1, 3])
def test_what_moves_has_its_bytes_and_lies_within_the_run(traces, tiny_bert, stage):
    moved = {event["args"]["bytes"] for event in traces[stage] if event["name"].endswith("of 'bert.encoder.layer.0'")
             and event["cat"] in ("gather", "reduce")}
    model = json.loads((tiny_bert / "config.json").read_text())
    hidden, wide = model["hidden_size"], model["intermediate_size"]
    params = 4 * (hidden + 1) * hidden + (hidden + 1) * wide + (wide + 1) * hidden + 2 * 2 * hidden
    assert len(moved) == 1 and params * 4 <= moved.pop() < params * 4 * 1.05  # of the unit in fp32, and padding
    ends = [event["ts"] + event["dur"] for event in traces[stage]]
    assert min(event["ts"] for event in traces[stage]) == 0 and max(ends) < 120e6


@pytest.mark.parametrize("stage", [1, 3])
def test_events_of_a_thread_nest(traces, stage):
    threads = {}
    for event in traces[stage]:
        threads.setdefault((event["pid"], event["tid"]), []).append(event)
    for events in threads.values():
        open_ends = []
        for event in sorted(events, key=lambda each: (each["ts"], -each["dur"])):
            end = event["ts"] + event["dur"]
            while open_ends and open_ends[-1] <= event["ts"] + 1e-3:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 1e-3, event
            open_ends.append(end)
