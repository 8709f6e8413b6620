"""Sequences that several ranks share: the training of one process, the same bits at every stage, evaluations, checkpoints of any mesh."""

import math

import pytest
from fixtures import STAGES
from tessera_runs import largest_difference, losses_and_norms, metrics, tessera, train, train_arguments
from test_causal_lm import run_of
from test_instruction_tuning import ANSWERS, QUESTIONS, chat_run, letters
from test_pipeline import evaluated_alike, over
from test_tensor_parallel import MODELS, bert_run, trained_as_one

THREE, TIED = "llama, 3 key heads", "llama, 2 key heads, tied"


def shared(context, **more):
    return {"parallel.context": context, "parallel.context_attention": "ulysses", "deepspeed.train_batch_size": 4, **more}


def ring(context, **more):
    return shared(context, **{"parallel.context_attention": "ring", **more})


@pytest.mark.sample("llama, 3 key heads-3--dp_shard 1, cp 3", "gemma3-2--dp_shard 1, cp 2_1", "llama, 3 key heads-4--pp 2, dp_shard 1, cp 2_0")
@pytest.mark.parametrize(("family", "ranks", "settings", "mesh"), [
    (THREE, 2, shared(2), "dp_shard 1 × cp 2"), (THREE, 3, shared(3), "dp_shard 1 × cp 3"),
    (TIED, 4, shared(4, **{"deepspeed.zero_optimization.stage": 3}), "dp_shard 1 × cp 4"),
    ("gemma3", 2, shared(2), "dp_shard 1 × cp 2"), ("gpt2", 5, shared(5), "dp_shard 1 × cp 5"),
    ("qwen3", 4, shared(2, **{"deepspeed.zero_optimization.stage": 2}), "dp_shard 2 × cp 2"),
    ("qwen3", 4, shared(2, **{"parallel.tensor": 2, "deepspeed.zero_optimization.stage": 3}), "dp_shard 1 × cp 2 × tp 2"),
    (TIED, 3, ring(3), "dp_shard 1 × cp 3"), ("gemma3", 2, ring(2, **{"deepspeed.zero_optimization.stage": 3}), "dp_shard 1 × cp 2"),
    ("gpt2", 4, ring(2, **{"parallel.tensor": 2}), "dp_shard 1 × cp 2 × tp 2"),
    (THREE, 4, over(2, "1f1b", **{"parallel.context": 2, "parallel.context_attention": "ring"}), "pp 2 × dp_shard 1 × cp 2"),
    (THREE, 4, over(2, "zb1p", **{"parallel.context": 2}), "pp 2 × dp_shard 1 × cp 2"),
    ("gpt2", 8, over(2, **{"parallel.context": 2, "parallel.tensor": 2}), "pp 2 × dp_shard 1 × cp 2 × tp 2"),
], ids=lambda value: "" if isinstance(value, dict) else str(value).replace(" ×", ","))
def test_ranks_that_share_sequences_train_as_one_process(tmp_path, family, ranks, settings, mesh):
    """Texts that fill rows of an odd length, several in a row, none of which sees another."""
    _, run_file = run_of(tmp_path, family, MODELS, packing="fill")
    trained_as_one(tmp_path, run_file, ranks, settings, mesh)


@pytest.mark.sample("23-8-shared", "24-4-ring", "7-8-ring")
@pytest.mark.parametrize("by", [shared, ring])
@pytest.mark.parametrize(("length", "ranks"), [(23, 8), (24, 4), (25, 4), (7, 8)])
def test_any_length_and_number_of_heads_goes_round(tmp_path, length, ranks, by):
    """28 heads of 4 key heads, and rows of a length that divides, of one more or less, of primes, and with fewer tokens than there are ranks:
    DeepSpeed's issues #7384, #7473, #5177, #7833."""
    _, run_file = run_of(tmp_path, "28 heads", MODELS, packing="fill", max_length=length)
    trained_as_one(tmp_path, run_file, ranks, by(ranks), f"dp_shard 1 × cp {ranks}")


@pytest.mark.parametrize("by", [shared, ring])
def test_padding_changes_nothing(tmp_path, by):
    _, run_file = run_of(tmp_path, THREE, MODELS, packing="none")
    trained_as_one(tmp_path, run_file, 2, by(2, **{"deepspeed.zero_optimization.stage": 3}), "dp_shard 1 × cp 2")


def test_prompts_without_a_label_change_nothing(tmp_path):
    """Of short answers at the end, where the first rank has no label at all."""
    rows = [{"prompt": letters(q), "completion": " " + letters(a)} for q, a in zip(QUESTIONS, ANSWERS)]
    _, run_file, settings = chat_run(tmp_path, rows)
    del settings["output"]
    trained_as_one(tmp_path, run_file, 4, {**settings, **shared(4)}, "dp_shard 1 × cp 4")


def test_an_adapter_trains_as_in_one_process(tmp_path):
    _, run_file = run_of(tmp_path, THREE, MODELS, packing="fill")
    trained_as_one(tmp_path, run_file, 2, shared(2, **{
        "adapter.rank": 3, "adapter.use_dora": "true", "deepspeed.optimizer.type": "SGD", "deepspeed.optimizer.params.lr": 0.5,
        "deepspeed.zero_optimization.stage": 3}), "dp_shard 1 × cp 2")


@pytest.mark.sample("bf16-shared")
@pytest.mark.parametrize("by", [shared, ring])
@pytest.mark.parametrize("precision", [{}, {"deepspeed.bf16.enabled": "true"}], ids=["fp32", "bf16"])
def test_the_same_bits_at_every_stage(tmp_path, precision, by):
    _, run_file = run_of(tmp_path, TIED, MODELS, packing="fill")
    more = by(2, **{"training.max_steps": 6, "deepspeed.gradient_clipping": 0.5, **precision})
    for stage in STAGES:
        train(run_file, 4, {**more, "deepspeed.zero_optimization.stage": stage, "output": tmp_path / f"stage{stage}"})
    bits = [losses_and_norms(tmp_path / f"stage{stage}") for stage in STAGES]
    assert len(bits[0]) == 6
    assert bits[1:] == [bits[0]] * 3
    train(run_file, 4, {**more, "deepspeed.zero_optimization.stage": 3, "training.activation_checkpointing": "true", "output": tmp_path / "again"})
    assert losses_and_norms(tmp_path / "again") == bits[0]


@pytest.mark.parametrize("by", [shared, ring])
def test_activations_may_be_computed_again_from_inputs_in_a_file(tmp_path, by):
    disk = tmp_path / "disk"
    disk.mkdir()
    _, run_file = run_of(tmp_path, THREE, MODELS, packing="fill")
    trained_as_one(tmp_path, run_file, 2, by(2, **{
        "training.activation_checkpointing": "true", "deepspeed.activation_checkpointing.nvme_path": disk,
        "deepspeed.aio.block_size": 4096}), "dp_shard 1 × cp 2")
    assert list(disk.iterdir()) == []


def test_an_evaluation_is_that_of_one_process(tmp_path):
    """Of an odd number of texts over two data-parallel ranks, each of which is two that share."""
    _, run_file = run_of(tmp_path, THREE, MODELS, packing="none")
    settings = shared(1, **{"training.max_steps": 2, "training.eval_at_start": "true", "training.eval_steps": 1, "data.eval_share": 0.3})
    train(run_file, 1, {**settings, "output": tmp_path / "one"})
    train(run_file, 4, {**settings, "parallel.context": 2, "output": tmp_path / "cut"})
    evaluated_alike(tmp_path)


def test_a_checkpoint_goes_on_over_any_mesh(tmp_path):
    _, run_file = run_of(tmp_path, TIED, MODELS, packing="fill")
    more = {"deepspeed.train_batch_size": 4, "deepspeed.zero_optimization.stage": 1}
    train(run_file, 1, {**more, "training.max_steps": 8, "output": tmp_path / "whole"})
    for life, (ranks, context, tensor) in enumerate([(2, 2, 1), (4, 2, 2), (1, 1, 1), (4, 2, 1)]):
        train(run_file, ranks, {**more, "parallel.context": context, "parallel.tensor": tensor, "training.max_steps": 2 * life + 2,
                                "output": tmp_path / "parts"}, **({"resume": "auto"} if life else {}))
    whole, parts = metrics(tmp_path / "whole"), metrics(tmp_path / "parts")
    assert [row["step"] for row in parts] == [row["step"] for row in whole] == list(range(1, 9))
    assert largest_difference(parts, whole) < 1e-5
    assert not math.isclose(whole[0]["loss"], whole[-1]["loss"], rel_tol=0.01)


@pytest.mark.parametrize(("family", "ranks", "settings", "what", "fix"), [
    (TIED, 3, shared(3), "10 attention heads of 2 key heads cannot be cut over 3 ranks", "use at most 2 ranks, or 4"),
    (THREE, 4, shared(3), "4 ranks do not factor into dp_shard × cp 3", "use 3 or 6 ranks"),
    (THREE, 2, shared(2, task="dpo"), "the task dpo does not share sequences between ranks yet", "leave parallel.context out"),
    (None, 2, shared(2), "this model's sequences cannot be shared by several ranks yet", "use 1; the Llama family"),
])
def test_what_does_not_go_round_is_refused_before_a_rank_starts(tmp_path, family, ranks, settings, what, fix):
    run_file = run_of(tmp_path, family, MODELS)[1] if family else bert_run(tmp_path)
    result = tessera(*train_arguments(run_file, ranks, settings))
    assert result.code == 2, str(result)
    assert what in result.err and fix in result.err and "[rank" not in result.err, str(result)
