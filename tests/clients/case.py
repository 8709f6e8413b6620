"""A case: a client's program, how it is started, and the ds_config that it is given."""

import json
from dataclasses import dataclass, field
from pathlib import Path

STEPS = 6
BFLOAT16 = 2e-3  # a tolerance: DeepSpeed rounds the master weights to bf16 first, and Tessera does not
AUTO = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True}
STAGES = {
    "ZeRO-1": {"stage": 1},
    "ZeRO-2": {"stage": 2, "allgather_partitions": True, "overlap_comm": False, "reduce_scatter": True, "contiguous_gradients": True},
    "ZeRO-2, offloaded": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
    "ZeRO-3": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True, "reduce_bucket_size": "auto",
               "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"},
    "ZeRO-3, offloaded": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True, "offload_optimizer": {"device": "cpu"},
                          "offload_param": {"device": "cpu"}},
}


@dataclass
class Case:
    client: str
    name: str
    program: object  # a function (inputs, output, ds_config) -> the program and its arguments
    zero: str = "ZeRO-2"  # of STAGES, or a name for what the program sets itself
    environment: str = ""
    launcher: str = "deepspeed"  # or torchrun, accelerate: as the client's documentation starts it; alone: a single process
    after: tuple = ()  # of (launcher, program): what is run in the same folder once it has ended well
    ranks: int = 2
    seconds: int = 900  # after which a run is ended
    template: Path = None  # the whole ds_config, of the client's own
    config: dict = field(default_factory=dict)
    tolerance: float = 1e-5  # relative, of losses and norms
    at_least: float = 1e-12  # what a difference is divided by, where the number is smaller: a loss may be zero but for rounding
    only_tessera: str = ""  # why DeepSpeed itself does not run it here
    twice: tuple = ()  # saved weights that are others' too: DeepSpeed's copies save each, Tessera's keep them one
    path: tuple = ()  # folders of Python's path that the client's own installation would add
    of_tests: bool = False  # the program is a suite of the client's own tests, and the outcome is which of them pass
    of_flaws: tuple = ()  # tests among them that pass where DeepSpeed has a flaw: see docs/clients.md

    def ds_config(self, folder):
        path = folder / "ds_config.json"
        if self.template is not None:
            given = self.template.read_text()
            path.write_text(json.dumps({**json.loads(given), **self.config}, indent=1) if self.config else given)
            return path
        if self.zero in STAGES:
            path.write_text(json.dumps({**AUTO, "zero_optimization": STAGES[self.zero], **self.config}, indent=1))
        return path

    @property
    def full_name(self):
        return f"{self.client}: {self.name}, {self.template.name if self.template else self.zero}"


TRAINER = ["--max_steps", STEPS, "--logging_steps", 1, "--save_steps", STEPS, "--per_device_train_batch_size", 2, "--report_to", "none",
           "--disable_tqdm", "true", "--seed", 7]
