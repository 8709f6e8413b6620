"""A sequence whose activations one process has no memory for, and the ranks that share it have.

    one process              the losses that are expected, with as much memory as it wants
    one process, limited     fails, and names what it could not have
    RANKS ranks, limited     as much each: the same losses

The limit is RLIMIT_DATA, which counts what a process may write to: heap, stacks and private mappings, not the libraries. It is what a
process has without any token, and between what a token takes in one process (26 KiB) and a fourth of it.
"""

import json
import random
import re
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "end_to_end"))
from model_folders import SPECIAL_TOKENS  # noqa: E402
from tessera_runs import metrics, tessera, train, train_arguments, write_run_file  # noqa: E402

RANKS, STEPS, SEED = 4, 2, 1
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
# One head of the usual size: attention's time is all that matters at such lengths, and it goes by heads. One head is nothing that ranks
# could be given parts of, so "auto" takes the ring.
MODEL = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2,
         "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64, "initializer_range": 0.05, "bos_token_id": None, "eos_token_id": None}


def limit_of(tokens):
    return (128 << 20) + tokens * (16 << 10)


def write_run(folder, tokens):
    """A run of STEPS steps, each of one row of as many tokens, all of one text: the run file."""
    words = [*SPECIAL_TOKENS, *ALPHABET]
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "model" / "config.json").write_text(json.dumps({**MODEL, "vocab_size": len(words), "max_position_embeddings": tokens}))
    draw = random.Random(SEED)
    texts = [" ".join(draw.choice(ALPHABET[:8]) if draw.random() < 0.5 else ALPHABET[place % 26] for place in range(tokens - 2)) for _ in range(STEPS)]
    (folder / "train.txt").write_text("\n".join(texts) + "\n")
    return write_run_file(folder, {
        "model": {"path": str(folder / "model"), "init": "random"}, "task": "clm", "training": {"max_steps": STEPS, "device": "cpu"},
        "data": {"train": str(folder / "train.txt"), "max_length": tokens, "packing": "fill"},
        "deepspeed": {"train_batch_size": 1, "zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}})


def limited_to(limit):
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def refused(run_file, tokens, seconds):
    """What one process says that has no more memory than the limit; its exit code with it."""
    result = tessera(*train_arguments(run_file, 1, {"output": run_file.parent / "refused"}), preexec=limited_to(limit_of(tokens)),
                     env={"OMP_NUM_THREADS": 1}, timeout=seconds)
    return result.code, result.err


class Trained:
    """A run's losses, the seconds of each step, the peak of each rank in bytes, and what it said."""

    def __init__(self, result, output):
        rows = metrics(output)
        self.losses = [row["loss"] for row in rows]
        self.tokens = rows[-1]["tokens"]
        self.seconds = [row["step_seconds"] for row in rows]
        units = {"kB": 10**3, "MB": 10**6, "GB": 10**9}
        self.peaks = [float(value) * units[unit] for value, unit in re.findall(r"memory of rank.*peak ([\d.]+) (\w+)", result.out)]
        self.said = result.err


def trained_by_one(run_file, seconds):
    output = run_file.parent / "one"
    return Trained(train(run_file, 1, {"output": output}, timeout=seconds), output)


def trained_by_ranks(run_file, tokens, seconds):
    output = run_file.parent / "ranks"
    settings = {"output": output, "parallel.context": RANKS}
    return Trained(train(run_file, RANKS, settings, preexec=limited_to(limit_of(tokens)), env={"OMP_NUM_THREADS": 1}, timeout=seconds), output)
