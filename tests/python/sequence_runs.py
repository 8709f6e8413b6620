"""Sequences that several ranks share, from Python, on four ranks: run by test_shared_sequences.py. Prints JSON, {"<function>": what rank 0
got}.

The expected losses and norms are those of plain PyTorch with whole sequences and the whole batch on each rank.
"""

import sys
import warnings

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import transformers  # noqa: E402
from deepspeed.runtime.sequence_parallel import parallel_state_sp, ulysses_sp  # noqa: E402
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF, UlyssesSPDataLoaderAdapter  # noqa: E402
from deepspeed.sequence.layer import DistributedAttention  # noqa: E402
from deepspeed.utils import groups  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy, scaled_dot_product_attention  # noqa: E402
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402

from misuse_runs import said  # noqa: E402
from named_runs import NamedRuns  # noqa: E402

run = NamedRuns()
STEPS, CLIP, WORDS, ROWS, LENGTH = 20, 0.5, 47, 4, 12
deepspeed.init_distributed("gloo")


def settings(stage, **more):
    return {"train_batch_size": ROWS, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": CLIP, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20},
            "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "weight_decay": 0.01}}, **more}


def rows(step):
    generator = torch.Generator().manual_seed(step % 2)
    ids = torch.randint(WORDS, (ROWS, LENGTH), generator=generator)
    labels = ids.clone()
    labels[:, :3] = -100
    return ids, labels, torch.arange(LENGTH).expand(ROWS, -1)


def shifted(labels):
    return torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]


def plainly(model, forward):
    """`forward(model, ids, positions)` -> logits"""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    losses, norms = [], []
    for step in range(STEPS):
        ids, labels, positions = rows(step)
        output = forward(model, ids, positions)
        # The mean of the rows' means: a row is a micro batch.
        loss = torch.stack([cross_entropy(logits, label) for logits, label in zip(output, shifted(labels))]).mean()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms


def trained(engine, batches, forward, group):
    """`batches`: of each step, this rank's micro batches."""
    losses, norms, seen = [], [], 0
    for of_step in batches:
        total = 0
        for batch in of_step:
            seen += batch["input_ids"].numel()
            output, labels = forward(engine, batch["input_ids"], batch["position_ids"]), batch["shift_labels"]
            count = torch.tensor(float((labels != -100).sum()))
            dist.all_reduce(count, group=group)
            own = cross_entropy(output.flatten(0, 1), labels.flatten(), reduction="sum") / count
            engine.backward(own * dist.get_world_size(group))  # the engine takes the mean over all ranks, of which these have a part each
            engine.step()
            total += own.item() / len(of_step)
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, total)
        losses.append(sum(found) / engine.dp_world_size)
        norms.append(float(engine.get_global_grad_norm()))
    return losses, norms, seen


def own_batches(data_rank, data_ranks, part, parts):
    """Of each step this rank's rows, of which it has some tokens."""
    for step in range(STEPS):
        ids, labels, positions = rows(step)
        each = LENGTH // parts
        yield [{"input_ids": ids[row:row + 1, part * each:(part + 1) * each], "position_ids": positions[row:row + 1, part * each:(part + 1) * each],
                "shift_labels": shifted(labels)[row:row + 1, part * each:(part + 1) * each]} for row in range(ROWS)[data_rank::data_ranks]]


def llama(heads=6, key_heads=2):
    torch.manual_seed(7)
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "vocab_size": WORDS, "num_attention_heads": heads,
             "num_key_value_heads": key_heads, "head_dim": 4}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, attn_implementation="sdpa"))


def by_transformers(model, ids, positions):
    return model(input_ids=ids, position_ids=positions).logits


def forget_groups():
    parallel_state_sp._groups.clear()
    groups.mpu = groups.mesh_device = None


@run
def transformers_models():
    results = {}
    for name, size, stage, heads in [("2 ranks, stage 0", 2, 0, (6, 2)), ("2 ranks, stage 3", 2, 3, (6, 3)), ("4 ranks, stage 2", 4, 2, (8, 2))]:
        expected = plainly(llama(*heads), by_transformers)
        before = ALL_ATTENTION_FUNCTIONS["sdpa"]
        model = llama(*heads)
        mpu = UlyssesSPAttentionHF.register_with_transformers(model, "sdpa", size, micro_batch_size=1)
        engine, *_ = deepspeed.initialize(model=model, config=settings(stage), mpu=mpu)
        part = mpu.get_sequence_parallel_rank()
        batches = own_batches(dist.get_rank() // size, 4 // size, part, size)
        *found, seen = trained(engine, batches, by_transformers, mpu.get_sequence_parallel_group())
        results[name] = {"found": found, "expected": expected, "seen": seen, "shared": ALL_ATTENTION_FUNCTIONS["sdpa"] is not before,
                         "sizes": [engine.dp_world_size, engine.seq_dp_world_size, engine.train_batch_size(), engine.gradient_accumulation_steps()]}
        engine.destroy()
        ALL_ATTENTION_FUNCTIONS["sdpa"] = before
        forget_groups()
    return results


class Own(nn.Module):
    """One layer with attention of its own, tokens first, as Megatron has it."""

    def __init__(self, attention):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 12), nn.Embedding(LENGTH, 12)
        self.mix, self.out = nn.Linear(12, 36), nn.Linear(12, WORDS)
        self.attention = attention

    def forward(self, ids, positions):
        hidden = (self.words(ids) + self.places(positions)).transpose(0, 1)
        parts = [part.unflatten(2, (3, 4)) for part in self.mix(hidden).chunk(3, -1)]
        return self.out(hidden + self.attention(*parts)).transpose(0, 1)


def causal(query, key, value):
    query, key, value = (each.permute(1, 2, 0, 3) for each in (query, key, value))
    return scaled_dot_product_attention(query, key, value, is_causal=True).permute(2, 0, 1, 3).flatten(2)


def around(plain, *more):
    """Own with that attention on whole rows, beside DistributedAttention around causal(), which is given more, by ranks that mesh_param names."""
    torch.manual_seed(3)
    expected = plainly(Own(plain), lambda model, *given: model(*given))
    torch.manual_seed(3)
    model = Own(None)
    engine, *_ = deepspeed.initialize(model=model, config=settings(1), mesh_param=(2, 2))
    group = groups._get_sequence_parallel_group()
    shared = DistributedAttention(causal, group)
    model.attention = lambda *parts: shared(*parts, 1, *more)
    batches = own_batches(dist.get_rank() // 2, 2, dist.get_rank(group), 2)
    *found, seen = trained(engine, batches, lambda engine, *given: engine(*given), group)
    forget_groups()
    return {"found": found, "expected": expected, "seen": seen}


@run
def attention_of_ones_own():
    """Three heads over two ranks."""
    return around(causal)


@run
def attention_that_turns():
    """rotary_pos_emb, of half of a head's features; the plain model's are turned by transformers."""
    angles = torch.arange(LENGTH)[:, None] * torch.tensor([0.7, 0.7])
    cosines, sines = angles.cos()[None], angles.sin()[None]

    def turned(query, key, value):
        both = apply_rotary_pos_emb(*(each[..., :2].transpose(0, 1) for each in (query, key)), cosines, sines, unsqueeze_dim=2)
        return causal(*(torch.cat((new.transpose(0, 1), old[..., 2:]), -1) for new, old in zip(both, (query, key))), value)

    return around(turned, (cosines.unsqueeze(2), sines.unsqueeze(2)))


@run
def adapter_of_loaders():
    """What each rank gets of what the two ranks that share had."""
    parallel_state_sp.initialize_sequence_parallel(2)
    group, part = parallel_state_sp.get_sequence_parallel_group(), parallel_state_sp.get_sequence_parallel_rank()
    rank = dist.get_rank()
    own = [{"input_ids": torch.arange(6).unsqueeze(0) + 10 * rank + 100 * step, "labels": torch.arange(6).unsqueeze(0) + 10 * rank,
            "position_ids": torch.arange(6).unsqueeze(0), "name": f"{rank}.{step}"} for step in range(2)]
    adapted = UlyssesSPDataLoaderAdapter(own, part, group, 2, torch.device("cpu"))
    found = [{name: value.tolist() if torch.is_tensor(value) else value for name, value in batch.items()} for batch in adapted]
    again = next(iter(adapted))["name"]
    without = said(lambda: next(UlyssesSPDataLoaderAdapter([{"input_ids": torch.ones(1, 6)}], part, group, 2, torch.device("cpu"))))
    gathered = [None] * 4
    dist.all_gather_object(gathered, found)
    forget_groups()
    return {"found": gathered, "length": len(adapted), "again": again, "without": without}


@run
def misuse():
    found = {"eager": said(UlyssesSPAttentionHF.register_with_transformers, llama(), "eager", 2, 1)}
    forget_groups()
    found["heads"] = said(UlyssesSPAttentionHF.register_with_transformers, llama(6, 3), "sdpa", 4, 1)
    forget_groups()
    found["ranks"] = said(UlyssesSPAttentionHF.register_with_transformers, llama(), "sdpa", 3, 1)
    found["not there"] = said(lambda: ulysses_sp.TiledLoss)
    found["one"] = UlyssesSPAttentionHF.register_with_transformers(llama(), "sdpa", 1, 1)
    engine, *_ = deepspeed.initialize(model=llama(), config=settings(0, sequence_parallel_size=2, data_parallel_size=2))
    found["by the configuration"] = [engine.dp_world_size, groups._get_sequence_parallel_world_size(), groups._get_data_parallel_world_size()]
    found["does not factor"] = said(deepspeed.initialize, model=llama(), config=settings(0, sequence_parallel_size=2, data_parallel_size=3))
    forget_groups()
    found["mesh_param"] = said(deepspeed.initialize, model=llama(), config=settings(0), mesh_param=(2, 3))
    return found


if __name__ == "__main__":
    run.print_results(sys.argv[1:])
