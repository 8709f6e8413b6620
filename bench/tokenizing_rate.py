"""The `tokenizers` package's side of bench/tokenizing: like tokenizing_rate.cpp, for lines that are in memory already.

    tokenizing_rate.py FOLDER FILE --learn KIND     instead learns FOLDER/tokenizer.json from the file
"""

import sys
import time

from harness.answers import answer_stream

answers = answer_stream()

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def learned(kind, lines):
    """A tokenizer of 8,000 tokens; the vocabularies of the real ones are larger, which changes little."""
    tokenizer = Tokenizer(models.Unigram() if kind == "unigram" else models.BPE())
    options = {"vocab_size": 8000, "show_progress": False}
    if kind == "unigram":
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token="<unk>", special_tokens=["<unk>", "</s>"], **options)
    else:
        words = [pre_tokenizers.Split(Regex(LLAMA3), "isolated")] if kind == "Llama 3's words" else []
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not words)])
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options)
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def main():
    folder, path, *learn = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        lines = [line for line in file.read().split("\n") if line]
    if learn:
        learned(learn[1], lines).save(f"{folder}/tokenizer.json")
        return
    print("ready", file=answers)
    for _ in sys.stdin:
        tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        begin = time.perf_counter()
        encodings = tokenizer.encode_batch_fast(lines, add_special_tokens=False)
        seconds = time.perf_counter() - begin
        print(f"{sum(len(encoding.ids) for encoding in encodings)},{seconds}", file=answers)


main()
