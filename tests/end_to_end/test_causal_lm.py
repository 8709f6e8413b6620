"""Causal language models from the command line: the same bits at every stage, transformers' own training, folders that it loads."""

import pytest
import torch
import transformers
from fixtures import STAGES
from model_folders import SPECIAL_TOKENS
from tessera_runs import losses_and_norms, metrics, train, write_run_file

LENGTH = 24
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
LETTERS = [*SPECIAL_TOKENS, *ALPHABET, *(f"##{letter}" for letter in ALPHABET)]
MODELS = {
    "llama": (transformers.LlamaConfig, {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                                         "num_key_value_heads": 2, "max_position_embeddings": 64}),
    "gemma3": (transformers.Gemma3TextConfig, {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
                                               "num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 6,
                                               "sliding_window_pattern": 3, "max_position_embeddings": 64}),
    "gpt2": (transformers.GPT2Config, {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
                                       "attn_pdrop": 0.0}),
}
DOCUMENTS = [[(7 * i + 3 * j * j) % 26 for j in range(5 + i)] for i in range(16)]


def run_of(folder, family, models=MODELS, **data):
    """A run of steps that each see every document, from the weights of a model made by transformers."""
    config, sizes = models[family]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config(vocab_size=len(LETTERS), initializer_range=0.1, **sizes))
    model.save_pretrained(folder / "model")
    (folder / "model" / "vocab.txt").write_text("\n".join(LETTERS) + "\n")
    (folder / "train.txt").write_text("".join(" ".join(chr(97 + letter) for letter in document) + "\n" for document in DOCUMENTS))
    run = {"model": {"path": str(folder / "model")}, "task": "clm",
           "data": {"train": str(folder / "train.txt"), "max_length": LENGTH, **data},
           "training": {"max_steps": 20, "device": "cpu"},
           "deepspeed": {"train_batch_size": 16, "gradient_clipping": 0, "zero_optimization": {"stage": 0},
                         "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0}}}}
    return model, write_run_file(folder, run)


@pytest.mark.sample("gpt2")
@pytest.mark.parametrize("family", MODELS)
def test_transformers_trains_alike(tmp_path, family):
    model, run_file = run_of(tmp_path, family, packing="none")
    train(run_file, 2, {"output": tmp_path / "out", "deepspeed.zero_optimization.stage": 3})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
    cls, sep, first = (LETTERS.index(token) for token in ("[CLS]", "[SEP]", "a"))
    rows = [torch.tensor([[cls, *(first + letter for letter in document), sep]]) for document in DOCUMENTS]
    want = []
    for _ in range(20):
        losses = [torch.nn.functional.cross_entropy(model(row).logits[0, :-1], row[0, 1:], reduction="sum") for row in rows]
        loss = sum(losses) / sum(row.shape[1] - 1 for row in rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        want.append(loss.item())
    assert [row["loss"] for row in metrics(tmp_path / "out")] == pytest.approx(want, rel=1e-5)
    assert want[-1] < 0.9 * want[0]
    exported, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "export", output_loading_info=True)
    assert not any(info.values()), info
    for name, parameter in model.named_parameters():
        if name.endswith("c_attn.bias"):
            continue  # a bias of keys changes no softmax: Adam makes steps of what rounding left of its gradient
        torch.testing.assert_close(exported.get_parameter(name), parameter, rtol=1e-4, atol=1e-5)


@pytest.mark.sample("llama-bf16")
@pytest.mark.parametrize("precision", [{}, {"deepspeed.bf16.enabled": "true"}], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", MODELS)
def test_the_same_bits_at_every_stage(tmp_path, family, precision):
    """Rows of packed documents."""
    _, run_file = run_of(tmp_path, family, packing="fill")
    more = {"deepspeed.train_batch_size": 8, "training.max_steps": 6}
    for stage in STAGES:
        train(run_file, 2, {**precision, **more, "deepspeed.zero_optimization.stage": stage, "output": tmp_path / f"stage{stage}"})
    bits = [losses_and_norms(tmp_path / f"stage{stage}") for stage in STAGES]
    assert len(bits[0]) == 6
    assert bits[1:] == [bits[0]] * 3
    train(run_file, 2, {**precision, **more, "deepspeed.zero_optimization.stage": 3, "training.activation_checkpointing": "true",
                        "output": tmp_path / "again"})
    assert losses_and_norms(tmp_path / "again") == bits[0]


def test_a_run_resumes_to_the_same_bits(tmp_path):
    _, run_file = run_of(tmp_path, "llama", packing="fit")
    more = {"deepspeed.train_batch_size": 4, "deepspeed.zero_optimization.stage": 2}
    train(run_file, 2, {**more, "training.max_steps": 10, "output": tmp_path / "whole"})
    train(run_file, 2, {**more, "training.max_steps": 4, "output": tmp_path / "parts"})
    train(run_file, 2, {**more, "training.max_steps": 10, "output": tmp_path / "parts"}, resume="auto")
    assert losses_and_norms(tmp_path / "parts") == losses_and_norms(tmp_path / "whole")
