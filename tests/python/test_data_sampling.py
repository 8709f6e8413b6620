"""Data efficiency: indexed datasets, what a DataAnalyzer writes, which samples a curriculum draws, batches by tokens. Formats and rules are
DeepSpeed's; test_data_sampling_against_deepspeed.py compares with DeepSpeed itself."""

import json
import math
import os
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.data_pipeline import constants
from deepspeed.runtime.data_pipeline.config import get_data_efficiency_config
from deepspeed.runtime.data_pipeline.data_sampling import indexed_dataset
from deepspeed.runtime.data_pipeline.data_sampling.data_analyzer import DataAnalyzer, DistributedDataAnalyzer
from deepspeed.runtime.data_pipeline.data_sampling.data_sampler import DeepSpeedDataSampler
from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder, make_builder, make_dataset
from deepspeed.runtime.data_pipeline.data_sampling.utils import find_fit_int_dtype, split_dataset
from deepspeed.runtime.data_pipeline.data_sampling.variable_batch_size_and_lr import (
    batch_by_seqlens,
    dataloader_for_variable_batch_size,
    lr_scheduler_for_variable_batch_size,
    scale_lr,
)
from ranks import run_for_json
from torch import nn

LENGTHS = np.random.default_rng(1).integers(1, 33, 240)


# ---- indexed datasets

def written(folder, rows, dtype=np.uint16, kind="mmap"):
    prefix = str(folder / "data")
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype) if kind == "mmap" else make_builder(f"{prefix}.bin", kind)
    for row in rows:
        builder.add_item(torch.tensor(row, dtype=torch.int64))
    builder.end_document()
    builder.finalize(f"{prefix}.idx")
    return prefix


def test_the_index_is_megatrons(tmp_path):
    prefix = written(tmp_path, [[5, 7, 9], [], [1]])
    assert Path(f"{prefix}.bin").read_bytes() == struct.pack("<4H", 5, 7, 9, 1)
    assert Path(f"{prefix}.idx").read_bytes() == (
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 6, 3, 2) + struct.pack("<3i", 3, 0, 1) + struct.pack("<3q", 0, 6, 6) + struct.pack("<2q", 0, 3))


def test_the_older_index_keeps_shapes(tmp_path):
    prefix = str(tmp_path / "old")
    builder = make_builder(f"{prefix}.bin", "lazy")
    builder.add_item(torch.arange(6).reshape(2, 3))
    builder.add_item(torch.arange(2))
    builder.finalize(f"{prefix}.idx")
    assert Path(f"{prefix}.idx").read_bytes() == (b"TNTIDX\0\0" + struct.pack("<6Q", 1, 4, 4, 2, 3, 1) + struct.pack("<3q", 0, 2, 3)
                                                   + struct.pack("<3q", 0, 6, 8) + struct.pack("<3q", 2, 3, 2) + struct.pack("<q", 0))
    for kind in ("lazy", "cached", "infer"):
        data = make_dataset(prefix, kind)
        if kind == "cached":
            data.prefetch([1, 0])
        assert data[0].tolist() == [[0, 1, 2], [3, 4, 5]] and data[1].tolist() == [0, 1] and len(data) == 2
        with pytest.raises(IndexError):
            data[2]
    assert [part.tolist() for part in make_dataset(prefix, "lazy")[0:2]] == [[0, 1, 2, 3, 4, 5], [0, 1]]


@pytest.mark.parametrize("number", indexed_dataset.dtypes)
def test_each_dtype_comes_back(tmp_path, number):
    dtype = indexed_dataset.dtypes[number][0]
    most = np.iinfo(dtype)
    builder = MMapIndexedDatasetBuilder(str(tmp_path / "data.bin"), dtype=dtype)
    builder.add_items([np.array([most.min, most.max], dtype=dtype), np.array([3], dtype=dtype)])
    builder.finalize(str(tmp_path / "data.idx"))
    data = pickle.loads(pickle.dumps(MMapIndexedDataset(str(tmp_path / "data"))))
    assert data.dtype == dtype and [row.tolist() for row in data] == [[most.min, most.max], [3]]


def test_parts_slices_and_merges(tmp_path):
    rows = [[1, 2, 3], [4], [5, 6]]
    one = written(tmp_path, rows)
    data = make_dataset(one, "infer", skip_warmup=True)
    assert data.get(0, offset=1).tolist() == [2, 3] and data.get(0, offset=1, length=1).tolist() == [2]
    assert [row.tolist() for row in data[1:3]] == [[4], [5, 6]] and data[np.int64(2)].tolist() == [5, 6] and data[-1].tolist() == [5, 6]
    with pytest.raises(ValueError, match="step"):
        data[0:3:2]
    merged = MMapIndexedDatasetBuilder(str(tmp_path / "merged.bin"), dtype=np.uint16)
    merged.add_item(torch.tensor([9]))
    merged.end_document()
    merged.merge_file_(one)
    merged.finalize(str(tmp_path / "merged.idx"))
    data = make_dataset(str(tmp_path / "merged"), "mmap")
    assert [row.tolist() for row in data] == [[9], *rows] and data.doc_idx.tolist() == [0, 1, 4]


def test_what_is_no_indexed_dataset_is_said(tmp_path, capsys):
    assert make_dataset(str(tmp_path / "none"), "mmap") is None
    assert "none.idx" in capsys.readouterr().out
    prefix = written(tmp_path, [[1]], kind="lazy")
    with pytest.raises(AssertionError, match="not an index of this kind"):
        MMapIndexedDataset(prefix)
    with pytest.raises(ValueError, match="float"):
        MMapIndexedDatasetBuilder(str(tmp_path / "x.bin"), dtype=np.float32)


@pytest.mark.parametrize("least, most, dtype", [(0, 255, np.uint8), (0, 256, np.uint16), (0, 2**32, np.uint64), (-1, 127, np.int8),
                                                (-1, 128, np.int16), (-129, 0, np.int16), (-2**31 - 1, 0, np.int64)])
def test_the_smallest_dtype_that_holds_both(least, most, dtype):
    assert find_fit_int_dtype(least, most) is dtype


# ---- analyzers

class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, number):
        return {"ids": torch.tensor([number, LENGTHS[number]])}


METRICS = {"metric_names": ["seqlen", "total"], "metric_functions": [lambda batch: batch["ids"][:, 1], lambda batch: batch["ids"].sum(dim=0)],
           "metric_types": ["single_value_per_sample", "accumulate_value_over_samples"]}
DTYPES = {"metric_dtypes": [torch.int64, torch.int64]}


def rows_of(path):
    return [row.tolist() for row in MMapIndexedDataset(str(path), skip_warmup=True)]


def check_metrics(folder):
    values = sorted(set(LENGTHS.tolist()))
    samples = [np.flatnonzero(LENGTHS == value).tolist() for value in values]
    assert rows_of(folder / "seqlen" / "seqlen_sample_to_metric") == [[length] for length in LENGTHS.tolist()]
    assert rows_of(folder / "seqlen" / "seqlen_index_to_metric") == [[value] for value in values]
    assert rows_of(folder / "seqlen" / "seqlen_index_to_sample") == samples
    assert rows_of(folder / "seqlen" / "seqlen_index_to_sample_percentile_merged") == samples  # of fewer than 200 values each is a part
    assert rows_of(folder / "total" / "total_metric_value") == [[sum(range(len(LENGTHS))), LENGTHS.sum()]]


@pytest.mark.parametrize("workers, threads, reducers", [(1, 1, 1), (3, 1, 1), (2, 2, 3)])
def test_values_of_every_sample(tmp_path, workers, threads, reducers):
    if workers == 1:
        DataAnalyzer(Texts(), batch_size=16, save_path=str(tmp_path / "at once"), **METRICS, **DTYPES).run_map_reduce()
        check_metrics(tmp_path / "at once")
    for worker in range(workers):
        analyzer = DataAnalyzer(Texts(), num_workers=workers, worker_id=worker, num_threads=threads, num_threads_reduce=reducers, batch_size=16,
                                save_path=str(tmp_path), **METRICS, **DTYPES)
        analyzer.run_map()
    analyzer.run_reduce()
    check_metrics(tmp_path)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_other_analyzer_writes_the_same(tmp_path, threads):
    DistributedDataAnalyzer(Texts(), num_threads=threads, batch_size=16, save_path=str(tmp_path), **METRICS).run_map_reduce()
    check_metrics(tmp_path)


def test_an_analysis_that_is_not_whole_is_refused(tmp_path):
    analyzer = DataAnalyzer(Texts(), num_workers=2, save_path=str(tmp_path), **METRICS, **DTYPES)
    analyzer.run_map()
    with pytest.raises((AssertionError, FileNotFoundError)):
        analyzer.run_reduce()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        DataAnalyzer(Texts(), num_threads=2, save_path=str(tmp_path), metric_names=["bad"], metric_functions=[lambda batch: 1 / 0],
                     metric_types=METRICS["metric_types"][:1], metric_dtypes=[torch.int64]).run_map()


def test_parts_of_a_dataset_follow_each_other():
    workers, threads = split_dataset(range(10), 3, 1, 2)
    assert workers == [(0, 3), (3, 6), (6, 10)] and threads == [(3, 4), (4, 6)]


# ---- curricula

@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    DistributedDataAnalyzer(Texts(), batch_size=64, save_path=str(folder), **METRICS).run_map_reduce()
    return folder


def block_of(folder, metrics, **changes):
    metric = {"index_to_sample_path": f"{metrics}/seqlen/seqlen_index_to_sample", "index_to_metric_path": f"{metrics}/seqlen/seqlen_index_to_metric",
              "difficulty_type": "value", "clustering_type": "schedule_based", "min_difficulty": 8, "max_difficulty": 32,
              "schedule_type": "fixed_linear", "schedule_config": {"total_curriculum_step": 12, "difficulty_step": 8}, **changes}
    return {"enabled": True, "data_sampling": {"enabled": True, "num_epochs": 50, "curriculum_learning": {
        "enabled": True, "data_cluster_path": str(folder), "curriculum_metrics": {"seqlen": metric}}}}


def sampler_of(block, rank=0, ranks=1, micro_batch=4, accumulation=2, **options):
    config = get_data_efficiency_config({"data_efficiency": block})
    return DeepSpeedDataSampler(config, len(LENGTHS), micro_batch, rank, ranks, None, accumulation, 0, **options)


def steps_of(sampler, count, batches=None):
    """[samples] of steps; each is two micro batches."""
    batches = iter(sampler) if batches is None else batches
    return [next(batches) + next(batches) for _ in range(count)]


def test_no_sample_is_harder_than_its_step_allows(tmp_path, metrics):
    """The schedule's formula: 8 + 24 step / 12, in whole eighths."""
    for step, samples in enumerate(steps_of(sampler_of(block_of(tmp_path, metrics)), 20), 1):
        allowed = min(math.floor(8 + 24 * step / 12) // 8 * 8, 32)
        assert max(LENGTHS[samples]) <= allowed
    assert max(LENGTHS[samples]) > 24


def test_percentiles_are_shares_of_the_samples(tmp_path, metrics):
    block = block_of(tmp_path, metrics, difficulty_type="percentile", min_difficulty=25, max_difficulty=100,
                     schedule_type="fixed_discrete", schedule_config={"difficulty": [25, 100], "max_step": [3]},
                     index_to_sample_path=f"{metrics}/seqlen/seqlen_index_to_sample_percentile_merged")
    easiest = np.sort(LENGTHS)[:100 * (len(LENGTHS) // 100) * 25 // 100]  # whole samples a percent, as DeepSpeed counts
    easy = steps_of(sampler_of(block), 3)
    assert max(LENGTHS[sum(easy, [])]) <= easiest[-1]
    assert [row.size for row in MMapIndexedDataset(str(tmp_path / "cluster_seqlen25"), skip_warmup=True)] == [50]


def test_every_sample_of_a_cluster_comes_before_one_comes_again(tmp_path, metrics):
    block = block_of(tmp_path, metrics, clustering_type="single_cluster")
    steps = steps_of(sampler_of(block), 60)
    for first in (0, 30):
        assert sorted(sum(steps[first:first + 30], [])) == list(range(len(LENGTHS)))
    assert [set(step) for step in steps[:30]] != [set(step) for step in steps[30:]]  # in another order


def test_a_dataset_smaller_than_a_micro_batch(tmp_path, metrics):
    """A step takes all samples, and all once more in another order, as DeepSpeed does."""
    block = block_of(tmp_path, metrics, clustering_type="single_cluster", min_difficulty=32)
    whole = sampler_of(block, micro_batch=500, accumulation=1, drop_last=False)
    assert sorted(next(iter(whole))) == sorted(2 * list(range(len(LENGTHS))))
    with pytest.raises(ValueError, match="dataloader_drop_last"):
        next(iter(sampler_of(block, micro_batch=500, accumulation=1)))


def test_two_metrics_allow_what_both_allow(tmp_path, metrics):
    block = block_of(tmp_path, metrics)
    metric = block["data_sampling"]["curriculum_learning"]["curriculum_metrics"]
    percentile = {**metric["seqlen"], "difficulty_type": "percentile", "schedule_type": "fixed_discrete", "min_difficulty": 10, "max_difficulty": 100,
                  "schedule_config": {"difficulty": [10, 100], "max_step": [5]}}
    metric["other"] = percentile
    steps = steps_of(sampler_of(block), 20)
    tenth = np.sort(LENGTHS)[len(LENGTHS) // 100 * 10 - 1]
    assert max(LENGTHS[sum(steps[:5], [])]) <= tenth
    assert sorted(set(sum(steps, []))) != sorted(set(sum(steps[:5], [])))


def test_the_loader_ends_with_the_epochs(tmp_path, metrics):
    block = block_of(tmp_path, metrics)
    block["data_sampling"]["num_epochs"] = 1
    sampler = sampler_of(block)
    assert sum(map(len, sampler)) == len(LENGTHS) == len(sampler)


def through_a_checkpoint(state):
    from tessera.client_state import decode, encode

    text, tensors = encode({"data": state}, "engine")
    return decode(text, tensors)["data"]


@pytest.mark.parametrize("disturbed", ["as it was", "shuffled since", "elsewhere", "without its clusters"])
def test_a_state_goes_on_with_the_same_samples(tmp_path, metrics, disturbed):
    first = sampler_of(block_of(tmp_path / "one", metrics))
    batches = iter(first)
    steps_of(first, 40, batches)
    state = through_a_checkpoint(first.state_dict())
    expected = steps_of(first, 60, batches) if disturbed == "shuffled since" else None
    folder = tmp_path / "one"
    if disturbed == "elsewhere":
        folder = folder.rename(tmp_path / "two")
    if disturbed == "without its clusters":
        folder = tmp_path / "empty"
    again = sampler_of(block_of(folder, metrics))
    again.load_state_dict(state)
    found = steps_of(again, 60)
    if expected is None:
        reference = sampler_of(block_of(tmp_path / "reference", metrics))
        expected = steps_of(reference, 100)[40:]
    assert found == expected
    assert again.current_difficulties == {"seqlen": 32}


def test_a_state_in_the_middle_of_a_step_and_of_the_curriculum(tmp_path, metrics):
    first = sampler_of(block_of(tmp_path / "one", metrics))
    batches = iter(first)
    for _ in range(7):
        next(batches)
    state = json.loads(json.dumps({key: value for key, value in first.state_dict().items() if key != "np_rng_state"}))
    again = sampler_of(block_of(tmp_path / "two", metrics))
    again.load_state_dict({**state, "np_rng_state": np.random.get_state()})
    resumed = iter(again)
    assert [next(resumed) for _ in range(30)] == [next(batches) for _ in range(30)]


def test_a_state_with_other_metrics_is_refused(tmp_path, metrics):
    first = sampler_of(block_of(tmp_path / "one", metrics))
    steps_of(first, 20)
    DistributedDataAnalyzer(Texts(), save_path=str(tmp_path / "other"), metric_names=["seqlen"],
                            metric_functions=[lambda batch: 33 - batch["ids"][:, 1]], metric_types=METRICS["metric_types"][:1]).run_map_reduce()
    with pytest.raises(ValueError, match="other samples than when the checkpoint was saved"):
        sampler_of(block_of(tmp_path / "two", tmp_path / "other")).load_state_dict(first.state_dict())


def test_a_state_of_deepspeeds_own_goes_on_from_its_files(tmp_path, metrics):
    first = sampler_of(block_of(tmp_path, metrics))
    steps_of(first, 20)
    state = {key: value for key, value in first.state_dict().items() if not key.endswith(("generator_state", "orders"))}
    state["data_cluster_paths"] = [f"/elsewhere/{name}" for name in state["data_cluster_paths"]]
    again = sampler_of(block_of(tmp_path, metrics))
    again.load_state_dict(state)
    assert max(LENGTHS[sum(steps_of(again, 3), [])]) <= 32 and again.curriculum_step == 23
    newer = sampler_of(block_of(tmp_path, metrics))
    newer.load_state_dict({**state, "np_rng_state": first.np_rng.bit_generator.state})  # as DeepSpeed keeps it after 0.19.8
    assert steps_of(newer, 3) == steps_of(first, 3)
    shutil.rmtree(tmp_path)
    with pytest.raises(ValueError, match="data_cluster_path"):
        sampler_of(block_of(tmp_path, metrics)).load_state_dict(state)


def test_a_function_of_the_programs_own(tmp_path, metrics):
    sampler = sampler_of(block_of(tmp_path, metrics, schedule_type="custom", schedule_config={}))
    sampler.set_custom_curriculum_learning_schedule({"seqlen": lambda step: 10 if step < 5 else 32})
    steps = steps_of(sampler, 10)
    assert max(LENGTHS[sum(steps[:4], [])]) <= 10 < max(LENGTHS[sum(steps[4:], [])])


@pytest.mark.parametrize("changes, what", [
    ({"difficulty_type": "size"}, "seqlen.difficulty_type"), ({"clustering_type": "none"}, "seqlen.clustering_type"),
    ({"index_to_metric_path": None}, "seqlen.index_to_metric_path"), ({"index_to_sample_path": None}, "seqlen.index_to_sample_path")])
def test_keys_that_cannot_act_are_named(tmp_path, metrics, changes, what):
    with pytest.raises(ValueError, match=what):
        sampler_of(block_of(tmp_path, metrics, **changes))


def test_files_that_are_not_there_and_difficulties_without_samples_are_named(tmp_path, metrics):
    with pytest.raises(ValueError, match="DataAnalyzer"):
        steps_of(sampler_of(block_of(tmp_path, metrics, index_to_sample_path=str(tmp_path / "none"))), 1)
    with pytest.raises(ValueError, match="raise min_difficulty"):
        steps_of(sampler_of(block_of(tmp_path, metrics, min_difficulty=0, schedule_type="fixed_discrete",
                                     schedule_config={"difficulty": [0, 32], "max_step": [3]})), 1)
    block = block_of(tmp_path, metrics)
    del block["data_sampling"]["curriculum_learning"]["data_cluster_path"]
    with pytest.raises(ValueError, match="data_cluster_path"):
        sampler_of(block)


def test_the_constants_are_the_keys():
    assert constants.CURRICULUM_LEARNING_METRICS == "curriculum_metrics" and constants.DATA_SAMPLING_NUM_EPOCHS_DEFAULT == 1000
    assert constants.DYNAMIC_BATCHING_LR_SCALING_METHOD_DEFAULT == "linear" and constants.DYNAMIC_BATCHING_MAX_BATCH_SIZE_DEFAULT is None


def test_a_block_that_lacks_what_it_needs_is_refused():
    for block, what in (({"curriculum_learning": {"enabled": True}}, "curriculum_metrics"), ({"dynamic_batching": {"enabled": True}}, "max_tokens")):
        with pytest.raises(AssertionError, match=what):
            DeepSpeedConfig({"train_batch_size": 1, "data_efficiency": {"enabled": True, "data_sampling": block}})


# ---- batches by tokens

@pytest.mark.parametrize("order", ["dataloader", "random", "seqlen"])
def test_micro_batches_are_as_full_as_they_can_be(order):
    ids, sizes, longest = batch_by_seqlens(LENGTHS, 64, sequence_picking_order=order, effective_batch_size=2, seed=1)
    taken = [sample for _, samples in ids for sample in samples]
    assert len(taken) == len(set(taken)) and len(taken) > len(LENGTHS) - 64
    for (_, samples), (_, after) in zip(ids, ids[1:]):
        assert sum(LENGTHS[samples]) <= 64 < sum(LENGTHS[samples]) + LENGTHS[after[0]]
    for batch, (size, most) in enumerate(zip(sizes, longest)):
        own = [samples for number, samples in ids if number == batch]
        assert len(own) == 2 and sum(map(len, own)) == size and max(LENGTHS[sum(own, [])]) == most
    wanted = {"dataloader": taken == sorted(taken), "seqlen": (np.diff(LENGTHS[taken]) >= 0).all(), "random": taken != sorted(taken)}
    assert wanted[order]


def test_bounds_on_samples_and_equal_sizes():
    ids, *_ = batch_by_seqlens(LENGTHS, 1000, max_batch_size=3)
    assert {len(samples) for _, samples in ids} == {3} and sum(len(samples) for _, samples in ids) == len(LENGTHS)
    ids, sizes, _ = batch_by_seqlens(LENGTHS, 60, effective_batch_size=4, required_microbatches_of_same_size=True)
    for number, size in enumerate(sizes):
        own = [samples for batch, samples in ids if batch == number]
        assert {len(samples) for samples in own} == {size // 4} and all(sum(LENGTHS[samples]) <= 60 for samples in own)
    ids, *_ = batch_by_seqlens([9, 50, 9, 9], 20, sequence_ids_per_mb=[3, 1, 0])
    assert ids == [(0, [3, 0])]  # 1 is longer than a micro batch may be
    with pytest.raises(AssertionError, match="make 1 micro batches"):
        batch_by_seqlens([1, 1], 20, effective_batch_size=2)


def test_a_loader_of_micro_batches():
    data = [torch.full((length,), number) for number, length in enumerate(LENGTHS.tolist())]
    ids, sizes, longest = batch_by_seqlens(LENGTHS, 64, effective_batch_size=4)
    parts = [dataloader_for_variable_batch_size(data, ids, longest, dataloader_rank=rank, dataloader_batch_size=2, dataloader_num_replicas=2,
                                                dataloader_num_workers=0, required_microbatches_of_same_seqlen=True,
                                                dataloader_collate_fn=torch.stack,
                                                sample_padding_fn=lambda sample, length: nn.functional.pad(sample, (0, length - len(sample))))
             for rank in range(2)]
    batches = list(zip(*(loader for loader, _ in parts)))
    assert [len(one) + len(other) for one, other in batches] == sizes
    assert [one.shape[1] for one, _ in batches] == longest
    assert {*parts[0][1]} == {"dataset", "batch_size", "pin_memory", "data_sampler", "collate_fn", "num_local_io_workers"}


def test_learning_rates_go_by_the_samples_of_a_step():
    assert scale_lr(32, 8, 0.4, "linear") == pytest.approx(0.1) and scale_lr(32, 8, 0.4, "sqrt") == pytest.approx(0.2)
    assert scale_lr(32, 8, 0.4, "none") == scale_lr(32, 8, 0.4, None) == 0.4
    with pytest.raises(ValueError, match="linear, sqrt or none"):
        scale_lr(32, 8, 0.4, "cubic")
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    base = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    scheduler = lr_scheduler_for_variable_batch_size(4, [2, 4, 8], None, base)
    found = []
    for _ in range(4):
        found += scheduler.get_lr()
        optimizer.step()
        scheduler.step()
    assert found == pytest.approx([0.1 * 2 / 4, 0.05, 0.025 * 8 / 4, 0.0125 * 2 / 4])


# ---- engines

@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return run_for_json(Path(__file__).with_name("data_sampling_runs.py"), tmp_path_factory.mktemp("runs"))


def test_ranks_share_the_samples_of_each_step(runs):
    """Both halves of every micro batch, none harder than 4 + 12 step / 12 in whole fours, which the post-process function is told."""
    lengths = np.random.default_rng(1).integers(1, 17, 120)
    found = runs["curriculum"]
    first, second = found["samples"]
    for step, (one, other) in enumerate(zip(first, second), 1):
        allowed = min((4 + step) // 4 * 4, 16)
        assert len(one) == len(other) == 6 and max(lengths[one + other]) <= allowed
        assert found["difficulties"][2 * step - 2:2 * step] == [allowed] * 2
    assert found["length"] == 10 * 120 // 6 and found["enabled"] == [True] * 3 and found["metrics"] == ["seqlen"]
    whole = [sample for one, other in zip(first, second) for sample in one + other]
    assert len(set(whole[-48:])) > 24


@pytest.mark.parametrize("stage, workers", [(1, 0), (3, 2)])
def test_a_checkpoint_goes_on_with_the_same_samples(runs, stage, workers):
    found = runs[f"goes on, {stage}, {workers}"]
    assert found["again"] == found["straight"] and found["straight"][0] != found["straight"][1]
    assert found["before"] == [rank[:9] for rank in runs["curriculum"]["samples"]]
    assert [rank[:11] for rank in found["straight"]] == [rank[9:] for rank in runs["curriculum"]["samples"]]


def test_stages_of_a_pipeline_read_the_same_samples(runs):
    """The curriculum's of one data-parallel rank, two micro batches a step."""
    lengths = np.random.default_rng(1).integers(1, 17, 120)
    first, last = runs["pipeline"]
    assert first == [[sample % 7 for sample in batch] for batch in last] and {len(batch) for batch in last} == {3}
    assert len(last) == 8 and all(max(lengths[batch]) <= (4 + number // 2 + 1) // 4 * 4 for number, batch in enumerate(last))


def test_an_engine_trains_on_batches_by_tokens(runs):
    """The warm-up's own rate at a step is 1e-3 ln(step + 1) / ln 2, at most 1e-3; it is of 4 micro batches of a sample."""
    lengths = np.random.default_rng(1).integers(1, 17, 120)
    found = runs["tokens"]
    for step, (one, other) in enumerate(zip(*found["samples"])):
        assert len(one) + len(other) == found["sizes"][step] and sum(lengths[one + other]) <= 4 * 24
    base = [0.0] + [1e-3] * 5
    sizes = [found["sizes"][step % len(found["sizes"])] for step in range(6)]
    assert found["lrs"] == pytest.approx([lr * size / 4 for lr, size in zip(base, sizes)])
    resumed, next_one, straight = found["resumed"]
    assert resumed == pytest.approx(found["lrs"][-1]) and next_one == pytest.approx(straight)


def test_every_rank_is_told_what_cannot_be(runs):
    found = runs["errors"]
    assert "there is no" in found["missing"][0] and "first data-parallel rank could not draw" in found["missing"][1]
    assert "has no length" in found["stream"] and "set it to false" in found["random_ltd"]


def test_the_plain_engine_names_the_one_that_samples(tmp_path, metrics):
    import tessera

    with pytest.raises(ValueError, match="call deepspeed.initialize"):
        tessera.initialize(model=nn.Linear(1, 1), config={"train_batch_size": 1, "data_efficiency": block_of(tmp_path, metrics)})
