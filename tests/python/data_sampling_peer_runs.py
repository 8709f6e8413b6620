"""What data efficiency makes, by whichever package `deepspeed` this Python finds, ours or DeepSpeed's, as two ranks.

    data_sampling_peer_runs.py FOLDER                 writes files into FOLDER, and prints JSON: what each case came to
    data_sampling_peer_runs.py FOLDER CHECKPOINT      goes on with a training whose files and checkpoint are FOLDER's
"""

import json
import sys
from pathlib import Path

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from deepspeed.runtime.data_pipeline.config import get_data_efficiency_config
from deepspeed.runtime.data_pipeline.data_sampling.data_analyzer import DataAnalyzer, DistributedDataAnalyzer
from deepspeed.runtime.data_pipeline.data_sampling.data_sampler import DeepSpeedDataSampler
from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import MMapIndexedDatasetBuilder, data_file_path, index_file_path, make_builder
from deepspeed.runtime.data_pipeline.data_sampling.variable_batch_size_and_lr import batch_by_seqlens, lr_scheduler_for_variable_batch_size
from deepspeed.runtime.lr_schedules import WarmupLR
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, StepLR

SAMPLES = 600
LENGTHS = np.random.default_rng(5).integers(8, 65, SAMPLES)  # "seqlen" of each sample
RARENESS = np.random.default_rng(6).integers(-3, 400, SAMPLES)


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        return torch.tensor([number, LENGTHS[number], RARENESS[number]])


class Numbered(torch.utils.data.Dataset):
    """For training: x, and y = x / 100 of each sample."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        return torch.tensor([float(number % 7)]), torch.tensor([number / 100.0])


def metrics_of(folder, kinds):
    """The block curriculum_metrics: {metric: (difficulty_type, clustering_type, least, most, steps, unit)}."""
    blocks = {}
    for name, (difficulty, clustering, least, most, steps, unit) in kinds.items():
        prefix = f"{folder}/metrics/{name}/{name}"
        sample = "index_to_sample_percentile_merged" if difficulty == "percentile" else "index_to_sample"
        blocks[name] = {"index_to_sample_path": f"{prefix}_{sample}", "index_to_metric_path": f"{prefix}_index_to_metric",
                        "difficulty_type": difficulty, "clustering_type": clustering, "min_difficulty": least, "max_difficulty": most,
                        "schedule_type": "fixed_linear", "schedule_config": {"total_curriculum_step": steps, "difficulty_step": unit}}
    return blocks


CURRICULA = {
    "by value": {"seqlen": ("value", "schedule_based", 16, 64, 12, 8)},
    "by percentile": {"seqlen": ("percentile", "schedule_based", 5, 100, 10, 5)},
    "all at once": {"seqlen": ("value", "single_cluster", 16, 64, 12, 8)},
    "by two metrics": {"seqlen": ("value", "schedule_based", 24, 64, 12, 8), "rareness": ("percentile", "schedule_based", 20, 100, 8, 10)},
    "one of two": {"seqlen": ("value", "single_cluster", 24, 64, 12, 8), "rareness": ("value", "schedule_based", 50, 400, 8, 1)},
}


def block_of(folder, name, kinds):
    return {"enabled": True, "seed": 77, "data_sampling": {"enabled": True, "num_epochs": 20, "curriculum_learning": {
        "enabled": True, "data_cluster_path": f"{folder}/clusters/{name.replace(' ', '-')}", "curriculum_metrics": metrics_of(folder, kinds)}}}


def write_indexed_datasets(folder):
    rows = [np.random.default_rng(length).integers(0, 100, length) for length in (3, 1, 0, 7, 12)]
    for dtype in (np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint16, np.uint32, np.uint64, torch.int16):
        prefix = f"{folder}/indexed/{np.dtype(dtype).name if not isinstance(dtype, torch.dtype) else 'of-torch'}"
        builder = MMapIndexedDatasetBuilder(data_file_path(prefix), dtype=dtype)
        for number, row in enumerate(rows):
            builder.add_item(torch.from_numpy(row))
            if number in (1, 3):
                builder.end_document()
        builder.finalize(index_file_path(prefix))
    merged = make_builder(data_file_path(f"{folder}/indexed/merged"), "mmap", vocab_size=60000)
    merged.add_items([rows[0]])
    merged.merge_file_(f"{folder}/indexed/uint16")
    merged.add_item_numpy(rows[3])
    merged.finalize(index_file_path(f"{folder}/indexed/merged"))
    for name in ("lazy", "lazy-merged"):
        builder = make_builder(data_file_path(f"{folder}/indexed/{name}"), "lazy")
        builder.add_item(torch.arange(6).reshape(2, 3))
        builder.end_document()
        if name == "lazy-merged":
            builder.merge_file_(f"{folder}/indexed/lazy")
        builder.add_item(torch.arange(4))
        builder.finalize(index_file_path(f"{folder}/indexed/{name}"))


METRICS = {"metric_names": ["seqlen", "rareness", "tokens"],
           "metric_functions": [lambda batch: batch[:, 1], lambda batch: batch[:, 2].numpy(), lambda batch: batch[:, 1:].sum(dim=0)],
           "metric_types": ["single_value_per_sample", "single_value_per_sample", "accumulate_value_over_samples"]}


def analyze(folder):
    if dist.get_rank() == 0:
        for name, how in {"metrics": {}, "metrics-of-four": {"num_workers": 2, "num_threads": 2, "num_threads_reduce": 3, "batch_size": 64},
                          "metrics-renumbered": {"batch_size": 7, "sample_indices": [SAMPLES - 1 - each for each in range(SAMPLES)]}}.items():
            for worker in range(how.get("num_workers", 1)):
                analyzer = DataAnalyzer(Texts(), worker_id=worker, save_path=f"{folder}/{name}", metric_dtypes=[torch.int64, np.int64, torch.int64],
                                        **METRICS, **how)
                analyzer.run_map()
            analyzer.run_reduce()
    dist.barrier()
    # DeepSpeed's own sends buffers of a dtype of NumPy's between ranks, which torch refuses: there one rank does it alone.
    alone = dist.new_group([0]) if "tessera" not in deepspeed.__version__ else None
    if alone is None or dist.get_rank() == 0:
        DistributedDataAnalyzer(Texts(), num_workers=2, worker_id=dist.get_rank(), batch_size=50, save_path=f"{folder}/metrics-of-ranks",
                                device="cpu", comm_group=alone, **METRICS).run_map_reduce()


def drawn(folder, name, kinds):
    """This rank's samples, of enough steps that clusters are used up and shuffled again."""
    config = get_data_efficiency_config({"data_efficiency": block_of(folder, name, kinds)})
    sampler = DeepSpeedDataSampler(config, SAMPLES, 4, dist.get_rank(), 2, dist.group.WORLD, 2, dist.get_rank(), drop_last=False)
    batches = iter(sampler)
    return [[int(sample) for sample in next(batches)] for _ in range(200)]


BATCHINGS = {
    "as they come": {"max_tokens": 300, "effective_batch_size": 4},
    "at random": {"max_tokens": 200, "effective_batch_size": 2, "sequence_picking_order": "random", "seed": 3},
    "shortest first": {"max_tokens": 256, "effective_batch_size": 2, "sequence_picking_order": "seqlen", "max_batch_size": 9},
    "of a pipeline": {"max_tokens": 180, "effective_batch_size": 4, "required_microbatches_of_same_size": True},
    "a part, without the long ones": {"max_tokens": 50, "sequence_ids_per_mb": list(range(0, SAMPLES, 3)), "effective_batch_size": 2},
    "two at least": {"max_tokens": 130, "min_batch_size": 2, "effective_batch_size": 2},
}


def batched(name, how):
    ids, sizes, longest = batch_by_seqlens(LENGTHS, **how)
    return [[[batch, [int(each) for each in samples]] for batch, samples in ids], [int(size) for size in sizes], [int(length) for length in longest]]


def rates(method, schedule):
    """Learning rates of 12 steps, and what a state goes on with."""
    def made(lr):
        optimizer = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))]}, {"params": [nn.Parameter(torch.zeros(1))], "lr": 0.5 * lr}], lr=lr)
        base = {"none": lambda: optimizer, "exponential": lambda: ExponentialLR(optimizer, 0.9), "steps": lambda: StepLR(optimizer, 3, 0.5),
                "warm-up": lambda: WarmupLR(optimizer, warmup_max_lr=lr, warmup_num_steps=6, warmup_type="linear")}[schedule]()
        return optimizer, lr_scheduler_for_variable_batch_size(32, [16, 40, 32, 5, 64], None, base, method)

    def steps(optimizer, scheduler, count):
        found = []
        for _ in range(count):
            optimizer.step()
            scheduler.step()
            found.append([group["lr"] for group in optimizer.param_groups])
        return found

    optimizer, scheduler = made(0.1)
    first = [[group["lr"] for group in optimizer.param_groups], *steps(optimizer, scheduler, 6)]
    state, lrs = scheduler.state_dict(), [group["lr"] for group in optimizer.param_groups]
    other, again = made(0.1)
    again.load_state_dict(state)
    for group, lr in zip(other.param_groups, lrs):
        group["lr"] = lr
    return first + steps(other, again, 6)


def made_engine(folder):
    """With accumulation; its loader also says the difficulty."""
    torch.manual_seed(3)
    model = nn.Linear(1, 1)
    block = block_of(folder, "training", CURRICULA["by value"])
    engine = deepspeed.initialize(
        model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.01), training_data=Numbered(),
        config={"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "data_efficiency": block, "zero_optimization": {"stage": 1},
                "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "checkpoint": {"format": "deepspeed"}})[0]
    engine.set_data_post_process_func(lambda batch, state: [*batch, state["current_difficulties"]["seqlen"]])
    return engine


def trained(engine, micro_batches):
    """[(this rank's samples, loss, difficulty)], by the loader that initialize makes."""
    found = []
    batches = iter(engine.training_dataloader)
    for _ in range(micro_batches):
        x, y, difficulty = next(batches)
        loss = nn.functional.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        found.append([[round(each * 100) for each in y.flatten().tolist()], loss.item(), difficulty])
    return found


def main(folder):
    for name in ("indexed", "metrics"):
        Path(folder, name).mkdir(parents=True, exist_ok=True)
    deepspeed.init_distributed("gloo", verbose=False)
    if dist.get_rank() == 0:
        write_indexed_datasets(folder)
    analyze(folder)
    dist.barrier()
    found = {"drawn": {name: drawn(folder, name, kinds) for name, kinds in CURRICULA.items()},
             "batched": {name: batched(name, how) for name, how in BATCHINGS.items()},
             "rates": {f"{method}, {schedule}": rates(method, schedule) for method in ("linear", "sqrt", "none")
                       for schedule in ("none", "exponential", "steps", "warm-up")},
             "trained": trained(engine := made_engine(folder), 24)}
    engine.save_checkpoint(f"{folder}/checkpoint")
    print_of_all(found)


def go_on(folder, checkpoint):
    """Where the sampler is after a load, and what it goes on with."""
    engine = made_engine(folder)
    engine.load_checkpoint(checkpoint)
    state = engine.training_dataloader.data_sampler.state_dict()
    state = {key: [int(each) for each in state[key]] if isinstance(state[key], list) else state[key] for key in (
        "batch", "curriculum_step", "current_difficulties", "data_cluster_current_position")}
    print_of_all({"state": state, "steps": engine.global_steps, "trained": trained(engine, 12)})


def print_of_all(found):
    of_ranks = [None, None]
    dist.all_gather_object(of_ranks, found)
    if dist.get_rank() == 0:
        print(json.dumps(of_ranks))


if __name__ == "__main__":
    (go_on if len(sys.argv) > 2 else main)(*sys.argv[1:])
