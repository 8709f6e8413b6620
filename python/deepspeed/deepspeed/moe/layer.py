"""The class of layers with experts, for programs that import it and for isinstance."""

from torch import nn

from deepspeed import _names
from deepspeed._not_yet import sentence

_names.serve(__name__)


class MoE(nn.Module):
    def __init__(self, *args, **kwargs):
        raise NotImplementedError(sentence("deepspeed.moe.layer.MoE"))
