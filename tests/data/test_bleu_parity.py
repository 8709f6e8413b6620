"""Corpus BLEU in C++ against sacrebleu with its defaults, on texts in several scripts, of all kinds of punctuation, and on made-up ones."""

import json
import random
import subprocess

import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from test_bpe_parity import CODES, ENGLISH
from test_tokenizer_parity import NASTY, TOOL

BLEU_TOOL = TOOL.parent / "bleu_tool"
SPACES = "\t\x0b\x0c\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000"
TRICKY = [
    "It costs 1,000.50 dollars, i.e. 3.5-4% more.", "a..b,,c.,d ,.5. .5 5. 5.,5", "state-of-the-art 5-6 -7 8- 9--10", "&quot;Tom &amp; Jerry&quot; &lt;b&gt; &amp;lt; & &quot",
    "a-\nb c-\n\nd\ne --\n\n", "<skipped> x <skip<skipped>ped>", "{[(`~!@#$%^&*()_+=|\\:;\"'<>?/)]}", "Das kostet 3,50 €. Größe: „groß“, nicht 'klein'…", "它 很 好。 真的 吗？ 是",
    "Это — пример, 12.5%.", "🙂.5 é.é é,5 5é.", "x\u200b.y \ufeff.", "مرحبا، كيف حالك؟ 3٫5", "  lead and trail \x1f\u2028", "", " ", ".", "one two three", "one two", "one",
    *(f"a{space}b{space}" for space in SPACES),
]


def shuffled(text, seed):
    """Another text that shares some of its words."""
    words, source = text.split(" "), random.Random(seed)
    for _ in range(source.randint(0, 1 + len(words) // 3)):
        at = source.randrange(len(words))
        words[at:at + 1] = source.choice([[], [words[at]] * 2, [source.choice(ENGLISH).split(" ")[0]]])
        words = words or ["x"]
    return " ".join(words)


def result_of(tmp_path, pairs, *more):
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    done = subprocess.run([BLEU_TOOL, tmp_path / "pairs.json", *map(str, more)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def expect_equal(tmp_path, pairs):
    want = BLEU().corpus_score([text for text, _ in pairs], [[reference for _, reference in pairs]])
    for parts in (1, 3):  # the tallies of parts add up
        got = result_of(tmp_path, pairs, parts)
        assert (got["ngrams"], got["matches"]) == (want.totals, want.counts)
        assert (got["tokens"], got["reference_tokens"]) == (want.sys_len, want.ref_len)
        assert got["score"] == pytest.approx(want.score, rel=1e-13, abs=1e-300), (got, want)
    return want.score


def test_tokens_of_all_kinds_of_text(tmp_path):
    characters = [chr(code) for code in CODES if code]
    texts = [*TRICKY, *NASTY, *ENGLISH[:300], *("a" + "b .1".join(characters[i:i + 40]) for i in range(0, len(characters), 40))]
    reference = Tokenizer13a()
    got = result_of(tmp_path, [[text, ""] for text in texts])["texts"]
    for text, tokens in zip(texts, got, strict=True):
        assert tokens == reference(text.rstrip()).split(), text


def test_english(tmp_path):
    pairs = [(shuffled(text, i), text) for i, text in enumerate(ENGLISH[:400])]
    assert 20 < expect_equal(tmp_path, pairs) < 95


def test_other_scripts_and_punctuation(tmp_path):
    assert 20 < expect_equal(tmp_path, [(shuffled(text, i), text) for i, text in enumerate(TRICKY + NASTY)]) < 95


@pytest.mark.parametrize("pairs", [
    [("a b c d e", "a b c d e")], [("a b c", "a b c")], [("a b c d", "d c b a")], [("a b x c d y", "a b c d")], [("x y", "a b c d e")], [("", "a b")],
    [("a b c d", "")], [("a", "a b c d e f"), ("b c d e f g", "b")], [("a a a a a", "a a")], [("a b c d e", "a b c x d e")],
], ids=str)
def test_what_is_short_or_shares_little(tmp_path, pairs):
    expect_equal(tmp_path, pairs)


def test_random_corpora(tmp_path):
    source = random.Random(5)
    for _ in range(20):
        words = [source.choice("abcdef") for _ in range(200)]
        pairs = [(" ".join(source.choices(words, k=source.randint(0, 12))), " ".join(source.choices(words, k=source.randint(1, 12)))) for _ in range(source.randint(1, 20))]
        expect_equal(tmp_path, pairs)
