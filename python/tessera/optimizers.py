"""Optimizers as torch.optim.Optimizer objects whose arithmetic is the engine's own.

Under an engine they only hold the parameter groups, which stay live: the engine reads lr and its kin from them before
each step. Without one, step() updates the parameters itself, with the same kernels. Arguments without a default here, or
with `...`, have that of their key: see config_keys.
"""

import weakref

import torch

from tessera import _core
from tessera.config_keys import call_with_params, params_of, with_defaults_of
from tessera.error_report import made
from tessera.param_groups import options_of


class NativeOptimizer(torch.optim.Optimizer):
    """`type_name` and `params` as in a ds_config's block "optimizer"; keyword arguments of a group win over them."""

    def __init__(self, type_name, model_params, defaults, fixed=None):
        self.type_name = type_name
        self.fixed = dict(fixed or {})  # what is the same for all groups
        self._native = None
        super().__init__(model_params, defaults)

    def add_param_group(self, param_group):
        # torch's own wraps this function so that the compiler leaves it alone, for which it imports the compiler: seconds of
        # each start, where nothing here is ever compiled.
        wrapped = torch.optim.Optimizer.add_param_group
        getattr(wrapped, "__wrapped__", wrapped)(self, param_group)

    def config_block(self):
        """The block "optimizer" of a ds_config that names this optimizer."""
        own = {key: value for key, value in self.defaults.items() if value is not None}
        return {"type": self.type_name, "params": {**own, **self.fixed}}

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._native is None:
            block = self.config_block()
            self._native = _core.NativeOptimizer(block["type"], block["params"])
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter, group):
        native, state = self._native, self.state[parameter]
        if not state:
            state["step"] = 0
            dtype = torch.float32 if self.fixed.get("fp32_optimizer_states", True) else parameter.dtype
            for name in native.state_names:
                state[name] = torch.zeros_like(parameter, dtype=dtype, memory_format=torch.contiguous_format)
            for name in native.number_names:
                state[name] = 0.0
        state["step"] += 1
        direct = parameter.dtype == torch.float32 and parameter.is_contiguous()
        weight = parameter.detach() if direct else parameter.detach().float().contiguous()
        wide = [state[name].float() for name in native.state_names]
        numbers = native.update(
            weight=weight,
            grad=parameter.grad.detach().float().contiguous().clone(),
            state=wide,
            numbers=[state[name] for name in native.number_names],
            step=int(state["step"]),
            group=options_of(group),
        )
        state.update(zip(native.number_names, numbers))
        for name, values in zip(native.state_names, wide):
            if state[name] is not values:
                state[name].copy_(values)
        if not direct:
            parameter.copy_(weight)


def _needs_adam_w(adam_w_mode):
    return {"adam_w_mode": bool(adam_w_mode)}


def _refuse_amsgrad(amsgrad):
    if amsgrad:
        raise RuntimeError("amsgrad is not supported, as in DeepSpeed: leave it False, or use Adam")


def _unless_default(type_name, **given):
    """What differs from the keys' defaults."""
    keys = params_of("optimizer", type_name)
    return {key: value for key, value in given.items() if value is not None and bool(value) != keys[key]["default"]}


class FusedAdam(NativeOptimizer):
    @with_defaults_of("optimizer", "Adam")
    def __init__(self, params, lr, bias_correction, betas, eps, adam_w_mode, weight_decay, amsgrad, set_grad_none):
        self.adam_w_mode = adam_w_mode
        self.set_grad_none = set_grad_none
        super().__init__("Adam", params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay},
                         {"bias_correction": bool(bias_correction), **_needs_adam_w(adam_w_mode), **_unless_default("Adam", amsgrad=amsgrad)})


class DeepSpeedCPUAdam(NativeOptimizer):
    @with_defaults_of("optimizer", "Adam", adamw_mode="adam_w_mode")
    def __init__(self, model_params, lr, bias_correction, betas, eps, weight_decay, amsgrad, adamw_mode,
                 fp32_optimizer_states):
        self.adam_w_mode = adamw_mode
        self.fp32_optimizer_states = fp32_optimizer_states
        super().__init__("Adam", model_params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay},
                         {"bias_correction": bool(bias_correction), **_needs_adam_w(adamw_mode),
                          **_unless_default("Adam", amsgrad=amsgrad, fp32_optimizer_states=fp32_optimizer_states)})


class DeepSpeedCPUAdagrad(NativeOptimizer):
    """Also torch's Adagrad, for which `lr_decay` and `maximize` are here. `amsgrad` has no effect, as in DeepSpeed."""

    @with_defaults_of("optimizer", "Adagrad")
    def __init__(self, model_params, lr, eps, weight_decay, amsgrad, fp32_optimizer_states, lr_decay=..., maximize=...):
        own = {"lr_decay": lr_decay, "maximize": maximize}
        super().__init__("Adagrad", model_params, {"lr": lr, "eps": eps, "weight_decay": weight_decay},
                         {**{key: value for key, value in own.items() if value},
                          **_unless_default("Adagrad", fp32_optimizer_states=fp32_optimizer_states)})


class FusedLion(NativeOptimizer):
    @with_defaults_of("optimizer", "Lion")
    def __init__(self, model_params, lr, betas, weight_decay, fp32_optimizer_states):
        super().__init__("Lion", model_params, {"lr": lr, "betas": betas, "weight_decay": weight_decay},
                         _unless_default("Lion", fp32_optimizer_states=fp32_optimizer_states))


class DeepSpeedCPULion(FusedLion):
    pass


class FusedLamb(NativeOptimizer):
    @with_defaults_of("optimizer", "Lamb")
    def __init__(self, params, lr, bias_correction, betas, eps, eps_inside_sqrt, weight_decay, max_grad_norm=0.0,
                 max_coeff=..., min_coeff=..., amsgrad=...):
        _refuse_amsgrad(amsgrad)
        super().__init__("Lamb", params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay},
                         {"bias_correction": bool(bias_correction), "eps_inside_sqrt": bool(eps_inside_sqrt),
                          "max_coeff": max_coeff, "min_coeff": min_coeff})


class SGD(NativeOptimizer):
    @with_defaults_of("optimizer", "SGD")
    def __init__(self, params, lr, momentum, dampening, weight_decay, nesterov):
        super().__init__("SGD", params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay},
                         {"dampening": dampening, "nesterov": bool(nesterov)})


def tag_for_muon(model):
    """As DeepSpeed's initialize() tags parameters for Muon, by their shapes as layers have them and by their names: the rule
    is the engine's (tessera/optim/muon.h). A program's own tags stay."""
    for name, parameter in model.named_parameters():
        if not hasattr(parameter, "use_muon"):
            shape = getattr(parameter, "ds_shape", parameter.shape)
            parameter.use_muon = _core.is_muons(name, len(shape))


class Muon(NativeOptimizer):
    """Parameters whose attribute use_muon is true (without the attribute: matrices) are orthogonalized, all others Adam's."""

    @with_defaults_of("optimizer", "Muon")
    def __init__(self, params, lr, muon_lr, adam_lr, momentum, weight_decay, betas, eps, ns_method, adam_w_mode,
                 per_head_muon):
        if per_head_muon:
            raise made(_core.ConfigError, "'optimizer.params.per_head_muon' is true: not supported yet", "the optimizer",
                       "use false")
        groups = []
        for group in _as_groups(params):
            for use_muon, own_lr in ((True, muon_lr), (False, adam_lr)):
                members = [p for p in group["params"] if getattr(p, "use_muon", p.dim() == 2) == use_muon]
                if members:
                    groups.append({**group, "params": members, "use_muon": use_muon,
                                   "lr": group.get("lr", lr) if own_lr is None else own_lr})
        fixed = {"muon_lr": muon_lr, "adam_lr": adam_lr, "ns_method": ns_method, **_needs_adam_w(adam_w_mode)}
        super().__init__("Muon", groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "betas": betas,
                                          "eps": eps}, {key: value for key, value in fixed.items() if value is not None})


class Compressed(NativeOptimizer):
    """Base of the optimizers that send a bit an element, once compression has begun. They take the keyword arguments of
    their block in a ds_config, and work under an engine of stage 0 or 1 on CPU ranks."""

    @with_defaults_of("optimizer", "OneBitAdam")
    def __init__(self, params, deepspeed=None, lr=..., betas=..., eps=..., weight_decay=..., max_grad_norm=0.0,
                 amsgrad=..., **fixed):
        """`deepspeed`: for DeepSpeed's signature; the engine comes to the optimizer by itself."""
        _refuse_amsgrad(amsgrad)
        if max_grad_norm:
            raise ValueError("max_grad_norm is not supported: set 'gradient_clipping' in the ds_config instead")
        super().__init__(type(self).type_of_config, params,
                         {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, fixed)

    def step(self, closure=None):
        raise made(_core.UsageError, f"{type(self).__name__} averages over ranks, and has no engine to do so",
                   f"{type(self).__name__}.step", "give it to initialize (optimizer=…), and call engine.step()")


class OneBitAdam(Compressed):
    """1-bit Adam (Tang et al. 2021): from freeze_step on, ranks send a bit an element of the momentum."""

    type_of_config = "OneBitAdam"


class OneBitLamb(Compressed):
    """1-bit LAMB (Li et al. 2021): as OneBitAdam, with a trust ratio for each layer that goes on from its running mean."""

    type_of_config = "OneBitLamb"


class ZeroOneAdam(Compressed):
    """0/1 Adam (Lu et al. 2022): a bit an element, in fewer and fewer steps; between them ranks step on their own."""

    type_of_config = "ZeroOneAdam"


def _as_groups(params):
    params = list(params)
    return params if params and isinstance(params[0], dict) else [{"params": params}]


def _torch_class(type_name):
    found = getattr(torch.optim, type_name, None)
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise made(_core.ConfigError,
                   f"'optimizer.type' is '{type_name}': neither a DeepSpeed optimizer nor a torch.optim class",
                   "the ds_config", f"use one of {', '.join(sorted(_BY_TYPE))}, or for example SGD")
    return found


def _adam(type_name):
    def make(groups, offloaded, torch_adam=False, fp32_optimizer_states=True, foreach=None, **params):
        given = {key: params.pop(key) for key in ("adam_w_mode",) if key in params}
        decoupled = _core.optimizer_params(type_name, given)["adam_w_mode"]
        if torch_adam:
            params.pop("bias_correction", None)
            return (torch.optim.AdamW if decoupled else torch.optim.Adam)(groups, foreach=foreach, **params)
        if offloaded or fp32_optimizer_states is False:
            params.pop("set_grad_none", None)
            return DeepSpeedCPUAdam(groups, adamw_mode=decoupled, fp32_optimizer_states=fp32_optimizer_states, **params)
        return FusedAdam(groups, adam_w_mode=decoupled, **params)

    return make


def _plain(cls):
    return lambda groups, offloaded, **params: cls(groups, **params)


def _of_mup(name):
    """Rates by width (Yang et al. 2021), of the package mup: a torch optimizer over groups of its own."""
    def make(groups, offloaded, **params):
        try:
            import mup
        except ImportError as missing:
            raise made(_core.ConfigError, f"'optimizer.type' is '{name}', an optimizer of the package mup, which is not installed ({missing})",
                       "the ds_config", "pip install mup, or use Adam") from None
        return getattr(mup, name)(groups, **params)

    return make


_BY_TYPE = {
    "adam": _adam("adam"), "adamw": _adam("adamw"), "adagrad": _plain(DeepSpeedCPUAdagrad), "lamb": _plain(FusedLamb),
    "lion": _plain(FusedLion), "muon": _plain(Muon), "onebitadam": _plain(OneBitAdam),
    "onebitlamb": _plain(OneBitLamb), "zerooneadam": _plain(ZeroOneAdam),
    "muadam": _of_mup("MuAdam"), "muadamw": _of_mup("MuAdamW"), "musgd": _of_mup("MuSGD"),
}


def from_config(block, groups, offloaded):
    """The optimizer that a ds_config's block names, over `groups` (parameters or parameter groups)."""
    type_name, params = block.get("type") or "Adam", dict(block.get("params") or {})
    if params.get("max_grad_norm"):
        raise ValueError("'optimizer.params.max_grad_norm' is not supported: set 'gradient_clipping' instead")
    params.pop("max_grad_norm", None)
    make = _BY_TYPE.get(type_name.lower())
    if make:
        return call_with_params(make, "optimizer", type_name, groups, offloaded, **params)
    return call_with_params(_torch_class(type_name), "optimizer", type_name, groups, **params)


def config_block_of(optimizer):
    """The block "optimizer" of a ds_config that computes what this torch optimizer does; None if there is no such: its
    own step() is needed."""
    if isinstance(optimizer, NativeOptimizer):
        return optimizer.config_block()
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return None

    def everywhere(**wanted):
        return all(group.get(key, value) == value for group in optimizer.param_groups for key, value in wanted.items())

    if not everywhere(differentiable=False):
        return None
    maximizes = bool(optimizer.defaults.get("maximize"))
    plain = everywhere(maximize=maximizes)
    own = {key: optimizer.defaults[key] for key in ("lr", "betas", "eps", "weight_decay", "momentum")
           if optimizer.defaults.get(key) is not None}
    own["lr"] = float(own["lr"])
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and everywhere(maximize=False):
        decoupled, amsgrad = type(optimizer) is torch.optim.AdamW, optimizer.defaults["amsgrad"]
        if everywhere(decoupled_weight_decay=decoupled, amsgrad=amsgrad):
            return {"type": "AdamW" if decoupled else "Adam",
                    "params": {**own, **_needs_adam_w(decoupled), **_unless_default("Adam", amsgrad=amsgrad)}}
    if type(optimizer) is torch.optim.SGD and plain:
        same = {key: optimizer.defaults[key] for key in ("momentum", "dampening", "nesterov", "maximize")}
        if everywhere(**same):
            return {"type": "SGD", "params": {**own, **same}}
    if type(optimizer) is torch.optim.Adagrad and plain and everywhere(initial_accumulator_value=0, lr_decay=0):
        return {"type": "Adagrad", "params": {**own, "maximize": maximizes}}
    return None


class TorchStep:
    """A client's torch optimizer whose own step() runs on the parts of the parameters that this rank owns: flat fp32
    tensors, which take the parameters' place in its groups. See TorchOptimizer in python/src."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.is_running = False
        self._parts = {}  # (parameter's name, first element) -> Parameter
        self._waiting = {}  # state from a checkpoint, of parts that no step has seen yet

    def __call__(self, parts):
        if not self._parts:
            for group in self.optimizer.param_groups:
                group["params"] = []
        for name, group, first, weight, grad in parts:
            key = (name, first)
            if key not in self._parts:
                part = torch.nn.Parameter(weight)
                part.tessera_part_of = weakref.ref(self)
                self._parts[key] = part
                self.optimizer.param_groups[group]["params"].append(part)
                if key in self._waiting:
                    self.optimizer.state[part] = self._waiting.pop(key)
            self._parts[key].grad = grad
        self.is_running = True
        try:
            self.optimizer.step()
        finally:
            self.is_running = False
        for part in self._parts.values():
            part.grad = None

    def _parts_of(self, name):
        return [(first, part) for (owner, first), part in self._parts.items() if owner == name]

    def local_state(self, name, key):
        """Of the parameter's part on this rank, flat; empty where it owns none."""
        for _, part in self._parts_of(name):
            return self.optimizer.state[part][key].detach().float().flatten()
        return torch.empty(0)

    def set_state(self, name, key, whole):
        for first, part in self._parts_of(name):
            own = self.optimizer.state[part][key]
            own.copy_(whole.flatten()[first:first + part.numel()].view_as(own))

    def state_tensors(self):
        return [value for state in self.optimizer.state.values() for value in state.values() if torch.is_tensor(value)]

    def state(self):
        keys = {part: key for key, part in self._parts.items()}
        by_part = {keys[part]: state for part, state in self.optimizer.state.items() if part in keys}
        groups = [*map(options_of, self.optimizer.param_groups)]
        return {"parts": {**self._waiting, **by_part}, "groups": groups}

    def load_state(self, saved):
        self._waiting = dict(saved["parts"])
        for key in list(self._waiting):
            if key in self._parts:
                self.optimizer.state[self._parts[key]] = self._waiting.pop(key)
        for group, values in zip(self.optimizer.param_groups, saved["groups"]):
            group.update(values)
