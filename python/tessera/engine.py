"""The engine as a torch.nn.Module around the client's model: forward, backward, step, checkpoints.

All of ZeRO happens in C++ (tessera._core.Engine, here `core`); this module passes the model's parameters to it,
announces forwards at stage 3, and keeps the client's optimizer and learning-rate schedule, which stay Python objects.
"""

import contextlib
import inspect
import logging
import weakref
from pathlib import Path

import torch
from torch import nn

from tessera import _core, deepspeed_beside, expert_parallel, foreign_steps, fragments, kept_in_fp32, kept_values, packed_weights, schedules, stock_checkpoint, tensor_parallel, zero
from tessera.accumulation import Accumulation
from tessera.backward_arguments import refuse_keywords, require_loss
from tessera.error_report import made
from tessera.forward_hooks import ForwardHooks
from tessera.full_weights import state_dict_of, write_weights
from tessera.leaf_modules import is_leaf, mark_leaves_of_config
from tessera.moved_states import MovableStates, bring_back
from tessera.nested_tensors import cast_floats, tensors_in
from tessera.past_the_engine import PastTheEngine
from tessera.shared_facts import facts_of
from tessera.trained_parameters import TrainedParameters
from tessera.units import announcing_modules
from tessera.zero_optimizer import ZeroOptimizer

logger = logging.getLogger("tessera")


class Engine(Accumulation, MovableStates, nn.Module):
    """Made by tessera.initialize(). `module` is the client's model, the same object. `mesh`: the ranks, all of them or those
    that the program gave as its data-parallel group. `placements(name, parameter)`: {axis: dimension} over which ranks hold
    parts of it. `device`: where parameters and buffers go; None: where the first of them is."""

    observes = frozenset()  # which of initialize's observers it has

    def __init__(self, model, config, raw_config, optimizer, torch_step, mesh, placements, device=None):
        super().__init__()
        self._engine = None  # in C++; see core
        self._moved = []  # its training state, while that is in host memory
        self._let_go = None  # after destroy(): why, and what to do
        self.module = model
        self.config = raw_config
        self.lr_scheduler = None
        self.training_dataloader = None
        self.stage = config.stage
        self._values = config.values  # by the key's path
        self.checks = self._values.get("zero_optimization.enable_sanity_checks") is True
        self.hooks = None  # stage 3: see forward_hooks
        self._resolved = config
        self.trusts_pickle = self._values.get("tessera.trust_pickle") is True
        self.torch_step = torch_step
        self._mesh, self._placements = mesh, placements
        self._deepspeed_files = deepspeed_beside.asked_for(config, mesh, torch_step)
        self._world, self._data = mesh.world, mesh.batch  # all ranks; those over which the batch is split
        self._autocast = getattr(torch, config.autocast_dtype) if config.autocast_dtype else None
        self.in_forward = self._in_backward = False
        self._checks_parameters = True  # once a step
        self._scaled = False  # scale() was called since the last step
        self._is_reduced = False  # what the last backward() left
        self.needs_scaler = "float16" in (config.compute_dtype, config.autocast_dtype)
        self._grad_norm = None

        self._batch = config.global_batch, config.micro_batch, config.accumulation
        self._samples_since_step = 0  # of all ranks

        zero.take_from_earlier_engines(model)
        mark_leaves_of_config(model, self._values)
        names, modules = self._tree(model, config, optimizer, device)
        if self.stage == 3:
            zero.show_empty_in_state_dicts(model)
        self._names = names  # id of a parameter -> its first name
        self._modules_by_number = modules
        self._count_again()
        self._trained = TrainedParameters(model, self)
        self._release = self._attach(modules)
        foreign_steps.watch()
        self.basic_optimizer = optimizer
        self.optimizer = self._wrapped(optimizer) if optimizer is not None else None

    # ---- making

    def _tree(self, model, config, optimizer, device):
        """Hands the parameters over, each under the module that announces it. Returns names and modules by number."""
        tree = _core.ModelTree()
        announcing = announcing_modules(model, is_leaf)
        modules = [model, *announcing]
        tree.add_module("model")
        for name in announcing.values():
            tree.add_module(name)
        numbers = {id(module): number for number, module in enumerate(modules)}
        groups = optimizer.param_groups if optimizer is not None else []
        self._group_count = len(groups)
        group_of_id = {id(parameter): number for number, group in enumerate(groups) for parameter in group["params"]}
        number_of_path, names, shapes, group_of = {}, {}, {}, {}
        for path, module in model.named_modules(remove_duplicate=False):
            parent = path.rpartition(".")[0]
            number = numbers.get(id(module), number_of_path[parent] if path else 0)
            number_of_path[path] = number
            if self.stage == 3:
                packed_weights.prepare(module)
            for name, parameter in module._parameters.items():
                full_name = expert_parallel.name_in_checkpoints(f"{path}.{name}" if path else name, parameter)
                if parameter is None or not self._is_ours(full_name, parameter):
                    continue
                names.setdefault(id(parameter), full_name)
                if id(parameter) in group_of_id:
                    group_of[full_name] = group_of_id[id(parameter)]
                piece = zero.piece_of(parameter)
                shapes[id(parameter)] = (parameter, torch.Size(piece.shape) if piece else parameter.shape)
                tree.add_param(number, full_name, parameter, piece, self._placements(full_name, parameter), self._mesh,
                               is_bytes=packed_weights.is_packed(parameter))
        for fact in facts_of(model, optimizer):
            tree.add_fact(fact)
        kept = self._buffers_in_fp32(model, config)
        for buffer in model.buffers():
            tree.add_buffer(buffer)

        self._engine = _core.Engine(
            tree=tree, config=config, mesh=self._mesh,
            groups=[kept_values.hyperparameters(group) for group in groups], group_of=group_of,
            torch_step=self.torch_step, device=device)
        for buffer, value in kept:  # the engine gave them data_types.buffer_dtype
            buffer.data = value.to(buffer.device)
        own = weakref.ref(self)
        for parameter, shape in shapes.values():
            zero.given_to_engine(parameter, own, self.core.place_of(parameter), shape)
        self._follow_into_units(parameter for parameter, _ in shapes.values())
        return names, modules

    def _follow_into_units(self, parameters):
        """A second reference to a weight of a unit is made once: it is valid whenever the unit is whole."""
        for parameter in filter(packed_weights.has_second_reference, parameters):
            unit, _ = self.core.place_of(parameter)
            self.core.hold_units([unit])
            packed_weights.follow(parameter)
            self.core.drop_units([unit])

    def _buffers_in_fp32(self, model, config):
        """(buffer, its fp32 value) of those that keep it: see kept_in_fp32."""
        setting = kept_in_fp32.setting_of(self.config, "the config argument")
        dtype = getattr(torch, config.compute_dtype)
        return [(buffer, buffer.detach().float()) for buffer in kept_in_fp32.kept_buffers(model, setting, dtype)]

    def _wrapped(self, optimizer):
        """What clients get as the optimizer."""
        return ZeroOptimizer(weakref.ref(self), optimizer)

    def _is_ours(self, name, parameter):
        """What is not stays as it is, whole on every rank: packed weights below stage 3, and parameters without elements."""
        in_pieces = zero.piece_of(parameter) is not None
        if packed_weights.is_packed(parameter):
            if self.stage < 3 and in_pieces:
                zero.made_whole(parameter)
            return self.stage == 3 and (in_pieces or (parameter.numel() > 0 and parameter.dim() > 0))
        if parameter.is_floating_point():
            return in_pieces or parameter.numel() > 0
        if parameter.requires_grad:
            raise _core.UsageError(f"the parameter '{name}' has the dtype {parameter.dtype}, which cannot be trained\n"
                                   "  fix:   freeze it, or keep its real and imaginary parts as two parameters")
        return False

    def _attach(self, modules):
        """Returns what takes everything away again that is attached to the client's model."""
        if self.stage == 3 or self._resolved.publishes_lazily:
            any_frozen = any(not trainable for _, _, trainable, _ in self.core.units())
            self.hooks = ForwardHooks(self.core, modules, watches_inputs=any_frozen)
            for module in self.module.modules():
                for parameter in module.__dict__.get("_external_params", {}).values():
                    place = self.core.place_of(parameter)
                    if place is not None:
                        self.uses_external(module, place)
        passes = self.module.register_forward_hook(PastTheEngine(self))
        leave = weakref.finalize(self, _leave, self.core, self.hooks, passes, weakref.ref(self.module), self._moved)
        leave.atexit = False
        return leave

    def uses_external(self, module, place):
        """The module's forward reads a parameter of the unit at `place`: see zero.register_external_parameter."""
        for number, announcing in enumerate(self._modules_by_number):
            if any(each is module for each in announcing.modules()) and (number or len(self._modules_by_number) == 1):
                self.core.also_uses(number, place[0])
                if self.core.wants_announcement(number):
                    self.hooks.announce(number)
                return
        self.core.also_uses(0, place[0])

    def destroy(self):
        """Releases the model and frees the training state. The model stays usable: at stage 3 its parameters stay
        partitioned (zero.GatheredParameters makes them whole), at other stages they are whole."""
        self._destroy("destroy() was called", "make another engine with initialize")

    def _destroy(self, why, fix):
        if not self.is_alive:
            return
        self.bring_states_back()
        self.core.finish_update()
        self.core.finish_saving()
        self._release()
        self._let_go = (why, fix)
        self._engine = None

    @property
    def is_alive(self):
        """Whether it holds the model: until destroy(), or until another engine takes it."""
        return self._let_go is None

    def _require_model(self):
        if self._let_go is not None:
            why, fix = self._let_go
            raise made(_core.UsageError, f"this engine has let go of its model: {why}", type(self.module).__name__, fix)

    @property
    def core(self):
        """The engine in C++."""
        self._require_states()
        return self.counting_core

    @property
    def counting_core(self):
        """The same for what it counts, which it also knows while its state is in host memory."""
        self._require_model()
        return self._engine

    def name_of(self, parameter):
        """The name under which the engine knows it."""
        return self._names[id(parameter)]

    # ---- training

    def forward(self, *args, **kwargs):
        self._require_model()
        if self.training and torch.is_grad_enabled():
            self._check_parameters()
            self._notice_missing_step()
        if self._resolved.casts_inputs:
            args, kwargs = cast_floats(args, torch.half), cast_floats(kwargs, torch.half)
        device = self.device.type
        autocast = torch.autocast(device, dtype=self._autocast, enabled=self._autocast is not None, cache_enabled=False) \
            if self._autocast is not None or torch.is_autocast_enabled(device) else contextlib.nullcontext()
        self.in_forward = True
        try:
            with self._forgets_pass_on_error(), autocast:
                output = self.module(*args, **kwargs)
        finally:
            self.in_forward = False
        self.expect_backward_by_hand(output)
        return output

    def _check_parameters(self):
        if self._checks_parameters:
            self._trained.check(self.module)
            self._checks_parameters = False

    def expect_backward_by_hand(self, output):
        """For loss.backward() instead of backward(loss): the gradient of the output is divided as in backward()."""
        if not torch.is_grad_enabled():
            return
        self._require_states()
        if not self.needs_scaler and self._batch[2] == 1:
            return
        if torch._C._are_functorch_transforms_active():
            return  # torch.func.grad of the model: none of the engine's gradients
        own = weakref.ref(self)

        def arrives(grad):
            engine = own()
            if engine is None or engine._in_backward:
                return grad
            if engine.needs_scaler and not engine._scaled:
                engine.core.abandon_pass()
                raise RuntimeError("Loss scaling is required in fp16: call backward(loss) of the engine, or "
                                   "scale(loss).backward(), in place of loss.backward()")
            return grad / engine.gradient_accumulation_steps()

        for tensor in tensors_in(output):
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(arrives)

    @contextlib.contextmanager
    def _forgets_pass_on_error(self):
        try:
            yield
        except _core.PeerError:  # no pass will follow
            raise
        except BaseException:
            if self.is_alive:
                had_gradients = self.core.gradients_pending
                self.core.abandon_pass()
                if had_gradients:
                    logger.warning("an exception in forward or backward: the gradients accumulated so far are dropped")
            raise

    def backward(self, loss, retain_graph=False, scale_wrt_gas=True, **others):
        """Returns the loss, divided by gradient_accumulation_steps if scale_wrt_gas."""
        refuse_keywords(others)
        self._require_model()
        if self.optimizer is None:
            raise RuntimeError("this engine has no optimizer: pass one to initialize, or name one in the configuration")
        require_loss(loss)
        self._check_parameters()
        self._in_backward = True
        try:
            with self._forgets_pass_on_error():
                self._samples_since_step += self._batch[1] * self._data.size
                divided = self.core.backward(loss, divides_by_accumulation=bool(scale_wrt_gas), retain_graph=retain_graph)
                self._is_reduced = self.core.is_boundary()
        finally:
            self._in_backward = False
        return divided.detach() if divided is not loss else loss

    def scale(self, loss):
        """For loss.backward() by hand: the loss multiplied by the loss scale, which fp16 needs."""
        if self.optimizer is None:
            raise AssertionError("scale() is for training, but this engine has no optimizer")
        if loss.numel() != 1 or not loss.requires_grad:
            raise AssertionError("scale() takes a scalar tensor that depends on the parameters; of other outputs call "
                                 "output.backward(gradient)")
        self._scaled = True
        return self.core.scale(loss)

    def step(self, lr_kwargs=None):
        if self._no_sync:
            raise AssertionError("It is illegal to call Engine.step() inside no_sync context manager, or inside "
                                 "coalesce_grad_reduction: step after it")
        self._scaled = False
        boundary = self.steps_now()
        if not self._counts_micro_batches:
            self.core.set_boundary(True)
            self.core.reduce_accumulated()
        self._checks_parameters |= boundary
        if boundary and self.optimizer is not None:
            self._check_groups()
            self.core.set_param_groups([kept_values.hyperparameters(group) for group in self.optimizer.param_groups])
        self.core.step(samples=0 if self._counts_micro_batches else self._samples_since_step)
        self._samples_since_step = 0
        if self._ends_block or not self._counts_micro_batches:
            self._ends_block = False
            self._count_again()
        if not boundary:
            return
        self._grad_norm = self.core.grad_norm
        if self.basic_optimizer is not None:
            self.basic_optimizer._opt_called = True  # torch's schedulers warn when their optimizer has not stepped
        if self.core.was_step_applied and self.lr_scheduler is not None:
            self._step_schedule(lr_kwargs or {})

    def _step_schedule(self, lr_kwargs):
        """Megatron's schedule is told how many samples the step had, which train_batch() has no argument for: as by DeepSpeed, the batch's."""
        step = self.lr_scheduler.step
        try:
            inspect.signature(step).bind(**lr_kwargs)
        except TypeError:
            step(self.train_batch_size())
        else:
            step(**lr_kwargs)

    def _check_groups(self):
        groups = len(self.optimizer.param_groups)
        if groups != self._group_count:
            raise made(_core.UsageError, f"the optimizer's number of parameter groups was {self._group_count} at initialize "
                       f"and is {groups} now: the engine knows only the former", "optimizer.add_param_group",
                       "make all groups before initialize; their learning rates and so on may change at any time")

    @property
    def device(self):
        for parameter in self.module.parameters():
            return parameter.device
        return torch.device("cpu")

    def compile(self, *args, compile_kwargs=None, **kwargs):
        """torch.compile for the module. At stage 3 for the forward of each unit: parameters come and go in the hooks around it, and
        what lies outside of units runs uncompiled."""
        kwargs = {**kwargs, **(compile_kwargs or {})}
        for key in ("schedule", "compiled_autograd_enabled"):
            kwargs.pop(key, None)
        if self.stage == 3:
            for module in self._modules_by_number[1:] or self._modules_by_number:
                module.forward = torch.compile(module.forward, *args, **kwargs)
        else:
            self.module.compile(*args, **kwargs)
        self.is_compiled = True

    is_compiled = False

    # ---- what happened

    def get_global_grad_norm(self):
        """The gradient norm of the last step, before clipping; None before the first step."""
        return self._grad_norm

    def local_grad_norm(self, parameters):
        """Of this rank's parts of these parameters' gradients, as they are before the step."""
        parts = [fragments.local_grad(parameter) for parameter in parameters]
        return torch.linalg.vector_norm(torch.cat([part.float() for part in parts if part is not None]))

    def was_step_applied(self):
        return self.counting_core.was_step_applied

    def get_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]

    @property
    def global_steps(self):
        return self.counting_core.global_steps

    @property
    def global_samples(self):
        return self.counting_core.global_samples

    @property
    def skipped_steps(self):
        return self.counting_core.skipped_steps

    @property
    def micro_steps(self):
        return self.counting_core.micro_steps

    def train_batch_size(self):
        return self._batch[0]

    def train_micro_batch_size_per_gpu(self):
        return self._batch[1]

    def gradient_accumulation_steps(self):
        return self._batch[2]

    def set_train_batch_size(self, train_batch_size):
        """Changes only gradient_accumulation_steps."""
        self._set_batch(train_batch_size, self.train_micro_batch_size_per_gpu(), None)

    def set_train_micro_batch_size(self, micro_batch_size):
        """Also changes train_batch_size."""
        self._set_batch(None, micro_batch_size, self.gradient_accumulation_steps())

    def _set_batch(self, *given):
        self._batch = _core.resolve_batch_sizes(*given, data_parallel_size=self._data.size)
        self.core.set_batch(*self._batch)

    # ---- weights

    def consolidated_state_dict(self, exclude_frozen_parameters=False, keeps_on=0):
        """The module's state dict with whole parameters in the dtype of training, on the CPU; gathered unit by unit.
        Collective; {} on other ranks than `keeps_on` (None: on every rank; of a model that the program has cut, its own part)."""
        if self._mesh.holds_parts and keeps_on is not None and not tensor_parallel.is_cut(self.module):
            raise made(_core.UsageError, "the weights cannot be put together yet where ranks hold different parts of the model",
                       "the mesh of initialize", "save a checkpoint, and load it without that axis")
        keeps = keeps_on is None or self._world.rank == keeps_on
        state = self.module.state_dict(keep_vars=True)
        values, of_unit = {}, {}
        for tensor in {id(value): value for value in state.values() if isinstance(value, nn.Parameter)}.values():
            place = self.core.place_of(tensor)
            if place is not None:
                of_unit.setdefault(place[0], []).append(tensor)
        for number, (_, _, trainable, _) in enumerate(self.core.units()):
            if exclude_frozen_parameters and not trainable:
                continue
            self.core.hold_units([number])
            for tensor in of_unit.get(number, []):
                value = tensor.tessera_part.whole(tensor) if hasattr(tensor, "tessera_part") else tensor.detach()
                if keeps:
                    values[id(tensor)] = value.to("cpu", copy=True)
            self.core.drop_units([number])
        if not keeps:
            return {}
        result = {}
        for key, tensor in state.items():
            is_parameter = isinstance(tensor, nn.Parameter)
            if id(tensor) in values:
                result[key] = values[id(tensor)]
            elif not (is_parameter and exclude_frozen_parameters and not tensor.requires_grad):
                result[key] = tensor.detach().to("cpu", copy=True) if isinstance(tensor, torch.Tensor) else tensor
        return result

    def save_weights(self, path, exclude_frozen_parameters=False):
        """consolidated_state_dict() in one file: safetensors by that suffix, otherwise what torch.load reads. Collective."""
        state = self.consolidated_state_dict(exclude_frozen_parameters)
        if self._world.rank == 0:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_weights(state, path, Path(path).suffix == ".safetensors")
        self._world.barrier("save_weights")

    @contextlib.contextmanager
    def writing_weights(self):
        """Inside, the module's parameters are whole, and every rank may write the same to them; the master weights follow. Collective."""
        with zero.GatheredParameters(self.module.parameters(), modifier_rank=0):
            yield
        if self.stage < 3:
            self.core.refresh_master()

    def load_state_dict_into_module(self, state, strict=True):
        """Loads the module's weights from a state dict that every rank has. Collective."""
        with self.writing_weights():
            self.module.load_state_dict(state, strict=strict)

    # ---- checkpoints

    def data_state(self):
        """Where training is in its data, for a checkpoint, as rank 0 has it; None: only the program knows."""
        return None

    def load_data_state(self, state):
        """Goes on from there."""

    def buffers_to_save(self):
        """The whole model's, by name: rank 0's are kept."""
        return kept_values.buffers_of_module(self.module)

    def save_checkpoint(self, save_dir, tag=None, client_state=None, save_latest=True, exclude_frozen_parameters=False,
                        trust_pickle=False):
        """Collective. In <save_dir>/<tag>, by default global_step<N>. `client_state`: a dict of plain values and tensors; of
        any objects with trust_pickle, here and in load_checkpoint (client_state.py)."""
        if not save_dir:
            raise ValueError("save_checkpoint needs a folder, but save_dir is empty")
        self._require_states()
        kept, shared, of_rank = kept_values.to_save(self, self._world, client_state or {},
                                                    trust_pickle or self.trusts_pickle)
        path = self.core.save_checkpoint(
            folder=str(save_dir), tag="" if tag is None else str(tag), client_state=kept, shared=shared, of_rank=of_rank,
            latest=save_latest, exclude_frozen=exclude_frozen_parameters)
        if self._deepspeed_files is not None:
            self._deepspeed_files.write(self, path, client_state or {})
        return True

    def load_checkpoint(self, load_dir, tag=None, load_module_strict=True, load_optimizer_states=True,
                        load_lr_scheduler_states=True, load_module_only=False, custom_load_fn=None,
                        trust_pickle=False):
        """Collective. (path, client_state); (None, None) where the folder has no checkpoint. Reads DeepSpeed's own, too. `custom_load_fn(src,
        dst)`: puts the fp32 state dict `src` into the module `dst`, whose parameters are whole, on every rank alike."""
        if load_dir is None:
            raise made(_core.UsageError, "load_checkpoint() was given None instead of a folder", "Engine.load_checkpoint",
                       "pass the folder that save_checkpoint() was given")
        has_own_schedule = self.has_own_schedule()
        with stock_checkpoint.readable(load_dir, tag, self._world, getattr(self.module, "layers_of_pipeline", None)) as (folder, own_tag, stock):
            loaded = self.core.load_checkpoint(
                folder=folder, tag=own_tag, strict=load_module_strict and custom_load_fn is None,
                optimizer_states=load_optimizer_states and not load_module_only and self.optimizer is not None,
                schedule=load_lr_scheduler_states, weights_only=load_module_only)
            if loaded is not None and custom_load_fn is not None:
                with self.writing_weights(), torch.no_grad():
                    custom_load_fn(src=state_dict_of(folder, own_tag), dst=self.module)
        if loaded is None:
            here = Path(load_dir).resolve()
            hint = f"; it is one itself: load_checkpoint('{here.parent}', tag='{here.name}')" if (here / "manifest.json").exists() else ""
            if self._world.rank == 0:
                logger.warning("%s has no checkpoint (no file 'latest'): nothing was loaded%s", load_dir, hint)
            return None, None
        path, stored, shared, of_rank = loaded
        kept = kept_values.from_saved(stored, shared, trust_pickle or self.trusts_pickle)
        kept_values.put_back(self, kept, of_rank, optimizer_states=load_optimizer_states and not load_module_only,
                             schedule=load_lr_scheduler_states and not load_module_only, own_schedule=has_own_schedule)
        if "data_sampler" in kept and not load_module_only:
            self.load_data_state(kept["data_sampler"])
        return stock or path, kept["client"]

    def has_own_schedule(self):
        """Whether lr_scheduler is one of C++'s, which saves and loads it with the engine's own state."""
        running = schedules.running(self.lr_scheduler)
        if running is not None:
            self.core.set_schedule(running)
        return running is not None

    def __getattr__(self, name):
        """Attributes that the engine does not have are looked up on the module."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            module = self.__dict__.get("_modules", {}).get("module")
            if module is None or name == "module":
                raise
            try:
                return getattr(module, name)
            except AttributeError:
                raise AttributeError(f"neither {type(self).__name__} nor {type(module).__name__} has '{name}'") from None


def _leave(core, hooks, passes, module_ref, moved):
    """Removes what the engine attached to the client's model."""
    bring_back(moved)
    passes.remove()
    if hooks is not None:
        hooks.remove()
    module = module_ref()
    if module is None:
        return
    for parameter in module.parameters():
        place = core.place_of(parameter)
        if place is not None:
            zero.taken_from_engine(parameter, core.partitioned(place) if hooks is not None else None)
