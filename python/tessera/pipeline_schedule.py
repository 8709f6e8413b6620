"""When each stage of a pipeline computes which micro batch.

Training follows 1F1B: a stage alternates between forward and backward, so that it keeps no more activations than there
are stages after it. With S stages, stage s works on micro batch m at

    forward     step 2 m + s
    backward    step 2 m + 2 S - 1 - s

Arithmetic only; which instructions that means is for the drop-in's schedule module.
"""


class TrainTimetable:
    """One stage's steps of one batch."""

    def __init__(self, micro_batches, stages, stage):
        self.micro_batches, self.stages, self.stage = micro_batches, stages, stage

    def step_count(self):
        return 2 * (self.micro_batches + self.stages - 1)

    def work_at(self, step):
        """(micro batch, is it the forward?); the micro batch may lie outside of the batch: then the stage waits."""
        is_forward = step % 2 == self.stage % 2
        first = self.stage if is_forward else 2 * self.stages - 1 - self.stage
        return (step - first) // 2, is_forward

    def buffer_count(self):
        """Activations that are alive at once: one for each stage from this one on, but at least two."""
        return max(2, min(self.stages - self.stage, self.micro_batches))
