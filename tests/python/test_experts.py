"""Layers with experts, from Python: expert_runs.py is the program, on four ranks."""

from pathlib import Path

import pytest
import torch
from deepspeed.moe.layer import MoE, TopKGate
from deepspeed.moe.utils import has_moe_layers, is_moe_param
from ranks import run_for_json
from torch import nn


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return run_for_json(Path(__file__).with_name("expert_runs.py"), tmp_path_factory.mktemp("experts"), count=4, timeout=300)


def trains_alike(result):
    for found, expected in zip(result["found"], result["expected"], strict=True):
        assert len(found) == 20
        assert found == pytest.approx(expected, rel=1e-5)
    assert result["expected"][0][-1] < 0.99 * result["expected"][0][0]


@pytest.mark.parametrize("case, experts", [
    ("k 1, 2 ranks, stage 0", [4, 2, 2]), ("k 1, 4 ranks, stage 1", [2, 4, 1]), ("k 2, 2 ranks, stage 2", [4, 2, 2]),
    ("k 2, 2 ranks, stage 3", [4, 2, 2]), ("k 3, 4 ranks, stage 3", [2, 4, 1])])
def test_experts_that_ranks_share_out_train_as_all_in_one_process(runs, case, experts):
    result = runs["stages"][case]
    trains_alike(result)
    assert result["experts"] == experts  # of two layers on this rank; ranks that hold all; ranks that hold the same


def test_a_checkpoint_goes_on_with_other_numbers_of_ranks(runs):
    trains_alike(runs["checkpoints"])


def test_an_optimizer_of_groups_that_keep_experts_apart_trains_alike(runs):
    result = runs["groups_of_an_optimizer"]
    trains_alike(result)
    assert result["names"] == ["all", "ep_size_2"]


@pytest.mark.parametrize("case, kind, words", [
    ("round", "AssertionError", "4 experts do not go round 3 ranks"), ("noise", "AssertionError", "unknown noisy_gate_policy 'loud'"),
    ("tensor", "NotImplementedError", "enable_expert_tensor_parallelism is not in Tessera yet"),
    ("early", "RuntimeError", "shared out over 2 ranks once deepspeed.initialize"), ("few", "UsageError", "3 tokens are fewer than an expert takes"),
    ("sizes", "UsageError", "over 2 and over 4 ranks"), ("mesh_param", "UsageError", "mesh_param places the ranks, too"),
    ("ranks", "AssertionError", "4 ranks cannot be divided among 3 expert-parallel ranks")])
def test_what_cannot_be_done_is_refused(runs, case, kind, words):
    found = runs["misuse"][case]
    assert found[0] == kind and words in found[1], found


def layer(**how):
    torch.manual_seed(0)
    made = MoE(6, nn.Linear(6, 6), num_experts=3, min_capacity=0, **how)
    torch.nn.init.normal_(made.deepspeed_moe.gate.wg.weight)
    return made, torch.randn(12, 6)


def of_its_expert(made, tokens):
    """(gate's probability, output, expert) of each token's best expert."""
    probability, chosen = torch.softmax(tokens @ made.deepspeed_moe.gate.wg.weight.t(), -1).max(-1)
    outputs = torch.stack([made.deepspeed_moe.experts.deepspeed_experts[number](token) for token, number in zip(tokens, chosen)])
    return probability, outputs, chosen


def test_an_expert_takes_no_more_tokens_than_its_capacity():
    made, tokens = layer(capacity_factor=0.75, use_rts=False)
    probability, outputs, chosen = of_its_expert(made, tokens)
    taken = torch.zeros(12, dtype=torch.bool)
    for number in range(3):  # ceil(12 / 3 * 0.75) tokens each, the first ones
        taken[(chosen == number).nonzero().flatten()[:3]] = True
    assert taken.sum() < 12
    output, _, counts = made(tokens)
    torch.testing.assert_close(output, outputs * (probability * taken).unsqueeze(1))
    assert counts.tolist() == chosen.bincount(minlength=3).tolist()
    made.eval()
    made.deepspeed_moe.gate.eval_capacity_factor = 3
    torch.testing.assert_close(made(tokens)[0], outputs * probability.unsqueeze(1))


def test_of_too_many_tokens_some_are_taken_at_random():
    made, tokens = layer(capacity_factor=0.5)
    probability, outputs, chosen = of_its_expert(made, tokens)
    taken_of = []
    for seed in range(8):
        torch.manual_seed(seed)
        output = made(tokens)[0]
        taken = output.abs().sum(-1) > 0
        torch.testing.assert_close(output, outputs * (probability * taken).unsqueeze(1))
        assert all((taken & (chosen == number)).sum() == min(2, (chosen == number).sum()) for number in range(3))
        taken_of.append(tuple(taken.tolist()))
    assert len(set(taken_of)) > 1


def test_tokens_that_are_not_used_go_nowhere():
    made, tokens = layer(drop_tokens=False)
    used = torch.tensor([True, False] * 6)
    probability, outputs, chosen = of_its_expert(made, tokens)
    output, _, counts = made(tokens, used)
    torch.testing.assert_close(output, outputs * (probability * used).unsqueeze(1))
    assert counts.tolist() == chosen[used].bincount(minlength=3).tolist()


def test_a_residual_layer_mixes_in_one_expert_for_all():
    made, tokens = layer(drop_tokens=False, use_residual=True)
    probability, outputs, _ = of_its_expert(made, tokens)
    share = torch.softmax(made.coefficient(tokens), -1)
    torch.testing.assert_close(made(tokens)[0], outputs * probability.unsqueeze(1) * share[:, :1] + made.mlp(tokens) * share[:, 1:])


def test_names_and_marks_are_deepspeed_s():
    made, _ = layer(k=2)
    assert list(made.state_dict()) == ["deepspeed_moe.gate.wg.weight", *(
        f"deepspeed_moe.experts.deepspeed_experts.{number}.{name}" for number in range(3) for name in ("weight", "bias"))]
    marked = [name for name, parameter in made.named_parameters() if is_moe_param(parameter)]
    assert len(marked) == 6 and all("deepspeed_experts" in name for name in marked)
    assert {parameter.group_name for parameter in made.deepspeed_moe.experts.parameters()} == {"ep_size_1"}
    assert has_moe_layers(nn.Sequential(made)) == (True, 3) and isinstance(made.deepspeed_moe.gate, TopKGate)
