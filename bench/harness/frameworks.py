"""A training step by torch alone, DDP, FSDP2, and by whichever package `deepspeed` this Python finds.

A framework is a function of (options, model) that returns a step: a function of (ids, labels) that takes one and returns the loss
and the seconds of the optimizer's part. In bf16 each computes in bf16 and updates fp32 weights.
"""

import time

import torch
import torch.distributed as dist
from torch import nn


def alone(options, model):
    return _torch_step(model, options)


def ddp(options, model):
    _join(options)
    return _torch_step(model, options, wrap=nn.parallel.DistributedDataParallel)


def fsdp2(options, model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    _join(options)
    model.to(options["device"])
    settings = {"mesh": init_device_mesh(options["device"].type, (dist.get_world_size(),)), "reshard_after_forward": options["stage"] == 3}
    if options["precision"] == "bf16":
        settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for block in model.blocks:
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **options["optimizer"])
    return lambda ids, labels: _plain_step(model, optimizer, ids, labels)


def deepspeed(options, model):
    import deepspeed
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=options["ds_config"])

    def step(ids, labels):
        loss = engine(ids, labels)
        engine.backward(loss)
        return loss, _seconds_of(engine.step)
    return step


class MasterWeightsAdamW:
    """AdamW on fp32 copies of 16-bit parameters."""

    def __init__(self, parameters, settings):
        self.pairs = [(parameter, nn.Parameter(parameter.detach().float())) for parameter in parameters]
        self.optimizer = torch.optim.AdamW([master for _, master in self.pairs], fused=True, **settings)

    @torch.no_grad()
    def step(self):
        for parameter, master in self.pairs:
            master.grad = parameter.grad.float()
            parameter.grad = None
        self.optimizer.step()
        for parameter, master in self.pairs:
            parameter.copy_(master)
            master.grad = None

    def zero_grad(self):
        """step() did it."""


def _join(options):
    dist.init_process_group("cpu:gloo,cuda:nccl" if options["device"].type == "cuda" else "gloo")


def _torch_step(model, options, wrap=lambda model: model):
    model.to(options["device"])
    if options["precision"] == "bf16":
        optimizer = MasterWeightsAdamW(model.parameters(), options["optimizer"])  # copies them before they are rounded
        model.bfloat16()
    else:
        optimizer = torch.optim.AdamW(model.parameters(), fused=True, **options["optimizer"])
    wrapped = wrap(model)
    return lambda ids, labels: _plain_step(wrapped, optimizer, ids, labels)


def _plain_step(model, optimizer, ids, labels):
    loss = model(ids, labels)
    loss.backward()

    def update():
        optimizer.step()
        optimizer.zero_grad()
    return loss, _seconds_of(update)


def _seconds_of(update):
    _finish_gpu_work()
    begin = time.perf_counter()
    update()
    _finish_gpu_work()
    return time.perf_counter() - begin


def _finish_gpu_work():
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


FRAMEWORKS = {"alone": alone, "ddp": ddp, "fsdp2": fsdp2, "tessera": deepspeed, "deepspeed": deepspeed}
