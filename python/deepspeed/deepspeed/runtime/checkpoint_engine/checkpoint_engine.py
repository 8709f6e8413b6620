"""How a program writes and reads files of its own beside an engine's checkpoints: what PipelineModule.save_state_dict takes."""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch


@dataclass
class CheckpointCommitInfo:
    tag: str
    save_dir: str
    save_latest: bool


class CheckpointEngine(ABC):
    """What a class of a program's own derives from."""

    def __init__(self, config_params=None):
        self.name = None

    @abstractmethod
    def create(self, info):
        """A checkpoint is about to be written; `info`: a CheckpointCommitInfo."""

    @abstractmethod
    def save(self, state_dict, path):
        """Writes one file."""

    @abstractmethod
    def load(self, path, map_location=None):
        """What save() wrote."""

    @abstractmethod
    def commit(self, info):
        """All files are written; whether they are there."""

    def makedirs(self, path, exist_ok=False):
        os.makedirs(path, exist_ok=exist_ok)

    def is_data_parallel_writer(self, dp_rank):
        return dp_rank == 0

    def preserves_storage_sharing(self):
        """Whether a view brings the whole storage into the file."""
        return True


class TorchCheckpointEngine(CheckpointEngine):
    """By torch.save and torch.load; a file that holds more than tensors and plain values is refused, since reading it runs code."""

    def __init__(self, config_params=None):
        super().__init__(config_params)
        self.name = "TorchCheckpointEngine"

    def create(self, info):
        pass

    def save(self, state_dict, path):
        torch.save(state_dict, path)

    def load(self, path, map_location=None):
        return torch.load(path, map_location=map_location, weights_only=True)

    def commit(self, info):
        return True
