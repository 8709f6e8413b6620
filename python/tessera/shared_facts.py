"""What of a program's model and optimizer has to be the same on every rank, beyond the parameters, which C++ describes."""

from torch import nn


def facts_of(model, optimizer):
    """Lines for the ModelTree, which the engine compares among the ranks."""
    facts = [f"dropout '{path}' of {module.p}" for path, module in model.named_modules()
             if isinstance(module, nn.modules.dropout._DropoutNd)]
    if optimizer is not None:
        facts.append(f"optimizer {type(optimizer).__module__}.{type(optimizer).__qualname__}")
        facts += [f"group {number}: {_plain(group)}" for number, group in enumerate(optimizer.param_groups)]
    return facts


def _plain(group):
    """A group's hyperparameters, without tensors and lists of them."""
    return {key: value for key, value in sorted(group.items()) if isinstance(value, (bool, int, float, str, tuple))}
