"""zero_optimization.leaf_module."""

from typing import Annotated, List

from pydantic import BeforeValidator, Field

from deepspeed.runtime.config_utils import DeepSpeedConfigModel
from tessera import leaf_modules

DEFAULT_LEAF_MODULE_CLASSES = list(leaf_modules.DEFAULT_CLASSES)
DEFAULT_LEAF_MODULE_NAMES = []
DEFAULT_LEAF_MODULE_NAME_SUFFIXES = []


# A single name may stand without a list around it.
Names = Annotated[List[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class DeepSpeedZeroLeafModuleConfig(DeepSpeedConfigModel):
    classes: Names = Field(default_factory=lambda: list(DEFAULT_LEAF_MODULE_CLASSES))
    names: Names = Field(default_factory=lambda: list(DEFAULT_LEAF_MODULE_NAMES))
    name_suffixes: Names = Field(default_factory=lambda: list(DEFAULT_LEAF_MODULE_NAME_SUFFIXES))
