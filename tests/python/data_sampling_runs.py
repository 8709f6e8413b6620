"""Engines that train by a curriculum or on batches by tokens, as two ranks.

    data_sampling_runs.py FOLDER      prints JSON, {case: what it came to}
"""

import json
import os
import sys

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.data_pipeline.data_sampling.data_analyzer import DistributedDataAnalyzer
from deepspeed.runtime.data_pipeline.data_sampling.variable_batch_size_and_lr import get_dataloader_and_lr_scheduler_for_variable_batch_size_deepspeed
from torch import nn

SAMPLES = 120
LENGTHS = np.random.default_rng(1).integers(1, 17, SAMPLES)
DYNAMIC = {"enabled": True, "data_sampling": {"enabled": True, "dynamic_batching": {
    "enabled": True, "max_tokens": 24, "lr_scaling_method": "linear"}}}


class Numbered(torch.utils.data.Dataset):
    """x, and the sample's number as y."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        return torch.tensor([number % 7 / 7.0]), torch.tensor([float(number)])


def curriculum(folder, clusters, **sampling):
    prefix = f"{folder}/metrics/seqlen/seqlen"
    return {"enabled": True, "data_sampling": {"enabled": True, "num_epochs": 10, **sampling, "curriculum_learning": {
        "enabled": True, "data_cluster_path": f"{folder}/{clusters}", "curriculum_metrics": {"seqlen": {
            "index_to_sample_path": f"{prefix}_index_to_sample", "index_to_metric_path": f"{prefix}_index_to_metric", "difficulty_type": "value",
            "clustering_type": "schedule_based", "min_difficulty": 4, "max_difficulty": 16, "schedule_type": "fixed_linear",
            "schedule_config": {"total_curriculum_step": 12, "difficulty_step": 4}}}}}}


def engine_of(block, training_data=None, model=None, **config):
    torch.manual_seed(0)
    model = model or nn.Linear(1, 1)
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), training_data=training_data, config={
        "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2, "data_efficiency": block,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3}}, **config})[0]


def of_all_ranks(own):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found


def train(engine, steps):
    """This rank's samples of each step."""
    found = []
    for _ in range(steps):
        samples = []
        for _ in range(engine.gradient_accumulation_steps()):
            x, y, *_ = next(engine.training_dataloader)
            engine.backward(nn.functional.mse_loss(engine(x), y))
            engine.step()
            samples += y.flatten().int().tolist()
        found.append(samples)
    return found


def samples_of_a_curriculum(folder):
    engine = engine_of(curriculum(folder, "clusters-straight"), Numbered())
    seen = []
    engine.set_data_post_process_func(lambda batch, state: seen.append(state["current_difficulties"]["seqlen"]) or batch)
    found = train(engine, 20)
    return {"samples": of_all_ranks(found), "difficulties": seen, "length": len(engine.training_dataloader),
            "enabled": [engine.curriculum_learning_enabled(), engine.data_sampling_enabled(), engine.data_efficiency_enabled()],
            "metrics": [*engine.curriculum_learning_config()["curriculum_metrics"]]}


def samples_that_go_on(folder, stage, workers):
    """Of the steps after a checkpoint: of the run that saved it and goes on, and of one that loads it, with its clusters elsewhere."""
    zero = {"zero_optimization": {"stage": stage}}
    name = f"{stage}-{workers}"
    engine = engine_of(curriculum(folder, f"clusters-{name}", num_workers=workers), Numbered(), **zero)
    before = train(engine, 9)
    engine.save_checkpoint(f"{folder}/checkpoints-{name}")
    straight = train(engine, 20)
    again = engine_of(curriculum(folder, f"elsewhere-{name}", num_workers=workers), Numbered(), **zero)
    iter(again.training_dataloader)
    if workers:
        next(again.training_dataloader)  # its workers have read ahead
    again.load_checkpoint(f"{folder}/checkpoints-{name}")
    return {"straight": of_all_ranks(straight), "again": of_all_ranks(train(again, 20)), "before": of_all_ranks(before)}


def samples_of_a_pipeline(folder):
    """On the first stage modulo 7, by x; on the last one by y."""
    seen = []

    class Seen(nn.Linear):
        def forward(self, x):
            seen.append((x[:, 0] * 7).round().int().tolist())
            return super().forward(x)

    def loss_of(out, y):
        seen.append(y.flatten().int().tolist())
        return nn.functional.mse_loss(out, y)

    model = PipelineModule([Seen(1, 1), nn.Linear(1, 1)], num_stages=2, loss_fn=loss_of)
    engine = engine_of(curriculum(folder, "clusters-pipeline"), Numbered(), model)
    for _ in range(4):
        engine.train_batch()
    return of_all_ranks(seen)


def batches_by_tokens(folder):
    engine = engine_of(DYNAMIC, train_micro_batch_size_per_gpu=1, scheduler={
        "type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 2}})
    data = [Numbered()[number] for number in range(SAMPLES)]
    loader, scheduler, io_kwargs = get_dataloader_and_lr_scheduler_for_variable_batch_size_deepspeed(
        data, engine, dataset_seqlens=LENGTHS, dataloader_collate_fn=lambda batch: [torch.stack(each) for each in zip(*batch)])
    engine.lr_scheduler = scheduler
    engine.training_dataloader = engine.deepspeed_io(**io_kwargs)
    iter(engine.training_dataloader)
    lrs, samples = [engine.get_lr()[0]], []
    for _ in range(5):
        samples.append(train(engine, 1)[0])
        lrs.append(engine.get_lr()[0])
    engine.save_checkpoint(f"{folder}/checkpoints-tokens")
    train(engine, 1)
    after = engine.get_lr()[0]
    engine.load_checkpoint(f"{folder}/checkpoints-tokens")
    resumed = engine.get_lr()[0]
    engine.lr_scheduler.step()
    return {"samples": of_all_ranks(samples), "lrs": lrs, "sizes": scheduler.batch_sizes, "loader": [len(each) for each, _ in loader],
            "resumed": [resumed, engine.get_lr()[0], after]}


def errors(folder):
    """What each rank is told."""
    def told(block, **options):
        try:
            next(iter(engine_of(block, **options).training_dataloader))
        except ValueError as error:
            return str(error)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from Numbered()

    missing = curriculum(f"{folder}/nowhere", "clusters-missing")
    random_ltd = {"enabled": True, "data_routing": {"enabled": True, "random_ltd": {"enabled": True}}}
    return {"missing": of_all_ranks(told(missing, training_data=Numbered())), "stream": told(curriculum(folder, "x"), training_data=Stream()),
            "random_ltd": told(random_ltd)}


def main(folder):
    deepspeed.init_distributed(verbose=False)
    DistributedDataAnalyzer(torch.from_numpy(LENGTHS), num_workers=2, worker_id=dist.get_rank(), save_path=f"{folder}/metrics",
                            metric_names=["seqlen"], metric_functions=[lambda batch: batch],
                            metric_types=["single_value_per_sample"]).run_map_reduce()
    found = {"curriculum": samples_of_a_curriculum(folder), "tokens": batches_by_tokens(folder), "pipeline": samples_of_a_pipeline(folder),
             **{f"goes on, {stage}, {workers}": samples_that_go_on(folder, stage, workers) for stage, workers in ((1, 0), (3, 2))},
             "errors": errors(folder)}
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.barrier()
    os._exit(0)  # loaders have workers that still read ahead


if __name__ == "__main__":
    main(sys.argv[1])
