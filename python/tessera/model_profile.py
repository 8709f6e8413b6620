"""What a forward costs, by module: multiply-accumulate operations, floating-point operations, parameters and time.

torch counts the operations (torch.utils.flop_counter): those of matrix products, convolutions and attention, two floating-point
operations for each multiply-accumulate. What a module does includes what the modules inside it do.
"""

import time
from collections import Counter
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count


@dataclass
class Cost:
    name: str
    kind: str
    depth: int
    params: int
    flops: int = 0
    seconds: float = 0.0

    @property
    def macs(self):
        return self.flops // 2


class ModelProfile:
    """Between start() and stop(), every forward of the model is counted; `costs`: of each module, in the model's order. `ignored`: classes
    of modules that are not told of by themselves."""

    def __init__(self, model, ignored=()):
        self._model, self._ignored = model, tuple(ignored or ())
        self._hooks, self._counter = [], None
        self.reset()

    def reset(self):
        self.costs = {module: Cost(name, type(module).__name__, name.count(".") + 1 if name else 0, params_of(module))
                      for name, module in self._model.named_modules() if not isinstance(module, self._ignored) or not name}

    @property
    def total(self):
        return self.costs[self._model]

    def start(self):
        with FlopCounterMode(display=False):  # what torch loads for the first operation that it counts takes seconds
            torch.zeros(1, 1) @ torch.zeros(1, 1)
        self._counter = FlopCounterMode(display=False, custom_mapping={
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_on_cpu})
        self._counter.__enter__()
        for module, cost in self.costs.items():
            entered = []

            def enter(module, inputs, entered=entered):
                _wait(module)
                entered.append((self._counter.get_total_flops(), time.perf_counter()))

            def leave(module, inputs, output, entered=entered, cost=cost):
                _wait(module)
                flops, begun = entered.pop()
                if not entered:  # not inside of itself
                    cost.flops += self._counter.get_total_flops() - flops
                    cost.seconds += time.perf_counter() - begun

            self._hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave, always_call=True)]

    def stop(self):
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._counter is not None:
            self._counter.__exit__(None, None, None)
            self._counter = None


def _attention_on_cpu(query, key, value, *_, out_shape=None, **__):
    """Of the shapes; torch's table has the operators of GPUs alone."""
    return sdpa_flop_count(query, key, value)


def params_of(module):
    """Elements of its parameters, whole also where this rank has a part."""
    return sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in module.parameters())


def _wait(module):
    parameter = next(module.parameters(), None)
    if parameter is not None and parameter.is_cuda:
        torch.cuda.synchronize(parameter.device)


# ---- as text

_UNITS = {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3, "": 1, "m": 1e-3, "u": 1e-6}


def number_text(value, units=None, precision=2):
    """"1.5 G": with the unit that leaves a number of at least 1, or the given one."""
    if units is None:
        units = "" if value == 0 else next((unit for unit, size in _UNITS.items() if value >= size), "u")
    return f"{round(value / _UNITS.get(units, 1), precision):g} {units}"


def params_text(value, units=None, precision=2):
    """"1.5 B", as models are named."""
    return number_text(value, units.replace("B", "G") if units else units, precision).replace("G", "B").strip()


def share(part, whole):
    return f"{100 * part / whole:.1f}%" if whole else "-"


def summary_lines(profile, more):
    """`more`: {what: text} of what is known besides."""
    total = profile.total
    rows = {"parameters": params_text(total.params), "forward MACs": f"{number_text(total.macs)}MACs",
            "forward operations (2 a MAC)": f"{number_text(total.flops)}FLOPs", "forward time": f"{number_text(total.seconds)}s",
            "forward speed": f"{number_text(total.flops / total.seconds if total.seconds else 0)}FLOPS", **more}
    return [f"{what + ':':<40} {text}" for what, text in rows.items()]


def aggregated_lines(profile, module_depth=-1, top_modules=1):
    """The classes with the most parameters, MACs and time among the modules of one depth; -1: of each."""
    depths = {}
    for cost in profile.costs.values():
        depths.setdefault(cost.depth, []).append(cost)
    lines = []
    for depth in [max(depths)] if module_depth > max(depths) else sorted(depths) if module_depth < 0 else [module_depth]:
        lines.append(f"depth {depth}:")
        for what, of, text in (("params", lambda cost: cost.params, params_text), ("MACs", lambda cost: cost.macs, number_text),
                               ("time in s", lambda cost: cost.seconds, number_text)):
            sums = Counter()
            for cost in depths[depth]:
                sums[cost.kind] += of(cost)
            lines.append(f"    {what:<10}" + ", ".join(f"{kind} {text(value)}" for kind, value in sums.most_common(top_modules)))
    return lines


def detailed_lines(profile):
    """A line a module."""
    total = profile.total
    lines = [f"{'module':<48} {'params':>16} {'MACs':>20} {'time':>18}  speed"]
    for cost in profile.costs.values():
        name = "  " * cost.depth + f"{cost.name.rpartition('.')[2] or 'model'} ({cost.kind})"
        speed = f"{number_text(cost.flops / cost.seconds)}FLOPS" if cost.seconds and cost.flops else "-"
        lines.append(f"{name:<48} {params_text(cost.params) + ' ' + share(cost.params, total.params):>16} "
                     f"{number_text(cost.macs) + ' ' + share(cost.macs, total.macs):>20} "
                     f"{number_text(cost.seconds) + 's ' + share(cost.seconds, total.seconds):>18}  {speed}")
    return lines
