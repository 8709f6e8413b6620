"""Pipelines' checkpoints by layer, as ranks of whichever package `deepspeed` this Python finds. Prints JSON.

    stock_pipeline_runs.py record FOLDER               with DeepSpeed: trains and saves every case; {case: the losses that follow}
    stock_pipeline_runs.py load FOLDER CASE STAGES     goes on from FOLDER/CASE; the losses
    stock_pipeline_runs.py read FOLDER                 the mean loss of weights that FOLDER has by layer
    stock_pipeline_runs.py layers FOLDER               with ours: saves weights by layer, and reads them at other stages
    stock_pipeline_runs.py compare FOLDER STAGES…      with ours: every case over so many stages, {case: {stages: what was found}}
"""

import json
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine  # noqa: E402

from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology  # noqa: E402

from misuse_runs import said  # noqa: E402
from recorded_pipeline import AFTER, BEFORE, CASES, batches, losses, module, optimizer_of, settings  # noqa: E402


def start(name, stages, zero_stage=None):
    _, recorded, more = CASES[name]
    model = module(stages)
    config = settings(recorded if zero_stage is None else zero_stage, more)
    return deepspeed.initialize(model=model, optimizer=optimizer_of(model), config=config)[0]


def record(folder):
    found = {}
    for name, (stages, _, _) in CASES.items():
        engine = start(name, stages)
        losses(engine, 0, BEFORE)
        engine.save_checkpoint(str(Path(folder) / name), client_state={"epoch": 3})
        keep(engine, Path(folder) / f"{name}.expected.pt")
        found[name] = losses(engine, BEFORE, AFTER)
    return found


def keep(engine, path):
    """What DeepSpeed itself says that the weights and the moments are, of all stages."""
    from deepspeed.utils import lazy_init_hp_params_optimizer_state, safe_get_full_fp32_param, safe_get_full_optimizer_state

    if engine.zero_optimization_stage():  # the states began to exist after DeepSpeed looked
        for params, flat in zip(engine.optimizer.bit16_groups, engine.optimizer.single_partition_of_fp32_groups):
            lazy_init_hp_params_optimizer_state(params, flat, engine.optimizer.optimizer.state)
    expected = {"weight": {}, "exp_avg": {}, "exp_avg_sq": {}}
    for key, value in engine.module.named_parameters():
        if not value.requires_grad:
            full = {"weight": value}
        elif engine.zero_optimization_stage():
            full = {"weight": safe_get_full_fp32_param(value),
                    **{kind: safe_get_full_optimizer_state(value, kind) for kind in ("exp_avg", "exp_avg_sq")}}
        else:
            full = {"weight": value, **{kind: engine.optimizer.state[value][kind] for kind in ("exp_avg", "exp_avg_sq")}}
        for kind, tensor in full.items():
            expected[kind][key] = tensor.detach().reshape(value.shape).clone()
    of_ranks = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, expected)
    if dist.get_rank() == 0:
        torch.save({kind: {key: value for each in of_ranks for key, value in each[kind].items()} for kind in expected}, path)


def loaded(folder, name, stages, zero_stage=None):
    engine = start(name, int(stages), zero_stage)
    with torch.no_grad():  # so that nothing but the checkpoint can make the losses equal
        for value in [*engine.module.parameters(), *engine.module.buffers()] if engine.zero_optimization_stage() < 3 else []:
            value.zero_()
    path, client = engine.load_checkpoint(str(Path(folder) / name))
    assert path is not None and client["epoch"] == 3 and engine.global_steps == BEFORE
    return engine


def load(folder, name, stages):
    return losses(loaded(folder, name, stages), BEFORE, AFTER)


def compare(folder, *stages):
    """Under "differs" what is not DeepSpeed's own to the bit on any rank."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    found = {}
    for name in CASES:
        expected = torch.load(f"{folder}/{name}.expected.pt")
        found[name] = {}
        for count, zero_stage in zip(stages, (1, 0, 3)):
            engine, differs = loaded(folder, name, count, zero_stage), []
            for key, value in engine.module.named_parameters():
                with deepspeed.zero.GatheredParameters([value]):
                    full = {"weight": value.detach().clone()}
                if value.requires_grad:
                    full = {"weight": safe_get_full_fp32_param(value),
                            **{kind: safe_get_full_optimizer_state(value, kind) for kind in ("exp_avg", "exp_avg_sq")}}
                differs += [f"{kind} {key}" for kind, tensor in full.items() if not torch.equal(tensor, expected[kind][key])]
            differs += [key for key, value in engine.module.named_buffers() if value.tolist() != [0, 1, 2]]
            of_ranks = [None] * dist.get_world_size()
            dist.all_gather_object(of_ranks, [differs, [key for key, _ in engine.module.named_parameters()]])
            found[name][count] = {"differs": [each for differs, _ in of_ranks for each in differs],
                                  "compared": len({key for _, keys in of_ranks for key in keys}), "of": len(expected["weight"]),
                                  "losses": losses(engine, BEFORE, AFTER)}
            engine.destroy()
    return found


def read(folder):
    engine = start("2_stages_zero1", 2)
    engine.module.load_state_dir(folder, TorchCheckpointEngine())
    return float(engine.eval_batch(batches(engine, 9, 1)))


def layers(folder):
    """The loss of the weights that were saved and as others read them, how their masters differ, and what was refused."""
    from deepspeed.utils import safe_get_full_fp32_param

    engine = start("2_stages_zero1", 2, 3)
    losses(engine, 0, BEFORE)
    engine.module.save_state_dict(folder, engine.checkpoint_engine)
    engine.module.save_state_dict(f"{folder}/trained", engine.checkpoint_engine, exclude_frozen_params=True)
    state = [engine.consolidated_state_dict()]
    dist.broadcast_object_list(state, 0)
    torch.save(state[0], f"{folder}/whole.pt") if dist.get_rank() == 0 else None
    found = {"loss": float(engine.eval_batch(batches(engine, 9, 1))), "others": []}
    for stages, zero_stage in ((4, 1), (1, 3), (2, 0)):
        other = start("2_stages_zero1", stages, zero_stage)
        before = float(other.eval_batch(batches(other, 9, 1)))
        other.module.load_state_dir(folder, other.checkpoint_engine)
        differs = [key for key, value in other.module.named_parameters()
                   if value.requires_grad and not torch.equal(safe_get_full_fp32_param(value), state[0][key])]
        of_ranks = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, differs)
        found["others"].append([before, float(other.eval_batch(batches(other, 9, 1))), sum(of_ranks, [])])
    names = [engine.module.ckpt_layer_path_list(folder, 0), engine.module.ckpt_layer_path(folder, 0)]
    found["names"] = [[Path(path).name for path in names[0]], Path(names[1]).name]
    placed = module(2, PipeModelDataParallelTopology(num_pp=2, num_mp=1, num_dp=2))  # as GPT-NeoX has it
    placed.load_state_dir(folder, engine.checkpoint_engine)
    placed.save_state_dict(f"{folder}/placed", engine.checkpoint_engine)
    found["no files"] = said(lambda: engine.module.load_state_dir(f"{folder}/nowhere", engine.checkpoint_engine))
    return found


if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    result = {"record": record, "load": load, "compare": compare, "read": read, "layers": layers}[sys.argv[1]](*sys.argv[2:])
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
