"""What TrainingArguments takes this run for: [ranks, this one, backend, device, Accelerate's ranks, bf16], or why not. `imports`: deepspeed
first; `bf16`: to be trained in it; `plain`: without DeepSpeed."""

import json
import sys
import tempfile

if "imports" in sys.argv:
    import deepspeed  # noqa: F401
import torch.distributed as dist
from accelerate import Accelerator
from transformers import TrainingArguments

try:
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), report_to=[], bf16="bf16" in sys.argv,
        **({} if "plain" in sys.argv else {"deepspeed": {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}}))
except ValueError as error:
    print(json.dumps(str(error)))
    sys.exit()
found = [arguments.world_size, arguments.process_index, dist.get_backend() if dist.is_initialized() else None, str(arguments.device)]
if "plain" not in sys.argv:
    found += [Accelerator(deepspeed_plugin=arguments.deepspeed_plugin).num_processes, arguments.bf16]
print(json.dumps(found))
