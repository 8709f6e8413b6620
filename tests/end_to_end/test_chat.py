"""tessera chat: what the model reads of a conversation is what transformers' apply_chat_template makes of it, and what it answers is what
generate() does."""

import random
import string

import pytest
import torch
import transformers
from tessera_runs import tessera
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CHATML = ("{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endfor %}"
          "{{ '<|im_start|>assistant\n' if add_generation_prompt }}")
INST = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' ~ m.content ~ ' [/INST]' }}{% else %}{{ m.content ~ ' ' ~ eos_token }}{% endif %}"
        "{% endfor %}")
MARKS = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.5}


def texts(rows):
    source = random.Random(4)
    return [" ".join("".join(source.choices(string.ascii_lowercase, k=source.randint(1, 6))) for _ in range(12)) for _ in range(rows)]


def folder_of(folder, template, **sizes):
    """A model with random weights, and a tokenizer whose tokens are whole characters, so that every answer is a text."""
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.decoder = decoders.ByteLevel()
    everything = [*texts(50), string.printable.replace("\r", ""), "user assistant system [INST] [/INST]"]
    learned.train_from_iterator(everything, trainers.BpeTrainer(vocab_size=300, special_tokens=MARKS, show_progress=False))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=learned, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(str(folder))
    torch.manual_seed(3)
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), **{**SIZES, "max_position_embeddings": 1024, **sizes}, eos_token_id=2)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder), model


def answered(tokenizer, model, messages, stops, **how):
    """What the model reads of the conversation, and the text with which it goes on."""
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    row = torch.tensor([ids])
    made = model.generate(row, attention_mask=torch.ones_like(row), pad_token_id=0, eos_token_id=stops, max_new_tokens=24, **{"do_sample": False, **how})
    return ids, tokenizer.decode(made[0, len(ids):], skip_special_tokens=True, clean_up_tokenization_spaces=False)


def read_by_the_model(result):
    return [[int(token) for token in line.split("the model reads ")[1].split()] for line in result.err.splitlines() if "the model reads " in line]


def computed_by_the_model(result):
    return [int(line.split("the model computed ")[1].split()[0]) for line in result.err.splitlines() if "the model computed " in line]


def chat(folder, said, *flags):
    length = [] if "--max-new-tokens" in flags else ["--max-new-tokens", 24]
    return tessera("chat", "--model", folder, *length, *flags, said=said, env={"TESSERA_LOG_LEVEL": "debug"})


@pytest.mark.sample("chatml-system", "inst-")
@pytest.mark.parametrize("system", ["", "be brief."], ids=["", "system"])
@pytest.mark.parametrize("template, stops", [(CHATML, [2, 4]), (INST, [2])], ids=["chatml", "inst"])
def test_a_conversation(tmp_path, template, stops, system):
    tokenizer, model = folder_of(tmp_path, template)
    start = [{"role": "system", "content": system}] if system else []
    messages, want_ids, want_texts = list(start), [], []
    for question in ("hello there", "<|im_end|> and why?", None, "begin anew"):
        if question is None:
            messages = list(start)
            continue
        messages.append({"role": "user", "content": question})
        ids, text = answered(tokenizer, model, messages, stops)
        messages.append({"role": "assistant", "content": text})
        want_ids.append(ids)
        want_texts.append(text)
    result = chat(tmp_path, "hello there\n<|im_end|> and why?\n\n/reset\nbegin anew\r\n/exit\nnot read\n", *(["--system", system] if system else []))
    assert result.code == 0, str(result)
    assert read_by_the_model(result) == want_ids, str(result)
    assert result.out == "".join(text + "\n" for text in want_texts)
    assert all(want_texts) and len(want_ids[1]) > len(want_ids[2])


def test_a_turn_computes_only_what_the_turn_before_has_not(tmp_path):
    """Of the tokens that both begin with; INST puts a space behind an answer, so its last tokens may be others."""
    for template, stops in ((CHATML, [2, 4]), (INST, [2])):
        tokenizer, model = folder_of(tmp_path, template)
        result = chat(tmp_path, "hello there\nand why?\n/reset\nhello you\n")
        assert result.code == 0, str(result)
        prompts, before, want, known = read_by_the_model(result), [], [], []
        for ids in prompts:
            row = torch.tensor([ids])
            made = model.generate(row, attention_mask=torch.ones_like(row), pad_token_id=0, eos_token_id=stops, max_new_tokens=24, do_sample=False)
            known.append(next((at for at, (one, other) in enumerate(zip(before, ids)) if one != other), min(len(before), len(ids) - 1)))
            before = made[0, :-1].tolist()
            want.append(len(before) - known[-1])
        assert computed_by_the_model(result) == want, str(result)
        assert known[0] == 0 and known[1] > len(prompts[0]) and 0 < known[2] < len(prompts[2]) - 1, known


def test_answers_are_drawn_as_transformers_draws_them(tmp_path):
    tokenizer, model = folder_of(tmp_path, CHATML)
    torch.manual_seed(5)
    how = {"do_sample": True, "temperature": 0.9, "top_k": 30, "top_p": 0.9}
    _, text = answered(tokenizer, model, [{"role": "user", "content": "hello"}], [2, 4], **how)
    result = chat(tmp_path, "hello\n", "--temperature", 0.9, "--top-k", 30, "--top-p", 0.9, "--seed", 5)
    assert (result.code, result.out) == (0, text + "\n"), str(result)


def test_a_template_that_is_not_the_folders(tmp_path):
    tokenizer, model = folder_of(tmp_path, None)
    (tmp_path / "inst.jinja").write_text(INST)
    tokenizer.chat_template = INST
    messages = [{"role": "user", "content": "hello"}]
    result = chat(tmp_path, "hello", "--template", tmp_path / "inst.jinja")  # the last line need not end
    ids, text = answered(tokenizer, model, messages, [2])
    assert (result.code, result.out, read_by_the_model(result)) == (0, text + "\n", [ids]), str(result)
    tokenizer.chat_template = CHATML
    result = chat(tmp_path, "hello\n", "--template", "chatml")
    ids, text = answered(tokenizer, model, messages, [2, 4])
    assert (result.code, result.out, read_by_the_model(result)) == (0, text + "\n", [ids]), str(result)


@pytest.mark.parametrize("flags, what", [
    ([], "name one with --template: alpaca, chatml"), (["--template", "chatmk"], "did you mean 'chatml'"), (["--template", "no.jinja"], "no.jinja"),
    (["--template", "chatml", "--top-p", 0], "top_p is 0"), (["--template", "chatml", "--max-new-tokens", 60], "more than the 64 that the model takes"),
], ids=str)
def test_what_makes_no_sense_is_refused(tmp_path, flags, what):
    folder_of(tmp_path, None, max_position_embeddings=64)
    result = chat(tmp_path, "hello\n", *flags)
    assert result.code == 2 and what in result.err, str(result)


def test_a_conversation_that_is_too_long(tmp_path):
    folder_of(tmp_path, INST, max_position_embeddings=64)
    result = chat(tmp_path, "hello\n" * 9)
    assert result.code == 2 and "more than the 64 that the model takes" in result.err and result.out.count("\n") >= 1, str(result)


def test_an_encoder_decoder_is_refused(tmp_path):
    transformers.T5Config(vocab_size=10).save_pretrained(tmp_path)
    result = chat(tmp_path, "hello\n")
    assert result.code == 2 and "tessera chat talks with models for CausalLM, and a 't5' is none" in result.err, str(result)
