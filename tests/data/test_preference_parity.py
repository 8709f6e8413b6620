"""Preferences as token ids: those of TRL's DPOTrainer, row by row, in every form that a row may have."""

import csv
import json
import subprocess

import datasets
import pyarrow
import pyarrow.parquet
import pytest
import trl
from test_chat_parity import CHATS, FORGETFUL, TEMPLATES, assistant, folder_with, tokenizer, user  # noqa: F401
from test_tokenizer_parity import TOOL
from transformers import LlamaConfig, LlamaForCausalLM

TEXTS = [{"prompt": "The sky is", "chosen": " blue.", "rejected": " a large cat."}, {"prompt": "a b\n", "chosen": "\nc", "rejected": "c é 😀"},
         {"prompt": "It ends", "chosen": " by itself.</s>", "rejected": " not."}]
IMPLICIT_TEXTS = [{"chosen": "What is it? A cat.", "rejected": "What is it? A dog."}, {"chosen": "Gut, é", "rejected": "Gut, è"},
                  {"chosen": "ab", "rejected": "abc"}, {"chosen": "One two three", "rejected": "One two"}]


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pairs_of(folder, file, *more):
    done = subprocess.run([TOOL, "preferences", folder, file, *map(str, more)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def of_trl(tokenizer, rows, tmp_path, **options):  # noqa: F811
    model = str(tmp_path / "model")  # from where TRL takes the reference too
    LlamaForCausalLM(LlamaConfig(vocab_size=800, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)).save_pretrained(model)
    arguments = trl.DPOConfig(output_dir=str(tmp_path / "trl"), use_cpu=True, report_to=[], bf16=False, **{"max_length": None, **options})
    trainer = trl.DPOTrainer(model, args=arguments, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer)
    batch = [trainer.data_collator([row]) for row in trainer.train_dataset]
    return [{name: {"ids": one["input_ids"][i].tolist()[:int(one["attention_mask"][i].sum())],
                    "targets": one["completion_mask"][i].tolist()[:int(one["attention_mask"][i].sum())]} for i, name in enumerate(("chosen", "rejected"))}
            for one in batch]


@pytest.mark.parametrize("rows", [TEXTS, IMPLICIT_TEXTS], ids=["prompt", "implicit prompt"])
def test_texts(tmp_path, tokenizer, rows):  # noqa: F811
    folder = folder_with(tokenizer, tmp_path, None)
    got = pairs_of(folder, written(tmp_path / "rows.jsonl", rows))
    assert got == of_trl(tokenizer, rows, tmp_path)
    assert all(pair[name]["ids"][-1] == tokenizer.eos_token_id and pair[name]["ids"][-2] != tokenizer.eos_token_id for pair in got for name in pair)


def test_texts_of_csv_and_parquet(tmp_path, tokenizer):  # noqa: F811
    folder = folder_with(tokenizer, tmp_path, None)
    want = pairs_of(folder, written(tmp_path / "rows.jsonl", TEXTS))
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, TEXTS[0], quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(TEXTS)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(TEXTS), tmp_path / "rows.parquet")
    assert [pairs_of(folder, tmp_path / f"rows.{suffix}") for suffix in ("csv", "parquet")] == [want, want]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(IMPLICIT_TEXTS), tmp_path / "implicit.parquet")
    assert pairs_of(folder, tmp_path / "implicit.parquet") == pairs_of(folder, written(tmp_path / "implicit.jsonl", IMPLICIT_TEXTS))


@pytest.mark.parametrize("name", ["qwen2_5", "llama3", "gemma", "phi3"])
def test_messages(tmp_path, tokenizer, name):  # noqa: F811
    folder = folder_with(tokenizer, tmp_path, (TEMPLATES / f"{name}.jinja").read_text())
    chats = [chat for chat in CHATS if name != "gemma" or chat[0]["role"] != "system"]
    rows = [{"prompt": chat[:-1], "chosen": chat[-1:], "rejected": [assistant(" No idea\n")]} for chat in chats]
    want = of_trl(tokenizer, rows, tmp_path)
    assert pairs_of(folder, written(tmp_path / "rows.jsonl", rows)) == want
    implicit = [{"chosen": row["prompt"] + row["chosen"], "rejected": row["prompt"] + row["rejected"]} for row in rows]
    assert pairs_of(folder, written(tmp_path / "implicit.jsonl", implicit)) == want == of_trl(tokenizer, implicit, tmp_path)
    # As HuggingFaceH4/ultrafeedback_binarized has it; another order of a message's keys makes no difference.
    mixed = [{"prompt": row["chosen"][0]["content"], "chosen": row["chosen"], "rejected": [dict(reversed(turn.items())) for turn in row["rejected"]]}
             for row in implicit]
    assert pairs_of(folder, written(tmp_path / "mixed.jsonl", mixed)) == want


def test_a_template_that_writes_the_prompt_in_another_way_once_an_answer_follows(tmp_path, tokenizer):  # noqa: F811
    """The answer begins where the two part: at the thoughts that it opens with."""
    folder = folder_with(tokenizer, tmp_path, FORGETFUL.replace("<|im_start|>assistant\n' }}", "<|im_start|>assistant\nNow: ' }}"))
    rows = [{"prompt": [user("Hello")], "chosen": [assistant("Good morning.")], "rejected": [assistant("No.")]}]
    want = of_trl(tokenizer, rows, tmp_path)
    assert pairs_of(folder, written(tmp_path / "rows.jsonl", rows)) == want


def test_what_is_too_long(tmp_path, tokenizer):  # noqa: F811
    """What is beyond max_length is cut; a pair whose prompt fills it is left out."""
    folder = folder_with(tokenizer, tmp_path, None)
    rows = [{"prompt": "a b c", "chosen": " d e f g h i j k", "rejected": " l"}, {"prompt": "a b c d e f g h i j k l", "chosen": " m", "rejected": " n"},
            {"prompt": "x", "chosen": " y", "rejected": " z"}]
    want = of_trl(tokenizer, rows, tmp_path, max_length=8)
    got = pairs_of(folder, written(tmp_path / "rows.jsonl", rows), 8)
    assert got == want and len(got) == 2 and len(got[0]["chosen"]["ids"]) == 8


def test_what_teaches_nothing_is_left_out(tmp_path, tokenizer):  # noqa: F811
    folder = folder_with(tokenizer, tmp_path, None)
    rows = [{"prompt": "a", "chosen": " b", "rejected": " b"}, {"prompt": "a", "chosen": "", "rejected": " b"}, {"prompt": "a", "chosen": " b", "rejected": " c"},
            {"prompt": "a", "chosen": " b b b b c", "rejected": " b b b b d"}]
    assert len(pairs_of(folder, written(tmp_path / "rows.jsonl", rows))) == 2
    assert len(pairs_of(folder, tmp_path / "rows.jsonl", 4)) == 1  # the last are the same once they are cut
