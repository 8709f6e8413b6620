"""Batches of as many tokens instead of as many samples, with a learning rate that goes by how many samples a step has: the ds_config's
data_efficiency.data_sampling.dynamic_batching.

    dataloader, lr_scheduler, io_kwargs = get_dataloader_and_lr_scheduler_for_variable_batch_size_deepspeed(dataset, engine, lengths)
    engine.lr_scheduler = lr_scheduler
    engine.training_dataloader = engine.deepspeed_io(**io_kwargs)      or iterate over `dataloader`

A micro batch takes samples in their order while their lengths add up to at most max_tokens; train_batch_size counts such micro batches, and
train_micro_batch_size_per_gpu those that a rank has at a time.
"""

import math
import os
import random
import warnings

import numpy as np
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader, DistributedSampler

from deepspeed.runtime.data_pipeline.constants import (
    DATA_EFFICIENCY_SEED,
    DATA_SAMPLING,
    DATA_SAMPLING_NUM_WORKERS,
    DATA_SAMPLING_PIN_MEMORY,
    DYNAMIC_BATCHING,
    DYNAMIC_BATCHING_LR_SCALING_METHOD,
    DYNAMIC_BATCHING_MAX_BATCH_SIZE,
    DYNAMIC_BATCHING_MAX_TOKENS,
    DYNAMIC_BATCHING_METRICS_PATH,
    DYNAMIC_BATCHING_MIN_BATCH_SIZE,
    DYNAMIC_BATCHING_SEQUENCE_PICKING_ORDER,
    DYNAMIC_BATCHING_VERBOSE,
)
from deepspeed.runtime.data_pipeline.data_sampling.data_analyzer import DistributedDataAnalyzer
from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import MMapIndexedDataset
from deepspeed.utils.logging import logger
from tessera import _core
from tessera.error_report import made
from tessera.schedules import torch_optimizer_of

_WHERE = "data_efficiency.data_sampling.dynamic_batching"
_ORDERS = ("dataloader", "random", "seqlen")


# ---- batches

def batch_by_seqlens(seqlens, max_tokens, sequence_ids_per_mb=None, min_batch_size=1, max_batch_size=None, sequence_picking_order="dataloader",
                     effective_batch_size=1, required_microbatches_of_same_size=False, verbose=False, seed=None):
    """([(batch, sample numbers of a micro batch)], the samples of each batch, the longest length in each). A batch is effective_batch_size micro
    batches, with as many samples each where they are to be of the same size. min_batch_size and max_batch_size are a micro batch's. Samples are
    left out where one alone has more than max_tokens, and at the end where they fill no batch. `sequence_picking_order`: as they come, "random"
    by the seed, or "seqlen": the shortest first."""
    assert sequence_picking_order in _ORDERS, f"there is no order {sequence_picking_order!r} of samples; use {', '.join(_ORDERS)}"
    ids = range(len(seqlens)) if sequence_ids_per_mb is None else sequence_ids_per_mb
    samples = [(int(seqlens[each]), int(each)) for each in ids]
    if sequence_picking_order == "random":
        random.Random(seed).shuffle(samples)
    elif sequence_picking_order == "seqlen":
        samples.sort()
    fitting = [sample for sample in samples if sample[0] <= max_tokens]
    if len(fitting) < len(samples):
        logger.warning(f"{len(samples) - len(fitting)} of {len(samples)} samples are left out: each is longer than max_tokens, {max_tokens}")

    side_by_side = effective_batch_size if required_microbatches_of_same_size else 1
    micro_batches, first = [], 0
    while first < len(fitting):
        count = _samples_that_fit(fitting, first, side_by_side, max_tokens, min_batch_size or 1, max_batch_size or len(fitting))
        if count == 0:
            logger.info(f"the last {len(fitting) - first} samples fill no micro batch")
            break
        taken = fitting[first:first + count]
        micro_batches += [taken[number::side_by_side] for number in range(side_by_side)]
        first += count

    batches = len(micro_batches) // effective_batch_size
    assert batches > 0, (f"{len(fitting)} samples make {len(micro_batches)} micro batches of {max_tokens} tokens, "
                         f"and a batch takes {effective_batch_size}")
    ids_of_micro_batches, sizes, longest = [], [], []
    for batch in range(batches):
        own = micro_batches[batch * effective_batch_size:(batch + 1) * effective_batch_size]
        ids_of_micro_batches += [(batch, [sample for _, sample in each]) for each in own]
        sizes.append(sum(map(len, own)))
        longest.append(max(length for each in own for length, _ in each))
        if verbose:
            tokens = [sum(length for length, _ in each) for each in own]
            logger.info(f"batch {batch}: {sizes[-1]} samples in micro batches of {tokens} tokens: {[ids for _, ids in ids_of_micro_batches[-len(own):]]}")
    return ids_of_micro_batches, sizes, longest


def _samples_that_fit(samples, first, side_by_side, max_tokens, least, most):
    """How many from `first` on, dealt out to as many micro batches, leave none of these with more than max_tokens or `most` samples;
    0 if that is fewer than `least` in each."""
    tokens, rounds = [0] * side_by_side, 0
    while rounds < most and first + (rounds + 1) * side_by_side <= len(samples):
        begin = first + rounds * side_by_side
        tokens = [before + length for before, (length, _) in zip(tokens, samples[begin:begin + side_by_side])]
        if max(tokens) > max_tokens:
            break
        rounds += 1
    return rounds * side_by_side if rounds >= least else 0


def dataloader_for_variable_batch_size(dataset, microbatch_ids, batch_max_seqlens, dataloader_rank=0, dataloader_batch_size=1,
                                       dataloader_num_replicas=1, dataloader_collate_fn=None, dataloader_num_workers=2, dataloader_pin_memory=False,
                                       required_microbatches_of_same_seqlen=False, sample_padding_fn=None):
    """(a DataLoader of this rank's micro batches, the arguments of engine.deepspeed_io for the same). `sample_padding_fn(sample, length)`
    pads a sample to the longest of its batch, where they are to be of the same length."""
    if required_microbatches_of_same_seqlen and sample_padding_fn is None:
        raise AssertionError("micro batches of a pipeline have the same length: give sample_padding_fn, which pads a sample to it")

    def collate(micro_batches):
        batch = []
        for number, ids in micro_batches:
            samples = [dataset[each] for each in ids]
            if required_microbatches_of_same_seqlen:
                length = batch_max_seqlens[number]
                assert all(len(sample) <= length for sample in samples), f"a sample of batch {number} is longer than the lengths given say, {length}"
                samples = [sample_padding_fn(sample, length) for sample in samples]
            batch += samples
        return dataloader_collate_fn(batch) if dataloader_collate_fn else batch

    sampler = DistributedSampler(microbatch_ids, num_replicas=dataloader_num_replicas, rank=dataloader_rank, shuffle=False)
    common = {"dataset": microbatch_ids, "batch_size": dataloader_batch_size, "pin_memory": dataloader_pin_memory, "collate_fn": collate}
    return (DataLoader(sampler=sampler, num_workers=dataloader_num_workers, **common),
            {"data_sampler": sampler, "num_local_io_workers": dataloader_num_workers, **common})


# ---- learning rates

def scale_lr(base_batch_size, batch_size, base_lr=1, method="linear"):
    """Of a batch of another size: in proportion (Goyal et al. 2017), "sqrt": by the root, which keeps the gradient's variance (Krizhevsky
    2014), or "none"."""
    if method == "linear":
        return base_lr * batch_size / base_batch_size
    if method == "sqrt":
        return base_lr * math.sqrt(batch_size / base_batch_size)
    if method is None or method.lower() == "none":
        return base_lr
    raise ValueError(f"lr_scaling_method is {method!r}; use linear, sqrt or none")


class VariableBatchSizeLR(LRScheduler):
    """Another schedule's learning rates, each times what the size of the step's batch makes of it. The sizes start over at their end.
    get_last_lr() has those of the other schedule, get_lr() those that are in use."""

    def __init__(self, lr_scheduler, base_batch_size, batch_sizes, dataloader, lr_scaling_method="linear", last_epoch=-1, verbose=False):
        self.base_lr_scheduler, self.dataloader = lr_scheduler, dataloader
        self.base_batch_size, self.batch_sizes, self.lr_scaling_method = base_batch_size, batch_sizes, lr_scaling_method
        self.last_epoch, self.verbose = last_epoch, verbose
        with warnings.catch_warnings():  # torch's, about a step before the optimizer's own, and by number
            warnings.simplefilter("ignore")
            self.base_lrs = lr_scheduler.get_lr()
            self.step(0)

    @property
    def optimizer(self):
        return self.base_lr_scheduler.optimizer

    def state_dict(self):
        keys = ("base_batch_size", "lr_scaling_method", "batch_sizes", "base_lrs", "last_epoch", "verbose")
        return {"base_lr_scheduler": self.base_lr_scheduler.state_dict(), **{key: getattr(self, key) for key in keys}}

    def load_state_dict(self, state_dict):
        self.base_lr_scheduler.load_state_dict(state_dict["base_lr_scheduler"])
        self.__dict__.update({key: value for key, value in state_dict.items() if key != "base_lr_scheduler"})

    def get_last_lr(self):
        return self.base_lr_scheduler._last_lr

    def get_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self, epoch=None):
        for group, lr in zip(self.optimizer.param_groups, self.base_lrs if epoch == 0 else self.get_last_lr()):
            group["lr"] = lr
        self.base_lr_scheduler.step(epoch)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        batch_size = self.batch_sizes[self.last_epoch % len(self.batch_sizes)]
        for group in self.optimizer.param_groups:
            group["lr"] = scale_lr(self.base_batch_size, batch_size, group["lr"], self.lr_scaling_method)
        if self.verbose:
            logger.info(f"step {self.last_epoch}: {batch_size} samples, lr {self.get_lr()}; of {self.base_batch_size} it is {self.get_last_lr()}")


def lr_scheduler_for_variable_batch_size(base_batch_size, batch_sizes, dataloader, lr_scheduler_or_optimizer, lr_scaling_method="linear",
                                         verbose=False):
    """Over a schedule, or over an optimizer's own learning rates, which stay."""
    given = lr_scheduler_or_optimizer
    if not callable(getattr(given, "get_lr", None)):
        given = LambdaLR(_optimizer_of(given), lambda step: 1.0)
    return VariableBatchSizeLR(given, base_batch_size, batch_sizes, dataloader, lr_scaling_method, verbose=verbose)


def _optimizer_of(given):
    try:
        return torch_optimizer_of(given)
    except TypeError as error:
        raise ValueError(str(error)) from None


# ---- both

def get_dataloader_and_lr_scheduler_for_variable_batch_size(
        dataset, dataset_seqlens, max_tokens, effective_batch_size, dataset_filter_ids=None, lr_scaling_method="linear", min_batch_size=1,
        max_batch_size=None, sequence_picking_order="dataloader", dataloader_batch_size=1, dataloader_rank=0, dataloader_num_replicas=1,
        dataloader_num_workers=0, dataloader_collate_fn=None, dataloader_pin_memory=False, lr_scheduler_or_optimizer=None,
        required_microbatches_of_same_size=False, required_microbatches_of_same_seqlen=False, sample_padding_fn=None, verbose=False, seed=None):
    """(DataLoader, schedule, arguments of deepspeed_io): see batch_by_seqlens, dataloader_for_variable_batch_size and VariableBatchSizeLR.
    `dataset_filter_ids`: the samples to use; all if None."""
    microbatch_ids, batch_sizes, batch_max_seqlens = batch_by_seqlens(
        dataset_seqlens, max_tokens, sequence_ids_per_mb=dataset_filter_ids, min_batch_size=min_batch_size, max_batch_size=max_batch_size,
        sequence_picking_order=sequence_picking_order, effective_batch_size=effective_batch_size,
        required_microbatches_of_same_size=required_microbatches_of_same_size, verbose=verbose, seed=seed)
    dataloader, deepspeed_io_kwargs = dataloader_for_variable_batch_size(
        dataset, microbatch_ids, batch_max_seqlens, dataloader_rank=dataloader_rank, dataloader_batch_size=dataloader_batch_size,
        dataloader_num_replicas=dataloader_num_replicas, dataloader_collate_fn=dataloader_collate_fn, dataloader_num_workers=dataloader_num_workers,
        dataloader_pin_memory=dataloader_pin_memory, required_microbatches_of_same_seqlen=required_microbatches_of_same_seqlen,
        sample_padding_fn=sample_padding_fn)
    lr_scheduler = lr_scheduler_for_variable_batch_size(effective_batch_size, batch_sizes, dataloader, lr_scheduler_or_optimizer,
                                                        lr_scaling_method=lr_scaling_method, verbose=verbose)
    return dataloader, lr_scheduler, deepspeed_io_kwargs


def get_dataloader_and_lr_scheduler_for_variable_batch_size_deepspeed(dataset, engine, dataset_seqlens=None, dataset_filter_ids=None,
                                                                      dataloader_collate_fn=None, sample_padding_fn=None, batch_seqlens_fn=None):
    """By the engine's configuration. Lengths are dataset_seqlens, or what DataAnalyzer wrote as the metric "seqlen" to metrics_path; where that is
    not there, batch_seqlens_fn(batch) is asked and they are written. Collective then."""
    from deepspeed.runtime.pipe.engine import PipelineEngine  # not at the start: it takes the whole engine

    config = engine._config.data_efficiency_config
    sampling = config[DATA_SAMPLING]
    batching = sampling[DYNAMIC_BATCHING]
    assert batching["enabled"], f"'{_WHERE}.enabled' is false: there is nothing to batch by"
    if dataset_seqlens is None:
        dataset_seqlens = _lengths_in(batching.get(DYNAMIC_BATCHING_METRICS_PATH), dataset, engine, dataloader_collate_fn, batch_seqlens_fn)
    is_pipeline = isinstance(engine, PipelineEngine)
    return get_dataloader_and_lr_scheduler_for_variable_batch_size(
        dataset, dataset_seqlens, batching[DYNAMIC_BATCHING_MAX_TOKENS], engine.train_batch_size(), dataset_filter_ids=dataset_filter_ids,
        lr_scaling_method=batching[DYNAMIC_BATCHING_LR_SCALING_METHOD], min_batch_size=batching[DYNAMIC_BATCHING_MIN_BATCH_SIZE],
        max_batch_size=batching[DYNAMIC_BATCHING_MAX_BATCH_SIZE], sequence_picking_order=batching[DYNAMIC_BATCHING_SEQUENCE_PICKING_ORDER],
        dataloader_batch_size=engine.train_micro_batch_size_per_gpu(), dataloader_rank=engine.get_data_parallel_rank(),
        dataloader_num_replicas=engine.dp_world_size, dataloader_num_workers=sampling[DATA_SAMPLING_NUM_WORKERS],
        dataloader_collate_fn=dataloader_collate_fn, dataloader_pin_memory=sampling[DATA_SAMPLING_PIN_MEMORY],
        lr_scheduler_or_optimizer=engine.lr_scheduler or engine.optimizer, required_microbatches_of_same_size=is_pipeline,
        required_microbatches_of_same_seqlen=is_pipeline, sample_padding_fn=sample_padding_fn, verbose=batching[DYNAMIC_BATCHING_VERBOSE],
        seed=config[DATA_EFFICIENCY_SEED])


def _lengths_in(metrics_path, dataset, engine, collate_fn, batch_seqlens_fn):
    if metrics_path is None:
        raise made(_core.ConfigError, f"'{_WHERE}.metrics_path' is missing, and no lengths are given", _WHERE,
                   "name the folder where DataAnalyzer wrote the metric seqlen, or give dataset_seqlens")
    path = os.path.join(metrics_path, "seqlen", "seqlen_sample_to_metric")
    if not MMapIndexedDataset.exists(path):
        if batch_seqlens_fn is None:
            raise ValueError(f"there is no {path}.bin and {path}.idx: give dataset_seqlens, or batch_seqlens_fn, which says the lengths of a "
                             "batch's samples")
        logger.warning(f"the lengths of the samples are not in {metrics_path} yet: they are analyzed now")
        DistributedDataAnalyzer(dataset, num_workers=engine.world_size, worker_id=engine.global_rank, batch_size=1024, metric_names=["seqlen"],
                                metric_functions=[batch_seqlens_fn], metric_types=["single_value_per_sample"], save_path=metrics_path,
                                collate_fn=collate_fn, device=engine.device).run_map_reduce()
    lengths = MMapIndexedDataset(path, skip_warmup=True).flat().astype(np.int64)
    assert len(lengths) == len(dataset), (f"{metrics_path} has {len(lengths)} lengths, and the dataset {len(dataset)} samples: "
                                          "delete the folder to analyze it anew")
    return lengths
