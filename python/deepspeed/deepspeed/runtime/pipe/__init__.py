"""Pipeline parallelism: a model as a list of layers, shared out to stages."""

from deepspeed._lazy import lazy_attributes

__getattr__ = lazy_attributes(__name__, {
    "LayerSpec": "deepspeed.runtime.pipe.module",
    "PipelineModule": "deepspeed.runtime.pipe.module",
    "TiedLayerSpec": "deepspeed.runtime.pipe.module",
    "ProcessTopology": "deepspeed.runtime.pipe.topology",
})
