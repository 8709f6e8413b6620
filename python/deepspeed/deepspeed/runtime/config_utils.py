"""Base classes of configuration blocks, and reading of single keys."""

import json

from tessera.config_block import ConfigBlock


def dict_raise_error_on_duplicate_keys(ordered_pairs):
    """A dict of the pairs, for json.load; ValueError with the names of keys that come twice."""
    found = dict(ordered_pairs)
    if len(found) != len(ordered_pairs):
        keys = [key for key, _ in ordered_pairs]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        raise ValueError(f"keys that appear twice in the ds_config: {', '.join(twice)}; keep one of each")
    return found


class DeepSpeedConfigModel(ConfigBlock):
    """A block that is checked: see tessera/config_block.py."""


class ScientificNotationEncoder(json.JSONEncoder):
    """JSON that shows numbers over 1000 as 5.000000e+08, four spaces a level."""

    def iterencode(self, o, _one_shot=False, level=0):
        indent = 4 * " " * (level + 1)
        if isinstance(o, bool) or o is None:
            return json.dumps(o)
        if isinstance(o, (int, float)):
            return f"{o:e}" if o > 1e3 else f"{o}"
        if isinstance(o, dict):
            lines = [f'\n{indent}"{key}": {self.iterencode(value, level=level + 1)}' for key, value in o.items()]
            return "{" + ", ".join(lines) + f"\n{4 * ' ' * level}}}"
        if isinstance(o, (list, tuple)):
            return "[" + ", ".join(self.iterencode(value, level=level + 1) for value in o) + "]"
        return json.dumps(str(o)) if not isinstance(o, str) else json.dumps(o)


class DeepSpeedConfigObject:
    """A block that is not checked; prints as JSON."""

    def repr(self):
        return self.__dict__

    def __repr__(self):
        return json.dumps(self.__dict__, sort_keys=False, indent=4, cls=ScientificNotationEncoder, default=str)


class pp_int(int):
    """An int that prints with its thousands apart, or as `custom_print_str`."""

    def __new__(cls, val, custom_print_str=None):
        made = super().__new__(cls, val)
        made.custom_print_str = custom_print_str
        return made

    def __repr__(self):
        return self.custom_print_str or f"{self.real:,}"


def get_config_default(config, field_name):
    """The default of a field of a DeepSpeedConfigModel class."""
    field = config.model_fields.get(field_name)
    assert field is not None, f"{config.__name__} has no field {field_name!r}"
    assert not field.is_required(), f"field {field_name!r} of {config.__name__} has no default: it must be given"
    return field.get_default()


def get_scalar_param(param_dict, param_name, param_default_value):
    return param_dict.get(param_name, param_default_value)


get_list_param = get_dict_param = get_scalar_param
