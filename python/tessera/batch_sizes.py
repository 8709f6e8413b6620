"""The three batch sizes of a run, from any two or one of them.

    train_batch = micro_batch * grad_accum_steps * world_size

`train_batch` is the samples of one optimizer step over all data-parallel ranks, `micro_batch` those of one forward on
one rank. What is None is computed, rounding down; `check_batch_sizes` then finds what does not divide.
"""


def resolve_batch_sizes(train_batch, micro_batch, grad_accum_steps, world_size):
    """All three, in this order."""
    if train_batch is not None and micro_batch is not None:
        if grad_accum_steps is None:
            grad_accum_steps = train_batch // micro_batch // world_size
    elif train_batch is not None:
        grad_accum_steps = 1 if grad_accum_steps is None else grad_accum_steps
        micro_batch = train_batch // world_size // grad_accum_steps
    elif micro_batch is not None:
        grad_accum_steps = 1 if grad_accum_steps is None else grad_accum_steps
        train_batch = micro_batch * grad_accum_steps * world_size
    else:
        raise AssertionError("no batch size is given: the ds_config needs train_batch_size or "
                             "train_micro_batch_size_per_gpu, or both")
    return train_batch, micro_batch, grad_accum_steps


def check_batch_sizes(train_batch, micro_batch, grad_accum_steps, world_size):
    """AssertionError, as DeepSpeed raises it, for sizes that are not positive or do not multiply."""
    named = {"train_batch_size": train_batch, "train_micro_batch_size_per_gpu": micro_batch,
             "gradient_accumulation_steps": grad_accum_steps}
    for key, value in named.items():
        if not value > 0:
            raise AssertionError(f"{key} is {value}; it must be greater than 0")
    if train_batch != micro_batch * grad_accum_steps * world_size:
        raise AssertionError(
            "the batch sizes do not fit together: train_batch_size is not train_micro_batch_size_per_gpu * "
            f"gradient_accumulation_steps * world size: {train_batch} != "
            f"{micro_batch} * {grad_accum_steps} * {world_size}; leave one of them out to have it computed")
