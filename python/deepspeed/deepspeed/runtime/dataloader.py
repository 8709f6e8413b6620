"""Batches for the engine: a DataLoader whose sampler gives each data-parallel rank its share, and one without end."""

from torch.utils.data import DataLoader, IterableDataset, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from deepspeed.accelerator import get_accelerator


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
    batch_size * devices. `num_local_io_workers` and `data_sampler` may be changed until iter()."""

    def __init__(self, dataset, batch_size, pin_memory, local_rank, tput_timer, collate_fn=None,
                 num_local_io_workers=None, data_sampler=None, data_parallel_world_size=None, data_parallel_rank=None,
                 dataloader_drop_last=False, deepspeed_dataloader_config={}):
        self.dataset, self.tput_timer, self.collate_fn = dataset, tput_timer, collate_fn
        self.deepspeed_dataloader_config = deepspeed_dataloader_config
        self.dataloader_drop_last = dataloader_drop_last
        self.pin_memory = pin_memory
        one_device = local_rank >= 0
        self.device_count = 1 if one_device else get_accelerator().device_count()
        self.batch_size = batch_size * self.device_count
        self.num_local_io_workers = 2 * self.device_count if num_local_io_workers is None else num_local_io_workers
        if data_sampler is None and not isinstance(dataset, IterableDataset):
            data_sampler = DistributedSampler(dataset, num_replicas=data_parallel_world_size,
                                              rank=data_parallel_rank) if one_device else RandomSampler(dataset)
        self.data_sampler = data_sampler
        self.data = None

    def _create_dataloader(self):
        self.dataloader = DataLoader(self.dataset, batch_size=self.batch_size, sampler=self.data_sampler,
                                     collate_fn=self.collate_fn, num_workers=self.num_local_io_workers,
                                     pin_memory=self.pin_memory and get_accelerator().device_name() != "cpu",
                                     drop_last=self.dataloader_drop_last)
        return iter(self.dataloader)

    def __iter__(self):
        self.data = self._create_dataloader()
        return self

    def __len__(self):
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
        return next(self.data)
