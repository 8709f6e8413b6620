"""What `tessera estimate` prints: DeepSpeed's tables, our own, and plans that our own reader accepts."""

import json
import re
import resource
import shutil

import pytest
from tessera_runs import tessera, write_run_file

BERT_BASE = {"model_type": "bert"}  # every size has its default


def estimate(*args, **how):
    result = tessera("estimate", *args, **how)
    assert result.code == 0, str(result)
    return result.out


@pytest.fixture
def bert_base(tmp_path):
    folder = tmp_path / "bert-base"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(BERT_BASE))
    return folder


def gigabytes(lines):
    return [re.findall(r"[\d.]+(?=GB)", line) for line in lines if "offload_optimizer" in line]


def test_the_command_of_the_guide_prints_its_table():
    """The table of bigscience/T0_3B in Hugging Face's guide to DeepSpeed, which comes from the exact counts."""
    lines = estimate("--params", 2783959040, "--largest-layer-params", 65798144, "--nodes", 1, "--gpus-per-node", 1,
                     "--stage", 3).splitlines()
    assert lines[2] == "SW: Model with 2783M total params, 65M largest layer params."
    assert gigabytes(lines) == [["70.00", "0.25"], ["70.00", "0.25"], ["62.23", "5.43"], ["62.23", "5.43"],
                                ["0.37", "46.91"], ["15.56", "46.91"]]


def test_rounded_counts_give_what_deepspeed_gives_for_them():
    lines = estimate("--params", "2783e6", "--largest-layer-params", "65e6", "--stage", 3).splitlines()
    # Recorded from the package: 75,141,000,000 and 260,000,000 bytes, …
    assert gigabytes(lines) == [["69.98", "0.24"], ["69.98", "0.24"], ["62.20", "5.43"], ["62.20", "5.43"],
                                ["0.36", "46.90"], ["15.55", "46.90"]]


def test_both_tables_without_a_stage_and_suffixes_as_numbers():
    out = estimate("--params", "2.783B", "--largest-layer-params", "65M", "--nodes", 2, "--gpus-per-node", 8)
    assert out.count("HW: Setup with 2 nodes, 8 GPUs per node.") == 2
    assert " 248.82GB |   5.18GB | offload_optimizer=cpu" in out
    rows = json.loads(estimate("--params", "2783e6", "--largest-layer-params", "65e6", "--json"))
    assert [row["stage"] for row in rows] == [2] * 2 + [3] * 6


def test_deepspeeds_tables_of_a_model(bert_base):
    rows = json.loads(estimate("--model", bert_base, "--deepspeed", "--stage", 3, "--json"))
    assert rows[0]["gpu_bytes"] == 4 * 23471418  # the decoder with its bias, as transformers counts


def test_a_table_of_every_stage_and_offload(bert_base):
    out = estimate("--model", bert_base, "--ranks", 2, "--host-memory", "3GB")
    assert "109,514,298 parameters" in out
    rows = [line for line in out.splitlines() if line.startswith("stage")]
    assert [row[:43].strip() for row in rows] == [
        "stage 0", "stage 1", "stage 1, optimizer on nvme", "stage 2", "stage 2, optimizer on nvme", "stage 3",
        "stage 3, optimizer on nvme", "stage 3, optimizer and parameters on nvme"]
    assert rows[0].endswith("no") and "needs a folder: --nvme" in rows[2]
    assert {row[50:53] for row in rows} <= {" GB", " MB"}, "aligned"


def test_the_operations_of_a_step(bert_base):
    """Six for each weight and token, of the layers' and of the head's where a token has a target; 12 L T^2 h of attention."""
    args = ("--model", bert_base, "--batch", 4, "--length", 512)
    layers, hidden, tokens, targets = 12, 768, 4 * 512, int(0.15 * 4 * 512)
    expected = 6 * tokens * 12 * layers * hidden**2 + 12 * layers * 4 * 512**2 * hidden + 6 * targets * hidden * (hidden + 30522)
    assert json.loads(estimate(*args, "--json"))["setup"]["flops"] == pytest.approx(expected)
    assert "a micro batch takes 1.2 TFLOP, forward and backward" in estimate(*args)


def test_an_accelerator_has_memory_of_its_own(bert_base):
    rows = json.loads(estimate("--model", bert_base, "--device-memory", "24GB", "--json"))["rows"]
    offloaded = next(row for row in rows if row["stage"] == 2 and row["offload_optimizer"] == "cpu")
    assert offloaded["bytes"]["host"] >= 14 * 109514298  # gradients, master weights and moments
    state = sum(term["bytes"] for term in offloaded["terms"] if term["what"] in ("gradients", "master weights", "optimizer state"))
    assert offloaded["bytes"]["pinned"] == state >= 14 * 109514298
    assert all(row["bytes"]["pinned"] == 0 for row in rows if "cpu" not in (row["offload_optimizer"], row["offload_param"]))
    assert "      host      pinned" in estimate("--model", bert_base, "--device-memory", "24GB")


def test_weights_are_counted_where_no_formula_is_known(tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    known = json.loads(estimate("--model", folder, "--json"))["model"]
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "novel"}))
    counted = json.loads(estimate("--model", folder, "--json"))["model"]
    assert counted["params"] == known["params"] and not counted["activations_known"]
    (folder / "config.json").unlink()
    assert json.loads(estimate("--model", folder, "--json"))["model"]["params"] == known["params"]


def test_a_plan_is_a_config_that_config_check_accepts(bert_base, tmp_path):
    out = estimate("--model", bert_base, "--ranks", 4, "--batch", 8, "--host-memory", "16GB", "--plan")
    assert "// a rank needs" in out
    (tmp_path / "plan.json").write_text(out)
    result = tessera("config", "check", tmp_path / "plan.json", "--world-size", 4)
    assert result.code == 0, str(result)
    pure = json.loads(estimate("--model", bert_base, "--ranks", 4, "--batch", 8, "--host-memory", "16GB", "--plan", "--json"))
    assert pure["train_batch_size"] == 32 and pure["zero_optimization"]["stage"] >= 1


def test_a_plan_keeps_the_rest_of_a_config_and_its_global_batch(bert_base, tmp_path):
    mine = {"train_batch_size": 64, "gradient_clipping": 0.5, "optimizer": {"type": "Lion", "params": {"lr": 1e-4}}}
    (tmp_path / "mine.json").write_text(json.dumps(mine))
    plan = json.loads(estimate("--model", bert_base, "--config", tmp_path / "mine.json", "--length", 512,
                               "--host-memory", "4GB", "--plan", "--json"))
    assert plan["gradient_clipping"] == 0.5 and plan["optimizer"] == mine["optimizer"] and plan["train_batch_size"] == 64
    assert plan["train_micro_batch_size_per_gpu"] < 64


def test_a_planned_run_trains(tiny_bert, texts, tmp_path):
    plan = estimate("--model", tiny_bert, "--ranks", 2, "--batch", 4, "--length", 32, "--plan")
    (tmp_path / "plan.json").write_text(plan)
    run = {"model": {"path": str(tiny_bert)}, "task": "mlm", "deepspeed": "plan.json", "training": {"max_steps": 2},
           "data": {"train": str(texts / "train.parquet"), "max_length": 32}}
    result = tessera("train", write_run_file(tmp_path, run), "--nproc", 2)
    assert result.code == 0, str(result)


def test_a_run_that_a_process_limit_forbids_is_refused_and_can_go_on_all_the_same(bert_base, tiny_bert, texts, tmp_path):
    run = {"model": {"path": str(bert_base), "init": "random"}, "tokenizer": str(tiny_bert), "task": "mlm",
           "training": {"max_steps": 1}, "data": {"train": str(texts / "train.parquet"), "max_length": 32},
           "deepspeed": {"train_batch_size": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}}
    path = write_run_file(tmp_path, run)
    limit = 1_500_000_000  # bytes; the model state alone is 1.75 GB

    def with_limit():
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    refused = tessera("train", path, preexec=with_limit, env={"OMP_NUM_THREADS": 1})
    assert refused.code == 2 and "a rank needs at least 1.75 GB" in refused.err and "ulimit" in refused.err, str(refused)
    assert not (tmp_path / "out").exists()
    tried = tessera("train", path, "--set", "training.memory_check=false", preexec=with_limit, env={"OMP_NUM_THREADS": 1})
    assert tried.code == 2 and "cannot allocate another" in tried.err, str(tried)


def test_a_run_that_fits_is_not_refused(tiny_run, tmp_path):
    result = tessera("train", write_run_file(tmp_path, {**tiny_run, "training": {"max_steps": 1}}))
    assert result.code == 0, str(result)
