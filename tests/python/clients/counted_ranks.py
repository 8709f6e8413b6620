"""What TrainingArguments takes this run for: [ranks, this one, backend, device]. `imports`: deepspeed first."""

import json
import sys
import tempfile

if "imports" in sys.argv:
    import deepspeed  # noqa: F401
import torch.distributed as dist
from accelerate import Accelerator
from transformers import TrainingArguments

arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), report_to=[],
    **({} if "plain" in sys.argv else {"deepspeed": {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}}))
found = [arguments.world_size, arguments.process_index, dist.get_backend() if dist.is_initialized() else None, str(arguments.device)]
if "plain" not in sys.argv:
    found.append(Accelerator(deepspeed_plugin=arguments.deepspeed_plugin).num_processes)
print(json.dumps(found))
