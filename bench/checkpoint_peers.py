"""One rank of a peer's side of bench/checkpoint: checkpoint_peers.py PEER FOLDER STAGE [load]; PEER is deepspeed or dcp
(torch.distributed.checkpoint over FSDP2). Prints as checkpoint_ranks.cpp does."""

import os
import sys
import time

from harness.answers import answer_stream

answers = answer_stream()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

LAYERS, WIDTH = 24, 2140


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.02)

    def forward(self, x):
        return torch.tanh(x @ self.weight)


def seconds(work):
    """Of the slowest rank."""
    dist.barrier()
    begin = time.perf_counter()
    work()
    own = torch.tensor([time.perf_counter() - begin])
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    return own.item()


def say(what, value):
    if dist.get_rank() == 0:
        print(what, f"{value:.4f}", file=answers)


def drop_caches():
    os.sync()
    dist.barrier()
    if dist.get_rank() == 0 and os.geteuid() == 0:
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3\n")


def fsync_all(folder):
    for root, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(root, name), "rb") as file:
                os.fsync(file.fileno())


def deepspeed(folder, stage, loads):
    import deepspeed
    model = torch.nn.Sequential(*[Layer() for _ in range(LAYERS)])
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage},
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}}
    engine, *_ = deepspeed.initialize(model=model, config=config, dist_init_required=False)
    engine.backward(engine(torch.ones(1, WIDTH) * 0.1).square().mean())
    engine.step()
    if loads:
        drop_caches()
        say("load", seconds(lambda: engine.load_checkpoint(folder)))
        say("cached", seconds(lambda: engine.load_checkpoint(folder)))
        return
    engine.save_checkpoint(folder, tag="first")
    say("stop", seconds(lambda: engine.save_checkpoint(folder, tag="second")))

    def with_fsync():
        engine.save_checkpoint(folder, tag="third")
        dist.barrier()
        if dist.get_rank() == 0:
            fsync_all(os.path.join(folder, "third"))
    say("save", seconds(with_fsync))


def dcp(folder, stage, loads):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(*[Layer() for _ in range(LAYERS)])
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=stage == 3)
    fully_shard(model, mesh=mesh, reshard_after_forward=stage == 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model(torch.ones(1, WIDTH) * 0.1).square().mean().backward()
    optimizer.step()

    def state():
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}
    if loads:
        drop_caches()

        def load():
            loaded = state()
            checkpoint.load(loaded, checkpoint_id=folder)
            set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        say("load", seconds(load))
        say("cached", seconds(load))
        return
    group = dist.new_group(backend="gloo")
    checkpoint.async_save(state(), checkpoint_id=folder, process_group=group).result()
    pending = []
    say("stop", seconds(lambda: pending.append(checkpoint.async_save(state(), checkpoint_id=folder, process_group=group))))
    pending[0].result()

    def with_fsync():
        checkpoint.save(state(), checkpoint_id=folder)
        dist.barrier()
        if dist.get_rank() == 0:
            fsync_all(folder)
    say("save", seconds(with_fsync))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    {"deepspeed": deepspeed, "dcp": dcp}[sys.argv[1]](sys.argv[2], int(sys.argv[3]), len(sys.argv) > 4)
