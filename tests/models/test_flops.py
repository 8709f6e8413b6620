"""The floating-point operations that estimates count are those that PyTorch counts of transformers' models."""

import subprocess

import pytest
import torch
import transformers
from test_bert_parity import tiny_model
from test_causal_parity import CLASSES, MODELS, TOOL, VOCAB
from test_seq2seq_parity import MODELS as T5_MODELS
from torch.utils.flop_counter import FlopCounterMode

TEXTS, LENGTH, WRITTEN = 2, 40, 23


def ours(model, where, head, **batch):
    model.save_pretrained(where)
    numbers = [batch[name] for name in ("texts", "length", "written", "targets")]
    done = subprocess.run([TOOL.parent / "flops_tool", where, head, *map(str, numbers)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(map(int, done.stdout.split()))


def counted(model, **inputs):
    model.train().set_attn_implementation("eager")  # whose backward computes nothing again
    if hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")  # whose products are counted
    with FlopCounterMode(display=False) as forward:
        logits = model(**inputs).logits
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    return [forward.get_total_flops(), forward.get_total_flops() + backward.get_total_flops()]


def tokens(length):
    return torch.randint(5, VOCAB, (TEXTS, length))


@pytest.mark.parametrize("name", ["llama", "llama-head-dim", "llama-biases", "mistral", "qwen2", "qwen3", "qwen2-moe", "qwen3-moe", "mixtral", "gemma3", "gpt2", "gpt2-scaled"])
def test_of_models_that_write(tmp_path, name):
    family, sizes = MODELS[name]
    model = getattr(transformers, CLASSES[family])(getattr(transformers, f"{family}Config")(**sizes))
    found = ours(model, tmp_path, "CausalLM", texts=TEXTS, length=LENGTH, written=0, targets=TEXTS * LENGTH)
    assert found == counted(model, input_ids=tokens(LENGTH), use_cache=False)


@pytest.mark.parametrize("name", T5_MODELS)
def test_of_encoder_decoders(tmp_path, name):
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5_MODELS[name]))
    found = ours(model, tmp_path, "Seq2SeqLM", texts=TEXTS, length=LENGTH, written=WRITTEN, targets=TEXTS * WRITTEN)
    assert found == counted(model, input_ids=tokens(LENGTH), decoder_input_ids=tokens(WRITTEN), use_cache=False)


def test_of_a_model_that_fills_gaps(tmp_path):
    model = tiny_model()
    found = ours(model, tmp_path, "MaskedLM", texts=TEXTS, length=LENGTH, written=0, targets=TEXTS * LENGTH)
    assert found == counted(model, input_ids=tokens(LENGTH))


@pytest.mark.parametrize("family", ["Bert", "Roberta", "DistilBert"])
def test_of_classifiers(tmp_path, family):
    sizes = {"dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 96} if family == "DistilBert" else {
        "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}
    config = getattr(transformers, f"{family}Config")(vocab_size=211, max_position_embeddings=60, num_labels=5, **sizes)
    model = getattr(transformers, f"{family}ForSequenceClassification")(config)
    found = ours(model, tmp_path, "SequenceClassification", texts=TEXTS, length=LENGTH, written=0, targets=TEXTS)
    assert found == counted(model, input_ids=tokens(LENGTH))
