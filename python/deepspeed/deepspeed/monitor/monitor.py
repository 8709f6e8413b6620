"""Where the numbers of a run go: TensorBoard's files, CSV files, Weights & Biases, Comet. Rank 0 writes."""

import os
from abc import ABC, abstractmethod

from deepspeed import _names, comm as dist
from tessera import _core

_names.serve(__name__)


def _is_first():
    return not dist.is_initialized() or dist.get_rank() == 0


class Monitor(ABC):
    @abstractmethod
    def __init__(self, monitor_config):
        self.monitor_config = monitor_config

    @abstractmethod
    def write_events(self, event_list):
        """[(name, value, number of samples)]"""


class _Files(Monitor):
    """In <output_path>/<job_name>."""
    log = None

    def __init__(self, config):
        super().__init__(config)
        self.enabled, self.output_path, self.job_name = config.enabled, config.output_path, config.job_name
        self.log_dir = os.path.join(config.output_path or "", config.job_name)
        self._log = type(self).log(self.log_dir) if self.enabled and _is_first() else None

    def write_events(self, event_list):
        if self._log is not None:
            for name, value, samples in event_list:
                self._log.add(name, float(value), int(samples))


class TensorBoardMonitor(_Files):
    log = staticmethod(_core.ScalarLog.tensorboard)

    def write_events(self, event_list, flush=True):
        super().write_events(event_list)

    def flush(self):
        """What was written is with the system already."""


class csvMonitor(_Files):
    log = staticmethod(_core.ScalarLog.csv)


class WandbMonitor(Monitor):
    def __init__(self, wandb_config):
        super().__init__(wandb_config)
        self.enabled = wandb_config.enabled
        self.group, self.team, self.project = wandb_config.group, wandb_config.team, wandb_config.project
        self._run = None
        if self.enabled and _is_first():
            import wandb

            self._run = wandb
            wandb.init(project=self.project, group=self.group, entity=self.team)

    def log(self, data, step=None, commit=None):
        return self._run.log(data, step=step, commit=commit) if self._run is not None else None

    def write_events(self, event_list):
        for name, value, samples in event_list if self._run is not None else ():
            self.log({name: value}, step=samples)


class EventsLogScheduler:
    """Which events of a name are told: the first, and then one in each `samples_log_interval` samples."""

    def __init__(self, samples_log_interval):
        self._interval, self._last = samples_log_interval, {}

    def needs_logging(self, name, current_sample):
        due = name not in self._last or current_sample - self._last[name] >= self._interval
        if due:
            self._last[name] = current_sample
        return due


class CometMonitor(Monitor):
    def __init__(self, comet_config):
        super().__init__(comet_config)
        self.enabled, self.samples_log_interval = comet_config.enabled, comet_config.samples_log_interval
        self.experiment = None
        self._scheduler = EventsLogScheduler(self.samples_log_interval)
        if self.enabled and _is_first():
            import comet_ml

            self.experiment = comet_ml.start(
                api_key=comet_config.api_key, project=comet_config.project, workspace=comet_config.workspace,
                experiment_key=comet_config.experiment_key, mode=comet_config.mode, online=comet_config.online)
            if comet_config.experiment_name is not None:
                self.experiment.set_name(comet_config.experiment_name)

    def write_events(self, event_list):
        for name, value, samples in event_list if self.experiment is not None else ():
            if self._scheduler.needs_logging(name, samples):
                self.experiment.__internal_api__log_metric__(name=name, value=value, step=samples)


class MonitorMaster(Monitor):
    """All that a configuration enables."""

    def __init__(self, monitor_config):
        super().__init__(monitor_config)
        self.enabled = monitor_config.enabled
        made = {name: kind(getattr(monitor_config, block)) if getattr(monitor_config, block).enabled and _is_first() else None
                for name, block, kind in (("tb_monitor", "tensorboard", TensorBoardMonitor), ("wandb_monitor", "wandb", WandbMonitor),
                                          ("csv_monitor", "csv_monitor", csvMonitor), ("comet_monitor", "comet", CometMonitor))}
        vars(self).update(made)
        self._made = [monitor for monitor in made.values() if monitor is not None]

    def write_events(self, event_list):
        for monitor in self._made:
            monitor.write_events(event_list)
