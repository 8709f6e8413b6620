"""A layer of which each token goes through some experts, chosen by a gate.

    layer = MoE(hidden_size=512, expert=mlp, num_experts=8, ep_size=4, k=2)
    hidden, balance_loss, tokens_of_experts = layer(hidden)

Each rank has num_experts / ep_size copies of the expert; initialize() makes the ranks that follow each other share them out, and sees to it that
the gradients of each are added up over those that have it. The gate and the ways of tokens are tessera/nn/capacity_gate.h and expert_dispatch.h.
"""

import copy

import torch
from torch import nn

from deepspeed import _names
from deepspeed.utils import groups, log_dist
from tessera import _core
from tessera.error_report import made

_names.serve(__name__)
_NOISES = (None, "None", "Jitter", "RSample")


class TopKGate(nn.Module):
    def __init__(self, model_dim, num_experts, k=1, capacity_factor=1.0, eval_capacity_factor=1.0, min_capacity=8, noisy_gate_policy=None,
                 drop_tokens=True, use_rts=True, ep_group=None, top2_2nd_expert_sampling=True):
        super().__init__()
        self.wg = nn.Linear(model_dim, num_experts, bias=False)
        self.ep_group, self.k, self.min_capacity, self.noisy_gate_policy = ep_group, k, min_capacity, noisy_gate_policy
        self.capacity_factor, self.eval_capacity_factor = capacity_factor, eval_capacity_factor
        self.drop_tokens, self.use_rts, self.top2_2nd_expert_sampling = drop_tokens, use_rts, top2_2nd_expert_sampling

    def forward(self, input, used_token=None):
        """input (tokens, features) -> (experts, weights) of each token, (tokens, k) both, the balance loss, and how many tokens chose each expert."""
        tokens = input.float()
        if self.noisy_gate_policy == "Jitter" and self.training:
            tokens = tokens * torch.empty_like(tokens).uniform_(0.99, 1.01)
        logits = nn.functional.linear(tokens, self.wg.weight.float())
        noise = self.top2_2nd_expert_sampling if self.k == 2 else self.noisy_gate_policy == "RSample" and self.training
        return _core.route_by_capacity(
            logits, per_token=self.k, factor=self.capacity_factor if self.training else self.eval_capacity_factor, least=self.min_capacity,
            drops=self.drop_tokens, in_order=not self.use_rts, noise=noise, used=used_token)


class Experts(nn.Module):
    """This rank's."""

    def __init__(self, expert, num_local_experts=1, expert_group_name=None):
        super().__init__()
        self.deepspeed_experts = nn.ModuleList([copy.deepcopy(expert) for _ in range(num_local_experts)])
        self.num_local_experts = num_local_experts
        for parameter in self.deepspeed_experts.parameters():
            parameter.allreduce, parameter.group_name = False, expert_group_name

    def forward(self, expert, rows):
        """The rows of one of them, which may be none."""
        output = self.deepspeed_experts[expert](rows)
        return output[0] if isinstance(output, tuple) else output  # Megatron's layers give a bias besides


class MOELayer(nn.Module):
    def __init__(self, gate, experts, ep_group_name, ep_size, num_local_experts, use_tutel=False):
        super().__init__()
        self.gate, self.experts = gate, experts
        self.ep_group, self.ep_group_name, self.ep_size, self.num_local_experts = None, ep_group_name, ep_size, num_local_experts
        self.axis = _core.ExpertAxis()
        self.l_aux = self.exp_counts = None

    def _set_ep_group(self, ep_group):
        self.ep_group = self.gate.ep_group = ep_group

    def forward(self, hidden, used_token=None):
        if self.axis.size != self.ep_size:
            raise RuntimeError(f"the experts of this layer are shared out over {self.ep_size} ranks once deepspeed.initialize has made its engine")
        tokens = hidden.reshape(-1, hidden.shape[-1])
        experts, weights, self.l_aux, self.exp_counts = self.gate(tokens, used_token)
        count = self.num_local_experts * self.ep_size
        return _core.through_experts(tokens, experts, weights, count, self.axis, self.experts).reshape(hidden.shape)


class MoE(nn.Module):
    def __init__(self, hidden_size, expert, num_experts=1, ep_size=1, k=1, capacity_factor=1.0, eval_capacity_factor=1.0, min_capacity=4,
                 use_residual=False, noisy_gate_policy=None, drop_tokens=True, use_rts=True, use_tutel=False,
                 enable_expert_tensor_parallelism=False, top2_2nd_expert_sampling=True):
        super().__init__()
        if num_experts % ep_size:
            raise made(AssertionError, f"{num_experts} experts do not go round {ep_size} ranks", "MoE", "choose num_experts as a multiple of ep_size")
        if noisy_gate_policy not in _NOISES:
            raise AssertionError(f"unknown noisy_gate_policy {noisy_gate_policy!r}: use one of {', '.join(map(str, _NOISES))}")
        if enable_expert_tensor_parallelism:
            raise NotImplementedError("enable_expert_tensor_parallelism is not in Tessera yet: leave it out")
        if use_tutel:
            log_dist("use_tutel changes nothing: tokens are sent without it", [0])
        self.use_residual, self.enable_expert_tensor_parallelism = use_residual, enable_expert_tensor_parallelism
        self.ep_size, self.num_experts, self.num_local_experts = ep_size, num_experts, num_experts // ep_size
        self.expert_group_name = f"ep_size_{ep_size}"
        gate = TopKGate(hidden_size, num_experts, k, capacity_factor, eval_capacity_factor, min_capacity, noisy_gate_policy, drop_tokens, use_rts,
                        None, top2_2nd_expert_sampling)
        self.deepspeed_moe = MOELayer(gate, Experts(expert, self.num_local_experts, self.expert_group_name), self.expert_group_name, ep_size,
                                      self.num_local_experts, use_tutel)
        if use_residual:
            self.mlp, self.coefficient = expert, nn.Linear(hidden_size, 2)

    def set_deepspeed_parallelism(self, use_data_before_expert_parallel_=False):
        """Makes the groups that deepspeed.utils.groups tells of."""
        groups._create_expert_and_data_parallel(self.ep_size, use_data_before_expert_parallel_=use_data_before_expert_parallel_)
        self.deepspeed_moe._set_ep_group(groups._get_expert_parallel_group(self.expert_group_name))

    def share_experts(self, axis):
        """Called by initialize(): who has the others. Tells each parameter of which expert of all it is."""
        self.deepspeed_moe.axis = axis
        first = axis.rank * self.num_local_experts
        for number, expert in enumerate(self.deepspeed_moe.experts.deepspeed_experts, first):
            for parameter in expert.parameters():
                parameter.tessera_expert = number

    def forward(self, hidden_states, used_token=None):
        """(what the experts make of it, the loss that balances them, how many tokens chose each)."""
        output = self.deepspeed_moe(hidden_states, used_token)
        if self.use_residual:
            beside = self.mlp(hidden_states)
            beside = beside[0] if isinstance(beside, tuple) else beside
            share = nn.functional.softmax(self.coefficient(hidden_states), dim=-1)
            output = output * share[..., 0:1] + beside * share[..., 1:]
        return output, self.deepspeed_moe.l_aux, self.deepspeed_moe.exp_counts
