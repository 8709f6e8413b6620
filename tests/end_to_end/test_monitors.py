"""A run file's `monitors`: the same numbers in every form, also over a resumed run."""

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
