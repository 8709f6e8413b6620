"""The weights of a pipeline's checkpoint that DeepSpeed wrote: a file for each layer of the whole list, whose names begin anew.

    layer_03-model_states.pt            layer_03-model_00-model_states.pt where the program's topology has an axis for tensors

What is `weight` there is `3.weight` in the whole model or, of a tied layer, `tied_modules.<key>.weight`. The files do not say
which: the PipelineModule does or, at ZeRO stage 1, the names in the optimizer's files. Nor is it written which layers a stage
has: at stage 0 that follows from how many parameters its optimizer counts.
"""

import re
from dataclasses import dataclass

from tessera import _core
from tessera.error_report import made

TIED = "tied_modules."


@dataclass
class Layer:
    """A layer of a PipelineModule: what its parameters' names begin with, and the trained ones by their whole names, in order."""
    prefix: str
    trained: list


def layer_files(folder):
    """{index of the layer: its file}; none where the checkpoint is no pipeline's."""
    found = {}
    for path in folder.glob("layer_*-model_states.pt"):
        match = re.fullmatch(r"layer_(\d+)-(?:model_(\d+)-)?model_states\.pt", path.name)
        if match is None or int(match[2] or 0) != 0:
            raise made(_core.DataError, "the checkpoint's layers are cut over tensor-parallel ranks, or over axes of a program's own", str(path),
                       "only pipelines of whole layers can be imported: save it again with one tensor-parallel rank")
        if int(match[1]) in found:
            raise made(_core.DataError, f"there are two files for layer {int(match[1])}", str(path), "remove the one from the earlier save")
        found[int(match[1])] = path
    return dict(sorted(found.items()))


def prefix_of(index, state, shapes):
    """Of a layer whose own names are `state`'s, by those of the whole model that are known: {name: shape, or None of a buffer}."""
    own = f"{index}."
    if any(own + name in shapes for name in state):
        return own
    found = {}
    for name, shape in shapes.items():
        if name.startswith(TIED):
            key, _, rest = name.removeprefix(TIED).partition(".")
            found.setdefault(f"{TIED}{key}.", []).append(rest in state and shape in (None, tuple(state[rest].shape)))
    fitting = [prefix for prefix, fits in found.items() if all(fits)]
    if len(fitting) > 1:
        raise made(_core.DataError, f"layer {index} may be any of {', '.join(fitting)}: they have the same parameters", "the checkpoint",
                   "load it with engine.load_checkpoint of the PipelineModule, which knows")
    return fitting[0] if fitting else own


def trained_of(layers):
    """Each once: a tied layer may be there several times."""
    return [*dict.fromkeys(name for layer in layers for name in layer.trained)]


def ends_of_stages(layers, counts, first=0):
    """Where each stage's layers end, from how many parameters its optimizer trains; None if they cannot be shared out so."""
    if not counts:
        return [] if first == len(layers) else None
    for end in range(first, len(layers) + 1):
        if len(trained_of(layers[first:end])) == counts[0]:
            rest = ends_of_stages(layers, counts[1:], end)
            if rest is not None:
                return [end, *rest]
    return None


def module_of_stage(layers, whole):
    """What a stage with these layers has of the whole model, in the order in which its modules are registered: tied ones first."""
    prefixes = dict.fromkeys(layer.prefix for layer in layers)
    ordered = sorted(prefixes, key=lambda prefix: not prefix.startswith(TIED))
    return {name: whole[name] for prefix in ordered for name in whole if name.startswith(prefix)}
