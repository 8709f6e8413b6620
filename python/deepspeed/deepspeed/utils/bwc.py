"""Ranks and sizes of a model-parallel unit (mpu), under the names that older and newer units give them."""


def _first(mpu, names, default):
    for name in names if mpu is not None else ():
        if hasattr(mpu, name):
            return getattr(mpu, name)()
    return default


def bwc_tensor_model_parallel_rank(mpu=None):
    return _first(mpu, ("get_tensor_model_parallel_rank", "get_slice_parallel_rank", "get_model_parallel_rank"), 0)


def bwc_tensor_model_parallel_world_size(mpu=None):
    return _first(mpu, ("get_tensor_model_parallel_world_size", "get_slice_parallel_world_size",
                        "get_model_parallel_world_size"), 1)


def bwc_tensor_model_parallel_group(mpu=None):
    return _first(mpu, ("get_tensor_model_parallel_group", "get_slice_parallel_group", "get_model_parallel_group"),
                  None)


def bwc_pipeline_parallel_world_size(mpu=None):
    return _first(mpu, ("get_pipeline_model_parallel_world_size", "get_pipe_parallel_world_size"), 1)


def bwc_pipeline_parallel_group(mpu=None):
    return _first(mpu, ("get_pipeline_model_parallel_group", "get_pipe_parallel_group"), None)
