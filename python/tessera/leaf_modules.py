"""Modules that stage 3 gathers as a whole, with everything inside them: those whose forward runs other modules on
different ranks (a mixture of experts), which would gather in different orders."""

from torch import nn

_MARK = "_z3_leaf"
# Marked where zero_optimization.leaf_module.classes names none, as in DeepSpeed.
DEFAULT_CLASSES = (
    "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
)


def is_leaf(module):
    return getattr(module, _MARK, False) is True


def _set(model, matches, flag):
    found = [module for name, module in model.named_modules() if matches(name, module)]
    for module in found:
        setattr(module, _MARK, flag)
    return found


def _full_name(module):
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _of_classes(classes):
    classes = list(classes)
    for each in classes:
        if not isinstance(each, (str, type)):
            raise TypeError(f"name leaf modules by class or class name, not by {each!r}")

    def matches(_, module):
        own = {type(module).__name__, type(module).__qualname__, _full_name(module)}
        return any(each in own if isinstance(each, str) else isinstance(module, each) for each in classes)

    return matches


def _marked(found, classes, raise_if_not_found):
    if not found and raise_if_not_found:
        raise ValueError(f"the model has no modules of the classes {classes}")
    return found


def set_z3_leaf_modules(model, leaf_module_classes, raise_if_not_found=True):
    """Marks all modules of these classes and of classes derived from them (or of names of classes); returns them."""
    return _marked(_set(model, _of_classes(leaf_module_classes), True), leaf_module_classes, raise_if_not_found)


def unset_z3_leaf_modules(model, leaf_module_classes, raise_if_not_found=True):
    return _marked(_set(model, _of_classes(leaf_module_classes), False), leaf_module_classes, raise_if_not_found)


def _set_each(model, wanted, matches, flag, raise_if_not_found):
    """(the modules that match one of `wanted`, those of `wanted` that no module matches)"""
    found = _set(model, lambda name, _: any(matches(name, each) for each in wanted), flag)
    names = [name for name, _ in model.named_modules()]
    missing = [each for each in wanted if not any(matches(name, each) for name in names)]
    if missing and raise_if_not_found:
        raise ValueError(f"the model has no modules whose names are, or end with, one of {missing}")
    return found, missing


def set_z3_leaf_modules_by_name(model, module_names, flag=True, raise_if_not_found=True):
    """Marks modules by their names in model.named_modules(). Returns the modules, and the names that the model does not have."""
    return _set_each(model, module_names, str.__eq__, flag, raise_if_not_found)


def set_z3_leaf_modules_by_suffix(model, module_name_suffixes, flag=True, raise_if_not_found=True):
    """Marks modules by the ends of these names. Returns the modules, and the suffixes that no name ends with."""
    return _set_each(model, module_name_suffixes, str.endswith, flag, raise_if_not_found)


def set_z3_leaf_module(model, flag):
    setattr(model, _MARK, flag)


def z3_leaf_module(model):
    return is_leaf(model)


def z3_leaf_parameter(parameter):
    return getattr(parameter, _MARK, False)


def get_z3_leaf_modules(model):
    return [module for module in model.modules() if is_leaf(module)]


def mark_leaves_of_config(model: nn.Module, values):
    """zero_optimization.leaf_module: classes, names, name_suffixes; those that the model has."""
    block = "zero_optimization.leaf_module."
    classes = values.get(block + "classes")
    set_z3_leaf_modules(model, DEFAULT_CLASSES if classes is None else classes, raise_if_not_found=False)
    set_z3_leaf_modules_by_name(model, values.get(block + "names") or [], raise_if_not_found=False)
    set_z3_leaf_modules_by_suffix(model, values.get(block + "name_suffixes") or [], raise_if_not_found=False)
