"""Placeholder."""


class MoE:
    pass
