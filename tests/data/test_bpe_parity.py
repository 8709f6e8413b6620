"""Token ids of byte-pair encodings against the `tokenizers` package, with the pre-tokenizers of GPT-2, Llama 2 and 3 and Qwen 2.

The vocabularies are learned here, from the English of tests/text.
"""

import json
import pathlib
import subprocess
import unicodedata

import pytest
from test_tokenizer_parity import NASTY, ROOT, TOOL
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ENGLISH = (ROOT / "tests" / "text" / "train.txt").read_text().split("\n")[:-1]
CODES = [*range(0xD800), *range(0xE000, 0x20000), *range(0x2F7F0, 0x2FA30), *range(0xE0000, 0xE0200)]
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CODE = ["def f(x):\n    return x**2  # square\n\n\n", "\tif (a && b) {\r\n\t\treturn;\r\n\t}", "x=1;y =2; z= 3;1234567890", "  leading", "trailing  "]


def learned(tokenizer, size=3000, special=(), alphabet=()):
    tokenizer.train_from_iterator(ENGLISH + NASTY, trainers.BpeTrainer(vocab_size=size, initial_alphabet=list(alphabet),
                                                                        special_tokens=list(special), show_progress=False))
    return tokenizer


def saved(tokenizer, folder, change=None):
    content = json.loads(tokenizer.to_str())
    if change:
        change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def gpt2(folder):
    """The original files: vocab.json and merges.txt."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned(tokenizer, special=["<|endoftext|>"], alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.model.save(str(folder))
    return tokenizer


def by_words(pattern, normalizer=None, ignore_merges=False):
    def make(folder):
        tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
        if normalizer:
            tokenizer.normalizer = normalizer
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        return saved(learned(tokenizer, special=["<|begin|>", "<|end|>"], alphabet=pre_tokenizers.ByteLevel.alphabet()), folder)
    return make


def llama2(folder, change=None):
    """SentencePiece's way: no words, a mark for each space, bytes for characters that have no token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learned(tokenizer, size=2000, special=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))])

    def finish(content):
        content["added_tokens"] = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
        if change:
            change(content)
    return saved(tokenizer, folder, finish)


def metaspace(scheme, split):
    def change(content):
        content["normalizer"] = None
        content["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
    return lambda folder: llama2(folder, change)


def without_bytes(content):
    content["model"]["byte_fallback"] = False
    content["model"]["fuse_unk"] = False


def pieces_in_words(content):
    """Marks of pieces inside and at the end of words, as Sennrich's and Radford's first encodings have them."""
    content["added_tokens"] = []
    content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, {"type": "Digits", "individual_digits": True}]}
    content["model"].update(byte_fallback=False, continuing_subword_prefix="", end_of_word_suffix="</w>", merges=[["t", "h"], ["th", "e</w>"]],
                            vocab={"<unk>": 0, **{c: i + 1 for i, c in enumerate("abcdefghijklmnopqrstuvwxyz")},
                                   **{c + "</w>": i + 40 for i, c in enumerate("abcdefghijklmnopqrstuvwxyz0123456789")}, "th": 90, "the</w>": 91})


VARIANTS = {
    "gpt2": gpt2,
    "llama3": by_words(WORDS % r"\p{N}{1,3}", ignore_merges=True),
    "qwen2": by_words(WORDS % r"\p{N}", normalizers.NFC()),
    "llama2": llama2,
    "no bytes": lambda folder: llama2(folder, without_bytes),
    "marked pieces": lambda folder: llama2(folder, pieces_in_words),
    **{f"metaspace {scheme}{' split' * split}": metaspace(scheme, split) for scheme in ("always", "first", "never") for split in (False, True)},
}


def ids_of(folder, rows, how="ids"):
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    done = subprocess.run([TOOL, how, folder, file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [[int(word) for word in line.split()] for line in done.stdout.split("\n")[:-1]]


def compare(folder, reference, rows, special=False):
    want = [encoding.ids for encoding in reference.encode_batch(rows, add_special_tokens=special)]
    got = ids_of(folder, rows, "framed" if special else "ids")
    assert len(got) == len(want)
    different = [(row, w, g) for row, w, g in zip(rows, want, got) if w != g]
    assert not different, f"{len(different)} rows differ, first: {different[0]!r}"


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bpe")
    return folder, VARIANTS[request.param](folder)


def test_english(variant):
    compare(*variant, ENGLISH)


def test_nasty_texts_and_code(variant):
    compare(*variant, NASTY + CODE + ["<s>a</s> b", "x <|end|> y", "a<|begin|><|end|>", "<unk>"])


@pytest.mark.sample("llama3", "metaspace first", "no bytes")
def test_each_character_between_two_letters(variant, request):
    """Whether a character is of a word (\\w) the package asks a newer Unicode than ICU 72's 15.0."""
    by_word_characters = "marked pieces" in request.node.name
    compare(*variant, [f"a{chr(code)}b {chr(code)}" for code in CODES if not by_word_characters or unicodedata.category(chr(code)) != "Cn"])


DECODERS = {
    "gpt2": decoders.ByteLevel(), "llama3": decoders.ByteLevel(), "qwen2": decoders.ByteLevel(),
    "llama2": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    "no bytes": decoders.Sequence([decoders.Metaspace(), decoders.Strip("x", 1, 0)]), "marked pieces": decoders.BPEDecoder(),
    "metaspace always": decoders.Metaspace(), "metaspace first": decoders.Metaspace(prepend_scheme="first"),
    "metaspace never": decoders.Metaspace(prepend_scheme="never"),
}


@pytest.mark.parametrize("name", DECODERS)
def test_decoded_again(tmp_path, name):
    reference = VARIANTS[name](tmp_path)
    reference.decoder = DECODERS[name]
    if name != "gpt2":
        reference = saved(reference, tmp_path)
    rows = [*ENGLISH[:300], *NASTY, *CODE, "<s>a</s> b", "x <|end|> y"]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    want = [reference.decode(encoding.ids) for encoding in reference.encode_batch(rows, add_special_tokens=False)]
    for how in ("decoded", "streamed"):
        done = subprocess.run([TOOL, how, tmp_path, file], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        got = [json.loads(line) for line in done.stdout.split("\n")[:-1]]
        different = [(row, w, g) for row, w, g in zip(rows, want, got, strict=True) if w != g]
        assert not different, f"{how}: {len(different)} rows differ, first: {different[0]!r}"


def test_long_words(variant):
    """Beyond the length at which pairs wait in a queue."""
    compare(*variant, ["thethethe" * n for n in (5, 6, 50, 2000)] + ["ab" * 40 + "é" * 40, "the " * 300])


@pytest.mark.parametrize("processor", [
    processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B", special_tokens=[("<s>", 1), ("</s>", 2)]),
    processors.TemplateProcessing(single="<s> $A", pair="$A $B", special_tokens=[("<s>", 1)]),
    processors.BertProcessing(("</s>", 2), ("<s>", 1)), processors.RobertaProcessing(("</s>", 2), ("<s>", 1)),
    processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(single="<s> $A", pair="$A $B", special_tokens=[("<s>", 1)])]),
], ids=lambda each: type(each).__name__)
def test_what_stands_around_a_text(tmp_path, processor):
    reference = llama2(tmp_path)
    reference.post_processor = processor
    reference = saved(reference, tmp_path)
    compare(tmp_path, reference, ["a b", "hello", ""], special=True)


def refused(folder):
    done = subprocess.run([TOOL, "ids", folder, folder / "tokenizer.json"], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    return done.stderr


@pytest.mark.parametrize("path, value, what", [
    (("pre_tokenizer",), {"type": "UnicodeScripts"}, "the pre_tokenizer 'UnicodeScripts' is not supported"),
    (("normalizer",), {"type": "Nmt"}, "the normalizer 'Nmt' is not supported"),
    (("pre_tokenizer",), {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"}, "'(a' is not a regular expression"),
    (("pre_tokenizer",), {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Apart"}, "the behavior 'Apart'"),
    (("post_processor",), {"type": "Other"}, "the post_processor 'Other' is not supported"),
    (("post_processor",), {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>"}}]}, "the template's token '<x>' has no ids"),
    (("model", "merges"), [["t", "nothing"]], "is not in the vocabulary"),
    (("model", "merges"), ["th"], '"th" is not a merge'),
    (("model", "merges"), 5, "no list of merges"),
    (("model", "vocab"), {"a": "b"}, "the id of token 'a'"),
    (("model", "unk_token"), "<none>", "the unknown token, '<none>', is not in the vocabulary"),
    (("model", "dropout"), 0.1, "drops merges at random"),
], ids=str)
def test_a_file_that_makes_no_sense_is_refused(tmp_path, path, value, what):
    def change(content):
        *above, last = path
        for key in above:
            content = content[key]
        content[last] = value
    content = json.loads(llama2(tmp_path).to_str())
    change(content)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert what in refused(tmp_path)


def test_a_text_on_which_the_expression_takes_for_ever_is_refused(tmp_path):
    content = json.loads(llama2(tmp_path).to_str())
    content["normalizer"] = None
    content["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated", "invert": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    rows = pathlib.Path(tmp_path) / "rows.jsonl"
    rows.write_text(json.dumps({"text": "a" * 5000}) + "\n")
    done = subprocess.run([TOOL, "ids", tmp_path, rows], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "gave up on a text of 5000 bytes" in done.stderr, done.stderr
