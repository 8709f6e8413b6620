"""One model over the ranks of a tensor axis: the training of one process, the same bits at every stage, checkpoints of any mesh."""

import math

import pytest
import test_seq2seq
import torch
import transformers
from fixtures import STAGES
from safetensors.torch import load_file
from tessera_runs import largest_difference, losses_and_norms, metrics, tessera, train, train_arguments, write_run_file
from test_causal_lm import DOCUMENTS, LETTERS, run_of

SIZES = {"hidden_size": 30, "intermediate_size": 45, "num_hidden_layers": 2, "head_dim": 10, "max_position_embeddings": 64}
MODELS = {  # none of whose sizes divides by 2 or 4, where it may be odd
    "llama, 3 key heads": (transformers.LlamaConfig, {**SIZES, "num_attention_heads": 6, "num_key_value_heads": 3, "attention_bias": True,
                                                      "mlp_bias": True}),
    "llama, 2 key heads, tied": (transformers.LlamaConfig, {**SIZES, "num_attention_heads": 10, "num_key_value_heads": 2,
                                                            "tie_word_embeddings": True}),
    "qwen3": (transformers.Qwen3Config, {**SIZES, "num_attention_heads": 8, "num_key_value_heads": 2}),
    "gemma3": (transformers.Gemma3TextConfig, {**SIZES, "num_attention_heads": 6, "num_key_value_heads": 2, "query_pre_attn_scalar": 10,
                                               "sliding_window": 6, "sliding_window_pattern": 2}),
    "gpt2": (transformers.GPT2Config, {"n_embd": 30, "n_layer": 2, "n_head": 5, "n_inner": 45, "n_positions": 64, "resid_pdrop": 0.0,
                                       "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "qwen2": (transformers.Qwen2Config, {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 4}),
    "28 heads": (transformers.Qwen2Config, {**SIZES, "num_attention_heads": 28, "num_key_value_heads": 4, "head_dim": 4}),  # those of Qwen 2.5 7B
}
CASES = [("llama, 3 key heads", 2), ("llama, 3 key heads", 3), ("llama, 2 key heads, tied", 4), ("qwen3", 4), ("qwen2", 2), ("gemma3", 4), ("gpt2", 2),
         ("gpt2", 3), ("28 heads", 8)]


def without_bias_of_keys(name, value):
    """It changes no softmax, so its gradient is what rounding left, of which Adam makes whole steps."""
    if name.endswith(("key.bias", "k_lin.bias")):
        return value[:0]
    return value.view(3, -1)[[0, 2]] if name.endswith("c_attn.bias") else value


def trained_alike(folder, run_file, tensor, settings):
    """Runs it in one process and over so many tensor ranks: the same losses and norms, and the same weights at the end."""
    trained_as_one(folder, run_file, tensor, {**settings, "parallel.tensor": tensor}, f"dp_shard 1 × tp {tensor}")


def trained_as_one(folder, run_file, ranks, settings, mesh):
    train(run_file, 1, {**{key: value for key, value in settings.items() if not key.startswith("parallel.")}, "output": folder / "one"})
    cut = train(run_file, ranks, {**settings, "output": folder / "cut"})
    assert f"{ranks} ranks: {mesh}" in cut.err
    one, others = metrics(folder / "one"), metrics(folder / "cut")
    assert len(one) == 20
    assert one[-1]["loss"] < 0.99 * one[0]["loss"]
    assert largest_difference(others, one) < 1e-5
    assert [(row["samples"], row["tokens"]) for row in others] == [(row["samples"], row["tokens"]) for row in one]
    whole, = (folder / "one" / "export").glob("*model.safetensors")
    exported, whole = load_file(folder / "cut" / "export" / whole.name), load_file(whole)
    assert exported.keys() == whole.keys()
    for name, value in whole.items():
        torch.testing.assert_close(*(without_bias_of_keys(name, each) for each in (exported[name], value)), rtol=1e-4, atol=1e-4)


@pytest.mark.sample("llama, 3 key heads-2", "llama, 2 key heads, tied-4", "gpt2-3", "28 heads-8")
@pytest.mark.parametrize(("family", "tensor"), CASES)
def test_the_ranks_of_a_tensor_axis_train_as_one_process(tmp_path, family, tensor):
    assert len(LETTERS) % 2 == 1
    _, run_file = run_of(tmp_path, family, MODELS, packing="fill")
    trained_alike(tmp_path, run_file, tensor, {"deepspeed.train_batch_size": 4})


def bert_run(folder, family="bert", **config):
    """Masked language modelling, with the dropout of what no rank has a part of alone, which all drop alike."""
    name, sizes = {"bert": (transformers.BertConfig, {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.0, "intermediate_size": 45}),
                   "roberta": (transformers.RobertaConfig, {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.0, "intermediate_size": 45,
                                                            "pad_token_id": 0, "type_vocab_size": 1}),
                   "distilbert": (transformers.DistilBertConfig, {"dropout": 0.0, "attention_dropout": 0.0, "hidden_dim": 45})}[family]
    widths = {"dim": 30, "n_layers": 2, "n_heads": 3} if family == "distilbert" else \
        {"hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 3}
    torch.manual_seed(0)
    model = transformers.AutoModelForMaskedLM.from_config(
        name(vocab_size=len(LETTERS), max_position_embeddings=64, initializer_range=0.1, **{**sizes, **widths, **config}))
    model.save_pretrained(folder / "model")
    (folder / "model" / "vocab.txt").write_text("\n".join(LETTERS) + "\n")
    (folder / "train.txt").write_text("".join(" ".join(chr(97 + letter) for letter in document) + "\n" for document in DOCUMENTS))
    return write_run_file(folder, {
        "model": {"path": str(folder / "model")}, "task": "mlm", "data": {"train": str(folder / "train.txt"), "max_length": 24},
        "training": {"max_steps": 20, "device": "cpu"},
        "deepspeed": {"train_batch_size": 16, "gradient_clipping": 0.5, "zero_optimization": {"stage": 2},
                      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}}}})


@pytest.mark.sample("roberta")
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_a_masked_model_over_tensor_ranks_trains_as_one_process(tmp_path, family):
    run_file = bert_run(tmp_path, family)
    trained_alike(tmp_path, run_file, 2, {})


@pytest.mark.parametrize("config", [{}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}], ids=["t5", "t5-1.1"])
def test_an_encoder_and_a_decoder_over_tensor_ranks_train_as_one_process(tmp_path, monkeypatch, config):
    monkeypatch.setattr(test_seq2seq, "SIZES", {**test_seq2seq.SIZES, "num_heads": 3, "d_ff": 45, "d_model": 30})
    _, run_file = test_seq2seq.run_of(tmp_path, **config)
    trained_alike(tmp_path, run_file, 2, {"deepspeed.train_batch_size": 8})


@pytest.mark.sample("qwen3-4-adapter1", "gpt2-2-adapter3")
# By SGD: a gradient of `lora_A` is 0 at first, and what rounding left of it is what Adam makes a step of.
@pytest.mark.parametrize(("family", "tensor", "adapter"), [("llama, 3 key heads", 2, {"adapter.use_dora": "true"}),
                                                           ("qwen3", 4, {"adapter.use_dora": "true"}), ("gemma3", 2, {}),
                                                           ("gpt2", 2, {"adapter.use_dora": "true"})])
def test_an_adapter_over_tensor_ranks_trains_as_in_one_process(tmp_path, family, tensor, adapter):
    _, run_file = run_of(tmp_path, family, MODELS, packing="fill")
    trained_alike(tmp_path, run_file, tensor, {"deepspeed.train_batch_size": 4, "adapter.rank": 3, "deepspeed.optimizer.type": "SGD",
                                               "deepspeed.optimizer.params.lr": 0.5, "deepspeed.zero_optimization.stage": 3, **adapter})


def test_dropout_of_an_adapter_has_the_same_bits_at_every_stage(tmp_path):
    _, run_file = run_of(tmp_path, "llama, 3 key heads", MODELS, packing="fill")
    more = {"deepspeed.train_batch_size": 4, "parallel.tensor": 2, "adapter.rank": 3, "adapter.dropout": 0.2, "adapter.use_dora": "true",
            "training.max_steps": 6}
    for stage in (0, 3):
        train(run_file, 4, {**more, "deepspeed.zero_optimization.stage": stage, "output": tmp_path / f"stage{stage}"})
    assert losses_and_norms(tmp_path / "stage3") == losses_and_norms(tmp_path / "stage0")


def test_dropout_of_parts_has_the_same_bits_at_every_stage_and_again(tmp_path):
    """Three heads over two ranks, whose attention weights are dropped apart."""
    run_file = bert_run(tmp_path, attention_probs_dropout_prob=0.2)
    for name, stage, more in [("stage1", 1, {}), ("stage3", 3, {}), ("again", 3, {"training.activation_checkpointing": "true"})]:
        train(run_file, 4, {"output": tmp_path / name, "parallel.tensor": 2, "deepspeed.zero_optimization.stage": stage, **more})
    bits = losses_and_norms(tmp_path / "stage1")
    assert len(bits) == 20
    assert losses_and_norms(tmp_path / "stage3") == bits
    assert losses_and_norms(tmp_path / "again") == bits


@pytest.mark.sample("bf16")
@pytest.mark.parametrize("precision", [{}, {"deepspeed.bf16.enabled": "true"}], ids=["fp32", "bf16"])
def test_the_same_bits_at_every_stage_beside_data_parallel_ranks(tmp_path, precision):
    _, run_file = run_of(tmp_path, "llama, 3 key heads", MODELS, packing="fill")
    more = {"deepspeed.train_batch_size": 4, "parallel.tensor": 2, "training.max_steps": 6, "deepspeed.gradient_clipping": 0.5, **precision}
    for stage in STAGES:
        train(run_file, 4, {**more, "deepspeed.zero_optimization.stage": stage, "output": tmp_path / f"stage{stage}"})
    bits = [losses_and_norms(tmp_path / f"stage{stage}") for stage in STAGES]
    assert len(bits[0]) == 6
    assert bits[1:] == [bits[0]] * 3
    train(run_file, 4, {**more, "deepspeed.zero_optimization.stage": 3, "training.activation_checkpointing": "true",
                        "output": tmp_path / "again"})
    assert losses_and_norms(tmp_path / "again") == bits[0]
    if precision:
        return
    train(run_file, 1, {**more, "parallel.tensor": 1, "output": tmp_path / "one"})
    assert largest_difference(metrics(tmp_path / "stage3"), metrics(tmp_path / "one")) < 1e-5


@pytest.mark.sample("gpt2")
@pytest.mark.parametrize("family", ["llama, 2 key heads, tied", "gpt2"])
def test_a_checkpoint_goes_on_over_any_mesh(tmp_path, family):
    """Ranks, and tensor ranks among them, of each life after the first; the losses are those of a run without an end. GPT-2's queries, keys
    and values are one matrix, of which a rank has three parts."""
    _, run_file = run_of(tmp_path, family, MODELS, packing="fill")
    more = {"deepspeed.train_batch_size": 4, "deepspeed.zero_optimization.stage": 2}
    train(run_file, 1, {**more, "training.max_steps": 10, "output": tmp_path / "whole"})
    for life, (ranks, tensor) in enumerate([(2, 2), (4, 2), (1, 1), (4, 4), (2, 1)]):
        train(run_file, ranks, {**more, "parallel.tensor": tensor, "training.max_steps": 2 * life + 2, "output": tmp_path / "parts"},
              **({"resume": "auto"} if life else {}))
    whole, parts = metrics(tmp_path / "whole"), metrics(tmp_path / "parts")
    assert [row["step"] for row in parts] == [row["step"] for row in whole] == list(range(1, 11))
    assert largest_difference(parts, whole) < 1e-5
    assert not math.isclose(whole[0]["loss"], whole[-1]["loss"], rel_tol=0.01)


@pytest.mark.parametrize(("ranks", "tensor", "family", "what", "fix"), [
    (3, 2, "qwen2", "3 ranks do not factor into dp_shard × tp 2", "use 2 or 4 ranks, or tp 1"),
    (3, 3, "qwen3", "8 attention heads of 2 key heads cannot be cut over 3 ranks", "use at most 2 ranks, or 4, 6, 8"),
    (2, 0, "qwen3", "parallel.tensor", "1"),
])
def test_what_does_not_go_round_is_refused_before_a_rank_starts(tmp_path, ranks, tensor, family, what, fix):
    _, run_file = run_of(tmp_path, family, MODELS)
    refused = tessera(*train_arguments(run_file, ranks, {"output": tmp_path / "out", "parallel.tensor": tensor}))
    assert refused.code == 2
    assert what in refused.err, str(refused)
    assert fix in refused.err, str(refused)
    assert not (tmp_path / "out").exists()
