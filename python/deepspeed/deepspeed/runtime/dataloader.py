"""Batches for the engine: a DataLoader whose sampler gives each data-parallel rank its share, and one without end."""

from collections import deque

from torch.utils.data import DataLoader, IterableDataset, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.constants import DATA_PARALLEL_GROUP, GLOBAL_RANK, GRADIENT_ACCUMULATION_STEPS
from deepspeed.runtime.data_pipeline.constants import CURRICULUM_LEARNING, DATA_EFFICIENCY, DATA_SAMPLING_NUM_WORKERS


class RepeatingLoader:
    """Restarts the loader at its end; next() never stops."""

    def __init__(self, loader):
        self.loader = loader
        self.data_iter = iter(loader)

    def __iter__(self):
        return self

    def __len__(self):
        return len(self.loader)

    def __next__(self):
        try:
            return next(self.data_iter)
        except StopIteration:
            self.data_iter = iter(self.loader)
            return next(self.data_iter)


class DeepSpeedDataLoader:
    """`local_rank` -1 means one process for all the machine's devices: samples are drawn at random, and a batch is
    batch_size * devices. `num_local_io_workers` and `data_sampler` may be changed until iter(). With "curriculum_learning" in
    `deepspeed_dataloader_config` the sampler is a DeepSpeedDataSampler, and post_process_func(batch, the sampler's state) makes the
    batch that comes out."""

    def __init__(self, dataset, batch_size, pin_memory, local_rank, tput_timer, collate_fn=None,
                 num_local_io_workers=None, data_sampler=None, data_parallel_world_size=None, data_parallel_rank=None,
                 dataloader_drop_last=False, deepspeed_dataloader_config={}):
        self.dataset, self.tput_timer, self.collate_fn = dataset, tput_timer, collate_fn
        self.deepspeed_dataloader_config = deepspeed_dataloader_config
        self.dataloader_drop_last = dataloader_drop_last
        self.pin_memory = pin_memory
        self.post_process_func = None
        self.curriculum_learning_enabled = bool(deepspeed_dataloader_config.get(CURRICULUM_LEARNING))
        if self.curriculum_learning_enabled:
            data_sampler = self._curriculum(len(dataset), batch_size, data_parallel_rank, data_parallel_world_size)
            num_local_io_workers = deepspeed_dataloader_config[DATA_SAMPLING_NUM_WORKERS]
        one_device = local_rank >= 0 or self.curriculum_learning_enabled
        self.device_count = 1 if one_device else get_accelerator().device_count()
        self.batch_size = batch_size * self.device_count
        self.num_local_io_workers = 2 * self.device_count if num_local_io_workers is None else num_local_io_workers
        if data_sampler is None and not isinstance(dataset, IterableDataset):
            data_sampler = DistributedSampler(dataset, num_replicas=data_parallel_world_size,
                                              rank=data_parallel_rank) if one_device else RandomSampler(dataset)
        self.data_sampler = data_sampler
        self.data = None
        self._drawn = self._state = None  # of a curriculum

    def _curriculum(self, samples, batch_size, rank, ranks):
        from deepspeed.runtime.data_pipeline.data_sampling.data_sampler import DeepSpeedDataSampler  # few need it

        config = self.deepspeed_dataloader_config
        return DeepSpeedDataSampler(config[DATA_EFFICIENCY], samples, batch_size, rank, ranks, config[DATA_PARALLEL_GROUP],
                                    config[GRADIENT_ACCUMULATION_STEPS], config[GLOBAL_RANK], drop_last=self.dataloader_drop_last)

    def _create_dataloader(self):
        if self.curriculum_learning_enabled:
            self._drawn = _WithStates(self.data_sampler)
            batches = {"batch_sampler": self._drawn}
        else:
            batches = {"batch_size": self.batch_size, "sampler": self.data_sampler, "drop_last": self.dataloader_drop_last}
        self.dataloader = DataLoader(self.dataset, collate_fn=self.collate_fn, num_workers=self.num_local_io_workers,
                                     pin_memory=self.pin_memory and get_accelerator().device_name() != "cpu", **batches)
        return iter(self.dataloader)

    def __iter__(self):
        self.data = self._create_dataloader()
        return self

    def __len__(self):
        if self.curriculum_learning_enabled:  # its sampler counts the samples of all ranks, and fills every batch
            return -(-len(self.data_sampler) // self.data_sampler.micro_batch_times_data_parallel_size)
        samples = len(self.data_sampler) if self.data_sampler is not None else len(self.dataset)
        full, rest = divmod(samples, self.batch_size)
        return full + (1 if rest and not self.dataloader_drop_last else 0)

    @property
    def len(self):
        return len(self)

    def __next__(self):
        if self.data is None:
            self.data = self._create_dataloader()
        if self.tput_timer:
            self.tput_timer.start()
        batch = next(self.data)
        if self._drawn is None:
            return batch
        self._state = self._drawn.states.popleft()
        return batch if self.post_process_func is None else self.post_process_func(batch, self._state)

    def sampler_state(self):
        """Of a curriculum, as it was when the last batch that came out was drawn."""
        return self.data_sampler.state_dict() if self._state is None else self._state

    def load_sampler_state(self, state):
        """The next batch is the one after that; what workers have read ahead is dropped."""
        self.data_sampler.load_state_dict(state)
        self.data = self._state = None


class _WithStates:
    """A sampler's batches, and the state after each: workers read ahead of what comes out."""

    def __init__(self, sampler):
        self._sampler, self.states = sampler, deque()

    def __iter__(self):
        for batch in self._sampler:
            self.states.append(self._sampler.state_dict())
            yield batch

    def __len__(self):
        return len(self._sampler)
