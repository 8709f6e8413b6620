"""DeepSpeed's estimators of memory, in the modules where programs import them from: what Hugging Face's guide shows of them (document 002)."""

import pytest
import torch
from deepspeed.runtime.zero.stage3 import (estimate_zero3_model_states_mem_needs, estimate_zero3_model_states_mem_needs_all_cold,
                                           estimate_zero3_model_states_mem_needs_all_live)
from deepspeed.runtime.zero.stage_1_and_2 import (estimate_zero2_model_states_mem_needs, estimate_zero2_model_states_mem_needs_all_cold,
                                                  estimate_zero2_model_states_mem_needs_all_live)

T0_3B = 2_783_959_040, 65_798_144  # bigscience/T0_3B: all parameters, and those of its word embeddings
GUIDE = """
Estimated memory needed for params, optim states and gradients for a:
HW: Setup with 1 node, 1 GPU per node.
SW: Model with 2783M total params, 65M largest layer params.
per CPU | per GPU | Options
70.00GB | 0.25GB | offload_param=cpu , offload_optimizer=cpu , zero_init=1
70.00GB | 0.25GB | offload_param=cpu , offload_optimizer=cpu , zero_init=0
62.23GB | 5.43GB | offload_param=none, offload_optimizer=cpu , zero_init=1
62.23GB | 5.43GB | offload_param=none, offload_optimizer=cpu , zero_init=0
0.37GB | 46.91GB | offload_param=none, offload_optimizer=none, zero_init=1
15.56GB | 46.91GB | offload_param=none, offload_optimizer=none, zero_init=0
"""


def words(text):
    return [line.split() for line in text.strip().splitlines()]


def test_the_guides_table(capsys):
    estimate_zero3_model_states_mem_needs_all_cold(*T0_3B, num_gpus_per_node=1, num_nodes=1)
    assert words(capsys.readouterr().out) == words(GUIDE)


def test_of_a_model(capsys):
    """Shared parameters count once; the largest layer is the module that itself has most."""
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 2000), torch.nn.Linear(2000, 1000), torch.nn.Linear(2000, 1000, bias=False))
    model[2].weight = model[0].weight
    for live, cold in ((lambda: estimate_zero3_model_states_mem_needs_all_live(model, num_gpus_per_node=2),
                        lambda: estimate_zero3_model_states_mem_needs_all_cold(4_001_000, 2_001_000, num_gpus_per_node=2)),
                       (lambda: estimate_zero2_model_states_mem_needs_all_live(model, num_nodes=2),
                        lambda: estimate_zero2_model_states_mem_needs_all_cold(4_001_000, num_nodes=2))):
        live()
        found = capsys.readouterr().out
        cold()
        assert found == capsys.readouterr().out and "4M total params" in found


@pytest.mark.parametrize("arguments, expected", [
    ({}, (18 * 1.5 * 1e9, 4e6, 4e6)), ({"cpu_offload_params": False}, (16 * 1.5 * 1e9, 4e6 + 2e9, 4e6)),
    ({"cpu_offload": False}, (4e6 * 1.5, 4e6 + 18e9, 4e6)), ({"cpu_offload": False, "zero_init": False}, (4e9 * 1.5, 4e6 + 18e9, 4e6)),
    ({"zero_init": False, "num_gpus_per_node": 8, "additional_buffer_factor": 1}, (32e9, 4e6, 4e6)),
    ({"num_nodes": 2, "num_gpus_per_node": 4, "cpu_offload_params": False}, (8 * 1.5 * 1e9, 4e6 + 2e9 / 8, 4e6))])
def test_of_one_way_at_stage_3(arguments, expected):
    assert estimate_zero3_model_states_mem_needs(1_000_000_000, 1_000_000, **arguments) == expected


@pytest.mark.parametrize("arguments, expected", [
    ({}, (24e9, 2e9)), ({"cpu_offload": False}, (6e9, 20e9)), ({"num_nodes": 2, "num_gpus_per_node": 4}, (48e9, 2e9)),
    ({"num_nodes": 2, "num_gpus_per_node": 4, "cpu_offload": False, "additional_buffer_factor": 2}, (32e9, 2e9 + 18e9 / 8))])
def test_of_one_way_at_stage_2(arguments, expected):
    assert estimate_zero2_model_states_mem_needs(1_000_000_000, **arguments) == expected
