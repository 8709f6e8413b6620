"""Texts and pairs of texts as transformers' tokenizers frame and cut them: input_ids and token_type_ids, for BERT and RoBERTa."""

import json
import os
import pathlib
import random
import subprocess

import pytest
import tokenizers
import transformers

ROOT = pathlib.Path(__file__).parents[2]
TOOL = ROOT / os.environ.get("TESSERA_BUILD", "build/release") / "tests/tokenize_tool"
WORDS = ["play", "ground", "under", "stand", "able", "water", "fall", "sun", "light", "house"]


def sentence(rand, longest):
    return " ".join("".join(rand.sample(WORDS, rand.randint(1, 3))) for _ in range(rand.randint(0, longest)))


def rows():
    rand = random.Random(5)
    made = [{"first": sentence(rand, 12), "second": sentence(rand, 12), "label": rand.choice(["no", "yes"])} for _ in range(150)]
    return made + [{"first": "", "second": "", "label": "no"}, {"first": "sun", "second": "", "label": "yes"}, {"first": "", "second": "water fall " * 30, "label": "yes"}]


def bert(folder):
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *(f"##{word}" for word in WORDS)]
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n")
    made = transformers.BertTokenizerFast(vocab={token: i for i, token in enumerate(vocab)})
    made.save_pretrained(folder)
    return made


def roberta(folder):
    backend = tokenizers.ByteLevelBPETokenizer()
    backend.train_from_iterator([row["first"] + " " + row["second"] for row in rows()], vocab_size=330,
                                special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    backend.save_model(str(folder))
    vocab, merges = json.loads((folder / "vocab.json").read_text()), (folder / "merges.txt").read_text().splitlines()[1:]
    made = transformers.RobertaTokenizerFast(vocab=vocab, merges=[tuple(merge.split(" ")) for merge in merges])
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink()
    made.save_pretrained(folder)
    return made


def of_tool(folder, *arguments):
    done = subprocess.run([TOOL, "pairs", folder, folder / "rows.jsonl", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(params=[bert, roberta])
def tokenizer(request, tmp_path):
    if not TOOL.exists():
        pytest.skip(f"{TOOL} is not built")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    return tmp_path, request.param(tmp_path)


@pytest.mark.parametrize("length", [5, 6, 7, 16, 17, 200])
def test_pairs_are_framed_and_cut_alike(tokenizer, length):
    folder, theirs = tokenizer
    got = of_tool(folder, length)
    cut = 0
    # Called with lists, as by datasets' map(batched=True): alone, an empty second text would count as none.
    firsts, seconds = ([row[key] for row in rows()] for key in ("first", "second"))
    want = theirs(firsts, seconds, truncation="longest_first", max_length=length, return_token_type_ids=True)
    whole = theirs(firsts, seconds)["input_ids"]
    for i, (row, ours) in enumerate(zip(rows(), got, strict=True)):
        for key in ("input_ids", "token_type_ids", "attention_mask"):
            assert ours[key] == want[key][i], (key, row)
        assert ours["labels"] == [["no", "yes"].index(row["label"])]
        cut += len(whole[i]) > length
    assert cut > 100 or length == 200


@pytest.mark.parametrize("length", [3, 8, 100])
def test_single_texts_are_framed_and_cut_alike(tokenizer, length):
    folder, theirs = tokenizer
    for row, ours in zip(rows(), of_tool(folder, length, "single"), strict=True):
        want = theirs(row["first"], truncation=True, max_length=length, return_token_type_ids=True)
        assert (ours["input_ids"], ours["token_type_ids"]) == (want["input_ids"], want["token_type_ids"]), row


def test_a_tokenizer_without_a_template_for_pairs_is_refused(tokenizer):
    folder, _ = tokenizer
    content = json.loads((folder / "tokenizer.json").read_text())
    if content["model"]["type"] == "WordPiece":
        pytest.skip("a WordPiece frames pairs as BERT does, whatever its file says")
    content["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(content))
    done = subprocess.run([TOOL, "pairs", folder, folder / "rows.jsonl", "16"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "does not say how a pair of texts is framed" in done.stderr
