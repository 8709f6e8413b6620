"""Which samples a step trains on, from easy to hard: the sampler of the ds_config's data_efficiency.data_sampling.curriculum_learning.

Each metric has a difficulty that rises with the steps (CurriculumScheduler). When one rises, the samples that are allowed now and were
not before become a cluster, in random order; a batch takes from each cluster by its size, and a cluster that is used up is shuffled
again. The first of the data-parallel ranks draws, and tells the others; all take their share of each micro batch.

A cluster's samples lie in data_cluster_path, under a name with the difficulties. A state from state_dict() goes on with the same samples wherever
the files are: those that are not there, or that a later step has shuffled since, are made again from the metric's files.
"""

import json
import os
import zlib

import numpy as np

from deepspeed import comm as dist
from deepspeed.runtime.data_pipeline.constants import (
    CURRICULUM_LEARNING,
    CURRICULUM_LEARNING_BATCH,
    CURRICULUM_LEARNING_CLUSTER_PATH,
    CURRICULUM_LEARNING_CLUSTER_PREFIX,
    CURRICULUM_LEARNING_CLUSTERING_TYPE,
    CURRICULUM_LEARNING_CONSUMED_SAMPLES,
    CURRICULUM_LEARNING_CURRENT_DIFFICULTIES,
    CURRICULUM_LEARNING_DATA_CLUSTER_CURRENT_POSITION,
    CURRICULUM_LEARNING_DATA_CLUSTER_PATHS,
    CURRICULUM_LEARNING_DIFFICULTY_TYPE,
    CURRICULUM_LEARNING_MAX_DIFFICULTY,
    CURRICULUM_LEARNING_METRIC_PATH,
    CURRICULUM_LEARNING_METRICS,
    CURRICULUM_LEARNING_MIN_DIFFICULTY,
    CURRICULUM_LEARNING_NP_RNG_STATE,
    CURRICULUM_LEARNING_PERCENTILE_BASED,
    CURRICULUM_LEARNING_SAMPLE_PATH,
    CURRICULUM_LEARNING_SCHEDULE_CONFIG,
    CURRICULUM_LEARNING_SCHEDULE_TYPE,
    CURRICULUM_LEARNING_SINGLE_CLUSTER,
    CURRICULUM_LEARNING_STEP,
    CURRICULUM_LEARNING_VALUE_BASED,
    DATA_EFFICIENCY_SEED,
    DATA_SAMPLING,
    DATA_SAMPLING_NUM_EPOCHS,
)
from deepspeed.runtime.data_pipeline.curriculum_scheduler import CurriculumScheduler
from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import (
    MMapIndexedDataset,
    close_mmap_dataset_builder,
    create_mmap_dataset_builder,
    data_file_path,
    find_fit_int_dtype,
    index_file_path,
)
from deepspeed.utils.logging import logger
from tessera import _core
from tessera.error_report import made

_WHERE = "data_efficiency.data_sampling.curriculum_learning"
_KINDS = {CURRICULUM_LEARNING_DIFFICULTY_TYPE: (CURRICULUM_LEARNING_VALUE_BASED, CURRICULUM_LEARNING_PERCENTILE_BASED),
          CURRICULUM_LEARNING_CLUSTERING_TYPE: (CURRICULUM_LEARNING_SINGLE_CLUSTER, "schedule_based")}
_METRIC_KEYS = {*_KINDS, CURRICULUM_LEARNING_SAMPLE_PATH, CURRICULUM_LEARNING_METRIC_PATH, CURRICULUM_LEARNING_MIN_DIFFICULTY,
                CURRICULUM_LEARNING_MAX_DIFFICULTY, CURRICULUM_LEARNING_SCHEDULE_TYPE, CURRICULUM_LEARNING_SCHEDULE_CONFIG}
# What a state has beside DeepSpeed's own keys: of NumPy's generator that draws, and of each cluster how to make its order again.
_GENERATOR, _ORDERS = "generator_state", "data_cluster_orders"


class DeepSpeedDataSampler:
    """Yields this rank's sample numbers of each micro batch, without end but for num_epochs * one_epoch_total_samples.
    `data_parallel_group`: of torch, or an engine's World; None: all ranks. Only `global_rank` 0 writes files."""

    def __init__(self, data_efficiency_config, one_epoch_total_samples, micro_batch_size, data_parallel_rank, data_parallel_size,
                 data_parallel_group, gradient_accumulation_steps, global_rank, drop_last=True):
        self.data_efficiency_config = data_efficiency_config
        sampling = data_efficiency_config[DATA_SAMPLING]
        self._options = sampling[CURRICULUM_LEARNING]
        self._metrics = _checked_metrics(self._options)
        self.one_epoch_total_samples = one_epoch_total_samples
        self.total_samples = one_epoch_total_samples * sampling[DATA_SAMPLING_NUM_EPOCHS]
        assert self.total_samples > 0, "a curriculum needs at least one sample"
        assert micro_batch_size > 0, f"the micro batch has {micro_batch_size} samples"
        assert data_parallel_rank < data_parallel_size, f"data-parallel rank {data_parallel_rank} of {data_parallel_size}"
        self.index_dtype = find_fit_int_dtype(0, one_epoch_total_samples)
        self.micro_batch_size, self.gradient_accumulation_steps = micro_batch_size, gradient_accumulation_steps
        self.data_parallel_rank, self.data_parallel_size, self.data_parallel_group = data_parallel_rank, data_parallel_size, data_parallel_group
        self.micro_batch_times_data_parallel_size = micro_batch_size * data_parallel_size
        self.global_batch_size = self.micro_batch_times_data_parallel_size * gradient_accumulation_steps
        self.global_rank, self.drop_last = global_rank, drop_last
        self._draws = data_parallel_rank == 0

        self.np_rng = np.random.default_rng(data_efficiency_config[DATA_EFFICIENCY_SEED])
        self.batch, self.consumed_samples, self.curriculum_step = [], 0, 0
        self.curriculum_schedulers = {name: CurriculumScheduler(metric) for name, metric in self._metrics.items()}
        self.current_difficulties = {}
        self.data_cluster_paths, self.data_cluster_current_position = [], []
        self._clusters = []  # on the rank that draws
        self._files = {}

    def __len__(self):
        """Samples of all ranks and epochs."""
        return self.total_samples

    def set_custom_curriculum_learning_schedule(self, schedule_func_dict):
        """{metric: function of the step}, for metrics whose schedule_type is custom."""
        for name in schedule_func_dict.keys() & self.curriculum_schedulers.keys():
            self.curriculum_schedulers[name].set_custom_get_difficulty(schedule_func_dict[name])

    # ---- what a rank takes

    def __iter__(self):
        while self.consumed_samples < self.total_samples:
            if not self.batch:
                self.get_next_global_batch()
            micro_batch = self.batch[:self.micro_batch_times_data_parallel_size]
            self.batch = self.batch[len(micro_batch):]
            if len(micro_batch) == self.micro_batch_times_data_parallel_size or not self.drop_last:
                self._require_a_sample_each(micro_batch)
                self.consumed_samples += len(micro_batch)
                first, last = self.get_start_end_idx(len(micro_batch))
                yield micro_batch[first:last]

    def _require_a_sample_each(self, micro_batch):
        if len(micro_batch) < self.data_parallel_size:
            raise made(_core.DataError, f"the curriculum allows so few samples that a micro batch has {len(micro_batch)}, and there are "
                       f"{self.data_parallel_size} ranks", _WHERE, "raise min_difficulty, or make train_batch_size smaller")

    def get_start_end_idx(self, batch_len=None):
        """This rank's part of a micro batch of all ranks."""
        batch_len = batch_len or self.micro_batch_times_data_parallel_size
        first, last = (round(rank * batch_len / self.data_parallel_size) for rank in (self.data_parallel_rank, self.data_parallel_rank + 1))
        return first, last

    # ---- what the ranks draw

    def get_next_global_batch(self):
        """Of the next step. Collective over the data-parallel ranks."""
        self.curriculum_step += 1
        before = {name: self.current_difficulties.get(name, _easiest(metric)) for name, metric in self._metrics.items()}
        now = {name: schedule.update_difficulty(self.curriculum_step) for name, schedule in self.curriculum_schedulers.items()}
        rises = now != self.current_difficulties
        self.current_difficulties = now
        told = self._told(lambda: self._drawn(before, now, rises))
        if told["cluster"] is not None and not self._draws:
            self._note_cluster(told["cluster"])
        self.batch = told["batch"]

    def _told(self, draw):
        """What the first rank draws, on all; where that fails, every rank raises."""
        told, failure = None, None
        if self._draws:
            try:
                told = draw()
            except Exception as error:  # of any kind: the other ranks wait
                failure, told = error, {"failure": str(error)}
        told = _said_by_the_first(told, self.data_parallel_size, self.data_parallel_group)
        if failure is not None:
            raise failure
        if "failure" in told:
            raise made(_core.DataError, f"the first data-parallel rank could not draw samples: {told['failure']}", _WHERE,
                       "see that rank's own message")
        return told

    def _drawn(self, before, now, rises):
        name = None
        if rises:
            samples = self._newly_allowed(before, now, self._clusters)
            if len(samples):
                name = "_".join([CURRICULUM_LEARNING_CLUSTER_PREFIX, *(f"{metric}{difficulty}" for metric, difficulty in now.items())])
                self._clusters.append(_Cluster(samples, self._place_of(name), before, now, self.index_dtype))
                self._clusters[-1].shuffle(self.np_rng)
                self._note_cluster(name)
            logger.info(f"curriculum step {self.curriculum_step}: difficulties {now}, {len(samples)} more samples")
        if not self._clusters:
            raise made(_core.DataError, f"no sample is as easy as the curriculum's first difficulties, {now}", _WHERE,
                       "raise min_difficulty, or check the metrics' files")
        batch = self._batch_of_clusters()
        if self.drop_last and len(batch) < self.micro_batch_times_data_parallel_size and not self._may_rise():
            raise made(_core.DataError, f"the curriculum has no more than {len(batch)} samples for a step, and dataloader_drop_last drops them", _WHERE,
                       "set dataloader_drop_last to false, or make train_batch_size smaller")
        return {"cluster": name, "batch": batch}

    def _may_rise(self):
        return any(schedule.get_current_difficulty() < schedule.state[CURRICULUM_LEARNING_MAX_DIFFICULTY] for schedule in self.curriculum_schedulers.values())

    def _note_cluster(self, name):
        self.data_cluster_paths.append(name)
        self.data_cluster_current_position.append(0)

    def _batch_of_clusters(self):
        sizes = [len(cluster.samples) for cluster in self._clusters]
        total = sum(sizes)
        chosen = self.np_rng.choice(len(sizes), self.global_batch_size, replace=True, p=[size / total for size in sizes])
        batch = []
        for number, count in enumerate(np.bincount(chosen, minlength=len(sizes)).tolist()):
            batch += self._taken(number, count)
        self.np_rng.shuffle(batch)
        return batch

    def _taken(self, number, count):
        """The next samples of a cluster; where it ends, the first ones of its next order."""
        cluster, first = self._clusters[number], self.data_cluster_current_position[number]
        samples = cluster.samples[first:first + count].tolist()
        self.data_cluster_current_position[number] = first + count
        missing = count - len(samples)
        if missing:
            cluster.shuffle(self.np_rng)
            samples += cluster.samples[:missing].tolist()
            self.data_cluster_current_position[number] = missing
        return samples

    # ---- which samples are how hard

    def _newly_allowed(self, before, now, clusters):
        """Samples that the difficulties `now` allow, and that are in none of the clusters, which `before` allowed."""
        chosen_by = [name for name, metric in self._metrics.items()
                     if metric[CURRICULUM_LEARNING_CLUSTERING_TYPE] != CURRICULUM_LEARNING_SINGLE_CLUSTER]
        if not chosen_by:
            return self._every_sample() if not clusters else np.empty(0, dtype=self.index_dtype)
        if len(chosen_by) == 1:
            return self._allowed(chosen_by[0], before[chosen_by[0]], now[chosen_by[0]])
        samples = None
        for name, metric in self._metrics.items():
            own = self._allowed(name, _easiest(metric), now[name]) if name in chosen_by else self._every_sample()
            samples = own if samples is None else np.intersect1d(samples, own, assume_unique=True)
        for cluster in clusters:
            samples = np.setdiff1d(samples, cluster.samples, assume_unique=True)
        return samples

    def _every_sample(self):
        return np.arange(self.one_epoch_total_samples, dtype=self.index_dtype)

    def _allowed(self, name, above, up_to):
        """By one metric, in the order of its file."""
        metric, samples = self._metrics[name], self._file(name, CURRICULUM_LEARNING_SAMPLE_PATH)
        if metric[CURRICULUM_LEARNING_DIFFICULTY_TYPE] == CURRICULUM_LEARNING_PERCENTILE_BASED:
            ordered, hardest = samples.flat(), metric[CURRICULUM_LEARNING_MAX_DIFFICULTY]
            each = len(ordered) // hardest
            return np.array(ordered[each * above:len(ordered) if up_to == hardest else each * up_to])
        values = self._file(name, CURRICULUM_LEARNING_METRIC_PATH).flat()
        rows = np.flatnonzero((values > above) & (values <= up_to))
        return np.concatenate([samples[row] for row in rows]) if len(rows) else np.empty(0, dtype=self.index_dtype)

    def _file(self, name, key):
        path = self._metrics[name][key]
        if path not in self._files:
            if not MMapIndexedDataset.exists(path):
                raise made(_core.DataError, f"'{_WHERE}.{CURRICULUM_LEARNING_METRICS}.{name}.{key}' names {path!r}, and there is no {path}.bin "
                           f"and {path}.idx", _WHERE, "write them with deepspeed.runtime.data_pipeline.data_sampling.data_analyzer.DataAnalyzer")
            self._files[path] = MMapIndexedDataset(path, skip_warmup=True)
        return self._files[path]

    def _place_of(self, name):
        """None on ranks that write nothing."""
        return os.path.join(self._options[CURRICULUM_LEARNING_CLUSTER_PATH], name) if self.global_rank == 0 else None

    # ---- checkpoints

    def state_dict(self):
        return {
            CURRICULUM_LEARNING_BATCH: list(self.batch),
            CURRICULUM_LEARNING_CONSUMED_SAMPLES: self.consumed_samples,
            CURRICULUM_LEARNING_STEP: self.curriculum_step,
            CURRICULUM_LEARNING_CURRENT_DIFFICULTIES: dict(self.current_difficulties),
            CURRICULUM_LEARNING_DATA_CLUSTER_PATHS: list(self.data_cluster_paths),
            CURRICULUM_LEARNING_DATA_CLUSTER_CURRENT_POSITION: list(self.data_cluster_current_position),
            CURRICULUM_LEARNING_NP_RNG_STATE: np.random.get_state(),  # NumPy's global one, which DeepSpeed 0.19.8 takes from here
            _GENERATOR: self.np_rng.bit_generator.state,
            _ORDERS: [cluster.order() for cluster in self._clusters],
        }

    def load_state_dict(self, state_dict):
        self.batch = list(state_dict[CURRICULUM_LEARNING_BATCH])
        self.consumed_samples, self.curriculum_step = state_dict[CURRICULUM_LEARNING_CONSUMED_SAMPLES], state_dict[CURRICULUM_LEARNING_STEP]
        self.current_difficulties = dict(state_dict[CURRICULUM_LEARNING_CURRENT_DIFFICULTIES])
        for name, difficulty in self.current_difficulties.items():
            self.curriculum_schedulers[name].set_current_difficulty(difficulty)
        self.data_cluster_paths = [os.path.basename(name) for name in state_dict[CURRICULUM_LEARNING_DATA_CLUSTER_PATHS]]
        self.data_cluster_current_position = [int(at) for at in state_dict[CURRICULUM_LEARNING_DATA_CLUSTER_CURRENT_POSITION]]
        self._clusters = []
        if not self._draws:
            return
        orders = state_dict.get(_ORDERS)
        generator = state_dict.get(_GENERATOR, state_dict[CURRICULUM_LEARNING_NP_RNG_STATE])
        if isinstance(generator, dict):
            self.np_rng.bit_generator.state = generator
        else:
            logger.warning("DeepSpeed's checkpoints do not say where the sampler's random numbers were: they start over")
        for number, name in enumerate(self.data_cluster_paths):
            self._clusters.append(self._cluster_again(name, orders[number] if orders else None))

    def _cluster_again(self, name, order):
        """From its file where that is as the state has it, or made anew."""
        path = os.path.join(self._options[CURRICULUM_LEARNING_CLUSTER_PATH], name)
        kept = np.array(MMapIndexedDataset(path, skip_warmup=True).flat()) if MMapIndexedDataset.exists(path) else None
        if order is None:
            if kept is None:
                raise made(_core.DataError, f"the curriculum's cluster {name} is not in {self._options[CURRICULUM_LEARNING_CLUSTER_PATH]}", _WHERE,
                           "set data_cluster_path to where the run that saved the checkpoint had it")
            return _Cluster(kept, self._place_of(name), None, None, self.index_dtype)
        above, up_to, states = order["above"], order["up_to"], order["shuffled_at"]
        if kept is not None and _checksum(kept) == order["checksum"]:
            cluster = _Cluster(kept, self._place_of(name), above, up_to, self.index_dtype)
            cluster.shuffled_at = states
            return cluster
        cluster = _Cluster(self._newly_allowed(above, up_to, self._clusters), self._place_of(name), above, up_to, self.index_dtype)
        generator = np.random.default_rng()
        for number, state in enumerate(states, 1):
            generator.bit_generator.state = state
            cluster.shuffle(generator, writes=number == len(states))
        if cluster.order()["checksum"] != order["checksum"]:
            raise made(_core.DataError, f"the curriculum's cluster {name} has other samples than when the checkpoint was saved", _WHERE,
                       "use the metrics' files and the keys of that run")
        return cluster


class _Cluster:
    """Samples that became allowed together. `path`: its file, None: it has none."""

    def __init__(self, samples, path, above, up_to, dtype):
        self.samples, self._path, self._dtype = np.asarray(samples, dtype=dtype), path, dtype
        self._above, self._up_to = above, up_to  # the difficulties
        self.shuffled_at = []  # states of the generator; a new list each time, because states of the sampler have it
        self._order = None

    def shuffle(self, generator, writes=True):
        self.shuffled_at, self._order = [*self.shuffled_at, generator.bit_generator.state], None
        samples = np.array(self.samples)
        generator.shuffle(samples)
        self.samples = samples
        if self._path is not None and writes:
            self.samples = _written(samples, self._path, self._dtype)

    def order(self):
        """What makes the samples again; made once, because a state has it of each micro batch."""
        if self._order is None:
            self._order = {"above": self._above, "up_to": self._up_to, "shuffled_at": self.shuffled_at, "checksum": _checksum(self.samples)}
        return self._order


def _written(samples, path, dtype):
    """The array as its file shows it. A file of before stays readable where it is open."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    new = f"{path}.new"
    builder = create_mmap_dataset_builder(new, dtype)
    builder.add_item_numpy(samples)
    close_mmap_dataset_builder(builder, new)
    for file_path in (data_file_path, index_file_path):
        os.replace(file_path(new), file_path(path))
    return MMapIndexedDataset(path, skip_warmup=True).flat()


def _checksum(samples):
    return zlib.crc32(np.ascontiguousarray(samples).tobytes())


def _easiest(metric):
    """Below every difficulty."""
    return float("-inf") if metric[CURRICULUM_LEARNING_DIFFICULTY_TYPE] == CURRICULUM_LEARNING_VALUE_BASED else 0


def _said_by_the_first(said, ranks, group):
    if ranks == 1:
        return said
    if isinstance(group, _core.World):
        return json.loads(group.exchange_texts(json.dumps(said), "the samples of a step")[0])
    values = [said]
    dist.broadcast_object_list(values, src=dist.get_global_rank(group, 0), group=group)
    return values[0]


def _checked_metrics(options):
    """{name: metric}. ConfigError names the key that is missing or unknown."""
    assert options["enabled"], f"{_WHERE}.enabled is false: there is no curriculum to sample by"
    metrics = options.get(CURRICULUM_LEARNING_METRICS) or {}
    if not metrics:
        raise _refusal(f"'{CURRICULUM_LEARNING_METRICS}' names no metric", "give it one object a metric, or set enabled to false")
    if not options.get(CURRICULUM_LEARNING_CLUSTER_PATH):
        raise _refusal(f"'{CURRICULUM_LEARNING_CLUSTER_PATH}' is missing", "name a folder to which rank 0 can write")
    for name, metric in metrics.items():
        for key, known in _KINDS.items():
            if metric.get(key) not in known:
                raise _refusal(f"'{CURRICULUM_LEARNING_METRICS}.{name}.{key}' is {metric.get(key)!r}", f"use {' or '.join(known)}")
        if metric[CURRICULUM_LEARNING_CLUSTERING_TYPE] != CURRICULUM_LEARNING_SINGLE_CLUSTER:
            by_value = metric[CURRICULUM_LEARNING_DIFFICULTY_TYPE] == CURRICULUM_LEARNING_VALUE_BASED
            for key in (CURRICULUM_LEARNING_SAMPLE_PATH, *([CURRICULUM_LEARNING_METRIC_PATH] if by_value else [])):
                if not metric.get(key):
                    raise _refusal(f"'{CURRICULUM_LEARNING_METRICS}.{name}.{key}' is missing",
                                   "name a file that DataAnalyzer wrote, without its suffix")
        for key in metric.keys() - _METRIC_KEYS:
            logger.warning(f"unknown key '{_WHERE}.{CURRICULUM_LEARNING_METRICS}.{name}.{key}' is ignored")
    return metrics


def _refusal(what, fix):
    return made(_core.ConfigError, what, _WHERE, fix)
