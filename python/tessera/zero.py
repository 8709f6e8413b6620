"""Parameters of which each rank holds only a part: zero.Init, GatheredParameters, and what clients read from such parameters.

A partitioned parameter is a ZeroParameter of size 0. It is in one of two hands, both in C++: a PartitionedParam's (it was
made under Init, or its engine is gone), or an engine's at stage 3.
"""

import enum
import functools
import itertools
import logging
import threading

import torch
from torch import nn

from tessera import _core, kept_in_fp32, packed_weights, parallelism
from tessera.config_source import place_of
from tessera.config_text import read_config
from tessera.error_report import made
from tessera.world import world_of


logger = logging.getLogger("tessera")


class ZeroParamStatus(enum.Enum):
    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


class ZeroParamType(enum.Enum):
    NORMAL = 1
    PARTITIONED = 2
    REMOTE = 3


_ids = itertools.count()


class ZeroParameter(nn.Parameter):
    """The class that a parameter gets when it is partitioned. ds_shape, ds_numel: of the whole parameter."""

    whole_class = nn.Parameter

    @property
    def ds_status(self):
        gathered = self.numel() == self.ds_numel
        return ZeroParamStatus.AVAILABLE if gathered else ZeroParamStatus.NOT_AVAILABLE

    @property
    def ds_tensor(self):
        """This rank's part, flat: a copy where an engine holds the parameter."""
        if self.tessera_piece is not None:
            return self.tessera_piece.piece
        engine, place = engine_of(self)
        return engine.core.local_value(place, "weight") if engine is not None else None

    def all_gather(self, param_list=None, **_):
        _Gathering(param_list or [self]).gather()

    def partition(self, param_list=None, has_been_updated=False, **_):
        _Gathering(param_list or [self]).release(written_by=0 if has_been_updated else None)


@functools.cache
def _partitioned_class(cls):
    """Of a parameter of the class `cls`, whose name it keeps: PEFT knows the weights of bitsandbytes by that."""
    if issubclass(cls, ZeroParameter):
        return cls
    if cls is nn.Parameter or nn.Parameter not in cls.__mro__:
        return ZeroParameter
    return type(ZeroParameter)(cls.__name__, (ZeroParameter, cls), {"whole_class": cls, "__module__": cls.__module__})


def _become_partitioned(parameter, shape, piece):
    parameter.__class__ = _partitioned_class(type(parameter))
    if not hasattr(parameter, "ds_id"):
        parameter.ds_id = next(_ids)
    parameter.ds_shape = torch.Size(shape)
    parameter.ds_numel = parameter.ds_shape.numel()
    parameter.ds_persist = False
    parameter.ds_active_sub_modules = set()
    parameter.ds_param_type = ZeroParamType.PARTITIONED
    parameter.tessera_piece = piece


def _no_engine():
    return None


class _Place:
    """Where an engine (a weak reference) keeps a parameter. What is unpickled, no engine keeps."""

    __slots__ = ("engine", "place")

    def __init__(self, engine, place):
        self.engine, self.place = engine, place

    def __reduce__(self):
        return _Place, (_no_engine, None)


def show_empty_in_state_dicts(model):
    """From now on what is sharded is an empty tensor in state_dict(), as in DeepSpeed: programs save that, or look for tensors that share memory,
    which one without an address cannot answer. Rank 0 warns once, as whoever saves that saves nothing."""
    for module in model.modules():
        if module._parameters and _empty_what_is_sharded not in module._state_dict_hooks.values():
            module.register_state_dict_post_hook(_empty_what_is_sharded)
            module.register_load_state_dict_pre_hook(_refuse_to_load_into_shards)


def _empty_what_is_sharded(module, state, prefix, metadata):
    del metadata
    for name, parameter in module._parameters.items():
        shown = state.get(prefix + name)
        if is_partitioned(parameter) and shown is not None and shown is not parameter and shown.numel() < parameter.ds_numel:
            state[prefix + name] = torch.empty(0, dtype=shown.dtype, device=shown.device)
            _warn_of_empty_state_dict()


def _refuse_to_load_into_shards(module, state, prefix, *_):
    for name, parameter in module._parameters.items():
        given = state.get(prefix + name)
        if is_partitioned(parameter) and torch.is_tensor(given) and parameter.numel() < parameter.ds_numel and given.numel() == parameter.ds_numel:
            raise made(_core.UsageError, f"'{prefix + name}' is partitioned at stage 3, so load_state_dict() of the model has nothing to write to",
                       type(module).__name__, "call engine.load_module_state_dict({\"module\": state}), or load inside "
                       "deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0)")


@functools.cache
def _warn_of_empty_state_dict():
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        logger.warning("state_dict() of a model at stage 3 has empty tensors where parameters are sharded: save it with save_checkpoint or "
                       "save_16bit_model, or gather the parameters first (zero.GatheredParameters)")


def external_key(parameter):
    return getattr(parameter, "ds_id", id(parameter))


def external_parameters(module):
    """(key, parameter) of those registered with the module."""
    return list(module.__dict__.get("_external_params", {}).items())


def is_partitioned(parameter):
    return isinstance(parameter, ZeroParameter)


def piece_of(parameter):
    """The PartitionedParam that holds the parameter; None where an engine does, or it is whole."""
    return getattr(parameter, "tessera_piece", None)


def given_to_engine(parameter, engine, place, shape):
    """`engine`: a weak reference. At stage 3 the engine holds the parameter's parts from now on."""
    parameter.tessera_place = _Place(engine, place)
    if engine().stage == 3:
        _become_partitioned(parameter, shape, None)
        parameter.ds_persist = parameter.numel() == parameter.ds_numel  # whole though nobody gathered it
    elif is_partitioned(parameter):  # made under Init, whole from now on
        _become_whole(parameter)


def _become_whole(parameter):
    parameter.__class__ = type(parameter).whole_class
    del parameter.tessera_piece


def made_whole(parameter):
    """One that was made under Init and that no engine takes. Collective."""
    parameter.tessera_piece.gather(parameter)
    _become_whole(parameter)
    packed_weights.follow(parameter)


def taken_from_engine(parameter, piece):
    """The engine is going away; `piece`: what holds its part from now on (None: the parameter is whole)."""
    if hasattr(parameter, "tessera_place"):
        del parameter.tessera_place
    if piece is not None:
        parameter.tessera_piece = piece
        packed_weights.follow(parameter)


def engine_of(parameter):
    """The engine that has the parameter and its (unit, number) there; (None, None) if none does."""
    found = getattr(parameter, "tessera_place", None)
    return (None, None) if found is None else (found.engine(), found.place)


def trained_by(parameter):
    """The same of the engine that trains it now; (None, None) too where it is frozen, or its engine has let go of it."""
    engine, place = engine_of(parameter)
    if engine is None or not engine.is_alive or not engine.core.is_trainable(place[0]):
        return None, None
    return engine, place


def take_from_earlier_engines(model):
    """A model belongs to one engine. Programs make a second engine of it to train after an evaluation, or when a cell is run again."""
    owners = {id(engine): engine for engine, _ in map(engine_of, model.parameters()) if engine is not None}
    for engine in owners.values():
        logger.warning("another engine has this model: it lets go of it, and can no longer be used")
        engine._destroy("initialize made another engine of it", "use the newer engine")


class _Gathering:
    """Partitioned parameters among `params`, by who holds them, in one order on every rank; everything else is skipped. Collective."""

    def __init__(self, params):
        self.pieces, self.units = [], {}
        for parameter in sorted(filter(is_partitioned, params), key=lambda parameter: parameter.ds_id):
            engine, place = engine_of(parameter)
            if engine is not None and engine.is_alive:
                units = self.units.setdefault(engine, [])
                if place[0] not in units:
                    units.append(place[0])
            elif parameter.tessera_piece is not None and not any(parameter is each for each in self.pieces):
                self.pieces.append(parameter)

    def gather(self):
        for parameter in self.pieces:
            parameter.tessera_piece.gather(parameter)
            packed_weights.follow(parameter)
        for engine, units in self.units.items():
            engine.core.finish_update()
            engine.core.hold_units(units)

    def release(self, written_by):
        for parameter in self.pieces:
            parameter.tessera_piece.scatter(parameter, written_by)
            packed_weights.follow(parameter)
        for engine, units in self.units.items():
            if written_by is not None:
                for unit in units:
                    engine.core.take_over(unit, written_by)
            engine.core.drop_units(units)


class GatheredParameters:
    """The parameters are whole inside. With modifier_rank, what that rank writes to them stays; otherwise it is lost.
    Anything that is not partitioned may be among them: what an engine trains of it keeps what each rank has written. Collective."""

    def __init__(self, params, modifier_rank=None, fwd_module=None, enabled=True):
        if isinstance(params, torch.Tensor):
            params = [params]
        elif isinstance(params, dict):
            params = params.values()
        self.params = list(params) if enabled else []
        self.modifier_rank = modifier_rank
        if fwd_module is not None and enabled:
            for parameter in self.params:
                register_external_parameter(fwd_module, parameter)

    def __enter__(self):
        self._gathering = _Gathering(self.params)
        self._gathering.gather()
        self._versions = [(parameter, parameter._version) for parameter in self.params if _is_checked(parameter)]

    def __exit__(self, kind, error, trace):
        written = [parameter for parameter, version in self._versions if parameter._version != version]
        self._gathering.release(self.modifier_rank if error is None else None)
        if self.modifier_rank is not None and error is None:
            _keep_written(parameter for parameter in self.params if not is_partitioned(parameter))
        if written and self.modifier_rank is None and error is None:
            raise RuntimeError(f"in-place modification of a parameter of shape {tuple(written[0].ds_shape)} in GatheredParameters without modifier_rank is lost; name the rank that writes")


def _keep_written(parameters):
    """Master weights become what was written to 16-bit parameters that are whole at all times."""
    for parameter in parameters:
        engine, place = trained_by(parameter)
        if engine is not None:
            engine.core.take_written(place)


def _is_checked(parameter):
    """zero_optimization.enable_sanity_checks of whoever holds the parameter."""
    if not is_partitioned(parameter):
        return False
    engine, _ = engine_of(parameter)
    return engine.checks if engine is not None else getattr(parameter, "tessera_checked", False)


def register_external_parameter(module, parameter):
    """The module's forward reads a parameter that another module owns: it is gathered for this module, too."""
    if not isinstance(module, nn.Module) or not isinstance(parameter, nn.Parameter):
        raise RuntimeError("register_external_parameter takes a torch.nn.Module and a torch.nn.Parameter")
    external = module.__dict__.setdefault("_external_params", {})
    external[external_key(parameter)] = parameter
    engine, place = engine_of(parameter)
    if engine is not None:
        engine.uses_external(module, place)


def unregister_external_parameter(module, parameter):
    external = module.__dict__.get("_external_params", {})
    key = external_key(parameter)
    if key not in external:
        raise RuntimeError("the parameter is not registered with this module")
    del external[key]


def dtype_of_config(config):
    """What a ds_config (a dict) computes in; "auto" counts as off."""
    if (config.get("bf16") or config.get("bfloat16") or {}).get("enabled") is True:
        return torch.bfloat16
    if (config.get("fp16") or {}).get("enabled") is True:
        return torch.float16
    return torch.float32


def _wants_checks(config):
    block = config.get("zero_optimization")
    return isinstance(block, dict) and block.get("enable_sanity_checks") is True


class Init:
    """Modules created inside are partitioned as soon as they are created, with rank 0's values, so a model that fits on no
    rank can be made; and so are weights that are loaded inside into modules created without values (on the device "meta"), as
    transformers loads a quantized base. With `module`: that one's parameters are, now. Collective."""

    _lock = threading.RLock()
    _active = []
    _patched = {}  # what was patched, and what was there before

    def __init__(self, module=None, data_parallel_group=None, mem_efficient_linear=True, remote_device=None,
                 pin_memory=False, config_dict_or_path=None, config=None, enabled=True, dtype=None, mpu=None,
                 zero_param_parallel_group=None, zero_quantized_weights=False, zero_quantized_nontrainable_weights=False,
                 sequence_data_parallel_group=None, param_swapper=None, tensor_overrides=True):
        if enabled:
            parallelism.check_unit(mpu, "the argument mpu of zero.Init", may_cut_layers=True)
            _refuse_arguments(remote_device, zero_param_parallel_group, zero_quantized_weights,
                              zero_quantized_nontrainable_weights, param_swapper)
        source = config_dict_or_path if config_dict_or_path is not None else config
        config = read_config(source) if source else {}
        self._kept_in_fp32 = kept_in_fp32.setting_of(config, place_of(source))
        if dtype is None:
            dtype = dtype_of_config(config) if source else torch.get_default_dtype()
        if isinstance(dtype, str):
            dtype = getattr(torch, dtype)
        self.enabled, self.dtype = enabled, dtype
        self.checks = _wants_checks(config)
        self.world = None
        if enabled:
            self.world = world_of(_group_of_arguments(data_parallel_group, sequence_data_parallel_group, mpu))
            if module is not None:
                self.partition(module)

    def partition(self, module):
        """All parameters of the module and those inside it that are whole."""
        for each in module.modules():
            packed_weights.prepare(each)
            for parameter in each._parameters.values():
                self._partition_parameter(parameter)
        kept_in_fp32.upcast(module, self._kept_in_fp32, self.dtype)

    def _partition_parameter(self, parameter):
        if parameter is None or is_partitioned(parameter) or parameter.is_meta or not parameter.numel():
            return
        packed = packed_weights.is_packed(parameter)
        if not packed and (not parameter.is_floating_point() or packed_weights.awaits_quantization(parameter)):
            return
        shape = parameter.shape
        piece = _core.PartitionedParam(parameter, parameter.dtype if packed else self.dtype, self.world)
        _become_partitioned(parameter, shape, piece)
        parameter.tessera_checked = self.checks

    def _loaded(self, module, parameter):
        """The parameter has just replaced another one of a module that is already made."""
        if packed_weights.is_packed(parameter) or getattr(parameter, "_is_hf_initialized", False):
            packed_weights.prepare(module)
            self._partition_parameter(parameter)

    def __enter__(self):
        if self.enabled:
            with Init._lock:
                if not Init._active:
                    Init._patch()
                Init._active.append(self)
        return self

    def __exit__(self, kind, error, trace):
        if self.enabled:
            with Init._lock:
                Init._active.remove(self)
                if not Init._active:
                    Init._unpatch()

    # Every class's own __init__ is wrapped, those that are defined later as well; the outermost wrapper that an object
    # passes through partitions it.

    @staticmethod
    def _patch():
        for cls in _subclasses(nn.Module):
            Init._patch_class(cls)
        Init._patched["__init_subclass__"] = nn.Module.__dict__.get("__init_subclass__")
        Init._patched["apply"] = nn.Module.apply
        Init._patched["register_parameter"] = nn.Module.register_parameter

        def init_subclass(cls, **kwargs):
            super(nn.Module, cls).__init_subclass__(**kwargs)
            Init._patch_class(cls)

        nn.Module.__init_subclass__ = classmethod(init_subclass)
        nn.Module.apply = _apply_gathered(nn.Module.apply)
        nn.Module.register_parameter = _register_loaded(nn.Module.register_parameter)

    @staticmethod
    def _unpatch():
        for owner, before in list(Init._patched.items()):
            if isinstance(owner, type):
                owner.__init__ = before
        if Init._patched["__init_subclass__"] is None:
            del nn.Module.__init_subclass__
        else:
            nn.Module.__init_subclass__ = Init._patched["__init_subclass__"]
        nn.Module.apply = Init._patched["apply"]
        nn.Module.register_parameter = Init._patched["register_parameter"]
        Init._patched.clear()

    @staticmethod
    def _patch_class(cls):
        if "__init__" not in cls.__dict__ or cls in Init._patched:
            return
        before = cls.__dict__["__init__"]
        Init._patched[cls] = before

        @functools.wraps(before)
        def init(module, *args, **kwargs):
            outermost = "_tessera_being_made" not in module.__dict__  # not getattr: a class may answer it for a module inside
            if outermost:
                object.__setattr__(module, "_tessera_being_made", True)
            try:
                before(module, *args, **kwargs)
            finally:
                if outermost:
                    object.__delattr__(module, "_tessera_being_made")
            if outermost and Init._active:
                Init._active[-1].partition(module)

        cls.__init__ = init


def _refuse_arguments(remote_device, zero_param_parallel_group, quantized, quantized_nontrainable, param_swapper):
    """What zero.Init of DeepSpeed does with these, Tessera does not."""
    asked_for = {
        "remote_device": remote_device not in (None, "none", "cpu"),
        "zero_param_parallel_group": zero_param_parallel_group is not None,
        "zero_quantized_weights": bool(quantized),
        "zero_quantized_nontrainable_weights": bool(quantized_nontrainable),
        "param_swapper": param_swapper is not None,
    }
    for name, asked in asked_for.items():
        if asked:
            raise made(_core.UsageError, f"zero.Init's argument '{name}' is not supported yet", "zero.Init",
                       "leave it out; where parameters live is said by the ds_config's offload_param"
                       if name in ("remote_device", "param_swapper") else "leave it out")


def _group_of_arguments(data_parallel_group, sequence_data_parallel_group, mpu):
    """The ranks over which Init partitions. The second argument is the first one's old name."""
    if data_parallel_group is not None and sequence_data_parallel_group is not None:
        raise made(_core.UsageError, "data_parallel_group and sequence_data_parallel_group are both given", "zero.Init",
                   "give data_parallel_group alone")
    if data_parallel_group is not None or sequence_data_parallel_group is not None:
        return data_parallel_group if data_parallel_group is not None else sequence_data_parallel_group
    return mpu.get_data_parallel_group() if hasattr(mpu, "get_data_parallel_group") else None


def _subclasses(cls):
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


def _apply_gathered(apply):
    """nn.Module.apply under Init: a function that initializes weights sees them whole, and what it writes stays."""

    @functools.wraps(apply)
    def applied(self, function):
        for child in self.children():
            child.apply(function)
        with GatheredParameters(self.parameters(recurse=False), modifier_rank=0):
            function(self)
        return self

    return applied


def _register_loaded(register):
    """nn.Module.register_parameter under Init: what is loaded into a module is partitioned at once. Values that a program will
    still write are not: those of a module that is being made, and what transformers has not marked as read from a file."""

    @functools.wraps(register)
    def registered(self, name, param):
        register(self, name, param)
        if param is not None and Init._active and "_tessera_being_made" not in self.__dict__:
            Init._active[-1]._loaded(self, param)

    return registered
