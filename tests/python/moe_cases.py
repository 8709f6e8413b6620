"""The cases of moe_peer_runs.py: {name: (ZeRO stage, arguments of the layer)}."""

# Without noise and random choices, of which the two draw different numbers. With one expert a token and too little room, DeepSpeed drops without
# randomness whatever torch.topk drops of equals, and Tessera the last ones: there is nothing to compare.
CALM = {"use_rts": False, "top2_2nd_expert_sampling": False, "min_capacity": 0}

CASES = {
    "k 1, stage 0": (0, {"k": 1, "capacity_factor": 4.0, **CALM}),
    "k 1, stage 1": (1, {"k": 1, "capacity_factor": 4.0, **CALM}),
    "k 2, stage 1": (1, {"k": 2, "capacity_factor": 4.0, **CALM}),
    "k 2, tokens dropped, stage 2": (2, {"k": 2, "capacity_factor": 0.5, **CALM}),
    "k 1, all tokens, residual, stage 2": (2, {"k": 1, "drop_tokens": False, "use_residual": True, **CALM}),
}
