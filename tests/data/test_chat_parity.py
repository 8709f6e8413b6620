"""Conversations as token ids and targets: those of TRL's SFTTrainer, row by row, and the forms that a row may have."""

import json
import pathlib
import subprocess

import datasets
import pytest
import trl
from test_bpe_parity import ENGLISH
from test_template_parity import TOOLS
from test_tokenizer_parity import TOOL
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATES = pathlib.Path(trl.__file__).parent / "chat_templates"
MARKS = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>",
         "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "[INST]", "[/INST]"]


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


TURNS = [user(" What is 2 + 2?\n"), assistant("4"), user("And 3?\n\n"), assistant(" Five,\n of course. ")]
CHATS = [[user("Hello"), assistant("Good morning to you.")], TURNS,
         [{"role": "system", "content": "Be brief."}, *TURNS, user("Why?"), assistant("Because é 😀 \n")]]
# Which writes thoughts in the last answer alone.
FORGETFUL = ("{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' }}{% if m.role == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
             "{{ m.content ~ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


@pytest.fixture(scope="module")
def tokenizer():
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.decoder = decoders.ByteLevel()
    learned.train_from_iterator(ENGLISH[:1000], trainers.BpeTrainer(vocab_size=800, special_tokens=MARKS, show_progress=False,
                                                                    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return PreTrainedTokenizerFast(tokenizer_object=learned, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def folder_with(tokenizer, folder, template):
    tokenizer.chat_template = template
    tokenizer.save_pretrained(str(folder))
    return folder


def samples_of(folder, rows, *more, suffix="jsonl"):
    file = folder / f"rows.{suffix}"
    file.write_text(rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run([TOOL, "chat", folder, file, *more], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def labels_of(samples):
    return [[id if target else -100 for id, target in zip(sample["ids"], sample["targets"])] for sample in samples]


def of_trl(tokenizer, rows, tmp_path, **options):
    model = LlamaForCausalLM(LlamaConfig(vocab_size=800, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1))
    arguments = trl.SFTConfig(output_dir=str(tmp_path / "trl"), use_cpu=True, report_to=[], bf16=False, max_length=None, **options)
    trainer = trl.SFTTrainer(model, arguments, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer)
    return trainer.train_dataset


@pytest.mark.parametrize("name", ["qwen2_5_training", "qwen3_training", "llama3_training", "gemma_training", "phi3_training"])
def test_answers_that_the_template_marks(tmp_path, tokenizer, name):
    template = (TEMPLATES / f"{name}.jinja").read_text()
    folder = folder_with(tokenizer, tmp_path, template)
    chats = [chat for chat in CHATS if name != "gemma_training" or chat[0]["role"] != "system"]
    rows = [{"messages": chat} for chat in chats]
    want = of_trl(tokenizer, rows, tmp_path, assistant_only_loss=True)
    got = samples_of(folder, rows)
    assert [sample["ids"] for sample in got] == want["input_ids"]
    assert labels_of(got) == want["labels"]
    assert any(-100 in labels for labels in want["labels"])


@pytest.mark.parametrize("name", ["qwen2_5", "llama3", "gemma", "phi3", "llama3_2", "cohere"])
def test_the_last_answer_of_a_template_without_marks(tmp_path, tokenizer, name):
    """TRL's prompt and completion are our conversation whose last turn alone is an answer."""
    folder = folder_with(tokenizer, tmp_path, (TEMPLATES / f"{name}.jinja").read_text())
    rows = [{"prompt": chat[:-1], "completion": chat[-1:]} for chat in (CHATS[0], [user("What is that? "), assistant(" A\ntest. ")])]
    want = of_trl(tokenizer, rows, tmp_path, completion_only_loss=True)
    got = samples_of(folder, rows)
    assert [sample["ids"] for sample in got] == want["input_ids"]
    assert labels_of(got) == want["labels"]


def test_two_texts(tmp_path, tokenizer):
    """Without a template: the prompt, the completion and the end. (TRL puts nothing before a text whose tokenizer does not.)"""
    folder = folder_with(tokenizer, tmp_path, None)
    rows = [{"prompt": "The sky is", "completion": " blue."}, {"prompt": "a b\n", "completion": "\nc"}]
    want = of_trl(tokenizer, rows, tmp_path, completion_only_loss=True)
    got = samples_of(folder, rows)
    assert [sample["ids"] for sample in got] == want["input_ids"]
    assert labels_of(got) == want["labels"]


def texts_of(tokenizer, samples):
    """What of each sample is to be predicted."""
    return [tokenizer.decode([id for id, target in zip(sample["ids"], sample["targets"]) if target]) for sample in samples]


def test_each_answer_of_a_template_without_marks(tmp_path, tokenizer):
    folder = folder_with(tokenizer, tmp_path, (TEMPLATES / "qwen2_5.jinja").read_text())
    got = samples_of(folder, [{"messages": TURNS}])
    assert got[0]["ids"] == tokenizer.apply_chat_template(TURNS, return_dict=False)
    assert texts_of(tokenizer, got) == ["4<|im_end|>\n Five,\n of course. <|im_end|>\n"]


def test_a_template_that_changes_earlier_turns_gives_a_sample_for_each_answer(tmp_path, tokenizer):
    folder = folder_with(tokenizer, tmp_path, FORGETFUL)
    got = samples_of(folder, [{"messages": TURNS}])
    assert [sample["ids"] for sample in got] == [tokenizer.apply_chat_template(TURNS[:count], return_dict=False) for count in (2, 4)]
    assert texts_of(tokenizer, got) == ["<think>\n\n</think>\n\n4<|im_end|>\n", "<think>\n\n</think>\n\n Five,\n of course. <|im_end|>\n"]


FORMS = {
    "messages": {"messages": [user("q"), assistant("a"), user("r"), assistant("b")]},
    "sharegpt": {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}, {"from": "human", "value": "r"}, {"from": "gpt", "value": "b"}]},
    "xtuner": {"conversation": [{"input": "q", "output": "a"}, {"input": "r", "output": "b"}]},
    "alpaca": {"instruction": "r", "input": "", "output": "b", "history": [["q", "a"]]},
    "guanaco": {"text": "### Human: q### Assistant: a### Human: r### Assistant: b### Human: and?"},
    "prompt": {"prompt": [user("q"), assistant("a"), user("r")], "completion": [assistant("b")]},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_forms_of_a_row(tmp_path, tokenizer, form, suffix):
    folder = folder_with(tokenizer, tmp_path, None)
    rows = json.dumps([FORMS[form]], indent=1) if suffix == "json" else [FORMS[form]]
    got, = samples_of(folder, rows, "chatml", suffix=suffix)
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in (("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b")))
    assert got["ids"] == tokenizer.encode(text, add_special_tokens=False)
    assert texts_of(tokenizer, [got]) == ["a<|im_end|>b<|im_end|>"]


def test_instructions_with_an_input(tmp_path, tokenizer):
    folder = folder_with(tokenizer, tmp_path, None)
    row = {"instruction": "Add.", "input": "1, 2", "output": "3"}
    for template, text in (("chatml", "<|im_start|>user\nAdd.\n1, 2<|im_end|>\n<|im_start|>assistant\n3<|im_end|>\n"), ("alpaca", (
            "Below is an instruction that describes a task, paired with an input that provides further context. Write a response that appropriately "
            "completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1, 2\n\n### Response:\n3</s>"))):
        assert samples_of(folder, [row], template)[0]["ids"] == tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("name, text", [
    ("llama2", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nq [/INST] a </s><s>[INST] r [/INST] b </s>"),
    ("llama3", "<s>" + "".join(f"<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>" for role, content in (
        ("system", "S"), ("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b")))),
    ("internlm2", "<s>" + "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in (
        ("system", "S"), ("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b")))),
    ("qwen2", "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in (
        ("system", "S"), ("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b")))),
])
def test_built_in_templates(tmp_path, tokenizer, name, text):
    folder = folder_with(tokenizer, tmp_path, None)
    row = {"messages": [{"role": "system", "content": "S"}, *FORMS["messages"]["messages"]]}
    assert samples_of(folder, [row], name)[0]["ids"] == tokenizer.encode(text, add_special_tokens=False)


def test_qwen2_has_a_system_message_of_its_own(tmp_path, tokenizer):
    folder = folder_with(tokenizer, tmp_path, None)
    got = samples_of(folder, [FORMS["messages"]], "qwen2")
    assert tokenizer.decode(got[0]["ids"]).startswith("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n")


def test_tools_reach_the_template(tmp_path, tokenizer):
    folder = folder_with(tokenizer, tmp_path, (TEMPLATES / "qwen2_5_training.jinja").read_text())
    row = {"messages": CHATS[0], "tools": TOOLS}
    assert samples_of(folder, [row])[0]["ids"] == tokenizer.apply_chat_template(CHATS[0], tools=TOOLS, return_dict=False)


def test_long_conversations_are_cut_and_those_without_an_answer_left_out(tmp_path, tokenizer):
    folder = folder_with(tokenizer, tmp_path, None)
    whole = samples_of(folder, [FORMS["messages"]], "chatml")[0]
    first = whole["targets"].index(1)
    cut, = samples_of(folder, [FORMS["messages"]], "chatml", str(first + 1))
    assert cut == {"ids": whole["ids"][:first + 1], "targets": whole["targets"][:first + 1]}
    (folder / "rows.jsonl").write_text(json.dumps(FORMS["messages"]) + "\n")
    done = subprocess.run([TOOL, "chat", folder, folder / "rows.jsonl", "chatml", str(first)], capture_output=True, text=True)
    assert done.returncode == 2 and "no answer is left to be learned" in done.stderr, done.stderr


@pytest.mark.parametrize("row, template, what", [
    ({"a": 1, "text": "x"}, "chatml", "it is no conversation: its keys are 'a', 'text'"),
    ({"messages": []}, "chatml", "'messages' is not a list of messages"), ({"messages": [{"content": "x"}]}, "chatml", "has no role"),
    ({"conversations": [{"from": "nobody", "value": "x"}]}, "chatml", "a message is from 'nobody'"),
    ({"instruction": 5, "output": "x"}, "chatml", "'instruction' is 5, not a string"),
    ({"messages": [assistant("a"), assistant("b")]}, "llama2", "questions and answers do not alternate"),
    (FORMS["messages"], "", "has no chat template"), (FORMS["messages"], "chatmk", "did you mean 'chatml'"), (FORMS["messages"], "./none.jinja", "none.jinja"),
    ([1], "chatml", "it is not an object"), (FORMS["messages"], "BROKEN", "'endif' is missing"),
], ids=str)
def test_what_is_refused(tmp_path, tokenizer, row, template, what):
    folder = folder_with(tokenizer, tmp_path, None)
    (folder / "broken.jinja").write_text("{% if a %}")
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    done = subprocess.run([TOOL, "chat", folder, folder / "rows.jsonl", str(folder / "broken.jinja") if template == "BROKEN" else template],
                          capture_output=True, text=True)
    assert done.returncode == 2 and what in done.stderr, done.stderr
    assert "line" in done.stderr or "rows.jsonl:1" in done.stderr or "row 1" in done.stderr or template in ("", "chatmk", "./none.jinja"), done.stderr

