"""One parameter's fp32 weights, gradient and optimizer state, wherever they are kept."""

from tessera.fragments import (safe_get_full_fp32_param, safe_get_full_grad, safe_get_full_optimizer_state,  # noqa: F401
                               safe_get_local_fp32_param, safe_get_local_grad, safe_get_local_optimizer_state,
                               safe_set_full_fp32_param, safe_set_full_grad, safe_set_full_optimizer_state,
                               safe_set_local_fp32_param, safe_set_local_grad, safe_set_local_optimizer_state,
                               safe_update_full_grad_vectorized)
