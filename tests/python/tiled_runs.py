"""Training with tiled computation, as two ranks: run by test_tiled_compute.py. Prints JSON, {"<function>": what rank 0 got}.

The expected losses and norms are those of plain PyTorch, which computes everything whole, with both ranks' batches.
"""

import sys
import warnings

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import transformers  # noqa: E402
from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss, TiledMLP, sequence_tiled_compute  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402

from named_runs import NamedRuns  # noqa: E402

run = NamedRuns()
STEPS, CLIP, WORDS, WIDTH, ROWS, LENGTH, NO_LABEL = 20, 0.5, 31, 12, 2, 23, -100
deepspeed.init_distributed("gloo")


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, 40), nn.Linear(WIDTH, 40, bias=False), nn.Linear(40, WIDTH)

    def forward(self, x):
        return self.down(torch.tanh(self.gate(x)) * self.up(x))


class Model(nn.Module):
    """The words' table is the head's, too, so a tied weight is used in tiles and outside. `around`: what a block is called through."""

    def __init__(self, tiled, around=lambda function, x: function(x)):
        super().__init__()
        self.words, self.first, self.second = nn.Embedding(WORDS, WIDTH), Gated(), Gated()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.tiled, self.around = tiled, around

    def forward(self, ids, labels):
        x = self.words(ids)
        x = x + self.around(self._in_tiles if self.tiled else self.first, x)
        x = x + self.around(self._by_keywords if self.tiled else self.second, x)
        count = (labels != NO_LABEL).sum()
        if not self.tiled:
            return self._loss(x, labels) / count
        return TiledFusedLogitsLoss.apply(Model._loss, self, x, labels, None, 5, [self.head.weight], "sum") / count

    def _loss(self, x, labels):
        return cross_entropy(self.head(x).flatten(0, -2), labels.flatten(), ignore_index=NO_LABEL, reduction="sum")

    def _in_tiles(self, x):
        return TiledMLP.apply(Gated.forward, self.first, x, 4, list(self.first.parameters()))

    def _by_keywords(self, x):
        return sequence_tiled_compute(Gated.forward, LENGTH, 7, {"x": x}, {"self": self.second}, "x", output_reduction=None)


def batch(step):
    generator = torch.Generator().manual_seed(step % 3)
    ids = torch.randint(WORDS, (dist.get_world_size(), ROWS, LENGTH), generator=generator)
    labels = ids.roll(-1, -1)
    labels[..., -1] = NO_LABEL
    return ids, labels


def plainly(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    losses, norms = [], []
    for step in range(STEPS):
        loss = torch.stack([loss_of(model, *rows) for rows in zip(*batch(step))]).mean()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms


def trained(model, stage, **more):
    config = {"train_micro_batch_size_per_gpu": ROWS, "gradient_clipping": CLIP, "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "weight_decay": 0.01}},
              "zero_optimization": {"stage": stage, "stage3_max_live_parameters": 0, "stage3_param_persistence_threshold": 0}, **more}
    engine, *_ = deepspeed.initialize(model=model, config=config)
    losses, norms = [], []
    for step in range(STEPS):
        loss = loss_of(engine, *(each[dist.get_rank()] for each in batch(step)))
        engine.backward(loss)
        engine.step()
        mean = loss.detach().float()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
        norms.append(float(engine.get_global_grad_norm()))
    engine.destroy()
    return losses, norms


def loss_of(model, ids, labels):
    loss = model(ids, labels)
    return loss if torch.is_tensor(loss) else loss.loss


def made(*arguments):
    torch.manual_seed(7)
    return Model(*arguments)


@run
def stages():
    return {"expected": plainly(made(False)), "found": {f"stage {stage}": trained(made(True), stage) for stage in range(4)}}


@run
def inside_a_checkpoint():
    """Whose function is called again in backward, before its tiles are."""
    ways = {"non-reentrant": lambda function, x: torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False),
            "reentrant": lambda function, x: torch.utils.checkpoint.checkpoint(function, x, use_reentrant=True),
            "deepspeed's": deepspeed.checkpointing.checkpoint}
    return {"expected": plainly(made(False)), "found": {way: trained(made(True, around), 3) for way, around in ways.items()}}


def llama():
    torch.manual_seed(7)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=WIDTH, intermediate_size=40, num_hidden_layers=3, vocab_size=WORDS, num_attention_heads=3, num_key_value_heads=1, head_dim=4))


class WithLoss(nn.Module):
    """A Llama with a tiled loss in the place of its own."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, labels):
        hidden = self.model.model(ids).last_hidden_state
        return TiledFusedLogitsLoss.apply(WithLoss._loss, self, hidden, labels, labels != NO_LABEL, 3, [self.model.lm_head.weight], "sum") / (labels != NO_LABEL).sum()

    def _loss(self, hidden, labels, present):
        return cross_entropy(self.model.lm_head(hidden)[present], labels[present], reduction="sum")


@run
def transformers_models():
    """Llama's feed-forward and loss, as DeepSpeed's tutorial has them."""
    class Whole(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, ids, labels):
            return cross_entropy(self.model(ids).logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL)

    expected = plainly(Whole(llama()))
    whole = modeling_llama.LlamaMLP.forward
    modeling_llama.LlamaMLP.forward = lambda self, x: TiledMLP.apply(whole, self, x, 4, [self.down_proj.weight, self.gate_proj.weight, self.up_proj.weight])
    try:
        model = llama()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        found = {"stage 3": trained(WithLoss(llama()), 3), "and checkpoints": trained(WithLoss(model), 3), "stage 1": trained(WithLoss(llama()), 1)}
    finally:
        modeling_llama.LlamaMLP.forward = whole
    return {"expected": expected, "found": found}


if __name__ == "__main__":
    run.print_results(sys.argv[1:])
