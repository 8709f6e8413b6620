"""What bench/training and bench/start train: models, cases, and which cases fit into memory together."""

import dataclasses
import json

from harness import places

MODELS = {  # sizes by their names in config.json; GPT-2's vocabulary is its own, the tiny ones are for tests
    "bert-tiny": {"model_type": "bert", "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2,
                  "num_attention_heads": 2, "intermediate_size": 256},
    "bert-small": {"model_type": "bert", "vocab_size": 30522, "hidden_size": 512, "num_hidden_layers": 4,
                   "num_attention_heads": 8, "intermediate_size": 2048},  # 28.8 M parameters
    "bert-base": {"model_type": "bert", "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12,
                  "num_attention_heads": 12, "intermediate_size": 3072},  # 109.5 M
    "gpt2-tiny": {"model_type": "gpt2", "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2,
                  "num_attention_heads": 2, "intermediate_size": 256},
    "gpt2-mini": {"model_type": "gpt2", "vocab_size": 50257, "hidden_size": 512, "num_hidden_layers": 4,
                  "num_attention_heads": 8, "intermediate_size": 2048},  # 38.9 M
    "gpt2": {"model_type": "gpt2", "vocab_size": 50257, "hidden_size": 768, "num_hidden_layers": 12,
             "num_attention_heads": 12, "intermediate_size": 3072},  # 124.4 M
    "many-small": {"model_type": "many-small", "vocab_size": 1000, "hidden_size": 32, "num_hidden_layers": 1000,
                   "intermediate_size": 0},  # 1,000 parameters of 1,024 elements
}
OPTIMIZER = {"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
NAMES = {"alone": "no communication", "alone-c++": "no communication, C++", "tessera": "Tessera", "tessera-c++": "Tessera in C++",
         "ddp": "torch DDP", "fsdp2": "FSDP2", "deepspeed": "DeepSpeed"}
STAGES = {"alone": [None], "alone-c++": [None], "ddp": [0], "fsdp2": [2, 3]}  # of frameworks that have not all
OFFLOADING = ("tessera", "tessera-c++", "deepspeed")


@dataclasses.dataclass(frozen=True)
class Case:
    framework: str
    stage: int | None  # None: communicates with nobody
    offload: bool = False  # of the optimizer to the CPU

    @property
    def name(self):
        stage = "" if self.stage is None or self.framework == "ddp" else f", stage {self.stage}"
        return NAMES[self.framework] + stage + (", offload" if self.offload else "")

    @property
    def bound(self):
        """The case that does the same and communicates with nobody."""
        return Case("alone-c++" if self.framework.endswith("c++") else "alone", None)

    @property
    def ours(self):
        """Tessera's own, through the same door as a peer."""
        return Case("tessera", self.stage, self.offload)

    def command(self, setting):
        if self.framework.endswith("c++"):
            return [places.BUILD / "bench" / "step_ranks", setting.options(self)]
        python = places.PEERS_PYTHON if self.framework == "deepspeed" else places.OUR_PYTHON
        return [python, places.BENCH / "training_ranks.py", setting.options(self)]

    def environment(self):
        if self.framework == "deepspeed":
            return places.peers_environment()
        if self.framework == "tessera":
            return places.our_environment()
        return places.thread_environment() | (KEEPS_FREED_MEMORY if self.framework == "alone" else {})


# glibc gives large blocks back to the kernel at once, and a step would fault their pages in again: the bound does not.
KEEPS_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 40), "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
                      "MALLOC_TOP_PAD_": str(64 << 20)}


@dataclasses.dataclass(frozen=True)
class Setting:
    model: str
    precision: str
    micro_batch: int
    length: int
    ranks: int
    device: str = "cpu"

    def __str__(self):
        return f"{self.model}, {self.precision}, micro batch {self.micro_batch} of {self.length} tokens, {self.ranks} ranks" + (
            "" if self.device == "cpu" else f", {self.device}")

    def options(self, case):
        """What a rank gets."""
        zero = {"stage": case.stage or 0}
        if case.offload:
            zero["offload_optimizer"] = {"device": "cpu"}
        return json.dumps({
            "framework": case.framework, "stage": case.stage, "precision": self.precision, "optimizer": OPTIMIZER,
            "model": MODELS[self.model], "length": self.length, "device": self.device,
            "ds_config": {"train_micro_batch_size_per_gpu": self.micro_batch, "bf16": {"enabled": self.precision == "bf16"},
                          "gradient_clipping": 0.0,  # the default, 1.0, would be work that DDP and FSDP2 do not do
                          "zero_optimization": zero, "optimizer": {"type": "AdamW", "params": OPTIMIZER}}})


def cases_of(frameworks, stages, offloads):
    """In families of one stage and offload, whose members are compared; the bound belongs to each."""
    families = []
    for offload in offloads:
        for stage in stages:
            family = [Case(framework, stage, offload) for framework in frameworks
                      if stage in STAGES.get(framework, stages) and (not offload or (framework in OFFLOADING and stage > 0))]
            if family:
                families.append(family)
    return families


def all_cases():
    """In the order of tables: the bounds, then stage by stage."""
    bounds = [Case("alone", None), Case("alone-c++", None)]
    return bounds + [case for family in cases_of([name for name in NAMES if name not in ("alone", "alone-c++")], range(4),
                                                 [False, True]) for case in family]


def parameters(model):
    width, layers = model["hidden_size"], model["num_hidden_layers"]
    layer = 4 * width * (width + 1) + 2 * width * model["intermediate_size"] + model["intermediate_size"] + 5 * width
    return model["vocab_size"] * width + layers * layer


def rank_bytes(case, model, setting):
    """The most that a rank takes, about: 16 bytes a parameter (ZeRO, Rajbhandari et al. 2020, section 3.1), the logits and their gradient,
    and the process. Of the bytes that stages share out DeepSpeed needs as many for its buckets, at stage 3 twice as many."""
    share = {None: 16, 0: 16, 1: 8 + 8 / setting.ranks, 2: 4 + 12 / setting.ranks, 3: 4 + 16 / setting.ranks}[case.stage]
    if case.framework in ("deepspeed", "fsdp2"):
        share = 24 if case.framework == "deepspeed" and case.stage == 3 else 16
    tokens = setting.micro_batch * setting.length
    return share * parameters(model) + 3 * 4 * tokens * model["vocab_size"] + 200 * tokens * model["hidden_size"] + 600e6


def available_bytes():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))


def groups(families, setting, budget):
    """Lists of cases that fit into `budget` bytes together, each with the bounds of its members. A family stays together, or where it
    is too large its peers share out, each group with ours."""
    model = MODELS[setting.model]

    def fits(cases):
        return sum(setting.ranks * rank_bytes(case, model, setting) for case in cases) <= budget

    result = []
    for family in families:
        if result and fits(_with_bounds([*result[-1], *family])):
            result[-1] = _with_bounds([*result[-1], *family])
            continue
        ours = [case for case in family if case == case.ours]
        peers = [case for case in family if case not in ours]
        result.append(_with_bounds([*ours, *peers[:1]]))
        for peer in peers[1:]:
            if not fits(_with_bounds([*result[-1], peer])):
                result.append(_with_bounds(ours))
            result[-1] = _with_bounds([*result[-1], peer])
    return result


def _with_bounds(cases):
    return list(dict.fromkeys([*(case.bound for case in cases), *cases]))
