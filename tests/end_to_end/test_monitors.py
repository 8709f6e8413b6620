"""A run file's `monitors`: the same numbers in every form, also over a resumed run; and what a ds_config asks to be told of."""

import re


from test_causal_lm import run_of
from tessera_runs import metrics, train


def test_csv_and_event_files_have_what_metrics_jsonl_has(tmp_path):
    _, run_file = run_of(tmp_path, "gpt2")
    output = tmp_path / "out"
    settings = {"output": output, "monitors": "[jsonl, csv, tensorboard]", "data.eval": tmp_path / "train.txt", "training.eval_steps": 2}
    result = train(run_file, 2, {**settings, "training.max_steps": 4})
    for place in ("metrics.jsonl", "csv", "tensorboard"):
        assert f"  metrics                  {output / place}" in result.out, str(result)
    train(run_file, 2, {**settings, "training.max_steps": 6}, resume="auto")
    rows = metrics(output)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    for name in ("loss", "grad_norm", "lr", "tokens"):
        header, *lines = (output / "csv" / f"train_{name}.csv").read_text().splitlines()
        assert header == f"step,{name}"
        assert [tuple(map(float, line.split(","))) for line in lines] == [(row["step"], row[name]) for row in rows]
    assert len((output / "csv" / "eval_loss.csv").read_text().splitlines()) >= 4
    boards = [path.read_bytes() for path in sorted((output / "tensorboard").iterdir())]
    assert [board.count(b"train/lr") for board in boards] == [4, 2]


def test_times_memory_and_collectives_are_logged_where_the_ds_config_asks(tmp_path):
    _, run_file = run_of(tmp_path, "gpt2")
    asked = {"deepspeed.wall_clock_breakdown": "true", "deepspeed.memory_breakdown": "true", "deepspeed.comms_logger.enabled": "true"}
    settings = {"output": tmp_path / "out", "training.max_steps": 2, "deepspeed.gradient_accumulation_steps": 2,
                "deepspeed.train_batch_size": 4, "deepspeed.zero_optimization.stage": 1}
    quiet = train(run_file, 2, {**settings, "output": tmp_path / "quiet"})
    assert "time (ms)" not in quiet.err and "all_gather_into_tensor" not in quiet.err
    result = train(run_file, 2, {**settings, **asked})
    number = r"(\d+\.\d\d)"
    micro, step = (re.findall(rf"time \(ms\) \| fwd{of}: {number} \| bwd{of}: {number} \| step{of}: {number} \| peak memory: \d", result.err)
                   for of in ("_microstep", ""))
    assert len(micro) == 4 and len(step) == 2, str(result)
    for first, second, whole in zip(micro[::2], micro[1::2], step):
        for part in range(3):
            assert abs(float(first[part]) + float(second[part]) - float(whole[part])) < 0.02
        assert float(whole[0]) > 0 and float(whole[1]) > 0 and float(second[2]) > float(first[2])
    assert re.search(r"collectives of rank 0:\n.*collective +message +count +total \(ms\) +mean \(ms\)\n(?s:.*)all_gather_into_tensor +\S+ \S+ +\d+", result.err)
