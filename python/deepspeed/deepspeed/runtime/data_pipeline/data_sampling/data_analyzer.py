"""How hard each sample of a dataset is, by metrics of the program's own, as the files that a curriculum and dynamic batching read.

    analyzer = DataAnalyzer(dataset, batch_size=64, metric_names=["seqlen"], metric_functions=[lengths_of_batch],
                            metric_types=["single_value_per_sample"], metric_dtypes=[torch.int64], save_path="metrics")
    analyzer.run_map()         on each of num_workers machines, in num_threads processes
    analyzer.run_reduce()      on one, once all have ended

A metric is a function of a collated batch that returns a tensor or an array of whole numbers: one for each sample
(single_value_per_sample), or one or several that are added up over all batches (accumulate_value_over_samples). In <save_path>/<metric>/:

    <metric>_sample_to_metric                       the value of each sample
    <metric>_index_to_metric, _index_to_sample      the values that there are, rising, and the samples that have each
    <metric>_index_to_sample_percentile_merged      the samples by rising value: a hundredth of the values a part, or one
    <metric>_metric_value                           of the second kind: the sums

DistributedDataAnalyzer does both in one call, in ranks that exchange their values instead of writing them to files.
"""

import csv
import glob
import multiprocessing
import os
from collections import defaultdict

import numpy as np
import torch
import torch.distributed
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, Subset

from deepspeed import comm as dist
from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import (
    MMapIndexedDataset,
    close_mmap_dataset_builder,
    create_mmap_dataset_builder,
    find_fit_int_dtype,
    valid_dtypes,
)
from deepspeed.utils.logging import logger

_OF_SAMPLES, _SUM = "single_value_per_sample", "accumulate_value_over_samples"
_ROW = 100  # more samples of one value than this are written as a row of the table


def split_index(start_idx, end_idx, num_partitions):
    """[(first, past the last)] of parts that follow each other."""
    bounds = np.linspace(start_idx, end_idx, num=num_partitions + 1, dtype=int)
    return list(zip(bounds[:-1], bounds[1:]))


def split_dataset(dataset, num_workers, worker_id, num_threads):
    """(the parts of all workers, those of this worker's threads)."""
    workers = split_index(0, len(dataset), num_workers)
    return workers, split_index(*workers[worker_id], num_threads)


class DataAnalyzer:
    """`specific_threads`: which of num_threads run here; all if empty. `sample_indices`: sample numbers in the dataset's order, where they are
    not that order; a batch's "index" field wins. The custom_… functions take the place of init_, update_ and finalize_metric_results, and of
    merge_map_results."""

    def __init__(self, dataset, num_workers=1, worker_id=0, num_threads=1, num_threads_reduce=1, specific_threads=[], batch_size=1,
                 metric_names=[], metric_functions=[], metric_types=[], metric_dtypes=[], save_path="./", collate_fn=None,
                 custom_map_init=None, custom_map_update=None, custom_map_finalize=None, custom_reduce=None, sample_indices=None):
        self.dataset, self.batch_size, self.collate_fn, self.sample_indices = dataset, batch_size, collate_fn, sample_indices
        self.num_workers, self.worker_id = num_workers, worker_id
        self.num_threads, self.num_threads_reduce, self.specific_threads = num_threads, num_threads_reduce, specific_threads
        self.metric_names, self.metric_functions = metric_names, metric_functions
        self.metric_types, self.metric_dtypes = metric_types, metric_dtypes
        self.save_path = save_path
        self.custom_map_init, self.custom_map_update, self.custom_map_finalize = custom_map_init, custom_map_update, custom_map_finalize
        self.custom_reduce = custom_reduce
        _check_types(metric_types)

    # ---- values of a part of the dataset

    def run_map(self):
        self.worker_splits, self.thread_splits = split_dataset(self.dataset, self.num_workers, self.worker_id, self.num_threads)
        threads = self.specific_threads or list(range(self.num_threads))
        _in_processes(self.run_map_helper, threads if self.num_threads > 1 else [0])

    def run_map_helper(self, thread_id):
        first, last = self.thread_splits[thread_id]
        results = (self.custom_map_init or self.init_metric_results)(
            thread_id, self.metric_names, self.metric_types, self.metric_dtypes, self.save_path, self.worker_id)
        for begin, data in _batches(self.dataset, first, last, self.batch_size, self.collate_fn):
            (self.custom_map_update or self.update_metric_results)(
                data, self.metric_types, self.metric_dtypes, self.metric_functions, results, begin)
        (self.custom_map_finalize or self.finalize_metric_results)(self.metric_types, self.metric_dtypes, results)
        logger.info(f"worker {self.worker_id}, thread {thread_id}: samples {first} to {last} are analyzed")

    def init_metric_results(self, thread_id, metric_names, metric_types, metric_dtypes, save_path, worker_id):
        results = []
        for name, kind, dtype in zip(metric_names, metric_types, metric_dtypes):
            assert dtype in valid_dtypes, f"metric {name} is to be of {dtype}; use one of {', '.join(sorted(map(str, valid_dtypes)))}"
            folder = os.path.join(save_path, name, f"worker{worker_id}_thread{thread_id}")
            os.makedirs(folder, exist_ok=True)
            prefix = os.path.join(folder, name)
            if kind == _SUM:
                results.append({"metric_value": None, "metric_value_fname": f"{prefix}_metric_value"})
                continue
            for old in glob.glob(f"{glob.escape(prefix)}_metric_to_sample*"):
                os.remove(old)
            results.append({"sample_to_metric_fname": f"{prefix}_sample_to_metric",
                            "sample_to_metric_builder": create_mmap_dataset_builder(f"{prefix}_sample_to_metric", dtype),
                            "metric_to_sample_fname": f"{prefix}_metric_to_sample", "metric_to_sample_dict": defaultdict(list)})
        return results

    def update_metric_results(self, data, metric_types, metric_dtypes, metric_functions, metric_results, batch_start_idx=0):
        for kind, dtype, function, result in zip(metric_types, metric_dtypes, metric_functions, metric_results):
            values = _values_of(function, data)
            assert values.dtype == _as_torch(dtype), f"a metric function returned {values.dtype}, and its metric_dtype is {dtype}"
            if kind == _SUM:
                result["metric_value"] = values if result["metric_value"] is None else result["metric_value"] + values
                continue
            result["sample_to_metric_builder"].add_flat(values.reshape(-1).numpy(), [1] * len(values))
            samples_of = result["metric_to_sample_dict"]
            for sample, value in zip(_samples_of(data, len(values), batch_start_idx, self.sample_indices), values.reshape(-1).tolist()):
                samples_of[value].append(sample)
            _write_rows(result, more_than=_ROW)

    def finalize_metric_results(self, metric_types, metric_dtypes, metric_results):
        for kind, dtype, result in zip(metric_types, metric_dtypes, metric_results):
            if kind == _OF_SAMPLES:
                close_mmap_dataset_builder(result["sample_to_metric_builder"], result["sample_to_metric_fname"])
                _write_rows(result, more_than=0)
            elif result["metric_value"] is not None:
                _write_one(result["metric_value_fname"], result["metric_value"].reshape(-1).numpy(), dtype)

    # ---- of the whole dataset

    def run_reduce(self):
        (self.custom_reduce or self.merge_map_results)(self.dataset, self.metric_names, self.metric_types, self.save_path, self.num_workers,
                                                       self.num_threads, self.num_threads_reduce)

    def run_map_reduce(self, comm_group=None):
        """Collective over the workers, which are ranks here."""
        self.run_map()
        if self.num_workers > 1:
            dist.barrier(group=comm_group)
        if self.worker_id == 0:
            self.run_reduce()
        if self.num_workers > 1:
            dist.barrier(group=comm_group)

    def merge_map_results(self, dataset, metric_names, metric_types, save_path, num_workers, num_threads, num_threads_reduce):
        for name, kind in zip(metric_names, metric_types):
            folder = os.path.join(save_path, name)
            parts = [os.path.join(folder, f"worker{worker}_thread{thread}", name) for worker in range(num_workers) for thread in range(num_threads)]
            prefix = os.path.join(folder, name)
            if kind == _SUM:
                values = [MMapIndexedDataset(f"{part}_metric_value", skip_warmup=True)[0].astype(np.int64) for part in parts
                          if MMapIndexedDataset.exists(f"{part}_metric_value")]
                total = sum(values)
                _write_one(f"{prefix}_metric_value", total, find_fit_int_dtype(total.min(), total.max()))
                continue
            self._merge_samples(prefix, parts, len(dataset), num_threads_reduce)
            counts = self.output_index_to_sample_percentile(f"{prefix}_index_to_sample", f"{prefix}_index_to_metric", name, folder, len(dataset),
                                                            find_fit_int_dtype(0, len(dataset) - 1))
            self.get_metric_value_percentiles(name, counts, len(dataset))

    def _merge_samples(self, prefix, parts, total, documents):
        """Each of the `documents` in a file is what one process would have merged."""
        values = [MMapIndexedDataset(f"{part}_sample_to_metric", skip_warmup=True).flat() for part in parts]
        found = sum(map(len, values))
        assert found == total, f"the workers have analyzed {found} of {total} samples: run all of them to their end first"
        unique = np.unique(np.concatenate(values))
        dtype = find_fit_int_dtype(unique[0], unique[-1])
        builder = create_mmap_dataset_builder(f"{prefix}_sample_to_metric", dtype)
        for first, last in split_index(0, len(parts), documents):
            for part in values[first:last]:
                builder.add_flat(part, [1] * len(part))
            builder.end_document()
        close_mmap_dataset_builder(builder, f"{prefix}_sample_to_metric")

        of_samples = create_mmap_dataset_builder(f"{prefix}_index_to_sample", find_fit_int_dtype(0, total - 1))
        of_values = create_mmap_dataset_builder(f"{prefix}_index_to_metric", dtype)
        tables = [f"{part}_metric_to_sample" for part in parts]
        chunks = split_index(0, len(unique), documents)
        samples_of_chunks = _in_processes(lambda chunk: [_read_rows(tables, value) for value in unique[slice(*chunk)]], chunks)
        for (first, last), samples in zip(chunks, samples_of_chunks):
            of_values.add_flat(unique[first:last], [1] * (last - first))
            of_samples.add_items(samples)
            of_values.end_document()
            of_samples.end_document()
        close_mmap_dataset_builder(of_samples, f"{prefix}_index_to_sample")
        close_mmap_dataset_builder(of_values, f"{prefix}_index_to_metric")

    @staticmethod
    def output_index_to_sample_percentile(index_to_sample_fname, index_to_metric_fname, metric_name, metric_save_path, total_num_samples,
                                          sample_idx_dtype):
        """Writes <metric>_index_to_sample_percentile_merged. Returns {value: how many samples have it}."""
        samples, values = (MMapIndexedDataset(name, skip_warmup=True) for name in (index_to_sample_fname, index_to_metric_fname))
        assert (np.diff(values.flat().astype(np.int64)) > 0).all(), f"the values in {index_to_metric_fname} do not rise"
        found = samples.sizes.sum()
        assert found == total_num_samples, f"{index_to_sample_fname} has {found} samples, and the dataset {total_num_samples}"
        fname = os.path.join(metric_save_path, f"{metric_name}_index_to_sample_percentile_merged")
        builder, step = create_mmap_dataset_builder(fname, sample_idx_dtype), max(1, len(samples) // 100)
        for first in range(0, len(samples), step):
            builder.add_item_numpy(np.concatenate(samples[first:min(first + step, len(samples))]))
        close_mmap_dataset_builder(builder, fname)
        return dict(zip(values.flat().tolist(), samples.sizes.tolist()))

    def get_metric_value_percentiles(self, metric_name, num_sample_per_value, total_num_samples):
        """Logs the value that each twentieth of the samples ends with."""
        seen, percentile = 0, 5
        for value in sorted(num_sample_per_value):
            seen += num_sample_per_value[value]
            if seen >= total_num_samples * percentile / 100:
                logger.info(f"metric {metric_name}: percentile {percentile} is {value}")
                percentile += 5


class DistributedDataAnalyzer:
    """Workers are the ranks of comm_group; without one, rank worker_id of num_workers. `device` stays unused: what the ranks exchange is made
    ready by torch."""

    def __init__(self, dataset, num_workers=1, num_threads=1, worker_id=0, batch_size=1, metric_names=[], metric_functions=[], metric_types=[],
                 save_path="./", collate_fn=None, device="cuda", comm_group=None, sample_indices=None):
        self.dataset, self.batch_size, self.collate_fn, self.sample_indices = dataset, batch_size, collate_fn, sample_indices
        self.metric_names, self.metric_functions, self.metric_types = metric_names, metric_functions, metric_types
        self.save_path, self.device, self.num_threads = save_path, device, num_threads or 1
        if (num_workers > 1 or comm_group is not None) and not dist.is_initialized():
            dist.init_distributed()
        self.comm_group = comm_group
        self.num_workers = num_workers if comm_group is None else dist.get_world_size(comm_group)
        self.worker_id = worker_id if comm_group is None else dist.get_rank(comm_group)
        _check_types(metric_types)

    def run_map_reduce(self):
        """Collective over the workers."""
        self.worker_splits, self.thread_splits = split_dataset(self.dataset, self.num_workers, self.worker_id, self.num_threads)
        of_threads = _in_processes(self.run_map_helper, list(range(self.num_threads)))
        for number, (name, kind) in enumerate(zip(self.metric_names, self.metric_types)):
            own = [results[number] for results in of_threads if results[number] is not None]
            found = self._gathered(np.concatenate(own) if own and kind == _OF_SAMPLES else sum(own) if own else None)
            if self.worker_id == 0:
                os.makedirs(os.path.join(self.save_path, name), exist_ok=True)
                (self._write_samples if kind == _OF_SAMPLES else self._write_sum)(name, [each for each in found if each is not None])
        if self.num_workers > 1:
            dist.barrier(self.comm_group)

    def run_map_helper(self, thread_id=0):
        """Of each metric: rows of (value, sample), or the sums; None of an empty part."""
        first, last = self.thread_splits[thread_id]
        results = [[] for _ in self.metric_names]
        for begin, data in _batches(self.dataset, first, last, self.batch_size, self.collate_fn):
            for result, kind, function in zip(results, self.metric_types, self.metric_functions):
                values = _values_of(function, data)
                assert values.dtype in valid_dtypes, f"a metric function returned {values.dtype}; return whole numbers"
                numbers = values.to(torch.int64).numpy()
                if kind == _SUM:
                    result[:] = [sum(result) + numbers]
                else:
                    result.append(np.stack([numbers.reshape(-1), _samples_of(data, len(values), begin, self.sample_indices)], axis=1))
        return [None if not result else result[0] if kind == _SUM else np.concatenate(result) for result, kind in zip(results, self.metric_types)]

    def _gathered(self, own):
        """Of all workers, on the first."""
        if self.num_workers == 1:
            return [own]
        all_of_them = [None] * self.num_workers if self.worker_id == 0 else None
        torch.distributed.gather_object(own, all_of_them, dst=dist.get_global_rank(self.comm_group, 0), group=self.comm_group)
        return all_of_them

    def _write_samples(self, name, found):
        rows, folder = np.concatenate(found), os.path.join(self.save_path, name)
        prefix, total = os.path.join(folder, name), len(self.dataset)
        values, samples = rows.T
        of_values = find_fit_int_dtype(values.min(), values.max())
        _write(f"{prefix}_sample_to_metric", values, np.ones(len(values), dtype=int), of_values)
        order = np.lexsort((samples, values))
        unique, counts = np.unique(values, return_counts=True)
        _write(f"{prefix}_index_to_metric", unique, np.ones(len(unique), dtype=int), of_values)
        _write(f"{prefix}_index_to_sample", samples[order], counts, find_fit_int_dtype(samples.min(), samples.max()))
        DataAnalyzer.output_index_to_sample_percentile(f"{prefix}_index_to_sample", f"{prefix}_index_to_metric", name, folder, total,
                                                       find_fit_int_dtype(0, total - 1))

    def _write_sum(self, name, found):
        total = sum(found)
        _write_one(os.path.join(self.save_path, name, f"{name}_metric_value"), total, find_fit_int_dtype(total.min(), total.max()))


# ---- a batch

def _check_types(metric_types):
    for kind in metric_types:
        assert kind in (_OF_SAMPLES, _SUM), f"there is no metric type {kind!r}; use {_OF_SAMPLES} or {_SUM}"


def _batches(dataset, first, last, batch_size, collate_fn):
    """(the number of its first sample, a batch)."""
    part = Subset(dataset, range(first, last))
    loader = DataLoader(part, batch_sampler=BatchSampler(SequentialSampler(part), batch_size=batch_size, drop_last=False), collate_fn=collate_fn)
    for number, data in enumerate(loader):
        yield int(first) + number * batch_size, data


def _values_of(function, data):
    values = function(data)
    assert isinstance(values, (torch.Tensor, np.ndarray)), f"a metric function returned {type(values).__name__}; return a tensor or an array"
    return torch.from_numpy(values) if isinstance(values, np.ndarray) else values.detach().cpu()


def _as_torch(dtype):
    return dtype if isinstance(dtype, torch.dtype) else torch.from_numpy(np.empty(0, dtype=dtype)).dtype


def _samples_of(data, count, begin, sample_indices):
    if isinstance(data, dict) and "index" in data:
        return [int(data["index"][row][0]) for row in range(count)]
    samples = range(begin, begin + count)
    return list(samples) if sample_indices is None else [int(sample_indices[sample]) for sample in samples]


# ---- files

def _write(fname, numbers, sizes, dtype):
    builder = create_mmap_dataset_builder(fname, dtype)
    builder.add_flat(numbers, sizes.tolist())
    close_mmap_dataset_builder(builder, fname)


def _write_one(fname, numbers, dtype):
    _write(fname, numbers, np.array([numbers.size]), dtype)


def _write_rows(result, more_than):
    """The samples of each value, into a table of its own."""
    for value, samples in result["metric_to_sample_dict"].items():
        if len(samples) > more_than:
            with open(f"{result['metric_to_sample_fname']}_{value}.csv", "a", newline="") as file:
                csv.writer(file).writerow(samples)
            samples.clear()


def _read_rows(tables, value):
    samples = []
    for table in tables:
        path = f"{table}_{value}.csv"
        if os.path.isfile(path):
            with open(path, newline="") as file:
                samples += [int(sample) for row in csv.reader(file) for sample in row]
    return np.array(samples, dtype=np.int64)


# ---- processes

def _in_processes(work, arguments):
    """What `work` returns for each of the arguments: in a process each where there are several. They are forked, so that `work` may be any
    function."""
    if len(arguments) == 1:
        return [work(arguments[0])]
    context, started = multiprocessing.get_context("fork"), []
    for argument in arguments:
        reads, writes = context.Pipe(duplex=False)
        process = context.Process(target=_tell, args=(work, argument, writes))
        process.start()
        writes.close()
        started.append((process, reads))
    told = []
    for process, reads in started:
        try:
            told.append(reads.recv())
        except EOFError:
            told.append((None, "it ended before it was done"))
        process.join()
    failure = next((failure for _, failure in told if failure), None)
    if failure:
        raise RuntimeError(f"a process that analyzes data failed: {failure}")
    return [result for result, _ in told]


def _tell(work, argument, pipe):
    torch.set_num_threads(1)  # threads of before the fork are not there
    try:
        pipe.send((work(argument), None))
    except Exception as error:
        pipe.send((None, f"{type(error).__name__}: {error}"))
