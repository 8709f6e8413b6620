"""Places of tokens in the text as given, against Encoding.offsets of the `tokenizers` package, and against sentencepiece's own spans."""

import random
import subprocess

import pytest
import sentencepiece
import test_bpe_parity
import test_tokenizer_parity
import test_unigram_parity
from test_bpe_parity import CODE, ENGLISH, learned as learned_bpe, llama2, saved
from test_tokenizer_parity import NASTY, TOOL
from test_unigram_parity import CLUSTERS, fields, folder_of, learned, pieces_and_charsmap  # noqa: F401 (a fixture)
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

PIECES = [
    "the", " and ", "Hello", "don't", "1234", "x", " ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u200b", "\u00ad", ".", "!?", "▁", "▁▁", "Ġ",
    "é", "e\u0301", "ê\u0323", "a\u0315\u0300", "q\u0307\u0323", "\u0301", "\u0323\u0301", "A\u030a", "\u212b", "\u1e9b\u0323", "s\u0323\u0307",  # marks
    "ﬁ", "ﬃ", "ﬁ\u0301", "①", "㍿", "Ａ", "½", "™", "…", "ĳ", "ｶﾞ", "²", "\ufdfa", "№",  # changed by NFKC
    "İ", "İstanbul", "ẞ", "STRASSE", "ΣΊΣΥΦΟΣ", "ǅ", "ﬀ",  # changed by lowercase, also in length
    "😀", "👩‍👩‍👧‍👦", "🇩🇪", "❤️", "👍🏽", "野口", "里佳", "私は", "한국어", "\u1112\u1161\u11ab", "각", "豈", "\U0002f800", "हिन्दी", "\u0915\u094d\u0937", "ไทยคำ", "שָׁלוֹם", "السَّلَام",
    "\x01", "\x7f", "\ufffd", "\x1e", "™\x1eg", "\ue000",
]  # fmt: skip


def random_texts(count, seed, more=()):
    draw = random.Random(seed)
    return ["".join(draw.choice([*PIECES, *more]) for _ in range(draw.randint(0, 12))) for _ in range(count)]


ROWS = [*ENGLISH[:150], *NASTY, *CODE, *CLUSTERS, *random_texts(800, 3)]


def in_characters(text, place):
    before = text.encode()[:place]
    return len(before.decode())


def places_of(folder, rows, how="places"):
    file = folder / "rows.jsonl"
    file.write_text("".join(test_bpe_parity.json.dumps({"text": row}) + "\n" for row in rows))
    done = subprocess.run([TOOL, how, folder, file], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    result = []
    for row, line in zip(rows, done.stdout.split("\n")[:-1], strict=True):
        tokens = [tuple(map(int, token.split(","))) for token in line.split()]
        result.append([(id, in_characters(row, begin), in_characters(row, end)) for id, begin, end in tokens])
    return result


def compare(folder, reference, rows, special=False):
    want = [[(id, *place) for id, place in zip(encoding.ids, encoding.offsets, strict=True)]
            for encoding in reference.encode_batch(rows, add_special_tokens=special)]
    got = places_of(folder, rows, "framed_places" if special else "places")
    different = [(row, w, g) for row, w, g in zip(rows, want, got, strict=True) if w != g]
    assert not different, f"{len(different)} of {len(rows)} rows differ, first: {different[0]!r}"
    return want


@pytest.mark.parametrize("name", test_tokenizer_parity.VARIANTS)
def test_word_pieces(tmp_path, name):
    folder, reference = test_tokenizer_parity.VARIANTS[name](tmp_path)
    rows = [*ROWS, *random_texts(300, 4, ["[MASK]", " [SEP] "])]
    compare(folder, reference, rows)
    if name.startswith("tokenizer.json"):
        compare(folder, reference, rows[:400], special=True)


@pytest.mark.parametrize("name", test_bpe_parity.VARIANTS)
def test_byte_pair_encodings(tmp_path, name):
    reference = test_bpe_parity.VARIANTS[name](tmp_path)
    compare(tmp_path, reference, [*ROWS, *random_texts(300, 5, ["<s>", "</s>", "<|end|>"]), "theth" * 60 + "é" * 30])


BYTES = pre_tokenizers.ByteLevel.alphabet()


def byte_level(prefix, processor):
    def make(folder):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        tokenizer = learned_bpe(tokenizer, special=["<s>", "</s>"], alphabet=BYTES)
        tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=False)])
        tokenizer.add_tokens([AddedToken("<both>", lstrip=True, rstrip=True), AddedToken("wordx", single_word=True)])
        tokenizer.post_processor = processor
        return saved(tokenizer, folder)
    return make


TEMPLATE = processors.TemplateProcessing(single="<s> $A </s>", pair="$A $B", special_tokens=[("<s>", 0), ("</s>", 1)])
TRIMMING = {
    "roberta": byte_level(False, processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=True, add_prefix_space=False)),
    "roberta with a space": byte_level(True, processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=True, add_prefix_space=True)),
    "roberta, not trimmed": byte_level(True, processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=False, add_prefix_space=True)),
    "byte level": byte_level(False, processors.ByteLevel(trim_offsets=True)),
    "byte level, not trimmed": byte_level(True, processors.ByteLevel(trim_offsets=False)),
    "llama 3": byte_level(False, processors.Sequence([processors.ByteLevel(trim_offsets=True, add_prefix_space=False), TEMPLATE])),
}


@pytest.mark.parametrize("name", TRIMMING)
def test_spaces_at_the_ends_of_tokens(tmp_path, name):
    reference = TRIMMING[name](tmp_path)
    rows = [*ROWS, *random_texts(600, 6, ["<mask>", " <mask>", "<both>", "\u3000<both> ", "wordx", " wordx "]), " ", "  a", " a ", "a  b"]
    for special in (False, True):
        compare(tmp_path, reference, rows, special)


def normalised(normalizer, scheme="first"):
    def make(folder):
        tokenizer = llama2(folder)
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="$A $B", special_tokens=[("<s>", 1)])
        tokenizer.add_tokens([AddedToken("Élan", normalized=True), AddedToken("<raw>", normalized=False, rstrip=True)])
        return saved(tokenizer, folder)
    return make


NORMALIZERS = {
    **{form.__name__: normalised(form()) for form in (normalizers.NFC, normalizers.NFD, normalizers.NFKC, normalizers.NFKD, normalizers.Lowercase)},
    "NFKD, then NFC": normalised(normalizers.Sequence([normalizers.NFKD(), normalizers.NFC(), normalizers.Lowercase()])),
    "strip": normalised(normalizers.Strip(), "always"),
    "strip left": normalised(normalizers.Sequence([normalizers.Strip(left=True, right=False), normalizers.NFD()]), "always"),
    "replace": normalised(normalizers.Sequence([normalizers.Replace("the", "Ⅻ of "), normalizers.Replace(Regex(r"\s{2,}|[aeiou]"), ""), normalizers.Prepend("▁é")])),
    "bert": normalised(normalizers.BertNormalizer(), "always"),
}


@pytest.mark.parametrize("name", NORMALIZERS)
def test_normalizers(tmp_path, name):
    reference = NORMALIZERS[name](tmp_path)
    rows = [*ROWS[:300], *NASTY, *random_texts(800, 7, ["Élan", "E\u0301lan", "<raw>", "<raw> "])]
    want = compare(tmp_path, reference, rows, special=True)
    if name in ("NFC", "NFD"):
        assert sum(row != [] for row in want) > 1000


PRE_TOKENIZERS = {
    **{behavior: pre_tokenizers.Split(Regex(r"[aeiou ]+"), behavior) for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")},
    "inverted": pre_tokenizers.Split(Regex(r"\p{L}+"), "removed", invert=True),
    "words": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(), pre_tokenizers.Digits(individual_digits=True)]),
    "marks": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]),
}


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_pre_tokenizers(tmp_path, name):
    tokenizer = llama2(tmp_path)
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[name]
    compare(tmp_path, saved(tokenizer, tmp_path), [*ROWS[:300], *random_texts(500, 8)])


@pytest.mark.parametrize("kind", ["unigram", "unigram with bytes"])
@pytest.mark.parametrize("name", test_unigram_parity.VARIANTS)
def test_unigram_models(tmp_path, learned, name, kind):  # noqa: F811
    pieces, charsmap = pieces_and_charsmap(learned / f"{kind}.model")
    reference = Tokenizer(models.Unigram(pieces, 0, "bytes" in kind))
    normalizer, pre_tokenizer = test_unigram_parity.VARIANTS[name](charsmap)
    if normalizer:
        reference.normalizer = normalizer
        reference.pre_tokenizer = pre_tokenizer
    reference.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    reference.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)])
    reference.save(str(tmp_path / "tokenizer.json"))
    compare(tmp_path, reference, [row for row in ROWS if "\0" not in row], special=True)


@pytest.mark.parametrize("kind", ["unigram", "bpe", "unigram with bytes", "bpe with bytes"])
def test_sentencepiece_files(tmp_path, learned, kind):  # noqa: F811
    reference = sentencepiece.SentencePieceProcessor(model_file=str(learned / f"{kind}.model"))
    folder = folder_of(tmp_path, learned / f"{kind}.model")
    # "ff" and "f", ".." and "." score alike either way: the library and the package, which is newer, choose otherwise.
    rows = [row for row in ROWS if not any(token in row for token in ("\0", "<unk>", "<s>", "</s>", "<pad>", "ﬀﬁ", "…"))]
    want = []
    for row in rows:
        pieces = [dict(fields(value)) for number, value in fields(reference.encode(row, return_type="serialized_proto")) if number == 2]
        want.append([(piece.get(2, 0), in_characters(row, piece.get(4, 0)), in_characters(row, piece.get(5, 0))) for piece in pieces])
    got = places_of(folder, rows)
    different = [(row, w, g) for row, w, g in zip(rows, want, got, strict=True) if w != g]
    assert not different, f"{len(different)} of {len(rows)} rows differ, first: {different[0]!r}"
    [first, *_, last] = places_of(folder, ["the </s> and"], "framed_places")[0]
    assert first == (1, 0, 0) and last[1:] == (9, 12)
