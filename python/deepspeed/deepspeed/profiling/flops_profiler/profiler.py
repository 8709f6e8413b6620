"""FlopsProfiler and get_model_profile: what a forward costs, by module."""

import os
import sys

import torch

from deepspeed import _names
from tessera import model_profile
from tessera.model_profile import number_text, params_text

_names.serve(__name__)
DEFAULT_PRECISION = 2


class FlopsProfiler:
    """Of a model, or of the engine's; recompute_fwd_factor: how much of a forward backward computes again."""

    def __init__(self, model, ds_engine=None, recompute_fwd_factor=0.0):
        self.model, self.ds_engine, self.recompute_fwd_factor = model, ds_engine, recompute_fwd_factor
        self.started = False
        self._profile = None

    def start_profile(self, ignore_list=None):
        """Counts the forwards from now on."""
        if self.started:
            self.stop_profile()
        self._profile = model_profile.ModelProfile(self.model, ignore_list)
        self._profile.start()
        self.started = True

    def stop_profile(self):
        """What was counted stays."""
        if self._profile is not None:
            self._profile.stop()

    def reset_profile(self):
        if self._profile is not None:
            self._profile.reset()

    def end_profile(self):
        self.stop_profile()
        self.started, self._profile = False, None

    def _total(self):
        return self._profile.total if self._profile is not None else model_profile.Cost("", "", 0, model_profile.params_of(self.model))

    def get_total_flops(self, as_string=False):
        return number_to_string(self._total().flops) if as_string else self._total().flops

    def get_total_macs(self, as_string=False):
        return macs_to_string(self._total().macs) if as_string else self._total().macs

    def get_total_duration(self, as_string=False):
        return duration_to_string(self._total().seconds) if as_string else self._total().seconds

    def get_total_params(self, as_string=False):
        return params_to_string(self._total().params) if as_string else self._total().params

    def print_model_profile(self, profile_step=1, module_depth=-1, top_modules=1, detailed=True, output_file=None):
        """To standard output, or into the file."""
        if not self.started:
            return
        lines = [f"Flops profile of step {profile_step}", *model_profile.summary_lines(self._profile, self._of_engine()), "",
                 *model_profile.aggregated_lines(self._profile, module_depth, top_modules)]
        lines += ["", *model_profile.detailed_lines(self._profile)] if detailed else []
        _write(lines, output_file)

    def print_model_aggregated_profile(self, module_depth=-1, top_modules=1):
        if self.started:
            _write(model_profile.aggregated_lines(self._profile, module_depth, top_modules), None)

    def _of_engine(self):
        engine, total = self.ds_engine, self._total()
        if engine is None:
            return {}
        known = {"ranks": str(engine.world_size), "micro batch of a rank": str(engine.train_micro_batch_size_per_gpu())}
        times = engine.step_times.last
        if "bwd" in times:
            factor = 2 + self.recompute_fwd_factor
            known["backward time"] = duration_to_string(times["bwd"] / 1e3)
            known[f"backward speed ({factor:g} forwards)"] = flops_to_string(factor * total.flops / (times["bwd"] / 1e3))
        if "step" in times:
            known["step time"] = duration_to_string(times["step"] / 1e3)
        return known


def _write(lines, output_file):
    text = "\n".join(lines) + "\n"
    if output_file:
        os.makedirs(os.path.dirname(os.path.abspath(output_file)), exist_ok=True)
        with open(output_file, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        sys.stdout.write(text)
        sys.stdout.flush()


def get_model_profile(model, input_shape=None, args=(), kwargs=None, print_profile=True, detailed=True, module_depth=-1, top_modules=1,
                      warm_up=1, as_string=True, output_file=None, ignore_modules=None, mode="forward"):
    """(operations, MACs, parameters) of model(*args, **kwargs), or of its generate; input_shape: of the one tensor that it takes. The model
    is in evaluation mode afterwards."""
    if not isinstance(model, torch.nn.Module):
        raise AssertionError("model must be a PyTorch module")
    if mode not in ("forward", "generate"):
        raise ValueError(f"mode is {mode!r}: use 'forward' or 'generate'")
    kwargs = kwargs or {}
    model.eval()
    if input_shape is not None:
        if not isinstance(input_shape, tuple) or not input_shape:
            raise AssertionError("input_shape must be a tuple of at least one number")
        first = next(model.parameters(), torch.empty(0))
        args = [torch.ones(input_shape, dtype=first.dtype, device=first.device)]
    if not args and not kwargs:
        raise AssertionError("args and/or kwargs must be specified if input_shape is None")
    call = model if mode == "forward" else model.generate
    profiler = FlopsProfiler(model)
    for _ in range(warm_up):
        call(*args, **kwargs)
    profiler.start_profile(ignore_modules)
    try:
        call(*args, **kwargs)
    finally:
        profiler.stop_profile()
    flops, macs, params = profiler.get_total_flops(), profiler.get_total_macs(), profiler.get_total_params()
    if print_profile:
        profiler.print_model_profile(warm_up, module_depth, top_modules, detailed, output_file)
    profiler.end_profile()
    return (number_to_string(flops), macs_to_string(macs), params_to_string(params)) if as_string else (flops, macs, params)


number_to_string, params_to_string = number_text, params_text


def macs_to_string(macs, units=None, precision=DEFAULT_PRECISION):
    return f"{number_text(macs, units, precision)}MACs"


def flops_to_string(flops, units=None, precision=DEFAULT_PRECISION):
    return f"{number_text(flops, units, precision)}FLOPS"


def bytes_to_string(b, units=None, precision=DEFAULT_PRECISION):
    return f"{number_text(b, units, precision)}B"


def duration_to_string(duration, units=None, precision=DEFAULT_PRECISION):
    return f"{number_text(duration, units, precision)}s"
