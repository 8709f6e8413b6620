"""What the clients train: tiny models of random weights with a tokenizer, and texts, conversations, preferences, prompts, translations, and
sentences that mean the same or not.

    inputs.py FOLDER        (in an environment with transformers; each client reads the same files)
"""

import json
import random
import struct
import sys
from pathlib import Path

import sentencepiece
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value, disable_progress_bars
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MobileViTConfig,
    MobileViTModel,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

WORDS = "the a small old red boat house girl wolf king sees finds takes likes leaves in under near behind over lake wood hill town".split()
CHAT = ("{% for message in messages %}{{ '<' + message['role'] + '> ' + message['content'] + ' </s> ' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}")
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "<s>", "eos_token": "</s>", "mask_token": "[MASK]"}


def tokenizer():
    words = {token: number for number, token in enumerate([*SPECIAL.values(), "<user>", "<assistant>", "<system>", *WORDS])}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.decoder = decoders.WordPiece(prefix="")
    fast = PreTrainedTokenizerFast(tokenizer_object=made, **SPECIAL)
    fast.chat_template = CHAT
    return fast


def sentences(seed, count, longest=14):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, longest))) for _ in range(count)]


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def tiny_models():
    """{folder: model}."""
    torch.manual_seed(0)
    yield "llama", LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, pad_token_id=0, bos_token_id=2, eos_token_id=3))
    still = {"attention_dropout": 0.0, "dropout": 0.0}
    yield "opt", OPTForCausalLM(OPTConfig(vocab_size=264, hidden_size=48, word_embed_proj_dim=48, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4,
                                          max_position_embeddings=256, pad_token_id=0, bos_token_id=2, eos_token_id=3, **still))
    # As many words as its tokenizer: run_mlm.py resizes it at stage 3, where transformers leaves the bias as it was, for DeepSpeed too.
    yield "bert", BertForMaskedLM(BertConfig(vocab_size=len(SPECIAL) + 3 + len(WORDS), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                             max_position_embeddings=512, pad_token_id=0))
    yield "t5", T5ForConditionalGeneration(T5Config(vocab_size=64, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4, pad_token_id=0,
                                                    decoder_start_token_id=0, eos_token_id=3))
    yield "t5-pieces", T5ForConditionalGeneration(T5Config(vocab_size=160, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4, pad_token_id=0,
                                                           decoder_start_token_id=0, eos_token_id=1))
    # What the clients' own tests take from a hub.
    special = {"bos_token_id": 2, "eos_token_id": 3}
    yield "gpt2", GPT2LMHeadModel(GPT2Config(vocab_size=1024, n_embd=32, n_layer=2, n_head=4, **special))
    yield "gpt2-wide", GPT2LMHeadModel(GPT2Config(vocab_size=264, n_embd=768, n_layer=1, n_head=12, **special))
    yield "llama-wide", LlamaForCausalLM(LlamaConfig(vocab_size=264, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                                     num_key_value_heads=4, max_position_embeddings=512, **special))
    yield "gptj", GPTJForCausalLM(GPTJConfig(vocab_size=264, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=512, **special))
    yield "qwen-moe", Qwen2MoeForCausalLM(Qwen2MoeConfig(
        vocab_size=264, hidden_size=32, intermediate_size=64, moe_intermediate_size=32, shared_expert_intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, num_experts=4, num_experts_per_tok=2, **special))
    yield "mobilevit", MobileViTModel(MobileViTConfig(hidden_sizes=[16, 20, 24], neck_hidden_sizes=[4, 4, 8, 12, 16, 20, 24], image_size=64))


def save_tokenizer(tokens, folder):
    """By the name of its class that transformers 4 knows too."""
    tokens.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}))


def write_bytes_tokenizer(folder):
    """GPT-2's and OPT's kind, which DeepSpeed-Chat saves as files of its own: one token a byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate([*SPECIAL.values(), *letters])}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **SPECIAL}))


def write_pieces(folder):
    """T5's own kind: a model of SentencePiece, behind which come its 100 extra tokens."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(9, 200)), model_prefix=str(folder / "spiece"), vocab_size=44, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 100}))


def write_hub_folder(folder, name, splits):
    """What load_dataset(folder, name) reads in place of a data set of the hub. `splits`: {"train": Dataset, …}."""
    files = "".join(f"  - split: {split}\n    path: {split}.parquet\n" for split in splits)
    for split, rows in splits.items():
        rows.to_parquet(folder / f"{split}.parquet")
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: {name}\n  data_files:\n{files}---\n")


def write_indexed(path, documents):
    """Token numbers as Megatron's indexed data sets keep them: `.bin` has them as int32, `.idx` lengths, places in bytes and first sequences."""
    lengths = [len(document) for document in documents]
    places = [4 * sum(lengths[:number]) for number in range(len(lengths))]
    path.with_suffix(".bin").write_bytes(b"".join(struct.pack(f"<{len(document)}i", *document) for document in documents))
    path.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, len(lengths), len(lengths) + 1) + struct.pack(f"<{len(lengths)}i", *lengths)
        + struct.pack(f"<{len(places)}q", *places) + struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1)))


def main(folder):
    disable_progress_bars()
    folder = Path(folder)
    tokens = tokenizer()
    (folder / "bert-vocabulary").mkdir()
    (folder / "bert-vocabulary" / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    for name, model in tiny_models():
        model.save_pretrained(folder / name)
        if name in ("llama", "bert", "t5"):
            save_tokenizer(tokens, folder / name)
        elif name == "t5-pieces":
            write_pieces(folder / name)
        elif name != "mobilevit":
            write_bytes_tokenizer(folder / name)
    texts, questions, answers, others = (sentences(seed, 96) for seed in range(4))
    for name in ("text", "chat", "preferences", "prompts", "alpaca", "wmt16", "glue", "wikitext"):
        (folder / name).mkdir(parents=True)
    write_rows(folder / "text" / "train.jsonl", [{"text": text} for text in texts])
    (folder / "text" / "train.txt").write_text("\n".join(texts) + "\n")
    write_rows(folder / "chat" / "train.jsonl", [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]} for question, answer in zip(questions, answers)])
    write_rows(folder / "preferences" / "train.jsonl", [
        {"prompt": question, "chosen": answer, "rejected": other} for question, answer, other in zip(questions, answers, others)])
    write_rows(folder / "prompts" / "train.jsonl", [{"prompt": question} for question in questions])
    rows = [{"instruction": question, "input": "", "output": answer} for question, answer in zip(questions, answers)]
    (folder / "alpaca" / "tales.json").write_text(json.dumps(rows))
    (folder / "alpaca" / "plain.json").write_text(json.dumps([{"text": text} for text in texts]))
    (folder / "alpaca" / "dataset_info.json").write_text(json.dumps({
        "tales": {"file_name": "tales.json"}, "plain": {"file_name": "plain.json", "columns": {"prompt": "text"}}}))
    translated = Dataset.from_list([{"translation": {"en": question, "ro": answer}} for question, answer in zip(questions, answers)])
    write_hub_folder(folder / "wmt16", "ro-en", {"train": translated, "validation": translated.select(range(16))})
    write_hub_folder(folder / "wikitext", "wikitext-2-v1", {"train": Dataset.from_list([{"text": text + "\n"} for text in texts])})
    preferred = Dataset.from_list([{"prompt": f"<user> {question}", "response": answer, "chosen": f" {answer}", "rejected": f" {other}"}
                                   for question, answer, other in zip(questions, answers, others)])
    DatasetDict(train=preferred, test=preferred.select(range(24))).save_to_disk(folder / "rm-static")
    draw = random.Random(5)
    write_indexed(folder / "indexed", [[draw.randrange(126) for _ in range(draw.randint(40, 90))] for _ in range(200)])
    pairs = [{"sentence1": question, "sentence2": question if number % 2 else answer, "label": number % 2, "idx": number}
             for number, (question, answer) in enumerate(zip(questions, answers))]
    same = Dataset.from_list(pairs, Features({"sentence1": Value("string"), "sentence2": Value("string"),
                                              "label": ClassLabel(names=["not_equivalent", "equivalent"]), "idx": Value("int32")}))
    write_hub_folder(folder / "glue", "mrpc", {"train": same, "validation": same.select(range(32)), "test": same.select(range(32))})


if __name__ == "__main__":
    main(sys.argv[1])
