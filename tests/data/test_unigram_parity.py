"""Token ids of unigram models against the `tokenizers` package, and of SentencePiece's own files against `sentencepiece`.

The models are learned here, from the English of tests/text.
"""

import json
import pathlib
import struct
import subprocess

import pytest
import sentencepiece
from test_bpe_parity import CODE, CODES, ENGLISH, ids_of
from test_tokenizer_parity import NASTY, TOOL
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CLUSTERS = ["e\u0301 é ﬁ ① ㍿ Ａ", "👩‍👩‍👧 x 😀", "🇩🇪🇫🇷", "\u0915\u094d\u0937", "ｶﾞ ｶﾞｷﾞ", "한국어 각", "a̐éö̲\r\n", "ไทยคำ", "▁a ▁▁b"]
CHARACTERS = [chr(code) for code in CODES if code]
ROWS = [*ENGLISH[:1500], *(row for row in NASTY if "\0" not in row), *CODE, *CLUSTERS,
        *("".join(CHARACTERS[i:i + 37]) for i in range(0, len(CHARACTERS), 37)), *("a" + "b ".join(CHARACTERS[i:i + 37]) for i in range(0, len(CHARACTERS), 37))]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """{kind: path of a SentencePiece model}"""
    folder = tmp_path_factory.mktemp("sentencepiece")
    text = folder / "text.txt"
    text.write_text("\n".join(ENGLISH))
    for kind in ("unigram", "bpe"):
        for name, bytes_too in ((kind, False), (kind + " with bytes", True)):
            sentencepiece.SentencePieceTrainer.train(
                input=str(text), model_prefix=str(folder / name), vocab_size=1500, model_type=kind, byte_fallback=bytes_too, minloglevel=2,
                character_coverage=1.0, pad_id=3, max_sentence_length=100000)
    return folder


def folder_of(tmp_path, model, name="tokenizer.model", config=None):
    (tmp_path / name).write_bytes(pathlib.Path(model).read_bytes())
    if config:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def same(rows, want, got):
    different = [(row, w, g) for row, w, g in zip(rows, want, got, strict=True) if w != g]
    assert not different, f"{len(different)} rows differ, first: {different[0]!r}"


def decoded(folder, rows, how="decoded"):
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    done = subprocess.run([TOOL, how, folder, file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "unigram with bytes", "bpe with bytes"])
def test_sentencepiece_files(tmp_path, learned, kind):
    reference = sentencepiece.SentencePieceProcessor(model_file=str(learned / f"{kind}.model"))
    folder = folder_of(tmp_path, learned / f"{kind}.model")
    # "ff" and "f", or "f" and "ff", score alike for "fff": the library and the package, which is newer, choose otherwise.
    rows = [row for row in ROWS if not any(token in row for token in ("<unk>", "<s>", "</s>", "<pad>", "ﬀﬁ"))]
    want = [reference.encode(row) for row in rows]
    same(rows, want, ids_of(folder, rows))
    for how in ("decoded", "streamed"):
        same(rows, [reference.decode([id for id in ids if id > 3]) for ids in want], decoded(folder, rows, how))
    assert ids_of(folder, ["a"], "framed") == [[1, *reference.encode("a")]]  # Llama's: <s> before, nothing behind


def test_t5_has_extra_ids_and_ends_texts(tmp_path, learned):
    reference = sentencepiece.SentencePieceProcessor(model_file=str(learned / "unigram.model"))
    size = reference.get_piece_size()
    folder = folder_of(tmp_path, learned / "unigram.model", "spiece.model", {"tokenizer_class": "T5Tokenizer", "extra_ids": 5})
    assert ids_of(folder, ["the <extra_id_0> and"], "framed") == [[*reference.encode("the"), size + 4, *reference.encode("and"), 2]]


def test_added_tokens_of_a_chat_model(tmp_path, learned):
    """InternLM2's folders have tokenizer.model alone; its marks stand in tokenizer_config.json."""
    reference = sentencepiece.SentencePieceProcessor(model_file=str(learned / "bpe.model"))
    folder = folder_of(tmp_path, learned / "bpe.model", config={
        "tokenizer_class": "InternLM2Tokenizer", "eos_token": "<|im_end|>",
        "added_tokens_decoder": {"1600": {"content": "<|im_start|>", "special": True}, "1601": {"content": "<|im_end|>", "special": True}}})
    assert ids_of(folder, ["<|im_start|>the<|im_end|>"]) == [[1600, *reference.encode("the"), 1601]]


@pytest.mark.parametrize("change, what", [
    ({"tokenizer_class": "XLNetTokenizer"}, "the tokenizer class 'XLNetTokenizer' is not supported"),
    ({"added_tokens_decoder": {"x": {"content": "<a>"}}}, "'added_tokens_decoder' names 'x'"),
    ({"mask_token": "<none>"}, "no special token '<none>'"),
    ({"tokenizer_class": "T5Tokenizer", "extra_ids": -1}, "'extra_ids' is -1"),
], ids=str)
def test_what_is_refused(tmp_path, learned, change, what):
    folder = folder_of(tmp_path, learned / "unigram.model", config=change)
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    done = subprocess.run([TOOL, "ids", folder, tmp_path / "rows.jsonl"], capture_output=True, text=True)
    assert done.returncode == 2 and what in done.stderr, done.stderr


def test_a_damaged_model_is_refused(tmp_path, learned):
    whole = (learned / "unigram.model").read_bytes()
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    for damage in (b"", b"nonsense", whole[:len(whole) // 2]):
        (tmp_path / "tokenizer.model").write_bytes(damage)
        done = subprocess.run([TOOL, "ids", tmp_path, tmp_path / "rows.jsonl"], capture_output=True, text=True)
        assert done.returncode == 2 and "it is no SentencePiece model" in done.stderr, (damage[:20], done.stderr)


def fields(data):
    """The fields of a protobuf message: (number, value)."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        length = {2: varint, 5: lambda: 4, 1: lambda: 8}.get(key & 7)
        if length is None:
            yield key >> 3, varint()
        else:
            end = length() + at
            yield key >> 3, data[at:end]
            at = end


def pieces_and_charsmap(path):
    pieces, charsmap = [], b""
    for number, value in fields(path.read_bytes()):
        if number == 1:
            piece = dict(fields(value))
            pieces.append((piece[1].decode(), struct.unpack("<f", piece.get(2, bytes(4)))[0]))
        elif number == 3:
            charsmap = dict(fields(value))[2]
    return pieces, charsmap


SPACES = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
VARIANTS = {
    "t5": lambda charsmap: (normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " ")]), SPACES),
    "t5 as it was": lambda charsmap: (normalizers.Precompiled(charsmap), pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), SPACES])),
    "plain": lambda charsmap: (None, None),
}


@pytest.mark.parametrize("kind", ["unigram", "unigram with bytes"])
@pytest.mark.parametrize("name", VARIANTS)
def test_tokenizer_json(tmp_path, learned, name, kind):
    pieces, charsmap = pieces_and_charsmap(learned / f"{kind}.model")
    reference = Tokenizer(models.Unigram(pieces, 0, "bytes" in kind))
    normalizer, pre_tokenizer = VARIANTS[name](charsmap)
    if normalizer:
        reference.normalizer = normalizer
        reference.pre_tokenizer = pre_tokenizer
    reference.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    reference.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)])
    reference.save(str(tmp_path / "tokenizer.json"))
    encodings = reference.encode_batch(ROWS)
    same(ROWS, [encoding.ids for encoding in encodings], ids_of(tmp_path, ROWS, "framed"))
    for how in ("decoded", "streamed"):
        same(ROWS, [reference.decode(encoding.ids[:-1]) for encoding in encodings], decoded(tmp_path, ROWS, how))


def test_a_model_that_tokenizers_learned(tmp_path):
    reference = Tokenizer(models.Unigram())
    reference.pre_tokenizer = SPACES
    reference.train_from_iterator(ENGLISH, trainers.UnigramTrainer(vocab_size=3000, unk_token="<unk>", special_tokens=["<unk>", "</s>"], show_progress=False))
    reference.save(str(tmp_path / "tokenizer.json"))
    same(ROWS, [encoding.ids for encoding in reference.encode_batch(ROWS)], ids_of(tmp_path, ROWS))


@pytest.mark.parametrize("change, what", [
    (lambda content: content["model"].update(vocab=[]), "the model has no vocabulary"),
    (lambda content: content["model"].update(vocab=[["a"]]), "not a list of pieces and their scores"),
    (lambda content: content["model"].update(unk_id=5), "the unknown piece has the id 5, and there are 1 pieces"),
    (lambda content: content["model"].update(unk_id=None), "the tokenizer has no piece for"),
    (lambda content: content.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "?"}), "is not base64"),
    (lambda content: content.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "the precompiled normalizer is damaged"),
    (lambda content: content.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "8AAAAAAA"}), "the precompiled normalizer is damaged"),
])
def test_what_is_refused_of_a_tokenizer_json(tmp_path, change, what):
    content = json.loads(Tokenizer(models.Unigram([("a", -1.0)], 0)).to_str())
    change(content)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "rows.jsonl").write_text('{"text": "b"}\n')
    done = subprocess.run([TOOL, "ids", tmp_path, tmp_path / "rows.jsonl"], capture_output=True, text=True)
    assert done.returncode == 2 and what in done.stderr, done.stderr
