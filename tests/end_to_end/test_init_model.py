"""tessera init-model: folders that transformers loads and that train."""

import json

import pytest
import transformers
from tessera_runs import losses_and_norms, tessera, train, write_run_file
from test_causal_lm import LETTERS

CLASSES = {"bert": ("BertForMaskedLM", "mlm"), "distilbert": ("DistilBertForMaskedLM", "mlm"), "roberta": ("RobertaForMaskedLM", "mlm"), "gemma3_text": ("Gemma3ForCausalLM", "clm"), "gpt2": ("GPT2LMHeadModel", "clm"), "llama": ("LlamaForCausalLM", "clm"), "mistral": ("MistralForCausalLM", "clm"),
           "qwen2": ("Qwen2ForCausalLM", "clm"), "qwen3": ("Qwen3ForCausalLM", "clm"), "t5": ("T5ForConditionalGeneration", "seq2seq"), "internlm2": (None, "clm")}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text("\n".join(LETTERS) + "\n")
    return folder


@pytest.mark.sample("roberta", "gpt2", "qwen3", "t5")
@pytest.mark.parametrize("kind", CLASSES)
def test_a_model_of_each_type(tmp_path, tokenizer, kind):
    result = tessera("init-model", tmp_path / "model", "--type", kind, "--hidden", 64, "--layers", 2, "--heads", 2, "--positions", 64, "--tokenizer", tokenizer)
    assert result.code == 0, str(result)
    name, task = CLASSES[kind]
    if name:
        model, info = getattr(transformers, name).from_pretrained(tmp_path / "model", output_loading_info=True)
        assert not any(info.values()), info
        assert model.config.vocab_size == len(LETTERS)
        assert f"a {name} of {sum(p.numel() for p in model.parameters()):,} parameters" in result.out, str(result)
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": "a b c d e f", "source": "a b", "target": "c d"}) + "\n" for _ in range(8)))
    run_file = write_run_file(tmp_path, {"model": {"path": str(tmp_path / "model")}, "task": task, "data": {"train": str(tmp_path / "train.jsonl"), "max_length": 16},
                                         "training": {"max_steps": 2, "device": "cpu"}, "deepspeed": {"train_batch_size": 4}})
    for init in ("pretrained", "random"):
        train(run_file, 1, {"output": tmp_path / init, "model.init": init, "model.dropout": 0, "deepspeed.optimizer": '{"type": "AdamW"}'})
    assert losses_and_norms(tmp_path / "pretrained") == losses_and_norms(tmp_path / "random")  # the same weights


@pytest.mark.parametrize("flags, what", [
    (["--type", "lama"], "did you mean 'llama'"), (["--type", "llama", "--hidden", 65, "--heads", 2], "does not divide hidden_size"),
    (["--type", "llama", "--hidden", 192, "--heads", 3, "--kv-heads", 2], "num_key_value_heads, 2, does not divide"), ([], "--type"),
    (["--type", "llama", "--layers", 0], "--layers"), (["--type", "bert", "--hidden", 0], "--hidden"), (["--type", "llama", "--seed", -3], "--seed"),
], ids=str)
def test_what_makes_no_sense_is_refused(tmp_path, flags, what):
    result = tessera("init-model", tmp_path / "model", *flags)
    assert result.code == 2 and what in result.err, str(result)
    assert not (tmp_path / "model").exists()


def test_a_vocabulary_that_is_smaller_than_the_tokenizers_is_refused(tmp_path, tokenizer):
    result = tessera("init-model", tmp_path / "model", "--type", "llama", "--vocab", len(LETTERS) - 1, "--tokenizer", tokenizer)
    assert result.code == 2 and f"the tokenizer has {len(LETTERS)} tokens, but the model only {len(LETTERS) - 1}" in result.err, str(result)
    assert not (tmp_path / "model").exists()


def test_a_folder_without_a_name_is_refused():
    result = tessera("init-model", "", "--type", "llama")
    assert result.code == 2 and "the folder to make has no name" in result.err, str(result)


def test_a_folder_that_is_there_stays(tmp_path):
    result = tessera("init-model", tmp_path, "--type", "llama")
    assert result.code == 2 and "is there already" in result.err, str(result)
