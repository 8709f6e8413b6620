"""Stage 3 and tessera.lazy_publish from Python: module hooks that tell the engine when a forward begins and ends, and parameters that
are gathered when a module reads another one's, or is given one by it.

The hooks call the engine's before_forward and after_forward, and say that the unit's parameters are whole meanwhile, so that Python is
called for each unit and not for each parameter; everything in backward is done by hooks that the engine itself puts on the outputs. A
module of which all is whole at all times has no hooks.
"""

import functools
import weakref

import torch

from tessera.nested_tensors import tensors_in
from tessera.zero import external_key, external_parameters, is_partitioned


class _Parameters(dict):
    """A module's _parameters, while its unit's own forward runs: all are whole, and reading one costs what it costs in a dict."""

    __slots__ = ("_core",)

    def __reduce__(self):
        return dict, (dict(self),)

    def __deepcopy__(self, memo):
        import copy

        return {key: copy.deepcopy(value, memo) for key, value in self.items()}


class _WatchedParameters(_Parameters):
    """At any other time. Reading a parameter that is not gathered, in the forward of a module that does not own it, makes it one that this
    module uses, now and from then on."""

    __slots__ = ()

    def __getitem__(self, name):
        parameter = super().__getitem__(name)
        if parameter is not None and parameter.numel() == 0:
            core = self._core()
            if core is not None:
                gather_for_running_module(core, parameter)
        return parameter


def gather_for_running_module(core, parameter):
    running = core.running_module()
    place = core.place_of(parameter)
    if running is not None and place is not None:
        core.also_uses(running, place[0])


class ForwardHooks:
    """On a model while attached. `modules`: by number in the engine's tree; `core` is held weakly."""

    def __init__(self, core, modules, watches_inputs):
        self._core = weakref.ref(core)
        self._modules = modules
        self._watches_inputs = watches_inputs
        self.handles = []
        self._announcing = {id(each) for each in modules}
        self._announced = set()  # those of them that have the engine's hooks
        self.refuses = None  # a function that raises, while there is nothing to compute with
        self.attach()

    def attach(self):
        """Anew, whatever was taken away since."""
        self.remove()
        for module in self._modules[0].modules():
            module.__dict__.setdefault("_external_params", {})
            module.ds_external_parameters = functools.partial(external_parameters, module)
        for number in range(len(self._modules)):
            if number == 0 or self._core().wants_announcement(number):
                self.announce(number)
        self._watch_returned_parameters(self._modules[0])

    def announce(self, number):
        """The engine is told of its forwards from now on."""
        module = self._modules[number]
        if id(module) in self._announced:
            return
        self._announced.add(id(module))
        before, after = self._hooks(number, [self._watched(each) for each in _inside(module, self._announcing) if each._parameters])
        self.handles.append(module.register_forward_pre_hook(before, prepend=True, with_kwargs=True))
        self.handles.append(module.register_forward_hook(after, always_call=True))

    def _watched(self, module):
        parameters = _WatchedParameters(module._parameters)
        parameters._core = self._core
        module._parameters = parameters
        return parameters

    def _hooks(self, number, parameters):
        """`parameters`: of the modules that run between these hooks and have none of their own."""
        core_ref, watches_inputs = self._core, self._watches_inputs
        entered = []  # whether before_forward was reached; a forward hook runs after a failed pre-hook, too

        def before(module, args, kwargs):
            core = core_ref()
            if core is None:
                return
            if self.refuses is not None:
                self.refuses()
            wants = watches_inputs and torch.is_grad_enabled()
            core.before_forward(number, list(tensors_in((args, kwargs))) if wants else [])
            entered.append(True)
            for each in parameters:
                each.__class__ = _Parameters

        def after(module, args, output):
            core = core_ref()
            if core is None or not entered:
                return
            entered.pop()
            for each in parameters:
                each.__class__ = _WatchedParameters
            core.after_forward(number, list(tensors_in(output)) if torch.is_grad_enabled() else [])

        return before, after

    def _watch_returned_parameters(self, module):
        """A parameter that a module returns is used by the module around it. Inside units nothing is released, nor by a module that is not
        announced."""
        for child in module.children():
            if id(child) in self._announcing and id(child) not in self._announced:
                continue
            self.handles.append(child.register_forward_hook(functools.partial(self._returned, weakref.ref(module))))
            if id(child) not in self._announcing:
                self._watch_returned_parameters(child)

    def _returned(self, parent, module, args, output):
        core = self._core()
        if core is None:
            return
        for tensor in tensors_in(output):
            if is_partitioned(tensor):
                key = external_key(tensor)
                module._external_params.pop(key, None)
                parent()._external_params[key] = tensor
                gather_for_running_module(core, tensor)

    def remove(self):
        for handle in self.handles:
            handle.remove()
        self.handles = []
        self._announced = set()
        for module in self._modules[0].modules():
            module.__dict__.pop("ds_external_parameters", None)
            if isinstance(module._parameters, _Parameters):
                module._parameters = dict(module._parameters)


def _inside(module, announcing):
    """The module, and those below it that do not announce their forward, nor lie below one that does."""
    yield module
    for child in module.children():
        if id(child) not in announcing:
            yield from _inside(child, announcing)
