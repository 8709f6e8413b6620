"""The Trainer with Accelerate's sp_size: two ranks that share sequences. Prints JSON: {case: [losses, those of plain PyTorch]}."""

import json
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import transformers  # noqa: E402
from accelerate.parallelism_config import ParallelismConfig  # noqa: E402
from accelerate.utils import DeepSpeedSequenceParallelConfig  # noqa: E402
from torch.nn.functional import cross_entropy, pad  # noqa: E402

WORDS, LENGTH, STEPS = 31, 12, 8


def rows():
    generator = torch.Generator().manual_seed(5)
    for ids in torch.randint(WORDS, (2 * STEPS, LENGTH), generator=generator):
        labels = ids.clone()
        labels[:8] = -100  # the first rank has almost no label
        yield {"input_ids": ids, "labels": labels, "position_ids": torch.arange(LENGTH)}


def model():
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, vocab_size=WORDS,
        attn_implementation="sdpa"))


class InOrder(transformers.Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def by_trainer(stage):
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=1, gradient_accumulation_steps=2, max_steps=STEPS, learning_rate=1e-2,
        lr_scheduler_type="constant", logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, max_grad_norm=0.5,
        parallelism_config=ParallelismConfig(sp_backend="deepspeed", sp_size=2, sp_handler=DeepSpeedSequenceParallelConfig(
            sp_seq_length_is_variable=True, sp_attn_implementation="sdpa")),
        deepspeed={"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
                   "gradient_clipping": "auto", "zero_optimization": {"stage": stage},
                   "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": 0.0}}})
    trainer = InOrder(model=model(), args=arguments, train_dataset=list(rows()), data_collator=transformers.default_data_collator)
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def plainly():
    trained, losses, given = model(), [], list(rows())
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2, weight_decay=0.0)
    for step in range(STEPS):
        total = 0
        for row in given[2 * step:2 * step + 2]:
            output = trained(input_ids=row["input_ids"][None]).logits[0]
            loss = cross_entropy(output, pad(row["labels"], (0, 1), value=-100)[1:]) / 2
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


if __name__ == "__main__":
    found = by_trainer(int(sys.argv[1]))
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS["sdpa"] = ALL_ATTENTION_FUNCTIONS["sdpa"].core  # is there where it was shared
    if dist.get_rank() == 0:
        print(json.dumps([found, plainly()]), flush=True)
    dist.barrier()
