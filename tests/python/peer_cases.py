"""What peer_runs.py trains with either `deepspeed`: configurations by name, which begins with the precision."""

HOST = {"device": "cpu"}


def case(stage, optimizer="AdamW", precision=None, rounded=False, params=None, without_empty_step=False, **zero):
    """rounded: the weights that training begins with are bf16's (fp16's). without_empty_step: see peer_runs.no_empty_step()."""
    if precision and stage == 3:
        zero = {"memory_efficient_linear": False, **zero}  # DeepSpeed's own linear layer rounds before it adds the bias
    config = {"optimizer": {"type": optimizer, "params": params or {"lr": 1e-2, "weight_decay": 0.1}},
              "zero_optimization": {"stage": stage, **zero}}
    if precision:
        config[precision] = {"enabled": True, **({"initial_scale_power": 8} if precision == "fp16" else {})}
    return {"config": config, "precision": precision, "rounded": rounded, "without_empty_step": without_empty_step}


MOMENTUM = {"lr": 1e-2, "momentum": 0.9}
CASES = {
    **{f"fp32, stage {stage}": case(stage) for stage in range(4)},
    **{f"fp32, stage {stage}, optimizer on the host": case(stage, offload_optimizer=HOST) for stage in (1, 2, 3)},
    "fp32, stage 3, optimizer and parameters on the host": case(3, offload_optimizer=HOST, offload_param=HOST),
    **{f"fp32, stage {stage}, Adam": case(stage, "Adam") for stage in (0, 2)},
    **{f"fp32, stage {stage}, Adam with L2": case(stage, "Adam", params={"lr": 1e-2, "weight_decay": 0.1, "adam_w_mode": False})
       for stage in (0, 2)},
    **{f"fp32, stage {stage}, SGD": case(stage, "SGD", params=MOMENTUM)
       for stage in (0, 2, 3)},
    "fp32, stage 2, Adagrad on the host": case(2, "Adagrad", params={"lr": 1e-2}, offload_optimizer=HOST),
    "fp32, stage 2, Lion on the host": case(2, "Lion", params={"lr": 1e-3, "weight_decay": 0.1}, offload_optimizer=HOST),
    **{f"bf16, stage {stage}": case(stage, precision="bf16", rounded=True) for stage in (1, 2, 3)},
    "bf16, stage 0 without its empty step": case(0, precision="bf16", rounded=True, without_empty_step=True),
    "bf16, stage 2, optimizer on the host": case(2, precision="bf16", rounded=True, offload_optimizer=HOST),
    **{f"fp16, stage {stage}": case(stage, precision="fp16", rounded=True) for stage in (1, 2, 3)},
    "fp16, stage 0 without its empty step": case(0, precision="fp16", rounded=True, without_empty_step=True),
}

# What stands in the way of equality in 16 bits, one thing at a time: the case, and the one from which it differs in that alone.
DIFFERENT = {**{f"{precision}, stage 0 as it is": f"{precision}, stage 0 without its empty step" for precision in ("bf16", "fp16")},
             "bf16, stage 2, of fp32 weights": "bf16, stage 2",
             "bf16, stage 3 with its own linear layer": "bf16, stage 3"}
CASES.update({name: case(0, precision=name[:4], rounded=True) for name in DIFFERENT if "as it is" in name})
CASES["bf16, stage 2, of fp32 weights"] = case(2, precision="bf16")
CASES["bf16, stage 3 with its own linear layer"] = case(3, precision="bf16", rounded=True, memory_efficient_linear=True)
