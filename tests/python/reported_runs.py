"""What users of DeepSpeed reported, as small programs: run as two ranks by test_reported.py. A function's first line has the numbers of
the threads (of deepspeedai/DeepSpeed, unless a project is named). Prints JSON, {"<function>": what rank 0 got}.
"""

import copy
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from named_runs import NamedRuns  # noqa: E402
from small_model import VOCABULARY, WIDTH, Model, adamw, config, made, own, plainly_trained, start, trained  # noqa: E402

run = NamedRuns()
STAGES = range(4)


class Repeating(Model):
    """Its first block is called `times` times in a forward."""

    def __init__(self, times):
        super().__init__()
        self.times = times

    def forward(self, ids, labels):
        x = self.embedding(ids)
        for _ in range(self.times):
            x = self.blocks[0](x)
        for block in self.blocks[1:]:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x * self.scale).flatten(0, 1).float(), labels.flatten())


def repeating(times):
    torch.manual_seed(0)
    return Repeating(times)


@run
def a_block_called_several_times():
    """#8224, #7718."""
    found = {}
    for times in (2, 3):
        for accumulation in (1, 3):
            model = repeating(times)
            found[f"{times} times, {accumulation} micro batches"] = {
                "expected": plainly_trained(model, adamw(model), accumulation=accumulation),
                "results": [trained(start(repeating(times), config=config(stage, accumulation))[0], accumulation=accumulation)
                            for stage in STAGES],
                "bf16": [trained(start(repeating(times), config=config(stage, accumulation, bf16={"enabled": True}))[0],
                                 accumulation=accumulation)[0] for stage in STAGES]}
    return found


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def with_adapter(recomputes):
    """All of the base is frozen, the weights of norms too; small matrices beside it are trained."""
    model = made(recomputes=recomputes)
    for block in model.blocks:
        block.norm = Norm()
    for parameter in model.parameters():
        parameter.requires_grad = False
    torch.manual_seed(1)
    for block in model.blocks:
        block.widen = nn.Sequential(block.widen, nn.Linear(3 * WIDTH, 3 * WIDTH, bias=False))
    return model


@run
def a_frozen_base_that_is_recomputed():
    """transformers #47254; PR #8130, #8148; trl #2514; dllm #65."""
    found = {}
    for how in ("plain", "reentrant"):
        model = with_adapter(None)
        trains = [parameter for parameter in model.parameters() if parameter.requires_grad]
        expected = plainly_trained(model, torch.optim.AdamW(trains, lr=1e-2, weight_decay=0.1))
        model = with_adapter(how)
        model.embedding.weight.requires_grad = how == "reentrant"  # which needs an input that has a gradient
        if how == "reentrant":
            other = with_adapter(None)
            other.embedding.weight.requires_grad = True
            trains = [parameter for parameter in other.parameters() if parameter.requires_grad]
            expected = plainly_trained(other, torch.optim.AdamW(trains, lr=1e-2, weight_decay=0.1))
        found[how] = {"expected": expected, "results": [trained(start(copy.deepcopy(model), config=config(stage))[0]) for stage in STAGES]}
    return found


@run
def muon_under_zero_init():
    """PR #8438, #8600, #8443: the same bits with and without, and one step for four micro batches."""
    muon = {"optimizer": {"type": "Muon", "params": {"lr": 1e-2, "adam_lr": 1e-2}}}
    named = {**config(3, optimizer=False), **muon}
    plainly = trained(start(config=named)[0])
    with deepspeed.zero.Init(config_dict_or_path=named):
        torch.manual_seed(0)
        model = Model()
    by_micro_batches = [trained(start(config={**config(stage, 4, optimizer=False), **muon})[0], steps=2, accumulation=4) for stage in (1, 3)]
    return {"same": plainly == trained(start(model, config=named)[0]), "micro batches": by_micro_batches}


@run
def several_backwards_before_a_step():
    """open-instruct PR #1498: four of them, with an accumulation of one that the configuration says."""
    model = made()
    expected = plainly_trained(model, adamw(model), steps=1, accumulation=4)
    results = []
    for stage in STAGES:
        engine, *_ = start(config=config(stage))
        losses = []
        for number in range(4):
            loss = engine(*own(number))
            engine.backward(loss / 4)
            losses.append(float(loss))
        engine.step()
        results.append((losses, [float(engine.get_global_grad_norm())]))
    return {"expected": expected, "results": results}


@run
def gradients_in_fp32_beside_bf16():
    """PR #7985: accumulation 1, 2 and 4 of one batch give one step."""
    found = {}
    for stage in STAGES:
        norms = []
        for accumulation in (1, 2, 4):
            engine, *_ = start(config=config(stage, accumulation, bf16={"enabled": True}, data_types={"grad_accum_dtype": "fp32"}))
            for _ in range(accumulation):
                engine.backward(engine(*own(0)))
                engine.step()
            norms.append(float(engine.get_global_grad_norm()))
        found[stage] = norms
    return found


@run
def bf16_at_every_stage():
    """#7837, PR #7839: norms of three steps."""
    return [trained(start(config=config(stage, bf16={"enabled": True}))[0], steps=3)[1] for stage in STAGES]


@run
def an_overflow_on_one_rank():
    """#7568: fp16 with a schedule; every rank skips, and the schedule waits."""
    found = {}
    for stage in STAGES:
        engine, _, _, schedule = start(config=config(
            stage, fp16={"enabled": True, "initial_scale_power": 8},
            scheduler={"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-2, "warmup_num_steps": 10, "warmup_type": "linear"}}))
        rates = []
        for number in range(4):
            loss = engine(*own(number))
            engine.backward(loss * (float("inf") if number == 1 and dist.get_rank() == 1 else 1))
            engine.step()
            rates.append(schedule.get_last_lr()[0])
        found[stage] = {"skipped": engine.skipped_steps, "steps": engine.global_steps, "rates": rates, "scale": engine.loss_scale()}
    return found


@run
def few_buffers_for_a_large_unit():
    """#3062: one buffer, and a unit of nine parameters."""
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            self.parts = nn.ParameterList(nn.Parameter(torch.randn(WIDTH, WIDTH) / 4) for _ in range(9))

        def forward(self, ids, labels):
            x = self.embedding(ids)
            for part in self.parts:
                x = x + torch.tanh(x @ part)
            return nn.functional.cross_entropy((x @ self.embedding.weight.t()).flatten(0, 1), labels.flatten())

    def wide():
        torch.manual_seed(0)
        return Wide()

    folder = tempfile.mkdtemp()
    model = wide()
    expected = plainly_trained(model, adamw(model))
    named = config(3)
    on_disk = {"device": "nvme", "nvme_path": folder, "buffer_count": 1}
    named["zero_optimization"].update(offload_param=on_disk, offload_optimizer=on_disk, sub_group_size=64)
    return {"expected": expected, "results": [trained(start(wide(), config=named)[0])]}


class Odd(Model):
    """With parameters without dimensions, of no elements and of one."""

    def __init__(self):
        super().__init__()
        self.number, self.none, self.one = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.empty(0, 4)), nn.Parameter(torch.ones(1))

    def forward(self, ids, labels):
        return super().forward(ids, labels) * self.number + self.one.sum() * 1e-2 + self.none.sum()


@run
def parameters_of_odd_sizes():
    """#7686, PR #8280; by stage and offload."""
    def odd():
        torch.manual_seed(0)
        return Odd()

    model = odd()
    expected = plainly_trained(model, adamw(model))
    results = {}
    for stage in STAGES:
        for device in ("none", "cpu", "nvme"):
            if stage == 0 and device != "none":
                continue
            named = config(stage)
            if device != "none":
                place = {"device": device, "nvme_path": tempfile.mkdtemp()}
                named["zero_optimization"].update({"offload_optimizer": place, **({"offload_param": place} if stage == 3 else {})})
            results[f"{stage}, {device}"] = trained(start(odd(), config=named)[0])
    return {"expected": expected, "results": results}


@run
def gathering_a_thousand_times():
    """trl #2840, #2877; ms-swift #7986; trl PR #5766: unit by unit, over a checkpoint and a mistake inside."""
    engine, *_ = start(config=config(3))
    trained(engine, steps=1)
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    before = engine.consolidated_state_dict(keeps_on=None)
    most = 0
    for number in range(1000):
        block = engine.module.blocks[number % 3]
        try:
            with deepspeed.zero.GatheredParameters(list(block.parameters())):
                most = max(most, sum(parameter.numel() for parameter in engine.module.parameters()))
                if number == 500:
                    raise KeyError("a mistake inside")
        except KeyError:
            pass
        if number == 600:
            engine.save_checkpoint(folder[0])
            engine.load_checkpoint(folder[0])
    after = engine.consolidated_state_dict(keeps_on=None)
    losses, _ = trained(engine, steps=2, first=1)
    return {"same": all(torch.equal(before[name], after[name]) for name in before), "most": most,
            "of a block": sum(parameter.ds_numel for parameter in engine.module.blocks[0].parameters()),
            "left": sum(parameter.numel() for parameter in engine.module.parameters()), "falls": losses[1] < losses[0]}


class Untied(Model):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)


def take_rows(model, embedding, head):
    """As transformers does: new parameters take the places of the old ones, with three rows more."""
    tied = model.head.weight is model.embedding.weight
    model.embedding.weight = nn.Parameter(with_more_rows(embedding))
    model.head.weight = model.embedding.weight if tied else nn.Parameter(with_more_rows(head))


def with_more_rows(weight):
    return torch.cat([weight, weight.mean(0, keepdim=True).expand(3, -1)])


@run
def embeddings_that_are_resized():
    """transformers #41959, dllm #16: before initialize and inside GatheredParameters, tied and untied; the first losses."""
    found = {}
    for cls in (Model, Untied):
        torch.manual_seed(0)
        plain = cls()
        take_rows(plain, plain.embedding.weight.detach(), plain.head.weight.detach())
        expected = float(plain(*own(0)))
        with deepspeed.zero.Init(config_dict_or_path=config(3)):
            torch.manual_seed(0)
            model = cls()
        with deepspeed.zero.GatheredParameters([model.embedding.weight, model.head.weight]):
            whole = model.embedding.weight.detach().clone(), model.head.weight.detach().clone()
        take_rows(model, *whole)
        engine, *_ = start(model, config=config(3))
        early, *_ = start(copy.deepcopy(plain), config=config(3))
        found[cls.__name__] = {"expected": expected, "gathered": float(engine(*own(0))), "before": float(early(*own(0)))}
    return found


@run
def batch_keys_under_zero_init():
    """FAI-RL PR #72: "16 != 1 * 8 * 1" where Init takes the world for one rank."""
    named = {**config(3, 2), "train_batch_size": 8}
    with deepspeed.zero.Init(config_dict_or_path=named):
        model = Model()
    engine, *_ = start(model, config=named)
    return [engine.train_batch_size(), engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()]


def with_infinity(gradient):
    changed = gradient.clone()
    changed.view(-1)[0] = float("inf")
    return changed


@run
def one_infinity_in_bf16():
    """PR #8035: in one element on one rank; the step is skipped, and nothing changes."""
    found = {}
    for stage in STAGES:
        engine, *_ = start(config=config(stage, bf16={"enabled": True}))
        trained(engine, steps=2)
        parameters = list(engine.module.parameters())

        def state():
            return [read(parameter) for parameter in parameters for read in (
                deepspeed.utils.safe_get_full_fp32_param, lambda p: deepspeed.utils.safe_get_full_optimizer_state(p, "exp_avg_sq"))]

        before = state()
        if dist.get_rank() == 1:
            engine.module.blocks[0].register_forward_hook(lambda module, inputs, output: output.register_hook(with_infinity) and None)
        loss = engine(*own(2))
        engine.backward(loss)
        engine.step()
        found[stage] = {"skipped": engine.skipped_steps, "same": all(map(torch.equal, before, state()))}
    return found


@run
def a_universal_resume():
    """#7546, #6691: load_universal from the first save on; the first loss after it, and the one that was next."""
    found = []
    for stage in STAGES:
        named = config(stage, checkpoint={"load_universal": True})
        engine, *_ = start(config=named)
        trained(engine, steps=2)
        folder = [tempfile.mkdtemp()]
        dist.broadcast_object_list(folder)
        engine.save_checkpoint(folder[0])
        expected, _ = trained(engine, steps=1, first=2)
        other, *_ = start(config=named)
        assert other.load_checkpoint(folder[0])[0] is not None
        found.append([trained(other, steps=1, first=2)[0][0], expected[0]])
    return found


@run
def rates_of_several_groups():
    """PR #8171, #7969: a schedule keeps each group's own rate."""
    model = made()
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "lr": 1e-2}, {"params": [p for p in model.parameters() if p.dim() <= 1], "lr": 1e-3}]
    engine, *_ = start(model, optimizer=torch.optim.AdamW(groups), config=config(2, optimizer=False, scheduler={
        "type": "WarmupCosineLR", "params": {"total_num_steps": 10, "warmup_num_steps": 2, "cos_min_ratio": 0.1}}))
    rates = []
    for number in range(6):
        engine.backward(engine(*own(number)))
        engine.step()
        rates.append(engine.get_lr())
    return rates


if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    run.print_results(sys.argv[1:])
