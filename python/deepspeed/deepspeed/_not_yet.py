"""What DeepSpeed 0.19.8 has and Tessera has not: asking for such a name says so, and any other name fails as ever.

MODULES holds the outermost names only: what lies inside a missing package is missing with it. ATTRIBUTES holds names by
the module where DeepSpeed defines or re-exports them.
"""

import sys

MODULES = frozenset("""
""".split())

ATTRIBUTES = {
}


class NotInTesseraError(ModuleNotFoundError):
    """DeepSpeed has this module, or this name in a package, and Tessera does not have it yet."""


def sentence(full_name):
    return (f"{full_name} is not in Tessera yet (DeepSpeed 0.19.8 has it); "
            "ask for it in the project's issue tracker")


def is_missing(full_name):
    module, _, name = full_name.rpartition(".")
    return full_name in MODULES or name in ATTRIBUTES.get(module, "").split()


def missing_attribute(module, name):
    """The AttributeError for a name that the module does not have."""
    full_name = f"{module}.{name}"
    if is_missing(full_name):
        return AttributeError(sentence(full_name))
    return AttributeError(f"module {module!r} has no attribute {name!r}")


def attribute_guard(module):
    """The `__getattr__` of a module, not a package, that lacks some of DeepSpeed's names."""

    def get_attribute(name):
        raise missing_attribute(module, name)

    return get_attribute


class _MissingModules:
    """Last on sys.meta_path: sees only what nobody found. `from deepspeed import X` comes here with X, module or not."""

    def find_spec(self, full_name, path=None, target=None):
        if full_name.startswith("deepspeed.") and is_missing(full_name):
            raise NotInTesseraError(sentence(full_name))
        return None


def refuse_missing_modules():
    if not any(isinstance(finder, _MissingModules) for finder in sys.meta_path):
        sys.meta_path.append(_MissingModules())
