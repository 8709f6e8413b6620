"""What an engine tells the programs that ask: run as several ranks by test_told.py."""

import contextlib
import io
import logging
import os
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus  # noqa: E402
from deepspeed.utils import logger  # noqa: E402
from named_runs import NamedRuns  # noqa: E402

run = NamedRuns()


def start(**blocks):
    return deepspeed.initialize(model=torch.nn.Linear(4, 1), config={
        "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, **blocks})[0]


@run
def gradient_norms():
    """[kind, value or text] before the first step and after each; the scale is too large for the first ones."""
    engine = start(fp16={"enabled": True, "initial_scale_power": 40, "hysteresis": 1})
    told = [engine.get_global_grad_norm()]
    while engine.global_steps - engine.skipped_steps < 2:
        engine.backward(engine(torch.ones(2, 4, dtype=torch.float16)).float().square().mean())
        engine.step()
        told.append(engine.get_global_grad_norm())
        assert told[-1] == engine.optimizer._global_grad_norm
    return {"kinds": [type(norm).__name__ for norm in told], "values": [str(float(norm)) for norm in told[1:]],
            "skipped": engine.skipped_steps}


class Two(torch.nn.Module):
    """A small layer and a large one, in units of their own, and a unit of both sizes."""

    def __init__(self):
        super().__init__()
        self.small = torch.nn.Linear(4, 12)
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.LayerNorm(12), torch.nn.Linear(12, 12)) for _ in range(2))

    def forward(self, x):
        x = self.small(x)
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()


LARGE = {"blocks.0.1.weight", "blocks.1.1.weight"}  # 144 elements


def readable(engine):
    """The names of the parameters that are whole, all of the values that the optimizer has, on every rank; a mistake otherwise."""
    dtype = next(engine.module.parameters()).dtype
    values = {name: deepspeed.utils.safe_get_full_fp32_param(parameter) for name, parameter in engine.module.named_parameters()}
    names = []
    for name, parameter in engine.module.named_parameters():
        assert (parameter.ds_status is ZeroParamStatus.AVAILABLE) == (parameter.numel() > 0) == parameter.ds_persist, name
        if parameter.numel():
            assert torch.equal(parameter, values[name].to(dtype)), name
            names.append(name)
    return names


@run
def small_parameters():
    """What is readable after initialize, steps, a load, and after somebody has written to the weights; by precision."""
    found = {}
    for precision in ({}, {"bf16": {"enabled": True}}):
        torch.manual_seed(0)
        zero = {"stage": 3, "stage3_param_persistence_threshold": 100}
        engine = deepspeed.initialize(model=Two(), config={
            "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}}, "zero_optimization": zero, **precision})[0]
        dtype = next(engine.module.parameters()).dtype
        told, folder = [readable(engine)], [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(folder)
        engine.save_checkpoint(folder[0])
        before = engine.module.blocks[0][0].bias.clone()
        for step in range(3):
            engine.backward(engine(torch.full((2, 4), dist.get_rank() + step + 1.0, dtype=dtype)))
            engine.step()
            told.append(readable(engine))
        assert not torch.equal(engine.module.blocks[0][0].bias, before)
        with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), modifier_rank=1):
            if dist.get_rank() == 1:
                engine.module.blocks[1][0].weight.data.fill_(3)
        told.append(readable(engine))
        assert engine.module.blocks[1][0].weight.eq(3).all()
        deepspeed.utils.safe_set_full_fp32_param(engine.module.small.bias, torch.full((12,), 2.0))
        told.append(readable(engine))
        assert engine.module.small.bias.eq(2).all()
        engine.load_checkpoint(folder[0])
        told.append(readable(engine))
        assert torch.equal(engine.module.blocks[0][0].bias, before)
        engine.destroy()
        assert all(names == told[0] for names in told)
        found[str(dtype)] = told[0]
    return found


@run
def small_parameters_within_limits():
    """What is readable where the thresholds are others."""
    return [readable(deepspeed.initialize(model=Two(), config={
        "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 3, **limits}})[0]) for limits in (
            {"stage3_param_persistence_threshold": 0}, {"stage3_param_persistence_threshold": 12},
            {"stage3_param_persistence_threshold": 100, "stage3_model_persistence_threshold": 60})]


def printed(work):
    """What `work` writes to standard output."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        work()
    return text.getvalue().splitlines()


def train(engine, micro_batches):
    for _ in range(micro_batches):
        engine.backward(engine(torch.ones(2, 4)))
        engine.step()


def two(stage, **blocks):
    return deepspeed.initialize(model=Two(), config={
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": stage}, **blocks})[0]


@run
def step_times():
    """The lines of two steps, with and without the breakdown of memory, and where nobody asks."""
    found = {}
    for name, blocks in {"times": {"wall_clock_breakdown": True}, "memory": {"wall_clock_breakdown": True, "memory_breakdown": True}, "none": {}}.items():
        engine = two(1, **blocks)
        found[name] = printed(lambda: train(engine, 4))
    return found


@run
def flops_of_a_step():
    """What is printed at steps 0 to 2 where step 1 is to be profiled, by stage; and into a file."""
    found = {}
    for stage in (0, 3):
        engine = two(stage, flops_profiler={"enabled": True, "profile_step": 1, "top_modules": 2})
        found[stage] = [printed(lambda: train(engine, 2)) for _ in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "of", "profile.txt")
        engine = two(2, flops_profiler={"enabled": True, "profile_step": 0, "output_file": path, "detailed": False})
        assert printed(lambda: train(engine, 2)) == []
        found["file"] = open(path).read().splitlines() if dist.get_rank() == 0 else []
    return found


@run
def monitors():
    """What is left of two steps by stage, in CSV files and in TensorBoard's, whose names and bytes are told; and who else was told."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    files = {"enabled": True, "output_path": folder[0]}
    engine = two(1, tensorboard={**files, "job_name": "board"}, csv_monitor={**files, "job_name": "table"}, wall_clock_breakdown=True)
    printed(lambda: train(engine, 4))
    again = two(1, csv_monitor={**files, "job_name": "table"})
    printed(lambda: train(again, 2))
    dist.barrier()
    table, board = os.path.join(folder[0], "table"), os.path.join(folder[0], "board")
    return {"enabled": engine.monitor.enabled, "csv": {name: open(os.path.join(table, name)).read() for name in sorted(os.listdir(table))},
            "board": {name: open(os.path.join(board, name), "rb").read().hex() for name in os.listdir(board)},
            "lr": engine.get_lr()[0]}


@run
def collectives():
    """[count, bytes of the message] of each operation in one step, by stage; none before it is on, and what prof_ops leaves."""
    from deepspeed import comm

    found = {}
    for stage in (1, 3):
        torch.manual_seed(0)
        zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
        engine = deepspeed.initialize(model=Two(), config={
            "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}}, "zero_optimization": zero,
            "comms_logger": {"enabled": True, "prof_all": stage < 3, "prof_ops": ["reduce_scatter_tensor"]}})[0]
        comm.reset_log()
        train(engine, 1)
        found[stage] = {name: {size: record[0] for size, record in sizes.items()} for name, sizes in comm.comms_logger.get_raw_data().items()}
        times = [spent for sizes in comm.comms_logger.get_raw_data().values() for record in sizes.values() for spent in record[1]]
        assert times and all(spent > 0 for spent in times)
    table = printed(comm.log_summary)
    comm.reset_log()
    comm.configure(enabled=False)
    train(engine, 1)
    return {"by stage": found, "table": table, "off": comm.has_comm_data()}


@run
def model_profiles():
    """(operations, MACs, parameters) of functions of deepspeed.profiling.flops_profiler."""
    from deepspeed.profiling.flops_profiler import get_model_profile

    model, numbers, lines = Two(), [], []
    lines = printed(lambda: numbers.append(get_model_profile(model, input_shape=(2, 4), as_string=False)))
    text = get_model_profile(model, args=[torch.ones(2, 4)], print_profile=False)
    return {"numbers": numbers[0], "text": text, "lines": lines, "trains": model.training}


def logged(work, level, logger=logger):
    """What the logger writes meanwhile, DeepSpeed's or another."""
    text = io.StringIO()
    handler, before = logging.StreamHandler(text), logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    work()
    logger.setLevel(before)
    logger.removeHandler(handler)
    return text.getvalue()


@run
def version():
    """The lines that the logger writes at initialize, where a program listens."""
    return {"quiet": logged(start, "WARNING"), "said": logged(start, "INFO")}


@run
def schedule_without_optimizer():
    """What is said of it at initialize, the schedule that there is, and a loss."""
    def evaluate():
        engine, _, _, schedule = deepspeed.initialize(model=torch.nn.Linear(4, 1), config={
            "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.1, "warmup_num_steps": 10}}})
        found.extend([schedule, engine.eval()(torch.ones(2, 4)).shape])

    found = []
    return {"said": logged(evaluate, "WARNING", logging.getLogger("tessera")), "found": found}


@run
def no_sync():
    """What is said of two blocks, by stage."""
    def twice(engine):
        for _ in range(2):
            with engine.no_sync():
                engine.backward(engine(torch.ones(2, 4)).square().mean())

    return {stage: logged(lambda: twice(start(zero_optimization={"stage": stage})), "WARNING", logging.getLogger("tessera")) for stage in range(4)}


if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    run.print_results(sys.argv[1:])
