"""Placeholder."""

__compatible_ops__ = {"fused_adam": True, "utils": False, "cpu_adam": True}
