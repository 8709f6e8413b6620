"""The task sft from the command line: the loss of the answers alone, whichever form the conversations have."""

import json

import pytest
import torch
import yaml
from tessera_runs import losses_and_norms, metrics, tessera, train, train_arguments
from test_causal_lm import LETTERS, run_of

QUESTIONS = [[(5 * i + j * j) % 26 for j in range(2 + i % 4)] for i in range(16)]
ANSWERS = [[(11 * i + 2 * j) % 26 for j in range(1 + i % 5)] for i in range(16)]
# Which the letters' tokenizer can read: "q" a question, "z" an answer.
TEMPLATE = ("{% for m in messages %}{{ ' q ' if m.role == 'user' else ' z ' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
            "{% else %}{{ m.content }}{% endif %}{% endfor %}{{ ' z ' if add_generation_prompt }}")


def letters(numbers):
    return " ".join(chr(97 + number) for number in numbers)


def chat_run(folder, rows, **data):
    model, run_file = run_of(folder, "llama", packing=data.pop("packing", "none"), **data)
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return model, run_file, {"task": "sft", "data.train": folder / "train.jsonl", "output": folder / "out"}


def trained_by_torch(model, rows, steps=20):
    """rows: (ids, how many of them are no targets)"""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
    losses = []
    for _ in range(steps):
        sums = []
        for ids, prompt in rows:
            row = torch.tensor([ids])
            sums.append(torch.nn.functional.cross_entropy(model(row).logits[0, prompt - 1:-1], row[0, prompt:], reduction="sum"))
        loss = sum(sums) / sum(len(ids) - prompt for ids, prompt in rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ids_of(text):
    return [LETTERS.index(word) for word in text.split()]


@pytest.mark.sample("messages-fit", "alpaca-none")
@pytest.mark.parametrize("packing", ["none", "fit"])
@pytest.mark.parametrize("form", ["messages", "alpaca"])
def test_only_answers_count(tmp_path, form, packing):
    rows = [{"messages": [{"role": "user", "content": letters(q)}, {"role": "assistant", "content": letters(a)}]} if form == "messages" else
            {"instruction": letters(q), "output": letters(a)} for q, a in zip(QUESTIONS, ANSWERS)]
    model, run_file, settings = chat_run(tmp_path, rows, packing=packing)
    (tmp_path / "simple.jinja").write_text(TEMPLATE)
    # Packed, all rows are one step as long as the batch has room for them.
    batch = {"deepspeed.train_batch_size": 16} if packing == "none" else {"deepspeed.train_batch_size": 6}
    result = train(run_file, 2, {**settings, **batch, "data.chat_template": tmp_path / "simple.jinja", "deepspeed.zero_optimization.stage": 3})
    assert "16 conversations; 16 samples" in result.err and "simple.jinja" in result.err, str(result)
    assert (tmp_path / "out" / "export" / "chat_template.jinja").read_text() == TEMPLATE
    assert tessera("checkpoint", "verify", tmp_path / "out" / "export").code == 0
    want = trained_by_torch(model, [(ids_of(f"q {letters(q)} z {letters(a)}"), len(q) + 2) for q, a in zip(QUESTIONS, ANSWERS)])
    got = [row["loss"] for row in metrics(tmp_path / "out")]
    assert packing == "none" or "packed into 6 rows" in result.err, str(result)
    assert got == pytest.approx(want, rel=1e-5)


def test_prompt_and_completion(tmp_path):
    rows = [{"prompt": letters(q), "completion": " " + letters(a)} for q, a in zip(QUESTIONS, ANSWERS)]
    model, run_file, settings = chat_run(tmp_path, rows)
    train(run_file, 1, settings)
    want = trained_by_torch(model, [(ids_of(f"[CLS] {letters(q)} {letters(a)} [SEP]"), len(q) + 1) for q, a in zip(QUESTIONS, ANSWERS)])
    assert [row["loss"] for row in metrics(tmp_path / "out")] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("settings, what", [
    ({}, "has no chat template"), ({"training.eval_bleu": 2}, "the task sft writes none"), ({"data.chat_template": "chatml", "data.packing": "fill"}, "would cut conversations in two"),
    ({"data.chat_template": "chatmk"}, "did you mean 'chatml'"), ({"data.chat_template": "none.jinja"}, "none.jinja"),
], ids=str)
def test_what_makes_no_sense_is_refused(tmp_path, settings, what):
    _, run_file, own = chat_run(tmp_path, [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}])
    result = tessera(*train_arguments(run_file, 1, {**own, **settings}))
    assert result.code == 2, str(result)
    assert what in result.err, str(result)


def test_a_row_that_is_no_conversation_is_named(tmp_path):
    _, run_file, own = chat_run(tmp_path, [{"prompt": "a", "completion": "b"}, {"question": "a"}])
    result = tessera(*train_arguments(run_file, 1, own))
    assert result.code == 2, str(result)
    assert "train.jsonl:2" in result.err and "its keys are 'question'" in result.err, str(result)


def test_packing_is_refused_where_it_would_do_nothing(tmp_path, tiny_bert, texts):
    run_file = tmp_path / "run.json"
    run_file.write_text(json.dumps({"model": {"path": str(tiny_bert)}, "task": "mlm", "data": {"train": str(texts / "train.parquet"), "packing": "fill", "max_length": 32},
                                    "deepspeed": {"train_batch_size": 4}}))
    result = tessera("train", run_file, "--set", f"output={tmp_path / 'out'}")
    assert result.code == 2 and "'data.packing' lays several samples in a row, which the task mlm does not know" in result.err, str(result)


def quick(folder, *more):
    return tessera("train", "--model", folder / "model", "--task", "sft", "--data", folder / "train.jsonl", "--output", folder / "out", *more)


def test_a_run_without_a_run_file(tmp_path):
    chat_run(tmp_path, [{"prompt": letters(q), "completion": " " + letters(a)} for q, a in zip(QUESTIONS, ANSWERS)])
    result = quick(tmp_path, "--lora", 16, "--nproc", 2, "--set", "training.max_steps=3")
    assert result.code == 0, str(result)
    made = yaml.safe_load((tmp_path / "out" / "run.yaml").read_text())
    assert (tmp_path / "out" / "run.yaml").read_text() in result.out
    assert made["task"] == "sft" and made["adapter"]["rank"] == 16 and made["data"]["max_length"] == 64, made  # what the model takes
    assert made["deepspeed"]["optimizer"]["params"]["lr"] == 2e-4
    assert len(metrics(tmp_path / "out")) == 3
    assert (tmp_path / "out" / "export" / "adapter_model.safetensors").exists()
    again = tessera("train", tmp_path / "out" / "run.yaml", "--set", f"output={tmp_path / 'again'}", "--set", "training.max_steps=3", "--nproc", 2)
    assert again.code == 0, str(again)
    assert losses_and_norms(tmp_path / "again") == losses_and_norms(tmp_path / "out")


@pytest.mark.parametrize("left_out, what", [("--model", "--model is missing"), ("--task", "--task is missing"), ("--data", "--data is missing")])
def test_what_a_run_without_a_run_file_needs(tmp_path, left_out, what):
    given = {"--model": tmp_path, "--task": "sft", "--data": tmp_path / "train.jsonl"}
    result = tessera("train", *(word for option, value in given.items() if option != left_out for word in (option, value)))
    assert result.code == 2 and what in result.err, str(result)


def test_a_run_file_and_these_options_exclude_each_other(tmp_path):
    _, run_file, _ = chat_run(tmp_path, [{"prompt": "a", "completion": "b"}])
    result = tessera("train", run_file, "--lora", 4)
    assert result.code == 2 and "--lora is for runs without a run file" in result.err, str(result)
