"""The parts of a full run: which program of bench/ runs with which options, and how long that takes on two quiet cores."""

import dataclasses

SMALL = ["--model", "bert-small"]
WITHOUT_CPP = ["--frameworks", "tessera,ddp,fsdp2,deepspeed"]


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    title: str
    program: str
    options: list
    minutes: float
    quick: list | None  # options of a run that only shows that all works; None: --quick leaves it out
    rounds: int = 5

    def command(self, is_quick, rounds):
        if is_quick:
            return [self.program, *self.quick]
        return [self.program, *self.options] + (["--rounds", rounds or self.rounds] if self.rounds else [])


TINY = ["--model", "bert-tiny", "--length", 32, "--rounds", 1]
PARTS = [
    Part("training-fp32", "Training, fp32", "training", SMALL, 10,
         [*TINY, "--stages", "0,3", *WITHOUT_CPP], 9),
    Part("training-bf16", "Training, bf16", "training", [*SMALL, "--precision", "bf16"], 6.5,
         [*TINY, "--precision", "bf16", "--stages", "0", "--frameworks", "tessera,tessera-c++,ddp"], 9),
    Part("training-micro-1-fp32", "Training, micro batch 1, fp32", "training", [*SMALL, "--micro-batch", 1], 4.5, None, 9),
    Part("training-micro-1-bf16", "Training, micro batch 1, bf16", "training",
         [*SMALL, "--micro-batch", 1, "--precision", "bf16", "--frameworks", "tessera,tessera-c++"], 1.5, None, 9),
    Part("training-bert-base", "BERT base", "training", ["--model", "bert-base", "--micro-batch", 1, *WITHOUT_CPP], 5, None, 3),
    Part("training-gpt2-offload", "GPT-2 with and without offload", "training",
         ["--model", "gpt2", "--micro-batch", 1, "--precision", "bf16", "--stages", "2,3", "--offload", "both", *WITHOUT_CPP], 4.5,
         ["--model", "gpt2-tiny", "--length", 32, "--rounds", 1, "--stages", "2", "--offload", "with", *WITHOUT_CPP], 3),
    Part("scaling-1-rank", "Scaling: one rank", "training",
         [*SMALL, "--micro-batch", 1, "--ranks", 1, "--stages", "0,3", *WITHOUT_CPP], 1, None),
    Part("scaling-4-ranks", "Scaling: four ranks", "training",
         [*SMALL, "--micro-batch", 1, "--ranks", 4, "--stages", "0,3", *WITHOUT_CPP], 2.5, None),
    Part("start", "Start to the end of the first step", "start", [], 2.5, ["--model", "bert-tiny", "--rounds", 1], 3),
    Part("collectives", "Collectives", "collectives", [], 1, ["--mib", "1", "--rounds", 2]),
    Part("optimizer", "Optimizer", "optimizer", [], 0.5, ["--params", 1_000_000, "--rounds", 2], 20),
    Part("tokenizing", "Tokenising", "tokenizing", [], 0.5, ["--rounds", 1], 15),
    Part("models", "Models beside transformers", "models", ["--compiled"], 15, ["--models", "tiny", "--length", 32, "--new-tokens", 4, "--rounds", 1], 7),
    Part("parallel", "Models that ranks share", "parallel", ["--precisions", "fp32"], 20,
         ["--model", "tiny", "--ranks", 2, "--precisions", "fp32", "--length", 32, "--rounds", 1], 7),
    Part("checkpoint", "Checkpoints", "checkpoint", ["--stages", "3"], 1.7, None, 2),
    Part("offload", "Offload to NVMe", "offload", ["--size", 256], 1, ["--only", "io", "--size", 16, "--rounds", 1]),
    Part("memory", "Memory of `tessera train`", "memory", ["--ranks", "2"], 0.7, None, 0),
]


def chosen(names, is_quick):
    """Parts whose name begins with one of the names; ValueError names one that fits none."""
    for name in names or []:
        if not any(part.name.startswith(name) for part in PARTS):
            raise ValueError(f"there is no part '{name}': {', '.join(part.name for part in PARTS)}")
    return [part for part in PARTS
            if (not names or any(part.name.startswith(name) for name in names)) and (part.quick is not None or not is_quick)]
