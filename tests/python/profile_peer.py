"""What get_model_profile of whichever package `deepspeed` this Python finds says of a model: JSON, [MACs, parameters]."""

import json

import torch
from deepspeed.profiling.flops_profiler import get_model_profile
from torch.nn import functional as F


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.qkv = torch.nn.Linear(16, 48)
        self.out = torch.nn.Linear(16, 16)
        self.mix = torch.nn.Parameter(torch.randn(16, 16))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, 4).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return x + torch.matmul(F.gelu(self.out(attended)), self.mix)


if __name__ == "__main__":
    model = torch.nn.Sequential(torch.nn.Conv1d(3, 16, 5, padding=2), torch.nn.Flatten(1, 1))
    blocks = torch.nn.Sequential(torch.nn.Embedding(11, 16), Attention(), Attention(), torch.nn.Linear(16, 7))
    found = [get_model_profile(model, input_shape=(2, 3, 20), print_profile=False, as_string=False)[1:],
             get_model_profile(blocks, args=[torch.randint(11, (2, 9))], print_profile=False, as_string=False)[1:]]
    print(json.dumps(found), flush=True)
