"""Which parameters are experts', and param groups that keep them apart."""

from tessera.expert_parameters import LARGEST_GROUP, is_expert as is_moe_param, split, split_group


def has_moe_layers(m):
    """(has the module layers with experts, how many experts the last of them has)."""
    counts = [layer.num_experts for layer in m.modules() if hasattr(layer, "deepspeed_moe")]
    return bool(counts), counts[-1] if counts else 0


def is_moe_param_group(param_group):
    return param_group.get("moe", False)


def split_params_into_shared_and_expert_params(params):
    return split(params)


def split_params_grads_into_shared_and_expert_params(group):
    """As above, of the gradients that are there."""
    with_grad = [param for param in group if param.grad is not None]
    return [param.grad for param in with_grad if not is_moe_param(param)], [
        param.grad for param in with_grad if is_moe_param(param)]


def split_params_into_different_moe_groups_for_optimizer(param_groups, max_group_size=LARGEST_GROUP):
    """The groups without experts, and then groups of experts."""
    groups = [param_groups] if isinstance(param_groups, dict) else list(param_groups)
    halves = [split_group(group, max_group_size) for group in groups]
    return [others for others, _ in halves] + [group for _, experts in halves for group in experts]


def configure_moe_param_groups(model_parameters):
    """Parameters, or groups of them, as groups that keep experts apart."""
    parameters = list(model_parameters)
    if parameters and isinstance(parameters[0], dict):
        return split_params_into_different_moe_groups_for_optimizer(parameters)
    return split_params_into_different_moe_groups_for_optimizer({"params": parameters, "name": "dense-params"})
