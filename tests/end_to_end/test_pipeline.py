"""One model whose layers are spread over the ranks of a pipeline: the training of one process, the same bits at every stage, evaluations,
checkpoints of any mesh."""

import json
import math
import re

import pytest
import test_classification
import test_seq2seq
import transformers
from fixtures import STAGES
from tessera_runs import evaluations, largest_difference, losses_and_norms, metrics, tessera, train, train_arguments
from test_causal_lm import run_of
from test_tensor_parallel import MODELS, bert_run, trained_as_one

DEEP = {name: (config, {**sizes, **({"n_layer": 5} if name == "gpt2" else {"num_hidden_layers": 5})}) for name, (config, sizes) in MODELS.items()}
TIED = "llama, 2 key heads, tied"


def over(pipeline, schedule="1f1b", micro_batches=4, **more):
    """In 5 layers between embeddings and head. A micro batch is a row."""
    return {"parallel.pipeline": pipeline, "parallel.schedule": schedule, "deepspeed.train_batch_size": micro_batches,
            "deepspeed.train_micro_batch_size_per_gpu": 1, **more}


@pytest.mark.sample("llama, 2 key heads, tied-3--pp 3, dp_shard 1_0", "gemma3-4--pp 4, dp_shard 1", "qwen3-4--pp 2, dp_shard 1, tp 2_0")
@pytest.mark.parametrize(("family", "ranks", "settings", "mesh"), [
    ("llama, 3 key heads", 2, over(2), "pp 2 × dp_shard 1"), ("llama, 3 key heads", 7, over(7), "pp 7 × dp_shard 1"),
    (TIED, 3, over(3, micro_batches=3), "pp 3 × dp_shard 1"), ("gemma3", 4, over(4, "gpipe"), "pp 4 × dp_shard 1"),
    ("gpt2", 2, over(2, "interleaved"), "pp 2 × dp_shard 1"),
    (TIED, 3, over(3, "interleaved", micro_batches=6), "pp 3 × dp_shard 1"),
    ("llama, 3 key heads", 3, over(3, "zb1p"), "pp 3 × dp_shard 1"), ("gpt2", 2, over(2, "zb1p"), "pp 2 × dp_shard 1"),
    (TIED, 2, over(2, "dualpipev"), "pp 2 × dp_shard 1"), ("gpt2", 3, over(3, "dualpipev", micro_batches=6), "pp 3 × dp_shard 1"),
    ("qwen3", 4, over(2, "zb1p", **{"parallel.tensor": 2, "deepspeed.zero_optimization.stage": 3}), "pp 2 × dp_shard 1 × tp 2"),
    ("qwen3", 4, over(2, micro_batches=4, **{"parallel.tensor": 2}), "pp 2 × dp_shard 1 × tp 2"),
    (TIED, 8, over(2, micro_batches=4, **{"parallel.tensor": 2}), "pp 2 × dp_shard 2 × tp 2"),
], ids=lambda value: "" if isinstance(value, dict) else str(value).replace(" ×", ","))
def test_the_ranks_of_a_pipeline_train_as_one_process(tmp_path, family, ranks, settings, mesh):
    _, run_file = run_of(tmp_path, family, DEEP, packing="fill")
    trained_as_one(tmp_path, run_file, ranks, settings, mesh)


def lightest_cut(weights):
    """The first part of two, as long as it may be, where the heavier of both is as light as can be."""
    heavier = [max(sum(weights[:cut]), sum(weights[cut:])) for cut in range(1, len(weights))]
    return max(cut for cut in range(1, len(weights)) if heavier[cut - 1] == min(heavier))


def parameters_of_links(model):
    layers = [sum(parameter.numel() for parameter in layer.parameters()) for layer in model.model.layers]
    return [model.model.embed_tokens.weight.numel(), *layers, model.lm_head.weight.numel() + model.model.norm.weight.numel()]


@pytest.mark.sample("parameters", "hand")
@pytest.mark.parametrize(("settings", "weights"), [
    ({"partition": "parameters"}, parameters_of_links), ({"partition": "uniform"}, [1] * 7), ({"partition": "type:EMBEDDINGS|^layer$"}, [1] * 6 + [0]),
    ({"partition": "type:head"}, [0] * 6 + [1]), ({"stage_sizes": [2, 5]}, 2)], ids=["parameters", "uniform", "type", "type of one", "hand"])
def test_layers_are_shared_out_as_is_said(tmp_path, settings, weights):
    model, run_file = run_of(tmp_path, "llama, 3 key heads", DEEP, packing="fill")
    given = {f"parallel.{key}": value for key, value in settings.items()}
    result = train(run_file, 2, {**over(2), **given, "training.max_steps": 3, "output": tmp_path / "out"})
    first = weights if isinstance(weights, int) else lightest_cut(weights(model) if callable(weights) else weights)
    layers = [f"layer {first}" if first == last else f"layers {first}-{last}" for first, last in ((0, first - 2), (first - 1, 4)) if last >= first]
    expected = f"stage 0: embeddings, {layers[0]}; stage 1: {', '.join([*layers[1:], 'head'])}"
    assert expected in result.err
    train(run_file, 1, {"deepspeed.train_batch_size": 4, "training.max_steps": 3, "output": tmp_path / "one"})
    assert largest_difference(metrics(tmp_path / "out"), metrics(tmp_path / "one")) < 1e-5


def test_layers_are_shared_out_by_the_time_that_they_take(tmp_path):
    """Of narrow layers that see many tokens most of the time is attention's, which no weight shows: by its matrices the head outweighs them all."""
    narrow = {"llama": (transformers.LlamaConfig, {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 5, "num_attention_heads": 4,
                                                   "num_key_value_heads": 4, "max_position_embeddings": 2048})}
    model, run_file = run_of(tmp_path, "llama", narrow, packing="fill")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "vocab_size": 1000}))
    (tmp_path / "train.txt").write_text("".join(" ".join("abcdefgh"[(i * j) % 8] for j in range(500)) + "\n" for i in range(20)))
    settings = {"model.init": "random", "data.max_length": 2048, "training.max_steps": 2}
    by = {}
    for partition in ("arithmetic", "time"):
        result = train(run_file, 2, {**over(2, micro_batches=2), **settings, "parallel.partition": partition, "output": tmp_path / partition})
        by[partition] = re.search(r"stage 0: .*; stage 1: .*head", result.err).group()
    assert by["arithmetic"].endswith("stage 1: head") and "layer" in by["time"].split(";")[1]
    train(run_file, 1, {**settings, "deepspeed.train_batch_size": 2, "output": tmp_path / "one"})
    for partition in by:
        assert largest_difference(metrics(tmp_path / partition), metrics(tmp_path / "one")) < 1e-5


@pytest.mark.parametrize(("settings", "what", "fix"), [
    ({"parallel.stage_sizes": [2, 4]}, "2, 4 are sizes of 2 stages with 6 in all", "give 2 sizes, which add up to 7"),
    ({"parallel.stage_sizes": [7]}, "7 are sizes of 1 stage with 7 in all", "give 2 sizes"),
    ({"parallel.stage_sizes": [2.5, 4.5]}, "'parallel.stage_sizes' is [2.5,4.5]", "a list of whole numbers"),
    ({"parallel.stage_sizes": [2, 5], "parallel.pipeline": 1}, "there are sizes of stages, and no pipeline", "set parallel.pipeline"),
    ({"parallel.partition": "type:convolution"}, "'convolution' is the kind of nothing in the model", "embeddings, head, layer"),
    ({"parallel.partition": "type:("}, "'(' is no regular expression", "type:layer"),
    ({"parallel.partition": "best"}, "layers are not shared out by 'best'", "use arithmetic, parameters, time, uniform")])
def test_what_shares_nothing_out_is_refused(tmp_path, settings, what, fix):
    _, run_file = run_of(tmp_path, "llama, 3 key heads", DEEP, packing="fill")
    result = tessera(*train_arguments(run_file, 2, {**over(2), **settings}))
    assert result.code == 2 and what in result.err and fix in result.err, result


@pytest.mark.sample("roberta-4--pp 2, dp_shard 1, tp 2", "distilbert-6--pp 3, dp_shard 2")
@pytest.mark.parametrize(("family", "ranks", "settings", "mesh"), [
    ("bert", 2, over(2), "pp 2 × dp_shard 1"), ("bert", 6, over(6, "zb1p", micro_batches=6), "pp 6 × dp_shard 1"),
    ("roberta", 4, over(2, "dualpipev", **{"parallel.tensor": 2}), "pp 2 × dp_shard 1 × tp 2"),
    ("distilbert", 6, over(3, micro_batches=8), "pp 3 × dp_shard 2"),
], ids=lambda value: "" if isinstance(value, dict) else str(value).replace(" ×", ","))
def test_a_masked_model_over_a_pipeline_trains_as_one_process(tmp_path, family, ranks, settings, mesh):
    """The word embeddings are the head's too, so the first and the last rank have them."""
    no_dropout = {} if family == "distilbert" else {"hidden_dropout_prob": 0.0}
    run_file = bert_run(tmp_path, family, **no_dropout, **{"n_layers" if family == "distilbert" else "num_hidden_layers": 4})
    trained_as_one(tmp_path, run_file, ranks, {**settings, "deepspeed.zero_optimization.stage": 3, "data.mlm_probability": 0.3}, mesh)


@pytest.mark.parametrize(("config", "ranks", "settings", "mesh"), [
    ({}, 2, over(2), "pp 2 × dp_shard 1"), ({}, 4, over(4, "gpipe"), "pp 4 × dp_shard 1"),
    ({"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, 6, over(6), "pp 6 × dp_shard 1"),
    ({"num_decoder_layers": 4}, 2, over(2, "interleaved"), "pp 2 × dp_shard 1"),
    ({"num_decoder_layers": 4}, 4, over(2, "dualpipev", **{"parallel.tensor": 2}), "pp 2 × dp_shard 1 × tp 2"),
    ({"num_decoder_layers": 3}, 6, over(3, "zb1p", micro_batches=8), "pp 3 × dp_shard 2"),
], ids=str)
def test_an_encoder_and_a_decoder_over_a_pipeline_train_as_one_process(tmp_path, config, ranks, settings, mesh):
    """Every rank of the decoder needs the encoder's output, and each stack's ranks its table of distances."""
    _, run_file = test_seq2seq.run_of(tmp_path, **config)
    trained_as_one(tmp_path, run_file, ranks, {**settings, "deepspeed.zero_optimization.stage": 3}, mesh)


@pytest.mark.parametrize("name", ["Bert", "DistilBert"])
def test_a_classifier_over_a_pipeline_trains_and_is_judged_as_in_one_process(tmp_path, name):
    test_classification.make_model(tmp_path, name, **test_classification.labelled())
    run_file = test_classification.run_of(tmp_path, eval_rows=test_classification.rows_of(13, 2))
    more = {"training.eval_steps": 5, "training.best_by": "eval_accuracy", "deepspeed.zero_optimization.stage": 2}
    trained_as_one(tmp_path, run_file, 4, over(2, micro_batches=8, **more), "pp 2 × dp_shard 2")
    one, cut = evaluations(tmp_path / "one"), evaluations(tmp_path / "cut")
    assert len(one) == 4 and len({row["eval_accuracy"] for row in one}) > 1
    for row, other in zip(one, cut, strict=True):
        assert other.keys() == row.keys() and other["eval_loss"] == pytest.approx(row["eval_loss"], rel=1e-5)
        for metric in ("eval_accuracy", "eval_f1"):
            assert other[metric] == pytest.approx(row[metric], abs=1e-12)


def test_a_run_says_who_has_what_and_how_long_ranks_idle(tmp_path):
    _, run_file = run_of(tmp_path, "llama, 3 key heads", DEEP, packing="fill")
    result = train(run_file, 3, over(3, micro_batches=6, **{"training.max_steps": 1, "output": tmp_path / "out"}))
    assert "pipeline 1f1b: stage 0: embeddings, layers 0-1; stage 1: layers 2-3; stage 2: layer 4, head; " \
           "of a step of 6 micro batches, ranks idle 25 %" in result.err, str(result)  # (p - 1) / (n + p - 1)
    (tmp_path / "t5").mkdir()
    _, run_file = test_seq2seq.run_of(tmp_path / "t5", num_decoder_layers=3)
    result = train(run_file, 3, over(3, **{"training.max_steps": 1, "output": tmp_path / "t5" / "out"}))
    assert "stage 0: embeddings, encoder layers 0-1; stage 1: decoder layers 0-1; stage 2: decoder layer 2, head" in result.err, str(result)


# By SGD: see test_tensor_parallel.py. The embeddings are frozen, so nothing goes back to the first rank but what its layers' adapters need, and the
# first layer's input has no gradient.
@pytest.mark.sample("7-1f1b", "2-zb1p")
@pytest.mark.parametrize(("pipeline", "schedule"), [(2, "1f1b"), (7, "1f1b"), (2, "zb1p")])
def test_an_adapter_over_a_pipeline_trains_as_in_one_process(tmp_path, pipeline, schedule):
    _, run_file = run_of(tmp_path, "llama, 3 key heads", DEEP, packing="fill")
    trained_as_one(tmp_path, run_file, pipeline, over(pipeline, schedule, **{
        "adapter.rank": 3, "adapter.use_dora": "true", "deepspeed.optimizer.type": "SGD", "deepspeed.optimizer.params.lr": 0.5,
        "deepspeed.zero_optimization.stage": 3}), f"pp {pipeline} × dp_shard 1")


@pytest.mark.sample("bf16-gpt2")
@pytest.mark.parametrize("family", [TIED, "gpt2"])
@pytest.mark.parametrize("precision", [{}, {"deepspeed.bf16.enabled": "true"}, {"deepspeed.fp16.enabled": "true"}], ids=["fp32", "bf16", "fp16"])
def test_the_same_bits_at_every_stage_beside_data_parallel_ranks(tmp_path, family, precision):
    """Where gradients are reduced once a step, and where once a micro batch, adds in two orders: see test_same_bits_at_every_stage.py."""
    _, run_file = run_of(tmp_path, family, DEEP, packing="fill")
    more = over(2, micro_batches=8, **{"training.max_steps": 6, "deepspeed.gradient_clipping": 0.5, **precision})
    for stage in STAGES:
        train(run_file, 4, {**more, "deepspeed.zero_optimization.stage": stage, "output": tmp_path / f"stage{stage}"})
    bits = [losses_and_norms(tmp_path / f"stage{stage}") for stage in STAGES]
    assert len(bits[0]) == 6
    assert bits[0] == bits[1] and bits[2] == bits[3]
    train(run_file, 4, {**more, "deepspeed.zero_optimization.stage": 3, "training.activation_checkpointing": "true", "output": tmp_path / "again"})
    assert losses_and_norms(tmp_path / "again") == bits[3]
    train(run_file, 4, {**more, "deepspeed.zero_optimization.stage": 3, "deepspeed.zero_optimization.offload_optimizer.device": "nvme",
                        "deepspeed.zero_optimization.offload_optimizer.nvme_path": tmp_path, "output": tmp_path / "nvme"})
    assert losses_and_norms(tmp_path / "nvme") == bits[3]
    if precision:
        return
    assert largest_difference(metrics(tmp_path / "stage0"), metrics(tmp_path / "stage3")) < 1e-5
    train(run_file, 1, {**more, "parallel.pipeline": 1, "output": tmp_path / "one"})
    assert largest_difference(metrics(tmp_path / "stage3"), metrics(tmp_path / "one")) < 1e-5


def evaluated_alike(folder):
    """The evaluations of the runs "one" and "cut" there, before training and after each of two steps."""
    one, cut = evaluations(folder / "one"), evaluations(folder / "cut")
    assert len(one) == len(cut) == 3 and one[0]["eval_samples"] == cut[0]["eval_samples"] > 1
    for name in ("eval_loss", "eval_perplexity"):
        assert [row[name] for row in cut] == pytest.approx([row[name] for row in one], rel=1e-5)
    assert one[-1]["eval_loss"] < one[0]["eval_loss"]


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_an_evaluation_over_a_pipeline_is_that_of_one_process(tmp_path, schedule):
    """Of an odd number of texts, so that data-parallel ranks look at different numbers of them."""
    _, run_file = run_of(tmp_path, TIED, DEEP, packing="none")
    settings = {"training.max_steps": 2, "training.eval_at_start": "true", "training.eval_steps": 1, "data.eval_share": 0.3}
    train(run_file, 1, {**over(2, **settings), "parallel.pipeline": 1, "output": tmp_path / "one"})
    train(run_file, 4, {**over(2, schedule, **settings), "output": tmp_path / "cut"})
    evaluated_alike(tmp_path)


def test_a_checkpoint_goes_on_over_any_mesh(tmp_path):
    """Ranks, pipeline and tensor ranks among them, of each life; the losses are those of a run without an end."""
    _, run_file = run_of(tmp_path, TIED, DEEP, packing="fill")
    more = {"deepspeed.train_batch_size": 4, "deepspeed.zero_optimization.stage": 1}
    train(run_file, 1, {**more, "training.max_steps": 12, "output": tmp_path / "whole"})
    lives = [(2, 2, 1, "1f1b"), (4, 2, 2, "1f1b"), (1, 1, 1, "1f1b"), (3, 3, 1, "gpipe"), (2, 1, 2, "1f1b"), (2, 2, 1, "interleaved")]
    for life, (ranks, pipeline, tensor, schedule) in enumerate(lives):
        train(run_file, ranks, {**more, "parallel.pipeline": pipeline, "parallel.tensor": tensor, "parallel.schedule": schedule,
                                "deepspeed.train_micro_batch_size_per_gpu": 1 if pipeline > 1 else 2,
                                "training.max_steps": 2 * life + 2, "output": tmp_path / "parts"}, **({"resume": "auto"} if life else {}))
        manifest = json.loads((tmp_path / "parts" / "checkpoints" / f"global_step{2 * life + 2}" / "manifest.json").read_text())
        assert manifest["aliases"] == {"lm_head.weight": "model.embed_tokens.weight"}
    whole, parts = metrics(tmp_path / "whole"), metrics(tmp_path / "parts")
    assert [row["step"] for row in parts] == [row["step"] for row in whole] == list(range(1, 13))
    assert largest_difference(parts, whole) < 1e-5
    assert not math.isclose(whole[0]["loss"], whole[-1]["loss"], rel_tol=0.01)


@pytest.mark.parametrize(("ranks", "settings", "what", "fix"), [
    (3, over(2), "3 ranks do not factor into pp 2 × dp_shard", "use 2 or 4 ranks"),
    (8, over(8), "8 stages are more than the model can be cut into: its embeddings, 5 layers and its head", "use at most 7 ranks"),
    (4, over(4, "interleaved"), "8 stages are more than", "use at most 3 ranks"),
    (2, over(2, "interleaved", micro_batches=3), "rounds of 2, and 3 are no multiple: use 2 or 4", "gradient_accumulation_steps"),
    (2, over(2, "1f2b"), "there is no pipeline schedule '1f2b'", "did you mean '1f1b'?"),
    (2, over(2, "dualpipev", micro_batches=3), "use 4 or more, not 3", "gradient_accumulation_steps"),
    (2, over(2, task="dpo"), "the task dpo does not train over a pipeline yet", "leave parallel.pipeline out"),
], ids=lambda value: "" if isinstance(value, dict) else str(value).replace(" ×", ","))
def test_what_does_not_go_round_is_refused_before_a_rank_starts(tmp_path, ranks, settings, what, fix):
    _, run_file = run_of(tmp_path, TIED, DEEP)
    result = tessera(*train_arguments(run_file, ranks, settings))
    assert result.code == 2, str(result)
    assert what in result.err and fix in result.err and "[rank" not in result.err, str(result)
