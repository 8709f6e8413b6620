"""PipelineModules of several stages, on four ranks: run by test_pipeline_engine.py. Prints JSON, {"<function>": what rank 0 got}.

The expected losses, norms and weights are those of plain PyTorch with the whole model and the whole batch on each rank.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed import comm as dist  # noqa: E402
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec  # noqa: E402
from deepspeed.runtime.pipe.engine import PipelineEngine, PipelineError  # noqa: E402
from deepspeed.runtime.pipe.schedule import BackwardPass  # noqa: E402
from deepspeed.utils import RepeatingLoader  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from misuse_runs import said  # noqa: E402
from named_runs import NamedRuns  # noqa: E402

run = NamedRuns()
STEPS, CLIP, WORDS, WIDTH, ROWS = 20, 0.5, 23, 12, 16
deepspeed.init_distributed("gloo")


class Block(nn.Module):
    """Takes (hidden, which tokens are there), an integer that no gradient goes through, and gives both on."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, given):
        hidden, present = given
        if self.training:
            self.passes += 1
        mean = (self.mix(self.norm(hidden)) * present.unsqueeze(-1)).mean(1, keepdim=True)
        return hidden + torch.tanh(self.out(hidden + mean)), present


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WORDS, WIDTH).normal_(std=0.5))
        self.places = nn.Parameter(torch.empty(10, WIDTH).normal_(std=0.5))  # of no use to the head

    def forward(self, given):
        ids, present = given
        return self.weight[ids] + self.places[:ids.shape[1]], present


def logits(embedding, given):
    return given[0] @ embedding.weight.T


def loss_of(output, labels):
    return cross_entropy(output.flatten(0, 1), labels.flatten())


def layers(tied=True):
    head = TiedLayerSpec("words", Embedding, forward_fn=logits) if tied else LayerSpec(Head)
    return [TiedLayerSpec("words", Embedding), *[LayerSpec(Block) for _ in range(5)], lambda given: (given[0] * 0.5, given[1]), head]


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, given):
        return self.words(given[0])


class Whole(nn.Module):
    """All layers one after the other, in plain PyTorch, under the names of the PipelineModule."""

    def __init__(self, specs):
        super().__init__()
        self.tied_modules, self.run = nn.ModuleDict(), []
        for index, spec in enumerate(specs):
            torch.manual_seed(1234 + index)
            if isinstance(spec, TiedLayerSpec):
                if spec.key not in self.tied_modules:
                    self.tied_modules[spec.key] = spec.build()
                module = self.tied_modules[spec.key]
                self.run.append(lambda given, m=module, f=spec.forward_fn: m(given) if f is None else f(m, given))
            elif isinstance(spec, LayerSpec):
                self.add_module(str(index), spec.build())
                self.run.append(getattr(self, str(index)))
            else:
                self.run.append(spec)

    def forward(self, given):
        for layer in self.run:
            given = layer(given)
        return given


def rows(step):
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(WORDS, (ROWS, 7), generator=generator)
    return (ids, torch.randint(2, ids.shape, generator=generator)), torch.randint(WORDS, ids.shape, generator=generator)


def plainly(specs, steps=STEPS, made=None):
    model = Whole(specs) if made is None else made
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    losses, norms = [], []
    for step in range(steps):
        given, labels = rows(step)
        loss = loss_of(model(given), labels)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms, model


def settings(stage=0, micro=2, **more):
    return {"train_batch_size": ROWS, "train_micro_batch_size_per_gpu": micro, "gradient_clipping": CLIP, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01}}, **more}


def start(specs, stages, config, **how):
    model = PipelineModule(specs, num_stages=stages, loss_fn=loss_of, seed_layers=True, **how)
    return deepspeed.initialize(model=model, model_parameters=[p for p in model.parameters() if p.requires_grad], config=config)[0]


def batches(engine, first=0, count=STEPS):
    """Of the stages that read any: this data-parallel rank's micro batches of each step, in their order."""
    if not (engine.is_first_stage() or engine.is_last_stage()):
        return None

    def all_of_them():
        for step in range(first, first + count):
            (ids, present), labels = rows(step)
            mine = slice(engine.get_data_parallel_rank(), None, engine.dp_world_size)
            for part in list(zip(*(each.split(engine.train_micro_batch_size_per_gpu()) for each in (ids, present, labels))))[mine]:
                yield part[:2], part[2]
    return all_of_them()


def trained(engine, first=0, steps=STEPS):
    read, losses, norms = batches(engine, first, steps), [], []
    for _ in range(steps):
        losses.append(engine.train_batch(read).item())
        norms.append(float(engine.get_global_grad_norm()))
    return losses, norms


def difference(weights, expected):
    assert weights.keys() == expected.keys(), (weights.keys(), expected.keys())
    return max(float((weights[name].float() - value.float()).abs().max()) for name, value in expected.items())


@run
def pipelines():
    """[stages, ZeRO stage, how]: the losses, norms and weights."""
    results = {}
    for name, stages, stage, tied, how in [
            ("2 stages, stage 0", 2, 0, True, {}), ("4 stages, stage 1", 4, 1, True, {}), ("2 stages, stage 2", 2, 2, True, {}),
            ("2 stages, stage 3", 2, 3, True, {}), ("4 stages, uniform", 4, 0, False, {"partition_method": "uniform"}),
            ("2 stages, by type", 2, 1, True, {"partition_method": "type:block"}),
            ("4 stages, recomputed", 4, 3, True, {"activation_checkpoint_interval": 1}), ("1 stage", 1, 2, True, {})]:
        losses, norms, whole = plainly(layers(tied))
        engine = start(layers(tied), stages, settings(stage), **how)
        found = trained(engine)
        weights = engine.consolidated_state_dict()
        own = {key: value for key, value in whole.state_dict().items() if "passes" not in key}
        counted = {key: int(weights.pop(key)) for key in list(weights) if "passes" in key}
        results[name] = {"found": found, "expected": [losses, norms], "parts": engine.module.partitions(),
                         "weights": difference(weights, own) if dist.get_rank() == 0 else None, "passes": counted}
        engine.destroy()
    return results


@run
def in_half_precision():
    """The losses of the first and last step, in fp32 and in 16 bits; two stages and one have the same bits."""
    results = {}
    for name, block in [("bf16", {"bf16": {"enabled": True}}), ("fp16", {"fp16": {"enabled": True, "initial_scale_power": 8}})]:
        def cast(output, labels):
            return loss_of(output.float(), labels)
        found = []
        for stages in (1, 4):
            model = PipelineModule(layers(), num_stages=stages, loss_fn=cast, seed_layers=True)
            engine = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=settings(1, **block))[0]
            found.append(trained(engine, steps=5)[0])
            engine.destroy()
        results[name] = {"found": found, "expected": plainly(layers(), 5)[0]}
    return results


@run
def evaluations():
    """Beside plain PyTorch, and training goes on as without them."""
    losses, _, whole = plainly(layers(), 6)
    engine = start(layers(), 2, settings())
    found = trained(engine, steps=3)[0]
    before = list(engine.module.parameters())[0].detach().clone()
    mean, outputs = engine.eval_batch(batches(engine, 50, 1), return_logits=True)
    each = engine.eval_batch(batches(engine, 50, 1), reduce_output=None, num_micro_batches=2)
    unchanged = bool((list(engine.module.parameters())[0] == before).all())
    found += trained(engine, 3, 3)[0]
    reference = plainly(layers(), 3)[2].eval()
    (ids, present), labels = rows(50)
    with torch.no_grad():
        expected = reference((ids, present))
    answer = {"mean": mean.item(), "expected": loss_of(expected, labels).item(), "unchanged": unchanged, "losses": [found, losses],
              "outputs": outputs is None, "each": each is None}
    if engine.is_last_stage():
        own = list(range(ROWS // 2))[engine.get_data_parallel_rank()::engine.dp_world_size]
        answer["outputs"] = difference({"": outputs}, {"": expected[2 * own[-1]:2 * own[-1] + 2]}) < 1e-4
        answer["each"] = len(each) == 2
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, answer)
    return gathered


@run
def checkpoints():
    """Each life has other stages than the one before."""
    losses, _, _ = plainly(layers(), 16)
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, 0)
    found, seen = [], []
    for life, (stages, stage) in enumerate([(2, 1), (4, 3), (1, 2), (2, 0)]):
        engine = start(layers(), stages, settings(stage))
        if life:
            path, client = engine.load_checkpoint(folder[0])
            seen.append([client["life"], sorted(int(value) for name, value in engine.module.named_buffers()), engine.global_steps])
        found += trained(engine, 4 * life, 4)[0]
        engine.save_checkpoint(folder[0], client_state={"life": life})
        if life < 3:
            engine.destroy()
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, seen)
    engine.save_16bit_model(folder[0], "weights.bin")
    whole = torch.load(f"{folder[0]}/weights.bin", weights_only=True) if dist.get_rank() == 0 else {}
    return {"losses": [found, losses], "seen": gathered, "names": sorted(whole)}


@run
def data_and_reports():
    """training_data of initialize, set_dataloader, a batch_fn, additional losses, what is printed."""
    rand = torch.Generator().manual_seed(1)
    rows_of = [(torch.randn(6, generator=rand), int(torch.randint(3, (), generator=rand))) for _ in range(24)]

    class WithMore(PipelineModule):
        def get_additional_losses(self):
            return {"size": self.size} if hasattr(self, "size") else {"size": torch.zeros(())}

    def spoken(output, labels):
        model.size = output.square().mean()
        return cross_entropy(output, labels)

    model = WithMore([nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)], num_stages=2, loss_fn=spoken, partition_method="uniform")
    config = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "steps_per_print": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    engine, _, loader, _ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), training_data=rows_of, config=config)
    whole = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    state = engine.consolidated_state_dict()
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, state)
    whole.load_state_dict(found[0])
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    losses, expected, sizes, printed = [], [], [], io.StringIO()
    with contextlib.redirect_stdout(printed):
        for step in range(6):  # 24 rows are 3 steps: each epoch has the same order
            losses.append(engine.train_batch().item())
            sizes.append(engine.agg_additional_losses["size"].item())
    sizes_expected = []
    for step in range(6):
        own = [rows_of[(8 * step + i) % 24] for i in range(8)]
        output = whole(torch.stack([x for x, _ in own]))
        loss = cross_entropy(output, torch.tensor([y for _, y in own]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
        sizes_expected.append(output.square().mean().item())
    reads = engine.is_first_stage() or engine.is_last_stage()
    engine.set_batch_fn(lambda batch: (batch["x"], batch["y"]))
    engine.set_dataloader(RepeatingLoader([{"x": torch.ones(2, 6), "y": torch.tensor([0, 1])}]))
    again = engine.train_batch().item()
    labels = torch.tensor([0, 1])
    return {"losses": [losses, expected], "sizes": [sizes, sizes_expected], "printed": printed.getvalue().splitlines(), "reads": reads,
            "loader": type(loader).__name__, "again": [again, cross_entropy(whole(torch.ones(2, 6)), labels).item()]}


class Vision(nn.Module):
    """As vision packages build their models: two sequences and a pooling between them."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                                      nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(inplace=True))
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(48, 16), nn.ReLU(inplace=True), nn.Linear(16, 5))

    def forward(self, image):
        return self.classifier(torch.flatten(self.avgpool(self.features(image)), 1))


@run
def a_vision_model():
    """A program in the form of vision examples: arguments with --deepspeed_config, a built model joined to a list of layers, and no iterator."""
    generator = torch.Generator().manual_seed(6)
    images = [(torch.randn(3, 16, 16, generator=generator), int(torch.randint(5, (), generator=generator))) for _ in range(40)]
    config = f"{tempfile.mkdtemp()}/ds_config.json"
    with open(config, "w", encoding="utf-8") as file:
        json.dump({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "steps_per_print": 10, "wall_clock_breakdown": False,
                   "optimizer": {"type": "Adam", "params": {"lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-8}}}, file)
    args = deepspeed.add_config_arguments(argparse.ArgumentParser()).parse_args([f"--deepspeed_config={config}"])

    def model():
        deepspeed.runtime.utils.set_random_seed(1138)
        return Vision()

    def plainly(batches):
        whole, losses = model(), []
        optimizer = torch.optim.Adam(whole.parameters(), lr=0.01)
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = cross_entropy(whole(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def together(numbers):
        return torch.stack([images[number][0] for number in numbers]), torch.tensor([images[number][1] for number in numbers])

    results = {}
    for stages, interval in ((2, 0), (4, 1)):
        net = model()
        net = PipelineModule(layers=[*net.features, net.avgpool, lambda x: torch.flatten(x, 1), *net.classifier], num_stages=stages,
                             loss_fn=nn.CrossEntropyLoss(), partition_method="parameters", activation_checkpoint_interval=interval)
        engine, *_ = deepspeed.initialize(args=args, model=net, model_parameters=[p for p in net.parameters() if p.requires_grad],
                                          training_data=images)
        found = [engine.train_batch().item() for _ in range(6)]
        results[f"{stages} stages"] = [found, plainly(together([(16 * step + row) % 40 for row in range(16)]) for step in range(6))]
        engine.destroy()

    net = model()
    engine, _, loader, _ = deepspeed.initialize(args=args, model=net, model_parameters=[p for p in net.parameters() if p.requires_grad],
                                                training_data=images)
    batches, seen, found = iter(RepeatingLoader(loader)), [], []
    for _ in range(6):
        of_step = []
        for _ in range(engine.gradient_accumulation_steps()):
            batch = next(batches)
            loss = nn.CrossEntropyLoss()(engine(batch[0].to(engine.device)), batch[1].to(engine.device))
            engine.backward(loss)
            engine.step()
            of_step.append((*batch, loss.item()))
        of_all = [None] * dist.get_world_size()
        dist.all_gather_object(of_all, of_step)
        parts = [part for of_rank in of_all for part in of_rank]
        seen.append((torch.cat([inputs for inputs, _, _ in parts]), torch.cat([labels for _, labels, _ in parts])))
        found.append(sum(value for _, _, value in parts) / len(parts))
    results["no pipeline"] = [found, plainly(seen)]
    return results


@run
def seeds_of_layers():
    """Gradients of dropout after several forwards, as a pipeline's first stage has them; what plain PyTorch has with DeepSpeed's seeds:
    base_seed * (forward + 1) + the layer's place in what is computed again at once, forwards counted from 1."""
    found = {}
    for interval in (0, 1, 2):
        torch.manual_seed(3)
        parts = [nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5)]
        inputs = [torch.randn(4, 8, requires_grad=True) for _ in range(3)]
        for number, x in enumerate(inputs, 1):
            for place, layer in enumerate(parts):
                torch.manual_seed(100 * (number + 1) + (place % interval if interval else place))
                x = layer(x)
            x.square().sum().backward()
        weights = [parts[0].weight, parts[2].weight]
        expected = [weight.grad for weight in weights]
        for weight in weights:
            weight.grad = None
        model = PipelineModule(parts, num_stages=1, loss_fn=loss_of, seed_layers=True, base_seed=100, activation_checkpoint_interval=interval)
        for output in [model(x) for x in inputs]:
            output.square().sum().backward()
        found[interval] = [torch.equal(weight.grad, want) for weight, want in zip(weights, expected)]
    return found


@run
def names_and_misuse():
    engine = start(layers(), 2, settings())
    found = {"class": isinstance(engine, PipelineEngine), "micro": [engine.micro_batches, engine.micro_batch_size],
             "place": [engine.num_stages, engine.stage_id, engine.is_pipe_parallel, engine.is_data_parallel, engine.grid.pipe_parallel_size]}
    for name in ("forward", "backward", "step"):
        try:
            getattr(engine, name)(torch.ones(1))
        except PipelineError as error:
            found[name] = str(error)
    with torch.no_grad():
        found["no grad"] = said(lambda: engine.train_batch(batches(engine)))
    found["no data"] = said(lambda: engine.eval_batch(None)) if engine.is_first_stage() else None
    found["reduction"] = said(lambda: engine.eval_batch(batches(engine), reduce_output="max"))
    other = start(layers(), 2, settings())
    other.destroy()
    found["destroyed"] = said(lambda: other.train_batch(batches(engine)))
    found["empty"] = said(lambda: start([nn.Linear(8, 8), nn.ReLU()], 2, settings(), partition_method="uniform"))
    PipelineEngine._INSTRUCTION_MAP[BackwardPass] = print
    found["instructions"] = said(lambda: engine.train_batch(batches(engine)))
    return found


if __name__ == "__main__":
    run.print_results(sys.argv[1:])
