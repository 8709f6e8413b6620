"""The Trainer with `tensor_parallel.autotp_size`: two ranks that share a model. Prints JSON: its losses, those of a run that goes on from its
checkpoint, those of plain PyTorch, and how far the saved weights are from plain PyTorch's."""

import json
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import transformers  # noqa: E402

WORDS, LENGTH, STEPS, SAVED = 31, 12, 8, 4


def rows():
    generator = torch.Generator().manual_seed(5)
    return [{"input_ids": ids, "labels": ids} for ids in torch.randint(WORDS, (2 * STEPS, LENGTH), generator=generator)]


def model():
    torch.manual_seed(1)
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        hidden_size=24, intermediate_size=45, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=6, vocab_size=WORDS))


class InOrder(transformers.Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trainer(stage, folder):
    arguments = transformers.TrainingArguments(
        output_dir=folder, per_device_train_batch_size=1, gradient_accumulation_steps=2, max_steps=STEPS, learning_rate=1e-2,
        lr_scheduler_type="constant", logging_steps=1, report_to=[], save_steps=SAVED, use_cpu=True, max_grad_norm=0.5,
        deepspeed={"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
                   "gradient_clipping": "auto", "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True},
                   "tensor_parallel": {"autotp_size": 2}, "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": 0.0}}})
    return InOrder(model=model(), args=arguments, train_dataset=rows(), data_collator=transformers.default_data_collator)


def losses_of(trained):
    return [row["loss"] for row in trained.state.log_history if "loss" in row]


def by_trainer(stage):
    folder = [tempfile.mkdtemp()]
    first = trainer(stage, folder[0])
    dist.broadcast_object_list(folder)
    first.args.output_dir = folder[0]
    first.train()
    cut = sum(hasattr(parameter, "tessera_part") for parameter in first.model_wrapped.module.parameters())
    first.save_model(f"{folder[0]}/final")
    dist.barrier()
    again = trainer(stage, folder[0])
    again.train(resume_from_checkpoint=f"{folder[0]}/checkpoint-{SAVED}")
    return losses_of(first), losses_of(again), cut, f"{folder[0]}/final"


def plainly():
    trained, losses, given = model(), [], rows()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2, weight_decay=0.0)
    for step in range(STEPS):
        ids = torch.stack([row["input_ids"] for row in given[2 * step:2 * step + 2]])
        loss = trained(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, trained.state_dict()


if __name__ == "__main__":
    found, resumed, cut_parameters, final = by_trainer(int(sys.argv[1]))
    if dist.get_rank() == 0:
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config

        unset_hf_deepspeed_config()
        losses, weights = plainly()
        saved = transformers.AutoModelForCausalLM.from_pretrained(final).state_dict()
        difference = max(float((saved[name] - value).abs().max()) for name, value in weights.items())
        print(json.dumps({"found": found, "resumed": resumed, "expected": losses, "cut": cut_parameters, "weights": difference}), flush=True)
    dist.barrier()
