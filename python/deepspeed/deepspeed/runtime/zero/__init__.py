"""deepspeed.zero: parameters of which each rank holds a part."""

from deepspeed._lazy import lazy_attributes

_PARTITIONED = "Init GatheredParameters register_external_parameter unregister_external_parameter ZeroParamStatus " \
               "ZeroParamType".split()

__getattr__ = lazy_attributes(__name__, {
    **{name: "deepspeed.runtime.zero.partition_parameters" for name in _PARTITIONED},
    "TiledLinear": "deepspeed.runtime.zero.tiling",
    "TiledLinearReturnBias": "deepspeed.runtime.zero.tiling",
    "unwrap_model_for_generation": "deepspeed.runtime.zero.unwrap_model",
})
