"""A model as a list of layers that can be shared out to the stages of a pipeline."""

from deepspeed.runtime.pipe.module import LayerSpec, PipelineModule, TiedLayerSpec  # noqa: F401
