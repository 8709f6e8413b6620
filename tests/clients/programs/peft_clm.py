"""PEFT's example of LoRA by Accelerate at ZeRO-3, examples/causal_language_modeling, as it is. It names a model and a data set of a hub, and a GPU
to ask for its memory: here the model is a tiny one in a folder of that name, the rows are made up, and the memory is none.

    peft_clm.py SCRIPT      (as each rank)
"""

import runpy
import sys

import datasets
import torch
from transformers import AutoTokenizer, BloomConfig, BloomForCausalLM

MODEL = "bigscience/bloomz-7b1"


def make_model(tokenizer):
    torch.manual_seed(0)
    BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=48, n_layer=2, n_head=4, pad_token_id=0, bos_token_id=2, eos_token_id=3)).save_pretrained(MODEL)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(MODEL)


def rows():
    labels = datasets.ClassLabel(names=["Unlabeled", "red", "old"])
    made = {"Tweet text": [f"the {colour} wolf sees {animal}" for colour in ("red", "old") for animal in ("girl", "king", "house", "boat") * 2],
            "Label": [1] * 8 + [2] * 8}
    features = datasets.Features({"Tweet text": datasets.Value("string"), "Label": labels})
    return datasets.Dataset.from_dict(made, features=features)


def main(script):
    datasets.load_dataset = lambda kind, data_files: datasets.DatasetDict({split: rows() for split in data_files})
    found = torch.accelerator.current_accelerator
    torch.accelerator.current_accelerator = lambda *more, **named: (
        torch.device("cpu") if sys._getframe(1).f_code.co_filename == script else found(*more, **named))
    torch.cpu.empty_cache = torch.cpu.reset_peak_memory_stats = lambda: None
    torch.cpu.memory_allocated = torch.cpu.max_memory_allocated = lambda: 0
    sys.argv[:] = [script]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "--model":
        make_model(sys.argv[2])
    else:
        main(sys.argv[1])
