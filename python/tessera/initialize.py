"""initialize(): from a model and a configuration to an engine, with DeepSpeed's arguments."""

import json
import logging

import torch

from tessera import _core, expert_parallel, expert_tensors, kept_in_fp32, optimizers, parallelism, partition_config, schedules, shared_sequences, tensor_parallel
from tessera.config_keys import as_read
from tessera.config_source import chosen_source, place_of
from tessera.config_text import read_config
from tessera.engine import Engine
from tessera.error_report import made
from tessera.mesh import mesh_of, mesh_of_neighbours, tensor_ranks_of
from tessera.optimizers import TorchStep
from tessera.world import world_of
from tessera.zero_optimizer import with_live_groups

logger = logging.getLogger("tessera")
# What only looks on: a program that asks for it trains all the same.
_OBSERVERS = ("wall_clock_breakdown", "memory_breakdown", "dump_state", "flops_profiler", "comms_logger", "tensorboard",
              "csv_monitor", "wandb", "comet", "monitor_config")
_PLACEHOLDER = {"type": "SGD", "params": {"lr": 0.0}}  # for an engine that never steps


def initialize(args=None, model=None, optimizer=None, model_parameters=None, training_data=None, lr_scheduler=None,
               distributed_port=29500, mpu=None, dist_init_required=None, collate_fn=None, config=None, mesh_param=None,
               config_params=None, device=None, mesh=None, placements=tensor_parallel.placements, engine_class=Engine):
    """Collective. Returns (engine, optimizer, dataloader, lr_scheduler); the last three may be None.

    config: a dict, a path or base64 of JSON; or args.deepspeed_config. optimizer: a torch.optim.Optimizer, or a function
    of the parameters that returns one; it wins over the configuration's. lr_scheduler: a scheduler, or a function of
    the optimizer that returns one, likewise. model_parameters: parameters or parameter groups to train, for the configuration's
    optimizer. device: where the model trains, to which it is moved; None: where its first parameter is. mesh: a DeviceMesh
    or groups by axis (see tessera/mesh.py) where ranks differ in more than their data; placements: a function of a
    parameter's name and the parameter that returns {axis: dimension} over which ranks hold equal parts of it, or {axis: [coordinates]}
    of those that hold it.
    """
    if model is None:
        raise AssertionError("initialize needs a model: model=<torch.nn.Module>")
    source = chosen_source(args, config, config_params)
    raw = read_config(source)
    _refuse_sampling_without_a_loader(raw, place_of(source), engine_class)
    parallelism.refuse_model_parallelism(model, mpu)
    shared_by = tensor_parallel.size_for(model, raw)
    expert_ranks = expert_tensors.size_for(raw)
    if expert_ranks > 1:
        expert_tensors.refuse_beside({
            "a PipelineModule": parallelism.unit_of(model) is not None, tensor_parallel.KEY: shared_by > 1,
            "sequence_parallel_size": shared_sequences.ranks_of_a_sequence(None, None, raw) > 1,
            expert_parallel.WHERE: expert_parallel.ranks_of_experts(model) > 1})
    if parallelism.unit_of(model) is not None:
        mesh, placements = parallelism.mesh_of_pipeline(model, runs_pipelines=hasattr(engine_class, "train_batch"))
    elif shared_by > 1:
        mesh = mesh_of_neighbours("tp", shared_by, "share each layer", tensor_parallel.KEY, {"mpu": mpu, "mesh": mesh})
        tensor_parallel.cut(model, mesh, partition_config.plan_of(model, raw))
    elif expert_ranks > 1:
        mesh = mesh_of_neighbours("ep", expert_ranks, "share out experts", expert_tensors.KEY, {"mpu": mpu, "mesh": mesh, "mesh_param": mesh_param})
        expert_tensors.share(model, mesh, expert_tensors.block_of(raw))
    elif (layer_ranks := expert_parallel.ranks_of_experts(model)) > 1:
        mesh = mesh_of_neighbours("ep", layer_ranks, "share out experts", expert_parallel.WHERE, {"mpu": mpu, "mesh": mesh, "mesh_param": mesh_param})
        expert_parallel.share(model, mesh)
        placements = expert_parallel.placements_on(mesh)
    elif mesh is None and tensor_ranks_of(mpu) > 1:
        mesh = parallelism.mesh_of_tensor_ranks(mpu, shared_sequences.ranks_of_a_sequence(mpu, mesh_param, raw))
        tensor_parallel.note_parts(model, mesh, "the argument mpu of initialize")
    elif (sharing := shared_sequences.ranks_of_a_sequence(mpu, mesh_param, raw)) > 1:
        mesh = shared_sequences.mesh_of(sharing, mpu)
    else:
        mesh = _core.Mesh.data_parallel(world_of(_data_parallel_group(mpu))) if mesh is None else mesh_of(mesh)
    if mpu is not None and placements is tensor_parallel.placements:
        placements = tensor_parallel.placements_on(mesh)
    parallelism.check_mesh_param(mesh_param, mesh.data.size)
    parallelism.refuse_spread_experts(model, mesh.data)

    values = _values_of_the_engine(raw, place_of(source), engine_class.observes)
    if shared_by > 1:
        _count_data_ranks(values, mesh)
    if mesh.world.rank == 0:
        _warn_of_observers(raw, engine_class.observes)
        _warn_of_double_precision(model)
    optimizer = _optimizer(optimizer, model, model_parameters, raw, place_of(source), mesh.world)
    block = _PLACEHOLDER if optimizer is None else optimizers.config_block_of(optimizer)
    torch_step = TorchStep(optimizer) if block is None else None
    if block is not None:
        values["optimizer"] = block
    resolved = _core.Config(values, place=place_of(source), data_parallel_size=mesh.batch.size)

    engine = engine_class(model, resolved, raw, optimizer, torch_step, mesh, placements, device)
    if shared_by > 1:
        tensor_parallel.watch_first_batch(model, mesh)
    engine.lr_scheduler = _scheduler(lr_scheduler, engine, raw.get("scheduler"), place_of(source), mesh.world)
    if training_data is not None:
        engine.take_training_data(training_data, collate_fn)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _values_of_the_engine(raw, place, observes):
    """The configuration without what is decided here."""
    taken = {"optimizer", "scheduler", *_OBSERVERS} - observes
    values = {key: value for key, value in raw.items() if key not in taken}
    safe_modules = _taken_out(values, "torch_autocast", "lower_precision_safe_modules")
    if safe_modules and values["torch_autocast"].get("enabled") is True:
        raise made(_core.ConfigError,
                   "'torch_autocast.lower_precision_safe_modules' chooses whose gradients are communicated in the dtype of "
                   "autocast: not supported yet", place,
                   "take it out: gradients are communicated in fp32, or all in 'communication_data_type'")
    if values.pop("sequence_parallel_size", 1) != 1:
        values.pop("data_parallel_size", None)
    for key in ("autotp_size", "tp", "tensor_parallel", "partition_config", "preset_model"):  # the mesh and the cut model have them
        _taken_out(values, "tensor_parallel", key)
    kept_in_fp32.setting_of(raw, place)
    _taken_out(values, "data_types", "keep_in_fp32_modules")
    return values


def _refuse_sampling_without_a_loader(raw, place, engine_class):
    """Curriculum and dynamic batching act in the loaders that DeepSpeed's engine makes."""
    block = raw.get("data_efficiency")
    sampling = block.get("data_sampling") if isinstance(block, dict) else None
    for key in ("curriculum_learning", "dynamic_batching"):
        chosen = sampling.get(key) if isinstance(sampling, dict) else None
        if isinstance(chosen, dict) and chosen.get("enabled") is True and not hasattr(engine_class, "deepspeed_io"):
            raise made(_core.ConfigError, f"'data_efficiency.data_sampling.{key}.enabled' is true, and this engine makes no loaders of data", place,
                       "call deepspeed.initialize, or set it to false")


def _count_data_ranks(values, mesh):
    """DeepSpeed, and Accelerate's "auto", count ranks that share a model in train_batch_size as if each had data of its own."""
    given = [values.get(key) for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")]
    if all(isinstance(size, int) for size in given) and given[0] == given[1] * given[2] * mesh.world.size:
        values["train_batch_size"] = given[1] * given[2] * mesh.batch.size
        if mesh.world.rank == 0:
            logger.info("train_batch_size %d counts every rank, and %d share a model and its data: a step has %d samples", given[0],
                        mesh.world.size // mesh.batch.size, values["train_batch_size"])


def _taken_out(values, block, key):
    """The value of the key, if it is there; `values` has a copy of the block without it then."""
    if not isinstance(values.get(block), dict) or key not in values[block]:
        return None
    values[block] = dict(values[block])
    return values[block].pop(key)


def _warn_of_observers(raw, observes):
    for key in _OBSERVERS:
        if key in observes:
            continue
        block = raw.get(key)
        if block is True or (isinstance(block, dict) and block.get("enabled")):
            logger.warning("'%s' is not in Tessera yet: training continues without it", key)


def _data_parallel_group(mpu):
    if mpu is None:
        return None
    if hasattr(mpu, "get_data_parallel_group"):
        return mpu.get_data_parallel_group()
    return None


def _optimizer(given, model, model_parameters, raw, place, world):
    if callable(given) and not isinstance(given, torch.optim.Optimizer):
        given = given(list(model_parameters) if model_parameters is not None else list(model.parameters()))
    block = raw.get("optimizer")
    if given is None and block is None:
        return None
    if given is not None and block is not None and world.rank == 0:
        logger.warning("%s: 'optimizer' is not used, since initialize was given one (%s)", place, type(given).__name__)
    if given is None:
        if str(block.get("type")).lower() == "muon":
            optimizers.tag_for_muon(model)
        trained = list(model_parameters) if model_parameters is not None else None
        if not trained:
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        parallelism.refuse_empty_stage(model, trained, world)
        if not trained:
            raise made(_core.UsageError, "no parameter of the model can be trained: none has requires_grad", "initialize",
                       "let some train, or leave the optimizer out of the configuration: such an engine evaluates")
        zero = raw.get("zero_optimization")
        offload = (zero.get("offload_optimizer") if isinstance(zero, dict) else None) or {}
        if not isinstance(offload, dict):
            raise made(_core.ConfigError, f"'zero_optimization.offload_optimizer' is {json.dumps(offload)}", place, 'use an object: {"device": "cpu"}')
        block = as_read("optimizer", block, place, speaks=world.rank == 0)
        given = optimizers.from_config(block, trained, offloaded=offload.get("device") in ("cpu", "nvme"))
    if isinstance(given, torch.optim.LBFGS):
        raise made(_core.ConfigError, "LBFGS runs the model inside of its step(), which an engine cannot do", place if block else "initialize",
                   "choose an optimizer whose step() takes no closure")
    return with_live_groups(given, {id(parameter) for parameter in model.parameters()})


def _warn_of_double_precision(model):
    wide = [name for name, parameter in model.named_parameters() if parameter.dtype == torch.float64]
    if wide:
        what = f"the parameter '{wide[0]}' is" if len(wide) == 1 else f"{len(wide)} parameters, such as '{wide[0]}', are"
        logger.warning("%s in float64: trained, computed with and saved in the dtype of the configuration, at most float32", what)


def _scheduler(given, engine, block, place, world):
    configured = bool(block and block.get("type"))
    if engine.basic_optimizer is None:  # nothing to schedule: the Trainer keeps the block in evaluations, whose optimizer it takes out
        if (given is not None or configured) and world.rank == 0:
            logger.warning("%s: %s is not used, since there is no optimizer", place, "'scheduler'" if given is None else "the lr_scheduler of initialize")
        return None
    if given is not None and configured and world.rank == 0:
        logger.warning("%s: 'scheduler' is not used, since initialize was given an lr_scheduler", place)
    if given is None:
        if not configured:
            return None
        lr = engine.basic_optimizer.param_groups[0]["lr"]
        block = as_read("scheduler", block, place, speaks=world.rank == 0, optimizer={"type": "AdamW", "params": {"lr": float(lr)}})
        return schedules.from_config(block, engine.basic_optimizer)
    if callable(given) and not hasattr(given, "step"):
        return given(engine.basic_optimizer)
    return given
