"""The peers' side of bench/models: model_rate.py FOLDER OPTIONS, as model_rate.cpp, by transformers; with "compiled" beside its options.

In bf16 it trains bf16 weights whose fp32 copies AdamW updates, as ours does. The work "products" only repeats the matrix products and
attention of such a step, on other numbers.
"""

import json
import sys
import time

from harness.answers import answer_stream

answers = answer_stream()

import torch  # noqa: E402
from torch.utils import _pytree as trees  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from harness.frameworks import MasterWeightsAdamW  # noqa: E402

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention_for_cpu_backward"}


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


class Products(TorchDispatchMode):
    """Notes the products of what runs in it, and repeats them."""

    def __init__(self):
        super().__init__()
        self.calls, self.inputs = [], {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.overloadpacket.__name__ in PRODUCTS:
            self.calls.append((operator, *trees.tree_map_only(torch.Tensor, self.like, (args, kwargs or {}))))
        return operator(*args, **kwargs or {})

    def like(self, tensor):
        """One for all of the same form. Small numbers, none of which is denormal."""
        form = (tensor.shape, tensor.stride(), tensor.dtype)
        if form not in self.inputs:
            self.inputs[form] = torch.empty_strided(*form[:2], dtype=tensor.dtype).uniform_(0.1, 0.2)
        return self.inputs[form]

    def repeat(self):
        for operator, args, kwargs in self.calls:
            operator(*args, **kwargs)
        return len(self.calls)


def products(model, options):
    step, noted = trainer(model, options), Products()
    with noted:
        step()
    return torch.no_grad()(noted.repeat)


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
    work = {"train": trainer, "generate": generator, "products": products}[options["work"]](model, options)
    line = "begin"
    while line:
        begin = time.perf_counter()
        result = work()
        print(f"{time.perf_counter() - begin:.6f} {result:.9g}", file=answers)
        line = sys.stdin.readline()


main(sys.argv[1], json.loads(sys.argv[2]))
