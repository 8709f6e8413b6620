"""offload_states() and reload_states() on a device that is no CPU, as two ranks for test_moved_states.py: rank 0 prints JSON, for each
setting and set of states {"results": [losses with the move, without], "freed": bytes, "expected": bytes, "pinned": bytes, "refused": what was said meanwhile,
"counts": [steps before, meanwhile], "devices": {state: where}}."""

import json

import deepspeed
import far
import torch
import torch.distributed as dist
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as State
from deepspeed.runtime.zero.offload_states import get_state_devices
from misuse_runs import said
from small_model import config, made, own
from tessera import initialize

deepspeed.init_distributed()
DEVICE = far.device()


def start(stage, precision, of_client):
    settings = {**config(stage, optimizer=not of_client), "bf16": {"enabled": precision == "bf16"},
                "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 0}}
    model = made()
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2) if of_client else None
    return initialize(model=model, optimizer=optimizer, device=DEVICE, config=settings, engine_class=DeepSpeedEngine)[0]


def step(engine, number):
    ids, labels = own(number)
    loss = engine(ids.to(DEVICE), labels.to(DEVICE))
    engine.backward(loss)
    engine.step()
    return loss.item()


def expected_bytes(engine, stage, precision, states):
    """Of this rank, padding left out: ZeRO's table of who holds what."""
    whole = sum(elements for _, _, _, elements in engine.core.units())
    part = whole / dist.get_world_size()
    width, gradient = (dtype.itemsize for dtype in engine.get_data_types())
    owned = whole if stage == 0 else part
    sizes = {State.optim_states: 2 * 4 * owned, State.hp_params: 4 * owned if precision == "bf16" else 0,
             State.lp_params: width * (part if stage == 3 else whole), State.lp_grads: gradient * (whole if stage < 2 else part)}
    return sum(sizes[state] for state in states)


def moved(stage, precision, states, of_client=False, pins=True):
    plain = start(stage, precision, of_client)
    expected = [step(plain, number) for number in range(4)]
    plain.destroy()
    del plain
    engine = start(stage, precision, of_client)
    losses = [step(engine, number) for number in range(2)]
    before = far.bytes_in_use()
    expected_freed = None if of_client else expected_bytes(engine, stage, precision, states or list(State)[:4])
    pinned = -far.pinned_bytes()
    engine.offload_states(include=states, pin_memory=pins)
    freed = before - far.bytes_in_use()
    pinned += far.pinned_bytes()
    steps = engine.global_steps
    devices = {state.value: [str(device.type) for device in get_state_devices(engine, state)] for state in State}
    ids, labels = own(2)
    forward = lambda: engine(ids.to(DEVICE), labels.to(DEVICE))  # noqa: E731
    refused = [said(forward), said(engine.step), said(engine.save_checkpoint, "nowhere")]
    with torch.no_grad():
        evaluated = said(lambda: forward().item())
    engine.reload_states()
    assert far.bytes_in_use() == before
    losses += [step(engine, number) for number in range(2, 4)]
    return {"results": [losses, expected], "freed": freed, "expected": expected_freed, "pinned": pinned, "refused": [text for _, text in refused], "evaluated": evaluated, "counts": [2, steps], "devices": devices}


SOME = [State.optim_states, State.hp_params, State.lp_grads]
found = {f"stage {stage}, {precision}, {name}": moved(stage, precision, states)
         for stage, precision in [(0, "fp32"), (1, "bf16"), (2, "fp32"), (2, "bf16"), (3, "fp32"), (3, "bf16")]
         for name, states in [("some", SOME), ("all", None)]}
found["stage 3, fp32, pageable"] = moved(3, "fp32", None, pins=False)
found["stage 2, bf16, the client's"] = moved(2, "bf16", SOME, of_client=True)
if dist.get_rank() == 0:
    print(json.dumps(found))
dist.barrier()
