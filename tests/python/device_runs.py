"""Training on a device that is no CPU, as one or more ranks, each setting beside the same on the CPU: rank 0 prints one line of JSON
for test_device.py. The device is the far one (tests/support/far_device.h), or TESSERA_TEST_DEVICE's."""

import json

import deepspeed
import far
import tessera
import torch
import torch.distributed as dist
from small_model import config, made, own

deepspeed.init_distributed()
DEVICE = far.device()


def train(device, stage, precision, offload, of_client=False):
    """Losses of four steps, and a part of the first weight after them."""
    zero = {"stage": stage, "stage3_max_live_parameters": 0}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    if offload and stage == 3:
        zero["offload_param"] = {"device": "cpu"}
    settings = {**config(stage, optimizer=not of_client), "zero_optimization": zero, "bf16": {"enabled": precision == "bf16"}}
    model = made()
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2) if of_client else None
    engine, *_ = tessera.initialize(model=model, optimizer=optimizer, device=device, config=settings)
    assert engine.device == device
    losses = []
    for number in range(4):
        ids, labels = own(number)
        loss = engine(ids.to(device), labels.to(device))
        assert loss.device == device
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    weight = engine.module.embedding.weight
    with deepspeed.zero.GatheredParameters([weight], enabled=stage == 3):
        assert weight.device == device
        return {"losses": losses, "weight": weight.detach().float().cpu().flatten()[:8].tolist()}


found = {}
for stage, precision, offload in [(0, "fp32", False), (1, "fp32", True), (2, "bf16", False), (2, "bf16", True), (3, "fp32", False),
                                  (3, "bf16", True)]:
    name = f"stage {stage}, {precision}" + (", offload" if offload else "")
    found[name] = [train(where, stage, precision, offload) for where in (DEVICE, torch.device("cpu"))]
for offload in (False, True):
    name = "stage 2, bf16, the client's NAdam" + (", offload" if offload else "")
    found[name] = [train(where, 2, "bf16", offload, of_client=True) for where in (DEVICE, torch.device("cpu"))]
if dist.get_rank() == 0:
    print(json.dumps(found))
dist.barrier()
