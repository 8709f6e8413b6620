"""tessera generate: what a model that was trained here goes on with, beside transformers on the exported folder."""

import json
import shutil

import pytest
import torch
import transformers
from tessera_runs import tessera, train
from test_causal_lm import LETTERS, run_of
from test_instruction_tuning import ids_of
from test_seq2seq import run_of as seq2seq_run_of
from test_seq2seq import text_of

PROMPT = "a b c"


@pytest.fixture(scope="module", params=["llama", "gemma3", "gpt2"])
def folder(request, tmp_path_factory):
    where = tmp_path_factory.mktemp("generate")
    _, run_file = run_of(where, request.param, packing="none")
    train(run_file, 2, {"output": where / "out", "training.max_steps": 40})
    return where / "out" / "export"


def wanted(folder, **options):
    ids = torch.tensor([[LETTERS.index(token) for token in ["[CLS]", *PROMPT.split()]]])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    made = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, eos_token_id=None, max_new_tokens=12, **options)
    tokens = [LETTERS[token] for token in made[0, 1:]]
    return "".join(token[2:] if token.startswith("##") else f" {token}" for token in tokens if not token.startswith("["))[1:]


@pytest.mark.sample("llama-greedy", "gemma3-beams", "gpt2-drawn")
@pytest.mark.parametrize("how", [{"do_sample": False}, {"do_sample": False, "num_beams": 3},
                                 {"do_sample": True, "temperature": 0.8, "top_k": 10, "top_p": 0.9}], ids=["greedy", "beams", "drawn"])
def test_transformers_goes_on_alike(folder, how, tmp_path):
    (folder / "generation_config.json").unlink(missing_ok=True)
    flags = [word for key, value in how.items() if key != "do_sample" for word in
             (f"--{'beams' if key == 'num_beams' else key.replace('_', '-')}", value)]
    torch.manual_seed(7)
    want = wanted(folder, **how)
    result = tessera("generate", "--model", folder, "--prompt", PROMPT, "--max-new-tokens", 12, "--seed", 7, *flags)
    assert result.code == 0, str(result)
    assert result.out == want + "\n"


@pytest.mark.sample("beams")
@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"do_sample": True, "temperature": 0.8, "top_k": 10, "top_p": 0.9}], ids=["greedy", "beams", "drawn"])
def test_an_encoder_reads_the_prompt_and_a_decoder_writes(tmp_path, how):
    """The text ends where generation_config.json says, and begins with its token."""
    _, run_file = seq2seq_run_of(tmp_path, starts="[CLS]", ends="[SEP]")
    train(run_file, 1, {"output": tmp_path / "out", "training.max_steps": 120, "deepspeed.optimizer.params.lr": 5e-3})
    folder, prompts = tmp_path / "out" / "export", ["t a b", "t c d e f"]
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert (model.generation_config.decoder_start_token_id, model.generation_config.eos_token_id) == (LETTERS.index("[CLS]"), LETTERS.index("[SEP]"))
    torch.manual_seed(7)
    want = [text_of(model.generate(torch.tensor([ids_of(f"[CLS] {prompt} [SEP]")]), max_new_tokens=12, **how)[0, 1:]) for prompt in prompts[:1 if how.get("do_sample") else 2]]
    flags = [word for key, value in how.items() if key != "do_sample" for word in (f"--{'beams' if key == 'num_beams' else key.replace('_', '-')}", value)]
    asked = [word for prompt in prompts[:len(want)] for word in ("--prompt", prompt)]
    result = tessera("generate", "--model", folder, *asked, "--max-new-tokens", 12, "--seed", 7, *flags)
    assert result.code == 0, str(result)
    assert result.out.splitlines() == want and (any(want) or "do_sample" in how)


def test_a_prompt_in_brackets_is_one_prompt(folder):
    prompt = "[INST] a, b [/INST]"
    result = tessera("generate", "--model", folder, "--prompt", prompt, "--max-new-tokens", 2)
    assert result.code == 0 and result.out.startswith(prompt) and result.out.count("\n") == 1, str(result)


def test_what_is_not_honoured_of_a_generation_config_is_told(folder):
    (folder / "generation_config.json").write_text(json.dumps({"repetition_penalty": 1.2, "no_repeat_ngram_size": 0, "suppress_tokens": []}))
    result = tessera("generate", "--model", folder, "--prompt", PROMPT, "--max-new-tokens", 2)
    (folder / "generation_config.json").unlink()
    assert result.code == 0 and result.err.count("is not honoured") == 1 and "'repetition_penalty' is not honoured" in result.err, str(result)


@pytest.mark.parametrize("flags, what", [
    (["--max-new-tokens", 1000], "more than the 64 that the model takes"), (["--dtype", "fp8"], "there is no dtype 'fp8'"),
    (["--top-p", 0], "top_p is 0"), (["--beams", 2, "--temperature", 1], "beam search draws nothing"),
    (["--tokenizer", "nowhere"], "no such folder"), (["--beams", 1000000], "the number of beams is 1000000"),
    (["--top-k", 5], "temperature 0 draws none"), (["--top-p", 0.5], "temperature 0 draws none"),
], ids=str)
def test_what_makes_no_sense_is_refused(folder, flags, what):
    result = tessera("generate", "--model", folder, "--prompt", PROMPT, *flags)
    assert result.code == 2 and what in result.err, str(result)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "vocab_size": 5}))
    result = tessera("generate", "--model", tmp_path / "model", "--prompt", PROMPT)
    assert result.code == 2 and f"the tokenizer has {len(LETTERS)} tokens, but the model only 5" in result.err, str(result)


def test_a_model_of_masks_is_refused(tiny_bert):
    result = tessera("generate", "--model", tiny_bert, "--prompt", "x")
    assert result.code == 2 and "tessera generate runs models for CausalLM, and a 'bert' is none" in result.err, str(result)
