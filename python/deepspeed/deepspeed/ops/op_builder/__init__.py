"""Placeholder."""


class OpBuilder:
    NAME = "none"


class FusedAdamBuilder(OpBuilder):
    NAME = "fused_adam"


class CPUAdamBuilder(OpBuilder):
    NAME = "cpu_adam"


class UtilsBuilder(OpBuilder):
    NAME = "utils"
