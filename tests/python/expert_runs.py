"""Layers with experts that ranks share out, from Python, on four ranks: run by test_experts.py. Prints JSON, {"<function>": what rank 0 got}.

The expected losses and norms are those of plain PyTorch, whose experts are computed one by one, with all ranks' batches.
"""

import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from deepspeed.moe.layer import MoE  # noqa: E402
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer  # noqa: E402
from deepspeed.utils import groups  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy, softmax  # noqa: E402

from misuse_runs import said  # noqa: E402
from named_runs import NamedRuns  # noqa: E402

run = NamedRuns()
STEPS, CLIP, WIDTH, WORDS, ROWS, LENGTH, EXPERTS, BALANCE = 20, 0.5, 12, 31, 2, 7, 4, 0.1
SCRATCH = Path(sys.argv[1])
deepspeed.init_distributed("gloo")


def expert():
    return nn.Sequential(nn.Linear(WIDTH, 20), nn.Tanh(), nn.Linear(20, WIDTH))


class Model(nn.Module):
    """Two layers with experts, each of which has values of its own."""

    def __init__(self, layer, **how):
        super().__init__()
        torch.manual_seed(3)
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList([layer(**how) for _ in range(2)])
        for number, weights in enumerate(self.layers):
            weights.fill(number)

    def forward(self, ids, labels):
        x, balance = self.words(ids), 0
        for layer in self.layers:
            output, loss, _ = layer(x)
            x, balance = x + output, balance + loss
        return cross_entropy(self.head(x).flatten(0, 1), labels.flatten()) + BALANCE * balance


def drawn(layer, number, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 * layer + number)) * 0.3


def fill(parameters, layer, number):
    """The values of one expert, or of the gate, which is number -1."""
    with torch.no_grad():
        for place, parameter in enumerate(parameters):
            parameter.copy_(drawn(layer, 10 * (number + 1) + place, parameter.shape))


class Plain(nn.Module):
    """Every expert of every token, of which the chosen ones count."""

    def __init__(self, k):
        super().__init__()
        self.gate, self.experts, self.k = nn.Linear(WIDTH, EXPERTS, bias=False), nn.ModuleList([expert() for _ in range(EXPERTS)]), k

    def fill(self, layer):
        fill([self.gate.weight], layer, -1)
        for number, module in enumerate(self.experts):
            fill(module.parameters(), layer, number)

    def forward(self, x):
        tokens = x.reshape(-1, WIDTH)
        scores = softmax(self.gate(tokens), -1)
        weights, chosen = scores.topk(self.k, -1)
        if self.k > 1:
            weights = weights / weights.sum(-1, keepdim=True)
        output = sum(module(tokens) * (weights * (chosen == number)).sum(-1, keepdim=True) for number, module in enumerate(self.experts))
        first = nn.functional.one_hot(chosen[:, 0] if self.k < 3 else chosen, EXPERTS).float()
        often = first.mean(0) if self.k < 3 else first.sum(1).mean(0) / self.k
        return output.view_as(x), EXPERTS * (scores.mean(0) * often).sum(), None


class Shared(MoE):
    def __init__(self, **how):
        super().__init__(WIDTH, expert(), num_experts=EXPERTS, min_capacity=0, drop_tokens=False, top2_2nd_expert_sampling=False, **how)

    def fill(self, layer):
        """This rank's: as many as there are, from the rank's place among ep_size neighbours on."""
        fill([self.deepspeed_moe.gate.wg.weight], layer, -1)
        first = dist.get_rank() % self.ep_size * self.num_local_experts
        for number, module in enumerate(self.deepspeed_moe.experts.deepspeed_experts, first):
            fill(module.parameters(), layer, number)


def batch(step):
    generator = torch.Generator().manual_seed(step % 3)
    ids = torch.randint(WORDS, (dist.get_world_size(), ROWS, LENGTH), generator=generator)
    return ids, ids.roll(-1, -1)


def plainly(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    losses, norms = [], []
    for step in range(STEPS):
        loss = torch.stack([model(*rows) for rows in zip(*batch(step))]).mean()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms


def settings(stage):
    return {"train_micro_batch_size_per_gpu": ROWS, "gradient_clipping": CLIP, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20},
            "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "weight_decay": 0.01}}}


def forget_groups():
    for made in (groups._EXPERT_PARALLEL_GROUP, groups._EXPERT_DATA_PARALLEL_GROUP, groups._EXPERT_PARALLEL_GROUP_RANKS,
                 groups._EXPERT_DATA_PARALLEL_GROUP_RANKS):
        made.clear()


def start(stage, **how):
    model = Model(Shared, **how)
    return deepspeed.initialize(model=model, config=settings(stage))[0]


def trained(engine, steps):
    losses, norms = [], []
    for step in steps:
        loss = engine(*(each[dist.get_rank()] for each in batch(step)))
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
        norms.append(float(engine.get_global_grad_norm()))
    return losses, norms


@run
def stages():
    results = {}
    for k, ep_size, stage in [(1, 2, 0), (1, 4, 1), (2, 2, 2), (2, 2, 3), (3, 4, 3)]:
        engine = start(stage, k=k, ep_size=ep_size)
        name = f"ep_size_{ep_size}"
        results[f"k {k}, {ep_size} ranks, stage {stage}"] = {
            "found": trained(engine, range(STEPS)), "expected": plainly(Model(Plain, k=k)),
            "experts": [sum(1 for name in dict(engine.module.named_parameters()) if name.endswith("0.weight") and "experts" in name),
                        groups._get_expert_parallel_world_size(name), groups._get_expert_data_parallel_world_size(name)]}
        engine.destroy()
        forget_groups()
    return results


@run
def checkpoints():
    """Goes on with other numbers of ranks that share out."""
    expected = plainly(Model(Plain, k=2))
    losses, norms = [], []
    for life, (ep_size, stage) in enumerate([(2, 1), (4, 3), (1, 0), (2, 3)]):
        engine = start(stage, k=2, ep_size=ep_size)
        if life:
            engine.load_checkpoint(SCRATCH)
        these = trained(engine, range(5 * life, 5 * life + 5))
        losses += these[0]
        norms += these[1]
        engine.save_checkpoint(SCRATCH, tag=f"life{life}")
        engine.destroy()
        forget_groups()
    return {"found": [losses, norms], "expected": expected}


@run
def groups_of_an_optimizer():
    """A client's own optimizer, of groups that keep experts apart."""
    model = Model(Shared, k=1, ep_size=2)
    parameters = split_params_into_different_moe_groups_for_optimizer({"params": list(model.parameters()), "name": "all"})
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.01)
    config = {key: value for key, value in settings(2).items() if key != "optimizer"}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    found = trained(engine, range(STEPS))
    names = [group.get("name") for group in parameters]
    engine.destroy()
    forget_groups()
    return {"found": found, "expected": plainly(Model(Plain, k=1)), "names": names}


@run
def misuse():
    found = {"round": said(MoE, WIDTH, expert(), num_experts=4, ep_size=3), "noise": said(MoE, WIDTH, expert(), noisy_gate_policy="loud"),
             "tensor": said(MoE, WIDTH, expert(), num_experts=4, ep_size=2, enable_expert_tensor_parallelism=True),
             "early": said(MoE(WIDTH, expert(), num_experts=4, ep_size=2), torch.ones(8, WIDTH)),
             "few": said(MoE(WIDTH, expert(), num_experts=4), torch.ones(3, WIDTH))}
    both = nn.ModuleList([MoE(WIDTH, expert(), num_experts=4, ep_size=size) for size in (2, 4)])
    found["sizes"] = said(deepspeed.initialize, model=both, config=settings(0))
    layer = MoE(WIDTH, expert(), num_experts=4, ep_size=2)
    found["mesh_param"] = said(deepspeed.initialize, model=layer, config=settings(0), mesh_param=(2, 2))
    groups.mesh_device = None
    forget_groups()
    six = MoE(WIDTH, expert(), num_experts=6, ep_size=3)
    found["ranks"] = said(deepspeed.initialize, model=six, config=settings(0))
    return found


if __name__ == "__main__":
    run.print_results(sys.argv[2:])
