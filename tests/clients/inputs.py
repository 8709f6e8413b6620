"""What the clients train: a tiny Llama of random weights with a tokenizer, and texts, conversations, preferences and prompts.

    inputs.py FOLDER        (in an environment with transformers; each client reads the same files)
"""

import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = "the a small old red boat house girl wolf king sees finds takes likes leaves in under near behind over lake wood hill town".split()
CHAT = ("{% for message in messages %}{{ '<' + message['role'] + '> ' + message['content'] + ' </s> ' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}")
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "<s>", "eos_token": "</s>"}


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


def main(folder):
    folder = Path(folder)
    torch.manual_seed(0)
    tokens = tokenizer()
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, pad_token_id=0, bos_token_id=2, eos_token_id=3))
    model.save_pretrained(folder / "llama")
    tokens.save_pretrained(folder / "llama")
    texts, questions, answers, others = (sentences(seed, 96) for seed in range(4))
    for name in ("text", "chat", "preferences", "prompts", "alpaca"):
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


if __name__ == "__main__":
    main(sys.argv[1])
