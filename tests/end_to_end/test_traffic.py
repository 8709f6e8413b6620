"""What the end of a run says of the bytes that its steps sent and of the time that they waited: bytes by formula, for each axis of the mesh."""

import re

import pytest
import transformers
from tessera_runs import train
from test_causal_lm import LENGTH, run_of

LAYERS, WIDTH, HEADS, KEY_HEADS, ROWS = 2, 96, 12, 6, 8
MODELS = {"llama": (transformers.LlamaConfig, {
    "hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS,
    "max_position_embeddings": 64})}
TOKENS = ROWS * LENGTH  # of a step
HIDDEN = TOKENS * WIDTH * 4  # bytes of the hidden states of a step
HEADER = 8 * (1 + 16 * 11)  # bytes that say, before a micro batch goes from stage to stage, which dtypes and shapes follow


def sent(result, group):
    """(bytes a step, the least and the most that a rank waited) of its line."""
    line, = re.findall(rf"  sent over {group} .*", result.out)
    number, unit = re.search(r"([\d.]+) (B|kB|MB) a step", line).groups()
    waited = re.search(r"waited (?:(\d+) % to )?(\d+) %", line)
    assert all(0 <= int(share) <= 100 for share in waited.groups() if share)
    return float(number) * {"B": 1, "kB": 1e3, "MB": 1e6}[unit], line


def run(folder, ranks, settings):
    model, run_file = run_of(folder, "llama", MODELS, packing="fill")
    settings = {"deepspeed.train_batch_size": ROWS, "training.max_steps": 3, "deepspeed.dataloader_drop_last": True, **settings}
    return sum(parameter.numel() for parameter in model.parameters()), train(run_file, ranks, {**settings, "output": folder / "out"})


@pytest.mark.parametrize("ranks", [2, 3])
def test_tensor_ranks_add_up_hidden_states_twice_a_layer_each_way_and_once_more(tmp_path, ranks):
    """In forward those of the embeddings and of each half of a layer, in backward those before each half and before the head. An all-reduce is a
    reduce-scatter and an all-gather."""
    _, result = run(tmp_path, ranks, {"parallel.tensor": ranks})
    found, _ = sent(result, "tp")
    assert found == pytest.approx(2 * (2 * LAYERS + 1) * HIDDEN * 2 * (ranks - 1) / ranks, rel=0.03)


@pytest.mark.parametrize("schedule", ["1f1b", "zb1p"])
def test_stages_send_hidden_states_on_and_their_gradients_back(tmp_path, schedule):
    _, result = run(tmp_path, 2, {"parallel.pipeline": 2, "parallel.schedule": schedule, "deepspeed.train_micro_batch_size_per_gpu": 1})
    found, line = sent(result, "pp")
    assert found == pytest.approx(HIDDEN + ROWS * HEADER, rel=0.01)
    idle, = re.findall(r"ranks idle (\d+) %", result.err)
    assert f"({idle} % by the schedule)" in line


def test_context_ranks_exchange_the_heads_of_their_tokens(tmp_path):
    """Queries, keys, values and outputs go to the rank that has the head, and back in backward."""
    _, result = run(tmp_path, 2, {"parallel.context": 2, "parallel.context_attention": "ulysses", "deepspeed.zero_optimization.stage": 0})
    found, _ = sent(result, "cp")
    own = TOKENS // 2
    exchanged = LAYERS * 2 * own * (2 * HEADS + 2 * KEY_HEADS) * (WIDTH // HEADS) * 4 / 2
    params, = re.findall(r"([\d,]+) parameters, ZeRO", result.err)
    assert found == pytest.approx(exchanged + int(params.replace(",", "")) * 4, rel=0.03)


def test_data_parallel_ranks_send_gradients_and_each_axis_has_a_line(tmp_path):
    params, result = run(tmp_path, 4, {"parallel.tensor": 2})
    found, _ = sent(result, "dp_shard")
    assert found == pytest.approx(params / 2 * 4, rel=0.05)  # norms are on both tensor ranks
    found, _ = sent(result, "tp")
    assert found == pytest.approx(2 * (2 * LAYERS + 1) * HIDDEN / 2, rel=0.03)


def test_stages_of_tensor_ranks_send_their_own_tokens_alone(tmp_path):
    """Each of two tensor ranks the half of a micro batch's tokens."""
    _, result = run(tmp_path, 4, {"parallel.pipeline": 2, "parallel.tensor": 2, "deepspeed.train_micro_batch_size_per_gpu": 1})
    found, _ = sent(result, "pp")
    assert found == pytest.approx(HIDDEN / 2 + ROWS * HEADER, rel=0.01)
