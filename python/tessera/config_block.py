"""One block of a ds_config as a checked object, with DeepSpeed's rules:

  unknown keys are refused; values are coerced ("true", 1 and 5e8 do as booleans and integers) and checked, also when
  they are assigned later; a value "auto" counts as not given, unless `strict`; enums are kept as plain values.

A field that another one has replaced says so in its json_schema_extra:
  deprecated      True: a warning when it is given
  new_param       the field that replaced it, dotted when it lies in a nested block
  new_param_fn    old value -> new value (as it is)
  set_new_param   False: only warn
"""

import functools
import logging

import torch
from pydantic import BaseModel, ConfigDict, field_serializer

logger = logging.getLogger("DeepSpeed")


class ConfigBlock(BaseModel):
    """Base of all blocks."""

    model_config = ConfigDict(validate_default=True, validate_assignment=True, use_enum_values=True,
                              populate_by_name=True, extra="forbid", arbitrary_types_allowed=True,
                              protected_namespaces=())

    def __init__(self, strict=False, **data):
        if not strict:
            data = {key: value for key, value in data.items() if not (isinstance(value, str) and value == "auto")}
        super().__init__(**data)
        self._move_deprecated()

    def _move_deprecated(self):
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, dict) and extra.get("deprecated") and name in self.model_fields_set:
                self._move(name, extra)

    def _move(self, name, extra):
        successor = extra.get("new_param", "")
        logger.warning(f"config key {name} is deprecated" + (f"; use {successor}" if successor else ""))
        if not successor or not extra.get("set_new_param", True):
            return
        assert successor not in self.model_fields_set, \
            f"config keys {name} and {successor} are both given, but {successor} replaces {name}; remove {name}"
        convert = extra.get("new_param_fn", lambda value: value)
        *outer, last = successor.split(".")
        setattr(functools.reduce(getattr, outer, self), last, convert(getattr(self, name)))

    @field_serializer("dtype", check_fields=False)
    def serialize_torch_dtype(dtype: torch.dtype) -> str:
        return str(dtype)
