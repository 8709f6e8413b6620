"""Every way to share a model out: each cell of data-parallel, tensor, pipeline and context ranks, at each ZeRO stage.

    a cell        (dp, tp, pp, cp): all that multiply to one number of ranks, and that the model's type knows
    equal         losses and gradient norms of 20 steps are those of one process, to 1e-5
    same bits     … and those of the cell's other stages; over a pipeline, which accumulates micro batches, of 0 and 1, and of 2 and 3
    refused       of tensor ranks over which key heads do not go round, with the numbers that do
    reshaped      runs that go on in another cell each time, from the checkpoint of the one before, have the losses of one process

Models have 8 query heads and 8 links of a pipeline, and no ReLU: where rounding turns the sign of what enters one, a process that
takes its rows in other micro batches already differs from itself. The one process has the cell's batch.
"""

import itertools
import json
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "end_to_end"))
from model_folders import SPECIAL_TOKENS  # noqa: E402
from tessera_runs import largest_difference, losses_and_norms, metrics, tessera, train, train_arguments, write_run_file  # noqa: E402

STEPS, STAGES, DIFFERENCE = 20, (0, 1, 2, 3), 1e-5
STEPS_A_CELL = 2  # of a run that goes on in another cell
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
WORDS = [*SPECIAL_TOKENS, *ALPHABET, *(f"##{letter}" for letter in ALPHABET)]
LENGTH = 24
NO_DROPOUT = {"attention_dropout": 0.0, "attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0, "dropout_rate": 0.0, "resid_pdrop": 0.0,
              "embd_pdrop": 0.0, "attn_pdrop": 0.0}
REFUSED_TENSOR_RANKS = {"llama": (3, 5, 7)}  # which neither divide its 2 key heads nor are a multiple of them
# Of each type its config.json, the task, what else the data is, and whether its ranks can share sequences.
MODELS = {
    "llama": ({"architectures": ["LlamaForCausalLM"], "hidden_size": 40, "intermediate_size": 45, "num_hidden_layers": 6, "num_attention_heads": 8,
               "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64, "initializer_range": 0.1}, "clm", {"packing": "fill"}, True),
    "gpt2": ({"architectures": ["GPT2LMHeadModel"], "n_embd": 40, "n_layer": 6, "n_head": 8, "n_inner": 45, "n_positions": 64, "initializer_range": 0.1},
             "clm", {"packing": "fill"}, True),
    "bert": ({"architectures": ["BertForMaskedLM"], "hidden_size": 40, "intermediate_size": 45, "num_hidden_layers": 6, "num_attention_heads": 8,
              "max_position_embeddings": 64, "type_vocab_size": 2, "initializer_range": 0.1}, "mlm", {"mlm_probability": 0.3}, False),
    "t5": ({"architectures": ["T5ForConditionalGeneration"], "d_model": 40, "d_kv": 5, "d_ff": 45, "num_layers": 3, "num_decoder_layers": 3,
            "num_heads": 8, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 3}, "seq2seq",
           {"source_column": "q", "target_column": "a", "max_target_length": 12}, False),
}


@dataclass(frozen=True)
class Cell:
    dp: int
    tp: int
    pp: int
    cp: int

    @property
    def ranks(self):
        return self.dp * self.tp * self.pp * self.cp

    @property
    def batch(self):
        """Rows of a step: as many for each data-parallel rank, and enough for a pipeline to have several micro batches."""
        return {3: 12, 5: 10, 6: 12, 7: 14}.get(self.dp, 8)

    def settings(self, stage, batch=None):
        batch = batch or self.batch
        micro = 1 if self.pp > 1 else batch // self.dp
        return {"parallel.tensor": self.tp, "parallel.pipeline": self.pp, "parallel.context": self.cp, "deepspeed.zero_optimization.stage": stage,
                "deepspeed.train_batch_size": batch, "deepspeed.train_micro_batch_size_per_gpu": micro}

    def __str__(self):
        return f"dp {self.dp} × tp {self.tp} × pp {self.pp} × cp {self.cp}"


def factorisations(model, ranks):
    shares_sequences = MODELS[model][3]
    factors = [size for size in range(1, ranks + 1) if ranks % size == 0]
    return [cell for cell in itertools.starmap(Cell, itertools.product(factors, repeat=4))
            if cell.ranks == ranks and (cell.cp == 1 or shares_sequences)]


def is_refused(model, cell):
    return cell.tp in REFUSED_TENSOR_RANKS.get(model, ())


def cells_of(model, ranks):
    return [cell for cell in factorisations(model, ranks) if not is_refused(model, cell)]


def chains_of(cells, longest=STEPS // STEPS_A_CELL):
    """(batch, cells that go on from each other's checkpoints), in random order: 24 rows go over all ranks of data but 5 and 7."""
    for batch, some in ((24, [cell for cell in cells if 24 % cell.dp == 0]), (70, [cell for cell in cells if cell.ranks in (5, 7)])):
        random.Random(1).shuffle(some)
        for first in range(0, len(some), longest):
            yield batch, some[first:first + longest]


def write_run(folder, model):
    """A run file of 70 rows and more, on which all cells train alike."""
    config, task, data, _ = MODELS[model]
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "model" / "config.json").write_text(json.dumps({"model_type": model, "vocab_size": len(WORDS), **NO_DROPOUT, **config}))
    draw = random.Random(1)
    texts = [" ".join(ALPHABET[(7 * i + 3 * j * j) % 26] for j in range(draw.randint(5, 20))) for i in range(200)]
    rows = [json.dumps({"q": text, "a": " ".join(text.split()[:8])}) for text in texts] if task == "seq2seq" else texts
    train_file = folder / ("train.jsonl" if task == "seq2seq" else "train.txt")
    train_file.write_text("\n".join(rows) + "\n")
    return write_run_file(folder, {
        "model": {"path": str(folder / "model"), "init": "random"}, "task": task, "data": {"train": str(train_file), "max_length": LENGTH, **data},
        "training": {"max_steps": STEPS, "device": "cpu"},
        "deepspeed": {"dataloader_drop_last": True, "gradient_clipping": 0.5, "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0}}}})


class References:
    """What one process has of a run file, for each batch and number of steps."""

    def __init__(self, run_file):
        self.run_file, self.found = run_file, {}

    def of(self, batch, steps=STEPS):
        if (batch, steps) not in self.found:
            output = self.run_file.parent / f"one-{batch}-{steps}"
            train(self.run_file, 1, {"deepspeed.train_batch_size": batch, "training.max_steps": steps, "output": output})
            rows = metrics(output)
            assert len(rows) == steps and rows[-1]["loss"] < 0.99 * rows[0]["loss"], f"batch {batch}: {rows}"
            self.found[batch, steps] = rows
        return self.found[batch, steps]


def check(references, cell, stages=STAGES):
    """The largest difference from one process; AssertionError names what does not hold."""
    want, bits, largest = references.of(cell.batch), {}, 0
    for stage in stages:
        output = references.run_file.parent / f"{str(cell).replace(' × ', '-').replace(' ', '')}-{stage}"
        train(references.run_file, cell.ranks, {**cell.settings(stage), "output": output})
        rows = metrics(output)
        assert len(rows) == STEPS, f"{cell}, stage {stage}: {len(rows)} steps"
        difference = largest_difference(rows, want)
        assert difference < DIFFERENCE, f"{cell}, stage {stage}: {difference:.1e} from one process"
        largest = max(largest, difference)
        accumulates = cell.pp > 1 and cell.batch > cell.dp
        same = bits.setdefault(stage // 2 if accumulates else 0, (stage, losses_and_norms(output)))
        assert same[1] == losses_and_norms(output), f"{cell}: stage {stage} has other bits than stage {same[0]}"
    return largest


def check_refused(references, cell):
    result = tessera(*train_arguments(references.run_file, cell.ranks, cell.settings(0)))
    assert result.code == 2 and "8 attention heads of 2 key heads" in result.err and "use at most 2 ranks, or 4, 6, 8" in result.err, str(result)


def check_reshaping(references, cells, batch):
    """One run that goes on in each of the cells, at another stage each time."""
    output = Path(tempfile.mkdtemp(prefix="reshaped-", dir=references.run_file.parent))
    for life, cell in enumerate(cells):
        train(references.run_file, cell.ranks, {**cell.settings(STAGES[life % len(STAGES)], batch), "training.max_steps": (life + 1) * STEPS_A_CELL,
                                                "output": output}, **({"resume": "auto"} if life else {}))
    rows = metrics(output)
    assert len(rows) == len(cells) * STEPS_A_CELL
    difference = largest_difference(rows, references.of(batch, len(rows)))
    assert difference < DIFFERENCE, f"{difference:.1e} from one process, over {', '.join(map(str, cells))}"
    return difference
