"""The Python side of test_schedule_at_both_doors.py: from a checkpoint or from the start, some steps, a checkpoint. Prints the
learning rate of each step, and the next one's."""

import json
import sys

import deepspeed
import torch
from transformers import BertForMaskedLM

task = json.loads(sys.argv[1])
engine, *_ = deepspeed.initialize(model=BertForMaskedLM.from_pretrained(task["model"]), config=task["config"])
if "load" in task:
    assert engine.load_checkpoint(task["load"])[0] is not None
rates = []
for step in range(task["steps"]):
    ids = torch.randint(5, 60, (engine.train_micro_batch_size_per_gpu(), 8), generator=torch.Generator().manual_seed(step))
    rates.append(engine.get_lr()[0])
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
if "jump" in task:
    engine.lr_scheduler.step(task["jump"])
if task.get("as_earlier_versions"):  # they kept the schedule's state with Python's own
    engine._has_own_schedule = lambda: False
if "save" in task:
    engine.save_checkpoint(task["save"])
print(json.dumps(rates + [engine.get_lr()[0]]))
