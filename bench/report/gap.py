"""The gap to the bound: each wanted figure beside what was measured, and what bounds it."""

from harness.samples import markdown
from harness.training_cases import MODELS, Case, parameters

STAGES = range(4)
COMPUTE = "compute alone: the same step by ranks that do not communicate"
MEMORY = "model state by the formula of ZeRO's paper, activations, what malloc keeps (docs/memory.md)"
GRADIENTS_STAY = "; gradients keep their place in shared memory while forward runs, DeepSpeed's are made in backward"


class Gap:
    """Rows for the parts that there are samples of: {part's name: Samples}."""

    def __init__(self, samples_of):
        self._samples_of = samples_of
        self.rows = []

    def add(self, what, part, measure, wanted=None, bound=""):
        """measure: Samples, setting -> Spread; wanted: ("at most" or "at least", figure). The first setting that has it counts."""
        samples = self._samples_of.get(part)
        for setting in samples.settings() if samples else []:
            found = measure(samples, setting)
            if found:
                verdict, text = "", ""
                if wanted:
                    is_met = found.middle <= wanted[1] if wanted[0] == "at most" else found.middle >= wanted[1]
                    verdict, text = ("yes" if is_met else "**no**"), f"{wanted[0]} {wanted[1]:g}"
                self.rows.append([what, text, f"{found.middle:.2f}", f"{found.low:.2f} to {found.high:.2f}", verdict, bound])
                return

    def markdown(self):
        return markdown(["ratio", "wanted", "measured:", "quartiles:", "reached", "the bound, and what stands between"], self.rows)


def table(samples_of):
    gap = Gap(samples_of)
    for part, precision, micro_batch, limit in (
            ("training-fp32", "fp32", 4, 1.05), ("training-bf16", "bf16", 4, 1.05),
            ("training-micro-1-fp32", "fp32", 1, 1.12), ("training-micro-1-bf16", "bf16", 1, 1.12)):
        for framework, door in (("tessera", "Python"), ("tessera-c++", "C++")):
            for stage in STAGES:
                case = Case(framework, stage)
                bounds = [COMPUTE, moved(samples_of.get("collectives"), precision, stage)]
                gap.add(f"step, {precision}, micro batch {micro_batch}, stage {stage}, from {door}", part,
                        lambda samples, setting, case=case: samples.ratio(setting, "step, s", case.name, case.bound.name),
                        ("at most", limit), "; ".join(bounds))
    for stage in STAGES:
        for part, precision in (("training-fp32", "fp32"), ("training-bf16", "bf16"), ("training-bert-base", "fp32, BERT base")):
            gap.add(f"peak memory, {precision}, stage {stage}, to DeepSpeed's", part,
                    lambda samples, setting, stage=stage: samples.ratio(
                        setting, "peak, MB", Case("tessera", stage).name, Case("deepspeed", stage).name),
                    ("at most", 1), MEMORY + (GRADIENTS_STAY if stage == 0 else ""))
    for case in (Case("tessera-c++", 2), Case("tessera", 2)):
        for first, second, wanted in (("DeepSpeed, stage 2", case.name, ("at least", 4)), ("DeepSpeed, stage 2", case.bound.name, None)):
            gap.add(f"{first}: its first step to that of {second}", "start",
                    lambda samples, setting, names=(first, second): samples.ratio(setting, "first step, s", *names),
                    wanted, "the next row: processes that do not communicate" if wanted else "")
    gap.add("bf16 optimizer step: DeepSpeed's to ours", "optimizer", in_setting("bf16", "step, ms", "DeepSpeedCPUAdam", "Tessera"),
            ("at least", 1.5), "moving 28 bytes a parameter: the next row")
    gap.add("bf16 optimizer step: ours to a plain loop with the same traffic", "optimizer",
            in_setting("bf16", "step, ms", "Tessera", "a plain loop with the same traffic"), None, "memory bandwidth")
    for stage in (2, 3):
        names = Case("deepspeed", stage, offload=True).name, Case("tessera", stage, offload=True).name
        gap.add(f"optimizer's part of a step, GPT-2, bf16, offload, stage {stage}: DeepSpeed's to ours", "training-gpt2-offload",
                lambda samples, setting, names=names: samples.ratio(setting, "update, s", *names), ("at least", 1.5),
                "memory bandwidth, and the new weights' all-gather at stage 2")
    for collective in ("reduce_scatter", "all_gather", "all_reduce"):
        gap.add(f"{collective} of 128 MiB in place to its bound", "collectives",
                in_setting(f"128 MiB, {collective}", "ms", "shm, in place", "bound"), None, "bytes moved over memory bandwidth")
    for what in ("save", "load"):
        gap.add(f"checkpoint, stage 3: {what} to dd's", "checkpoint", in_setting("stage 3", what, "Tessera", "dd"), None, "the disk")
    for what in ("write", "read"):
        gap.add(f"offload I/O, {what}: our rate to fio's", "offload", in_setting(what, "GB/s", "Tessera", "fio (io_uring)"), None,
                "the disk")
    gap.add("optimizer step on NVMe to the longer of its I/O and its compute", "offload",
            in_setting("optimizer", "s", "state on NVMe", "the longer of its I/O and its compute"), None, "the disk")
    return gap.markdown()


def in_setting(begins, what, case, to_case):
    def measure(samples, setting):
        return samples.ratio(setting, what, case, to_case) if setting.startswith(f"{begins},") else None
    return measure


def moved(collectives, precision, stage):
    """The communication of a step of bert-small at the bandwidth that the collectives of 128 MiB were measured with: gradients are
    reduced and parameters gathered once a step, at stage 3 twice, for forward and for backward."""
    if not collectives:
        return "bytes moved: see the collectives"
    seconds = {}
    for setting in collectives.settings():
        size, collective, *_ = setting.split(", ")
        if size == "128 MiB":
            seconds[collective] = collectives.median(setting, "shm, in place", "ms") / 1e3 / (128 * 2**20)
    if len(seconds) < 3:
        return "bytes moved: see the collectives"
    size = parameters(MODELS["bert-small"]) * (4 if precision == "fp32" else 2)
    if stage == 0:
        each = seconds["all_reduce"]
    else:
        each = seconds["reduce_scatter"] + (2 if stage == 3 else 1) * seconds["all_gather"]
    return f"{size / 1e6:.0f} MB exchanged at the measured bandwidth take {size * each:.3f} s"
