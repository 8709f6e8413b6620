"""The engine of a PipelineModule: whole batches at a time, over the ranks that hold its stages.

    engine, *_ = deepspeed.initialize(model=PipelineModule(layers, num_stages=2, loss_fn=loss), config=config)
    for _ in range(steps):
        loss = engine.train_batch(batches)     # gradient_accumulation_steps of (inputs, labels)

Which micro batch runs when, and what ranks send each other, is C++'s (tessera/engine/pipeline_run.h), by 1F1B; here are the
forwards of this rank's stage, the batches that the first and the last stage read, and the losses.
"""

import time
from collections import OrderedDict

import torch
from torch.utils.data.distributed import DistributedSampler

from deepspeed import comm as dist
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.pipe import schedule
from deepspeed.utils import RepeatingLoader
from tessera import _core
from tessera.backward_arguments import described_as
from tessera.error_report import made


class PipelineError(Exception):
    """A call that a pipeline engine does not have."""


class BatchesEnded(_core.UsageError, StopIteration):
    """As DeepSpeed's engine hands on what ends its iterator, a StopIteration."""


def _by_itself(instruction):
    """What stands in PipelineEngine._INSTRUCTION_MAP: instructions are carried out together, in C++."""

    def run(engine, **kwargs):
        raise PipelineError(f"{instruction.__name__} cannot be run by itself: call train_batch() or eval_batch()")

    return run


_INSTRUCTIONS = {instruction: _by_itself(instruction) for instruction in (
    schedule.OptimizerStep, schedule.ReduceGrads, schedule.ReduceTiedGrads, schedule.LoadMicroBatch, schedule.ForwardPass,
    schedule.BackwardPass, schedule.SendActivation, schedule.RecvActivation, schedule.SendGrad, schedule.RecvGrad)}


class PipelineEngine(DeepSpeedEngine):
    """ZeRO goes with it at every stage. A PipelineModule of one stage also trains by engine(batch), backward(loss), step()."""

    observes = frozenset({"tensorboard", "csv_monitor", "wandb", "comet"})  # micro batches run beside each other: no times of parts
    _INSTRUCTION_MAP = dict(_INSTRUCTIONS)

    def __init__(self, model, *arguments):
        super().__init__(model, *arguments)
        self._require_counting("a PipelineModule")
        self.grid = model._grid
        self.num_stages, self.stage_id = self.grid.pipe_parallel_size, self.grid.get_stage_id()
        self.prev_stage, self.next_stage = self.stage_id - 1, self.stage_id + 1
        self.is_pipe_parallel = self.num_stages > 1
        self.is_data_parallel = self.grid.data_parallel_size > 1
        self.is_model_parallel = self.grid.slice_parallel_size > 1
        self.data_iterator = self.batch_fn = None
        self.loss = self.total_loss = self.outputs = None
        self.total_additional_losses = None
        self.agg_train_loss = self.dp_group_loss = self.agg_additional_losses = None
        self.fwd_outputs = []
        self._compute_loss, self._returns_outputs = True, False
        self._printed = time.monotonic()
        interval = self._values.get("pipeline.activation_checkpoint_interval")
        if interval:
            model.set_checkpoint_interval(interval)
        self._run = _core.PipelineRun(self.core, self._mesh, "1f1b")

    def _destroy(self, why, fix):
        self._run = None  # it holds the engine in C++
        super()._destroy(why, fix)

    # ---- data

    def take_training_data(self, dataset, collate_fn):
        """In order, or as a curriculum has it, and again from its beginning when it is at its end."""
        in_order = None if self.curriculum_learning_enabled() else DistributedSampler(dataset, self._data.size, self._data.rank, shuffle=False)
        self.set_dataloader(RepeatingLoader(self.deepspeed_io(dataset, data_sampler=in_order, collate_fn=collate_fn)))

    def set_dataloader(self, loader):
        if self.is_first_stage() or self.is_last_stage():
            self.training_dataloader = loader
            self.data_iterator = iter(loader)

    def set_dataiterator(self, iterator):
        if self.is_first_stage() or self.is_last_stage():
            self.training_dataloader = None
            self.data_iterator = iterator

    def set_batch_fn(self, fn):
        """Called with what comes from the data iterator, which may be None: makes it (inputs, labels)."""
        self.batch_fn = fn

    def _next_batch(self):
        batch = self._next_from_iterator() if self.data_iterator is not None else None
        if self.batch_fn is not None:
            batch = self.batch_fn(batch)
        if batch is None:
            raise made(_core.UsageError, "the first and the last stage read the batches, and have none", "train_batch",
                       "give it data_iter on these stages, or initialize training_data")
        return self._require_inputs_and_labels(batch)

    def _next_from_iterator(self):
        try:
            return next(self.data_iterator)
        except StopIteration:
            raise made(BatchesEnded, f"the data iterator has no more batches, and a step needs {self.micro_batches} (gradient_accumulation_steps)",
                       "train_batch", "begin it again where it ends (deepspeed.utils.RepeatingLoader), or take no step of the few batches that are "
                       "left") from None

    def _require_inputs_and_labels(self, batch):
        reads_labels = self.is_last_stage() and self._compute_loss and self.module.loss_fn is not None
        if isinstance(batch, (tuple, list)) and len(batch) > (1 if reads_labels else 0):
            return batch
        described = f"{described_as(batch)} of {len(batch)}" if isinstance(batch, (tuple, list)) else described_as(batch)
        raise made(_core.UsageError, f"a pipeline's batch is (inputs, labels), and this is a {described}", "train_batch",
                   "let the iterator yield such pairs, or make them: engine.set_batch_fn(lambda batch: (…, …))")

    # ---- training

    @property
    def micro_batches(self):
        return self.gradient_accumulation_steps()

    @property
    def micro_batch_size(self):
        return self.train_micro_batch_size_per_gpu()

    def train_batch(self, data_iter=None):
        """One step. Collective. Returns the mean loss of all micro batches and data-parallel ranks, on every rank.

        data_iter: on the first and the last stage, yields the same gradient_accumulation_steps of (inputs, labels): tensors, or
        tuples of them; by default it goes on with what it had before."""
        if not torch.is_grad_enabled():
            raise RuntimeError("train_batch() requires gradients enabled. Use eval_batch() instead.")
        self._require_model()
        self._require_own_instructions()
        self._require_optimizer()
        if data_iter is not None:
            self.set_dataiterator(data_iter)
        self.module.train()
        self._begin(computes_loss=True)
        self._in_backward = True
        try:
            with self._forgets_pass_on_error():
                self._run.train(self.micro_batches, self._run_stage)
        finally:
            self._in_backward = False
        super().step()
        self.core.set_boundary(None)
        self.agg_train_loss = self._mean_losses()
        if self.monitor.enabled:
            self.monitor.write_events([("Train/Samples/train_loss", float(self.agg_train_loss), self.global_samples)])
        self._report()
        return self.agg_train_loss

    def eval_batch(self, data_iter, return_logits=False, compute_loss=True, reduce_output="avg", bcast_loss=True,
                   num_micro_batches=None):
        """The forwards alone. Collective. Returns the mean loss, on every rank with bcast_loss, else on the last stage; with
        reduce_output None, the last stage's losses as a list; without compute_loss, of its outputs instead of losses. With
        return_logits also the outputs of the last micro batch, on the last stage."""
        if reduce_output not in ("avg", None):
            raise NotImplementedError(f"reduction type {reduce_output} not supported: use 'avg' or None")
        self._require_model()
        was_training, before = self.module.training, self.data_iterator
        loader = self.training_dataloader
        self.module.eval()
        self.set_dataiterator(data_iter)
        self._begin(computes_loss=compute_loss, returns_outputs=return_logits)
        micro_batches = num_micro_batches or self.micro_batches
        try:
            with torch.no_grad():
                self._run.evaluate(micro_batches, self._run_stage)
        finally:
            self.set_dataiterator(before)
            self.training_dataloader = loader
            self.module.train(was_training)
        result = self.fwd_outputs if self.is_last_stage() else None
        if reduce_output == "avg":
            if self.is_last_stage():
                result = self._mean_of_data_ranks(sum(self.fwd_outputs) / micro_batches)
            if compute_loss and bcast_loss:
                result = self._of_last_stage(result)
        if not return_logits:
            return result
        outputs, self.outputs = self.outputs, None
        return result, outputs

    def _begin(self, computes_loss, returns_outputs=False):
        self._compute_loss, self._returns_outputs = computes_loss, returns_outputs
        self.fwd_outputs, self.total_loss, self.total_additional_losses, self.outputs = [], None, None, None

    def _run_stage(self, stage, micro_batch, entering):
        """Of a micro batch: the tensors that the next stage goes on from; of the last one the loss. Called by C++."""
        batch = self._next_batch() if self.is_first_stage() or self.is_last_stage() else None
        if self.is_first_stage():
            inputs = self._on_device(batch[0], "inputs")
        else:
            inputs = entering[0] if len(entering) == 1 else tuple(entering)
        outputs = super().forward(inputs)
        if not self.is_last_stage():
            return _tensors_of(outputs, f"the output of stage {self.stage_id}")
        if self._compute_loss and self.module.loss_fn is not None:
            self.loss = self.module.loss_fn(outputs, self._on_device(batch[1], "labels"))
        else:
            self.loss = outputs
        if self._returns_outputs:
            self.outputs = outputs
        return [self._counted(self.loss)]

    def _counted(self, loss):
        if not torch.is_tensor(loss):
            raise made(_core.UsageError, f"the last stage's loss is a {type(loss).__name__}, not a tensor", "PipelineModule",
                       "return one tensor from loss_fn, or from the last layer")
        if self.module.training and loss.numel() != 1:
            raise made(_core.UsageError, f"the last stage's loss has {loss.numel()} elements", "PipelineModule",
                       "return a tensor of one element from loss_fn" if self.module.loss_fn is not None else
                       "give PipelineModule a loss_fn, which makes one of the last layer's output and the labels")
        self.fwd_outputs.append(loss.detach())
        if self.module.training:
            self.total_loss = loss.detach() + (0 if self.total_loss is None else self.total_loss)
            for name, value in (self.module.get_additional_losses() or {}).items():
                self.total_additional_losses = self.total_additional_losses or OrderedDict()
                self.total_additional_losses[name] = value.detach() + self.total_additional_losses.get(name, 0)
        return loss

    def _on_device(self, value, what):
        """Without a graph: nothing flows back into a batch."""
        if torch.is_tensor(value):
            return value.detach().to(self.device)
        return tuple(each.detach().to(self.device) for each in _tensors_of(value, f"a batch's {what}"))

    def _require_own_instructions(self):
        """Those of a program that replaces some would not be run."""
        changed = [instruction.__name__ for instruction, run in self._INSTRUCTION_MAP.items() if _INSTRUCTIONS.get(instruction) is not run]
        if changed:
            raise made(_core.UsageError, f"PipelineEngine._INSTRUCTION_MAP has another {', '.join(changed)}: what a stage does is not carried "
                       "out by instructions of Python", "train_batch", "leave the map as it is")

    def _require_optimizer(self):
        if self.optimizer is None:
            raise RuntimeError("this engine has no optimizer: pass one to initialize, or name one in the configuration")

    # ---- losses

    def _mean_losses(self):
        """Of the batch: sets dp_group_loss (of this pipeline) and agg_additional_losses; returns the mean of all pipelines."""
        names = list(self.module.get_additional_losses() or {})
        both = None
        if self.is_last_stage():
            additional = self.total_additional_losses or {}
            own = torch.stack([torch.as_tensor(value).float().reshape(()) for value in
                               (self.total_loss, *(additional[name] for name in names))]) / self.micro_batches
            both = torch.stack([own, self._mean_of_data_ranks(own.clone())])
        own, mean = self._of_last_stage(both)
        self.dp_group_loss = own[0]
        self.agg_additional_losses = OrderedDict(zip(names, mean[1:])) if names else None
        return mean[0]

    def _mean_of_data_ranks(self, value):
        if self.is_data_parallel:
            dist.all_reduce(value, group=self.grid.get_data_parallel_group())
            value = value / self.dp_world_size
        return value

    def _of_last_stage(self, value):
        """Every stage gets what the last one has."""
        if not self.is_pipe_parallel:
            return value
        found = [value]
        dist.broadcast_object_list(found, src=self.grid.stage_to_global(self.num_stages - 1), group=self.grid.get_pipe_parallel_group())
        return found[0]

    def _report(self):
        every = self.steps_per_print()
        if not every or self.global_steps % every or self.global_rank != 0:
            return
        now = time.monotonic()
        seconds, self._printed = (now - self._printed) / every, now
        additional = "".join(f"{name}: {value.item():0.4f} " for name, value in (self.agg_additional_losses or {}).items())
        print(f"steps: {self.global_steps} loss: {self.agg_train_loss:0.4f} {additional}iter time (s): {seconds:0.3f} "
              f"samples/sec: {self.train_batch_size() / seconds:0.3f}", flush=True)

    # ---- where it is

    def is_first_stage(self):
        return self.stage_id == 0

    def is_last_stage(self):
        return self.stage_id == self.num_stages - 1

    def get_pipeline_parallel_rank(self):
        return self.stage_id

    def get_additional_losses(self):
        return self.agg_additional_losses

    def reset_activation_shape(self):
        """Does nothing: what is sent says its shape each time."""

    def set_has_attention_mask(self, value):
        """Does nothing: tensors of any dtype are sent."""

    # ---- what belongs to engines that are no pipelines

    def forward(self, *args, **kwargs):
        self._require_one_stage("forward")
        return super().forward(*args, **kwargs)

    def backward(self, *args, **kwargs):
        self._require_one_stage("backward")
        return super().backward(*args, **kwargs)

    def step(self, *args, **kwargs):
        self._require_one_stage("step")
        super().step(*args, **kwargs)

    def _require_one_stage(self, name):
        if self.is_pipe_parallel:
            raise PipelineError(f"{name}() is not for pipelines of several stages: only train_batch() and eval_batch() are")

    # ---- weights and checkpoints

    def buffers_to_save(self):
        """Those of all stages, by name. Collective over the pipeline."""
        own = super().buffers_to_save()
        return self._of_all_stages(own) if self.is_pipe_parallel else own

    def _of_all_stages(self, own):
        """What the stages have by name, together. Collective over the pipeline."""
        found = [None] * self.num_stages
        dist.all_gather_object(found, own, group=self.grid.get_pipe_parallel_group())
        return {name: value for of_stage in found for name, value in of_stage.items()}

    def consolidated_state_dict(self, exclude_frozen_parameters=False, keeps_on=0):
        """Of all stages, on the ranks of the pipeline in which rank `keeps_on` is; None: of this rank's stage."""
        if not self.is_pipe_parallel:
            return super().consolidated_state_dict(exclude_frozen_parameters, keeps_on)
        own = super().consolidated_state_dict(exclude_frozen_parameters, keeps_on=None)
        if keeps_on is None or keeps_on not in self.grid.pp_group:
            return own if keeps_on is None else {}
        together = self._of_all_stages(own)
        return together if self.global_rank == keeps_on else {}

    def load_state_dict_into_module(self, state, strict=True):
        """`state`: of all stages, or of this one."""
        own = self.module.state_dict(keep_vars=True)
        super().load_state_dict_into_module({name: value for name, value in state.items() if name in own}, strict)


def _tensors_of(value, what):
    tensors = list(value) if isinstance(value, (tuple, list)) else [value]
    for tensor in tensors:
        if not torch.is_tensor(tensor):
            raise made(_core.UsageError, f"{what} holds a {type(tensor).__name__}", "PipelineModule",
                       "hand on a tensor, or a tuple of tensors")
    return tensors
