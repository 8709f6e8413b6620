"""Frozen weights that are bytes to everybody but their module: integers, and the 4-bit weights of bitsandbytes, whatever
dtype these are stored as (bnb_4bit_quant_storage). At stage 3 they are sharded, gathered and offloaded as bytes, in units of their
own; below it they stay as they are, whole on every rank.

What their module needs to read them (quant_state: scales, code book) is no parameter, stays whole on every rank, and is in no
checkpoint. So neither are the bytes, at any stage, for with other scales they would be other weights: a quantized base comes
from where the program loads it.

bitsandbytes does two things with a weight that one whose bytes come and go cannot stand, and which end here: an evaluation on
some CPUs packs it anew, for good, and LLM.int8() multiplies with a second reference to its memory.
"""


def is_packed(parameter):
    return not parameter.requires_grad and (not parameter.is_floating_point() or getattr(parameter, "quant_state", None) is not None)


def awaits_quantization(parameter):
    """A weight of bitsandbytes' that is still in floating point, until .to(device): what its module holds is not final."""
    return parameter.is_floating_point() and (getattr(parameter, "bnb_quantized", None) is False
                                              or getattr(parameter, "has_fp16_weights", None) is False)


def prepare(module):
    """Before the module's own packed weights are partitioned."""
    for parameter in module._parameters.values():
        if parameter is None or not is_packed(parameter):
            continue
        if getattr(getattr(parameter, "quant_state", None), "packing_format_for_cpu", False):
            module.state_dict()  # where bitsandbytes undoes what an evaluation did
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # evaluation computes as training does from now on
        state = getattr(module, "state", None)
        if hasattr(parameter, "CB") and hasattr(state, "CB"):
            if parameter.CB is not None:
                module.init_8bit_state()  # the module's own: scales move from the weight to its state
            state.CB = None
            parameter.tessera_int8_state = state


def has_second_reference(parameter):
    return hasattr(parameter, "tessera_int8_state")


def follow(parameter):
    """LLM.int8()'s second reference is to the parameter's present memory; none while it has none."""
    if has_second_reference(parameter):
        parameter.tessera_int8_state.CB = parameter.detach() if parameter.numel() else None
