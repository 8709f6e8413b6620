"""TRL's SFTTrainer with LoRA adapters on a tiny Llama of random weights: plainly (DDP), and at stages 2 and 3. Run by
test_sft.py as two ranks; prints one line of JSON, {"plain": {…}, "2": {…}, "3": {…}}, each with the losses and norms of every
step and how many elements of the frozen weights a rank held as the model was made.
"""

import json
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import PreTrainedTokenizerFast, logging  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

import tiny_models  # noqa: E402
from trainer_runs import curve, engine_arguments, forget  # noqa: E402

logging.set_verbosity_error()
STEPS = 6


def tokenizer():
    words = {f"w{number}": number for number in range(3, tiny_models.VOCABULARY)}
    words.update({"[PAD]": 0, "[UNK]": 1, "</s>": 2})
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", eos_token="</s>")


def texts():
    """Of different lengths, so that ranks count different numbers of tokens."""
    rows = tiny_models.rows(32)
    return Dataset.from_dict({"text": [" ".join(f"w{int(token)}" for token in row["input_ids"][:4 + number % 9])
                                       for number, row in enumerate(rows)]})


def run(source, folder, stage):
    args = SFTConfig(
        output_dir=str(folder), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=STEPS,
        learning_rate=1e-2, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, seed=1, bf16=False,
        max_length=16, gradient_checkpointing=False, **engine_arguments(stage))
    model = tiny_models.load("llama", source)
    held = sum(parameter.numel() for parameter in model.parameters())
    adapters = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    torch.manual_seed(1)
    trainer = SFTTrainer(model=model, args=args, train_dataset=texts(), processing_class=tokenizer(), peft_config=adapters)
    trainer.train()
    forget()
    return {**curve(trainer), "held": held, "engine": type(trainer.model_wrapped).__name__}


def main(folder):
    dist.init_process_group("gloo")
    folder = Path(folder)
    if dist.get_rank() == 0:
        tiny_models.make("llama").save_pretrained(folder / "model")
    dist.barrier()
    results = {str(stage or "plain"): run(folder / "model", folder / f"run {stage}", stage) for stage in (None, 2, 3)}
    if dist.get_rank() == 0:
        print(json.dumps(results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
