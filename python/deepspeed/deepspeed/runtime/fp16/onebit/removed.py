"""Optimizers that DeepSpeed had up to 0.19.6. Programs import their names without using them."""

import torch


class RemovedOptimizer(torch.optim.Optimizer):
    def __init__(self, *args, **kwargs):
        raise NotImplementedError(f"{type(self).__name__} is not in Tessera, and DeepSpeed removed it after 0.19.6: "
                                  "use Adam, AdamW or Lamb")
