"""transformers' mixtures over ranks that share out the experts: expert_tensor_runs.py is the program, on four ranks."""

from pathlib import Path

import pytest
from ranks import asked_for, run_for_json


@pytest.fixture(scope="module")
def runs(request):
    others = ["over_other_ranks", "two_experts_of_four", "at_deepspeed_s_names", "made_under_zero_init", "by_pattern", "misuse"]
    return run_for_json(Path(__file__).with_name("expert_tensor_runs.py"), *asked_for(request, "mixture"), *others, count=4, timeout=300)


def trains_alike(result):
    for found, expected in zip(result["found"], result["expected"], strict=True):
        assert len(found) == 20
        assert found == pytest.approx(expected, rel=1e-5)
    assert result["expected"][0][-1] < 0.99 * result["expected"][0][0]


SHAPES = {  # of this rank's experts; at stage 3 they are sharded besides
    "mixtral, 2 ranks, stage 0, grouped_mm": [[2, 20, 28]] * 2, "mixtral, 4 ranks, stage 3, eager": [], "qwen3_moe, 2 ranks, stage 3, grouped_mm": [],
    "qwen2_moe, 2 ranks, stage 1, eager": [[2, 20, 12]] * 2, "deepseek_v3, 4 ranks, stage 2, grouped_mm": [[2, 20, 12]],
    "gpt_oss, 2 ranks, stage 3, batched_mm": []}


@pytest.mark.sample("mixtral, 4 ranks, stage 3, eager", "qwen2_moe, 2 ranks, stage 1, eager", "gpt_oss, 2 ranks, stage 3, batched_mm")
@pytest.mark.parametrize("mixture", SHAPES)
def test_a_mixture_whose_experts_ranks_share_out_trains_as_the_whole_model(runs, mixture):
    result = runs[mixture]
    assert result["shapes"] == SHAPES[mixture]
    trains_alike(result)
    assert result["of the weights"] < 1e-3  # the checkpoint, loaded where every rank has all experts
    assert result["of what was put together"] < 1e-3


def test_a_run_goes_on_over_other_numbers_of_ranks(runs):
    trains_alike(runs["over_other_ranks"])


@pytest.mark.parametrize("stage", ["0", "2", "3"])
def test_experts_without_tokens_run_on_none(runs, stage):
    """DeepSpeed's issue #5066, TRL's #4204: there it hangs."""
    result = runs["two_experts_of_four"][stage]
    assert result["found"] == pytest.approx(result["expected"], rel=1e-5)
    assert result["expected"][-1] < 0.99 * result["expected"][0]


def test_deepspeed_s_names_tell_of_them(runs):
    result = runs["at_deepspeed_s_names"]
    assert result["marked"] == ["down_proj", "gate_up_proj"] and result["groups"] == [2, 2]
    assert result["losses"] == pytest.approx(result["expected"], rel=1e-5)


def test_a_model_made_under_zero_init_is_shared_out(runs):
    result = runs["made_under_zero_init"]
    assert result["pieces"] == 0
    for found, expected in zip(result["losses"], result["expected"], strict=True):
        assert found == pytest.approx(expected, rel=1e-5)


def test_a_pattern_says_which_layers(runs):
    result = runs["by_pattern"]
    assert result["shapes"] == [[4, 20, 28], [2, 20, 28]]
    assert result["losses"] == pytest.approx(result["expected"], rel=1e-5)


@pytest.mark.parametrize("case, words", [
    ("no experts", "Linear has no experts in tensors of their own"),
    ("pattern", "MixtralForCausalLM has no experts in tensors of their own, of moe_layer_pattern 'layers.7'"),
    ("ranks", "4 ranks do not factor into dp_shard × ep 3"),
    ("experts", "6 experts do not go round 4 ranks"),
    ("mesh_param", "mesh_param places the ranks, too"),
    ("tensor", "beside tensor_parallel.autotp_size: not both in Tessera yet"),
    ("router", "'expert_parallel.score_func' is \"sigmoid\""),
    ("cut experts", "'expert_parallel.expert_tensor_parallel_size' is 2"),
    ("balance", "'expert_parallel.load_balance_coeff' is 0.1")])
def test_what_cannot_be_done_is_refused(runs, case, words):
    kind, text = runs["misuse"][case]
    assert kind in ("UsageError", "ConfigError") and words in text and "fix:" in text, text
