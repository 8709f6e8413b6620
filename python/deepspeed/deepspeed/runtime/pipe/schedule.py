"""What each stage of a pipeline does, step by step: lists of instructions.

    for instructions in TrainSchedule(micro_batches=8, stages=4, stage_id=0):
        for instruction in instructions:
            ...

Iterating again begins anew.
"""

from abc import ABC, abstractmethod

from deepspeed import _names
from deepspeed.runtime.utils import call_to_str
from tessera.pipeline_schedule import TrainTimetable

_names.serve(__name__)


class PipeSchedule(ABC):
    """One stage's instructions for one batch of `micro_batches`."""

    def __init__(self, micro_batches, stages, stage_id):
        self.micro_batches, self.stages, self.stage_id = micro_batches, stages, stage_id
        self.prev_stage, self.next_stage = stage_id - 1, stage_id + 1

    @abstractmethod
    def steps(self):
        """Yields the list of instructions of each step."""

    def num_pipe_buffers(self):
        """How many micro batches may be in work at once."""
        return self.micro_batches

    def _valid_micro_batch(self, micro_batch_id):
        return 0 <= micro_batch_id < self.micro_batches

    def _valid_stage(self, stage_id):
        return 0 <= stage_id < self.stages

    def _buffer_idx(self, micro_batch_id):
        assert self._valid_micro_batch(micro_batch_id), f"micro batch {micro_batch_id} is not in this batch"
        return micro_batch_id % self.num_pipe_buffers()

    @property
    def stage(self):
        return self.stage_id

    @property
    def num_stages(self):
        return self.stages

    @property
    def num_micro_batches(self):
        return self.micro_batches

    @property
    def is_first_stage(self):
        return self.stage_id == 0

    @property
    def is_last_stage(self):
        return self.stage_id == self.stages - 1

    def __iter__(self):
        return self.steps()


class InferenceSchedule(PipeSchedule):
    """Forward only; each stage is one step behind the one before it."""

    def num_pipe_buffers(self):
        return 2

    def steps(self):
        for step in range(self.micro_batches + self.stages - 1):
            micro_batch = step - self.stage_id
            here, before = (micro_batch % 2, (micro_batch - 1) % 2)
            instructions = []
            if self.is_first_stage or self.is_last_stage:
                if self._valid_micro_batch(micro_batch):
                    instructions.append(LoadMicroBatch(here))
            receives = self._valid_stage(self.prev_stage) and self._valid_micro_batch(micro_batch)
            sends = self._valid_stage(self.next_stage) and self._valid_micro_batch(micro_batch - 1)
            exchange = [RecvActivation(here)] * receives + [SendActivation(before)] * sends
            # Neighbours go in opposite order, so that one sends while the other receives.
            instructions += exchange if self.stage_id % 2 else exchange[::-1]
            if self._valid_micro_batch(micro_batch):
                instructions.append(ForwardPass(here))
            yield instructions


class TrainSchedule(PipeSchedule):
    """1F1B; the gradients of the batch are reduced, and the optimizer steps, in the last step."""

    def __init__(self, micro_batches, stages, stage_id):
        super().__init__(micro_batches, stages, stage_id)
        self._timetable = TrainTimetable(micro_batches, stages, stage_id)

    def num_pipe_buffers(self):
        return self._timetable.buffer_count()

    def steps(self):
        before = -1
        last = self._timetable.step_count() - 1
        for step in range(last + 1):
            micro_batch, is_forward = self._timetable.work_at(step)
            instructions = self._exchange(micro_batch, before, is_forward)
            if self._valid_micro_batch(micro_batch):
                buffer = self._buffer_idx(micro_batch)
                if is_forward and (self.is_first_stage or self.is_last_stage):
                    instructions.append(LoadMicroBatch(buffer))
                instructions.append(ForwardPass(buffer) if is_forward else BackwardPass(buffer))
            if step == last:
                instructions += [ReduceTiedGrads(), ReduceGrads(), OptimizerStep()]
            before = micro_batch
            yield instructions

    def _exchange(self, micro_batch, before, is_forward):
        """Before a forward, the stage before gets the last gradient and gives an activation; before a backward, the
        stage after gives a gradient and gets the last activation."""
        neighbour = self.prev_stage if is_forward else self.next_stage
        if not self._valid_stage(neighbour):
            return []
        receives, sends = self._valid_micro_batch(micro_batch), self._valid_micro_batch(before)
        if is_forward:
            return ([SendGrad(self._buffer_idx(before))] if sends else []) + (
                [RecvActivation(self._buffer_idx(micro_batch))] if receives else [])
        return ([RecvGrad(self._buffer_idx(micro_batch))] if receives else []) + (
            [SendActivation(self._buffer_idx(before))] if sends else [])


class DataParallelSchedule(PipeSchedule):
    """No pipeline: gradient accumulation over the micro batches."""

    def num_pipe_buffers(self):
        return 1

    def steps(self):
        for micro_batch in range(self.micro_batches):
            instructions = [LoadMicroBatch(buffer_id=0), ForwardPass(buffer_id=0), BackwardPass(buffer_id=0)]
            if micro_batch == self.micro_batches - 1:
                instructions += [ReduceGrads(), OptimizerStep()]
            yield instructions


class PipeInstruction:
    """One thing to do; its arguments are attributes."""

    def __init__(self, **kwargs):
        self.name = type(self).__name__
        self.kwargs = kwargs
        self.__dict__.update(kwargs)

    def __repr__(self):
        return call_to_str(self.name, **self.kwargs)


class OptimizerStep(PipeInstruction):
    pass


class ReduceGrads(PipeInstruction):
    """Over the data-parallel ranks."""


class ReduceTiedGrads(PipeInstruction):
    """Of weights that several stages hold."""


class CommitP2P(PipeInstruction):
    """Starts the transfers that were asked for before it."""


class BufferOpInstruction(PipeInstruction):
    """Something to do with the micro batch in one pipeline buffer."""

    def __init__(self, buffer_id, **kwargs):
        super().__init__(buffer_id=buffer_id, **kwargs)


class LoadMicroBatch(BufferOpInstruction):
    pass


class ForwardPass(BufferOpInstruction):
    pass


class BackwardPass(BufferOpInstruction):
    pass


class SendActivation(BufferOpInstruction):
    """To the next stage."""


class RecvActivation(BufferOpInstruction):
    """From the stage before."""


class SendGrad(BufferOpInstruction):
    """To the stage before."""


class RecvGrad(BufferOpInstruction):
    """From the next stage."""
