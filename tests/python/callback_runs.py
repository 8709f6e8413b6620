"""How often a training step calls functions of Tessera's in Python: run as several ranks by test_callbacks.py. Prints JSON: {"<stage>":
{"<number of parameters>": {"<function>": calls}}}, of models with the same modules; "3, whole": where all parameters are small."""

import collections
import json
import sys
import threading
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import tessera  # noqa: E402
import torch  # noqa: E402

OURS = tuple(str(Path(package.__file__).parent) for package in (deepspeed, tessera))
BLOCKS = 5


class Block(torch.nn.Module):
    def __init__(self, count):
        super().__init__()
        self.names = [f"weight_{number}" for number in range(count)]
        for name in self.names:
            self.register_parameter(name, torch.nn.Parameter(torch.full((8,), 0.1)))

    def forward(self, x):
        for name in self.names:
            x = x + getattr(self, name)
        return x


class Calls:
    """Of Python functions in our files, and of built-in ones from there, in every thread, while it is open."""

    def __enter__(self):
        self.by_function = collections.Counter()
        threading.setprofile(self._happens)
        sys.setprofile(self._happens)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        threading.setprofile(None)

    def _happens(self, frame, event, _):
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(OURS):
            self.by_function[f"{Path(frame.f_code.co_filename).name}: {frame.f_code.co_name}: {event}"] += 1


def calls_of_step(stage, count, threshold=0):
    """Of the third step: the first ones learn in which order units are used."""
    model = torch.nn.Sequential(*(Block(count // BLOCKS) for _ in range(BLOCKS)))
    engine = deepspeed.initialize(model=model, config={
        "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": threshold}})[0]

    def step():
        engine.backward(engine(torch.ones(2, 8)).square().mean())
        engine.step()

    step()
    step()
    with Calls() as calls:
        step()
    assert engine.global_steps == 3
    return calls.by_function


found = {stage: {count: calls_of_step(stage, count) for count in (50, 500)} for stage in range(4)}
found["3, whole"] = {50: calls_of_step(3, 50, threshold=50 * 8)}
if torch.distributed.get_rank() == 0:
    print(json.dumps(found))
