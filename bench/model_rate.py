"""The peers' side of bench/models: model_rate.py FOLDER OPTIONS, as model_rate.cpp, by transformers; with "compiled" beside its options.

In bf16 it trains bf16 weights whose fp32 copies AdamW updates, as ours does.
"""

import json
import sys
import time

from harness.answers import answer_stream

answers = answer_stream()

import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from harness.frameworks import MasterWeightsAdamW  # noqa: E402


def trainer(model, options):
    ids = torch.randint(model.config.vocab_size, (options["micro_batch"], options["length"]))
    settings = {"lr": 1e-4, "weight_decay": 0.01}
    if options["precision"] == "bf16":
        optimizer = MasterWeightsAdamW(model.parameters(), settings)
        model.bfloat16()
    else:
        optimizer = torch.optim.AdamW(model.parameters(), fused=True, **settings)
    forward = torch.compile(model) if options["compiled"] else model

    def step():
        loss = forward(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()
    return step


def generator(model, options):
    model.to(torch.bfloat16 if options["precision"] == "bf16" else torch.float32).eval()
    ids = torch.randint(model.config.vocab_size, (1, options["prompt"]))
    settings = {"max_new_tokens": options["new_tokens"], "min_new_tokens": options["new_tokens"], "do_sample": False}

    @torch.inference_mode()
    def generate():
        return model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **settings).shape[1] - ids.shape[1]
    return generate


def main(folder, options):
    torch.manual_seed(options["seed"])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").train()
    work = {"train": trainer, "generate": generator}[options["work"]](model, options)
    line = "begin"
    while line:
        begin = time.perf_counter()
        result = work()
        print(f"{time.perf_counter() - begin:.6f} {result:.9g}", file=answers)
        line = sys.stdin.readline()


main(sys.argv[1], json.loads(sys.argv[2]))
