"""Modules that stage 3 gathers as a whole, with all that is inside them: those whose forward runs other modules on
different ranks (a mixture of experts), which would gather in different orders."""

from torch import nn

_MARK = "_z3_leaf"


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
            raise TypeError(f"leaf modules are given by class or by the name of a class, not by {each!r}")

    def matches(_, module):
        own = {type(module).__name__, type(module).__qualname__, _full_name(module)}
        return any(each in own if isinstance(each, str) else type(module) is each for each in classes)

    return matches


def _checked(found, what):
    if not found:
        raise ValueError(f"the model has no module {what}")
    return found


def set_z3_leaf_modules(model, leaf_module_classes, raise_if_not_found=True):
    """Marks all modules of these classes (or names of classes); returns them."""
    found = _set(model, _of_classes(leaf_module_classes), True)
    return _checked(found, f"of the classes {leaf_module_classes}") if raise_if_not_found else found


def unset_z3_leaf_modules(model, leaf_module_classes, raise_if_not_found=True):
    found = _set(model, _of_classes(leaf_module_classes), False)
    return _checked(found, f"of the classes {leaf_module_classes}") if raise_if_not_found else found


def set_z3_leaf_modules_by_name(model, module_names, raise_if_not_found=True):
    found = _set(model, lambda name, _: name in module_names, True)
    return _checked(found, f"named {module_names}") if raise_if_not_found else found


def set_z3_leaf_modules_by_suffix(model, module_name_suffixes, raise_if_not_found=True):
    found = _set(model, lambda name, _: any(name.endswith(each) for each in module_name_suffixes), True)
    return _checked(found, f"whose name ends with one of {module_name_suffixes}") if raise_if_not_found else found


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
    set_z3_leaf_modules(model, values.get(block + "classes") or [], raise_if_not_found=False)
    set_z3_leaf_modules_by_name(model, values.get(block + "names") or [], raise_if_not_found=False)
    set_z3_leaf_modules_by_suffix(model, values.get(block + "name_suffixes") or [], raise_if_not_found=False)
