"""transformers' models over the ranks of a tensor axis, by the plans that they bring: tensor_parallel_runs.py is the program, on four ranks."""

from pathlib import Path

import pytest
from ranks import asked_for, run_for_json


@pytest.fixture(scope="module")
def runs(request):
    others = ["over_other_numbers_of_ranks", "through_deepspeed_s_names", "made_under_zero_init", "what_cannot_be_cut", "different_batches", "rules_that_are_not_understood",
              "what_all_ranks_drop_alike"]
    return run_for_json(Path(__file__).with_name("tensor_parallel_runs.py"), *asked_for(request, "by_plan"), *others, count=4, timeout=300)


@pytest.mark.sample("llama, 2 ranks, stage 3", "qwen3, 4 ranks, stage 2", "mixtral, 4 ranks, stage 3", "phi3, 2 ranks, stage 3",
                    "deepseek_v2, 4 ranks, stage 2", "bloom, 2 ranks, stage 1", "fused, 4 ranks, stage 2", "of few key heads, 2 ranks, stage 3",
                    "llama with LoRA, 2 ranks, stage 3")
@pytest.mark.parametrize("by_plan", [
    "llama, 2 ranks, stage 0", "llama, 2 ranks, stage 3", "tied, 4 ranks, stage 1", "qwen3, 4 ranks, stage 2", "neox, 2 ranks, stage 2",
    "mixtral, 4 ranks, stage 3", "qwen2_moe, 2 ranks, stage 1", "phi3, 2 ranks, stage 3", "olmoe, 4 ranks, stage 0", "deepseek_v2, 4 ranks, stage 2",
    "bloom, 2 ranks, stage 1", "phi3 in one, 2 ranks, stage 0", "fused, 4 ranks, stage 2", "of few key heads, 2 ranks, stage 3",
    "with one table, 2 ranks, stage 1", "llama with LoRA, 2 ranks, stage 3", "phi3 with LoRA, 2 ranks, stage 1"])
def test_a_model_cut_by_its_plan_trains_as_the_whole_model(runs, by_plan):
    result = runs[by_plan]
    assert result["cut"] >= 9
    for found, expected in zip(result["found"], result["expected"], strict=True):
        assert len(found) == 20
        assert found == pytest.approx(expected, rel=1e-5)
    assert result["expected"][0][-1] < 0.99 * result["expected"][0][0]
    assert result["of the weights"] < 1e-3  # the checkpoint, loaded where every rank has the whole
    assert result["of what was put together"] < 1e-3


@pytest.mark.parametrize("size", ["1", "2", "4"])
def test_a_run_over_two_ranks_goes_on_over_other_numbers_of_them(runs, size):
    """DeepSpeed's issue #7320."""
    result = runs["over_other_numbers_of_ranks"]
    for first, found, expected in zip(result["first"], result["found"][size], result["expected"], strict=True):
        assert first + found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("case", ["llama", "neox", "with LoRA"])
def test_ranks_that_share_a_model_drop_alike_what_all_compute(runs, case):
    """So what every rank holds stays the same on all, though parts, and the numbers that are drawn for them, are of different sizes."""
    differing, losses, replicas, without = runs["what_all_ranks_drop_alike"][case]
    assert differing == [] and replicas >= 5
    assert losses[0] == losses[1] != without


def test_deepspeed_s_names_do_the_same(runs):
    run = runs["through_deepspeed_s_names"]
    assert run["whole until initialize"]
    for found, expected in zip(run["found"], run["expected"], strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
    assert run["shapes"] == [[40, 30], [80, 30], [40, 30]]
    assert run["gathered"] < 1e-4 and run["written"] == 0
    assert run["ranks"] == [2, 0, [0, 1], 0, 2, 2]


def test_a_model_made_under_zero_init_is_cut(runs):
    result = runs["made_under_zero_init"]
    assert result["pieces"] == 0
    for found, expected in zip(result["losses"], result["expected"], strict=True):
        assert found == pytest.approx(expected, rel=1e-5)


def test_tensor_ranks_that_are_given_different_batches_are_told(runs):
    found = runs["different_batches"]
    assert [kind for kind, _ in found["told"]] == ["nothing", "nothing", "UsageError", "UsageError"]
    assert all("given different batches" in text and "get_data_parallel_rank()" in text for _, text in found["told"][2:])
    assert found["goes on"] > 0


@pytest.mark.parametrize("case, words", [
    ("no plan", "Linear does not say how it is cut"),
    ("heads", "6 attention heads of 3 key heads cannot be cut over 4 ranks"),
    ("a forward of its own", "'model.layers.1.mlp.up_proj' is of the class Own, whose forward is its own"),
    ("sizes", "4 ranks do not factor into dp_shard × tp 3"),
    ("a style", "asks for the style 'local_colwise' for 'lm_head'"),
    ("an adapter of lengths", "q_proj' is adapted by PEFT's layer.Linear, which cannot be cut with it unless it is plain LoRA"),
    ("an adapter of words", "embed_tokens' is adapted by PEFT's layer.Embedding"),
    ("latents", "'lm_head' is in Qwen3ForCausalLM, which has no kv_lora_rank"),
    ("experts that lie otherwise", "cannot be cut: its matrices are transposed")])
def test_what_cannot_be_cut_is_refused_by_name(runs, case, words):
    kind, text = runs["what_cannot_be_cut"][case]
    assert kind in ("UsageError", "ConfigError") and words in text and "fix:" in text, text


@pytest.mark.parametrize("case, words", [
    ("a key", "unknown key 'pattern' in a rule of 'layer_specs'"),
    ("a key of the block", "unknown key 'specs'"),
    ("a kind", "'partition_type' is 'diagonal'"),
    ("an expression", "'*' is not a regular expression: nothing to repeat"),
    ("a shape", "the shape [3, -1] has no dimension 2 to cut"),
    ("a row of parts", "the shape [-1, [10, 20]] of a row-parallel layer has parts of different sizes"),
    ("a layer without a rule", "no rule is for '0.head.weight'"),
    ("thirds", "the 90 out_features of 'blocks.0.attention.qkv' are not those of 7 matrices"),
    ("no layer", "names no module that it has")])
def test_rules_that_are_not_understood_are_refused(runs, case, words):
    kind, text = runs["rules_that_are_not_understood"][case]
    assert kind in ("UsageError", "ConfigError") and words in text and "fix:" in text, text
