"""Which modules of a model form units: whose gradients are reduced together, as soon as backward has them all, and which
at stage 3 are gathered for their forward and released after it.

A unit is one of the model's repeated blocks (a transformer layer), with all that is inside it; a module that was marked
as a leaf, with all that is inside it; or a module without children (an embedding, a head) outside of any block. Blocks
are found by themselves: children of a ModuleList, Sequential or ModuleDict with another child of the same class.
Parameters outside of all these belong to the model itself and stay gathered through its forward.
"""

from collections import Counter

from torch import nn

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
# Their forward reads parameters of the modules inside them without calling these.
_READ_THEIR_CHILDREN = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def announcing_modules(model, is_leaf=lambda module: False):
    """The modules in the order of the model, as {module: name}; the model itself, which always announces, left out."""
    found = {}
    if not is_leaf(model):
        _walk(model, "", is_leaf, found)
    return found


def _walk(module, path, is_leaf, found):
    classes = Counter(type(child) for child in module.children()) if isinstance(module, _CONTAINERS) else {}
    for name, child in module.named_children():
        child_path = f"{path}.{name}" if path else name
        if child in found or next(child.parameters(), None) is None:
            continue
        is_block = classes.get(type(child), 0) > 1 or isinstance(child, _READ_THEIR_CHILDREN)
        if is_block or is_leaf(child) or next(child.children(), None) is None:
            found[child] = child_path
        else:
            _walk(child, child_path, is_leaf, found)
