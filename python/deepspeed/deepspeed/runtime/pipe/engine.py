"""The class of pipeline engines, for isinstance: Tessera does not run pipelines from Python yet."""

from deepspeed._not_yet import sentence
from deepspeed.runtime.engine import DeepSpeedEngine


class PipelineError(Exception):
    """A call that a pipeline engine does not have."""


class PipelineEngine(DeepSpeedEngine):
    def __init__(self, *args, **kwargs):
        raise NotImplementedError(sentence("deepspeed.runtime.pipe.engine.PipelineEngine"))
