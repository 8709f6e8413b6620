"""data_types.keep_in_fp32_modules: buffers that stay in fp32 where the model trains in 16 bits.

As in DeepSpeed 0.19.8, which keeps buffers alone (the routing bias of a mixture of experts is one). Parameters take the
dtype of training, also those that such names mean, like T5's 'wo'. A name is found anywhere in a buffer's full name, and
* stands for any characters, as in transformers:

    "auto"      what the model and the modules inside it list: _keep_in_fp32_modules_strict, and with fp16
                _keep_in_fp32_modules as well
    a list      these names
    []          none
"""

import logging
import re

import torch

from tessera import _core
from tessera.error_report import made

logger = logging.getLogger("tessera")


def setting_of(config, place):
    """The value of the key in a ds_config (a dict), checked."""
    block = config.get("data_types")
    setting = block.get("keep_in_fp32_modules", "auto") if isinstance(block, dict) else "auto"
    listed = isinstance(setting, list) and all(isinstance(name, str) for name in setting)
    if setting != "auto" and not listed:
        raise made(_core.ConfigError, f"'data_types.keep_in_fp32_modules' is {setting!r}", place,
                   'use "auto" or a list of names')
    return setting


def kept_buffers(model, setting, dtype):
    """The floating buffers of the model that stay in fp32 where it trains in `dtype`."""
    if dtype not in (torch.float16, torch.bfloat16):
        return []
    patterns = _listed_by(model, dtype) if setting == "auto" else [_regex(name) for name in setting]
    found = [buffer for name, buffer in model.named_buffers()
             if buffer.is_floating_point() and any(re.search(pattern, name) for pattern in patterns)]
    if setting != "auto" and patterns and not found:
        logger.warning("'data_types.keep_in_fp32_modules' %s matches no buffer of the model; only buffers are kept in "
                       "fp32, as in DeepSpeed", setting)
    return found


def upcast(model, setting, dtype):
    """These buffers become fp32, where they are not."""
    for buffer in kept_buffers(model, setting, dtype):
        buffer.data = buffer.data.float()


def _regex(name):
    return name.replace("*", ".*")


def _listed_by(model, dtype):
    """Patterns from each module's own lists, for names of the whole model."""
    patterns = set()
    for path, module in model.named_modules():
        names = set(getattr(module, "_keep_in_fp32_modules_strict", None) or ())
        if dtype == torch.float16:
            names |= set(getattr(module, "_keep_in_fp32_modules", None) or ())
        patterns |= {rf"^{re.escape(path)}\..*{_regex(name)}" if path else _regex(name) for name in names}
    return patterns
