"""Fixtures shared by tests/end_to_end, tests/faults and tests/cli."""

import pytest
from model_folders import ENGLISH, minilm_folder, write_texts, write_tiny_bert
from tessera_runs import TESSERA, train, write_run_file

STAGES = [0, 1, 2, 3]


@pytest.fixture(scope="session", autouse=True)
def built():
    if not TESSERA.exists():
        pytest.skip(f"{TESSERA} is not built (TESSERA_BUILD names another folder)")


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory):
    return write_tiny_bert(tmp_path_factory.mktemp("tiny-bert"))


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A folder with train.parquet (400 rows) and held_back.parquet (60 rows)."""
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder / "train.parquet", 400, seed=1)
    write_texts(folder / "held_back.parquet", 60, seed=2)
    return folder


@pytest.fixture(scope="session")
def minilm():
    return minilm_folder()


def train_minilm_at_all_stages(folder, minilm, micro_batch):
    """MiniLM on English text, two ranks, global batch 4, 50 steps, dropout as in its config.json: outputs stage0 .. stage3."""
    run_file = write_run_file(folder, {
        "model": {"path": str(minilm), "init": "pretrained"},
        "task": "mlm",
        "data": {"train": str(ENGLISH / "train.txt"), "max_length": 32},
        "training": {"max_steps": 50, "seed": 42},
        "deepspeed": {"train_batch_size": 4, "train_micro_batch_size_per_gpu": micro_batch,
                      "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}}},
    })
    for stage in STAGES:
        train(run_file, 2, {"deepspeed.zero_optimization.stage": stage, "output": folder / f"stage{stage}"}, timeout=300)
    return folder


@pytest.fixture(scope="session")
def minilm_runs(minilm, tmp_path_factory):
    """The slowest part of these tests, and the base of several."""
    return train_minilm_at_all_stages(tmp_path_factory.mktemp("minilm"), minilm, micro_batch=2)


@pytest.fixture(scope="session")
def accumulated_minilm_runs(minilm, tmp_path_factory):
    return train_minilm_at_all_stages(tmp_path_factory.mktemp("accumulated-minilm"), minilm, micro_batch=1)


@pytest.fixture
def tiny_run(tiny_bert, texts):
    """A run file's content: the tiny model, global batch 8, dropout 0.1 as in its config.json."""
    return {
        "model": {"path": str(tiny_bert), "init": "pretrained"},
        "task": "mlm",
        "data": {"train": str(texts / "train.parquet"), "max_length": 32},
        "training": {"max_steps": 10, "seed": 42},
        "deepspeed": {
            "train_batch_size": 8,
            "zero_optimization": {"stage": 0},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
        },
        "output": "out",
    }
