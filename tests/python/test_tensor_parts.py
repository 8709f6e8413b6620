"""Norms, nested tensors, data loading, timers and the other small parts, in one process."""

import math

import pytest
import torch
from deepspeed import OnDevice
from deepspeed.accelerator import get_accelerator
from deepspeed.checkpoint.utils import clone_tensors_for_torch_save
from deepspeed.runtime import utils as parts
from deepspeed.runtime.dataloader import DeepSpeedDataLoader, RepeatingLoader
from deepspeed.utils.numa import parse_range_list
from deepspeed.utils.timer import SynchronizedWallClockTimer
from tessera.comm_log import bandwidths, readable_bytes, trimmed_mean
from tessera.expert_groups import expert_parallel_ranks
from tessera.rendezvous_env import find_place


def parameters_with_gradients():
    found = [torch.nn.Parameter(torch.ones(size)) for size in (3, 2, 4)]
    for parameter, value in zip(found, (1.0, -2.0, 3.0)):
        parameter.grad = torch.full_like(parameter, value)
    return found


@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
def test_clipping_is_torchs_on_one_rank(norm_type):
    ours, torchs = parameters_with_gradients(), parameters_with_gradients()
    norm = parts.clip_grad_norm_(ours, 0.5, norm_type=norm_type)
    assert torch.allclose(norm, torch.nn.utils.clip_grad_norm_(torchs, 0.5, norm_type))
    assert all(torch.allclose(a.grad, b.grad) for a, b in zip(ours, torchs))


def test_norms():
    tensors = [torch.tensor([3.0, 4.0]), torch.tensor([12.0])]
    assert parts.get_global_norm_of_tensors(tensors).item() == 13 == parts.get_weight_norm(tensors)
    assert parts.get_global_norm([3.0, 4.0]) == 5
    assert parts.clip_tensors_by_global_norm(tensors, max_norm=1.0).item() == 13
    assert parts.get_global_norm_of_tensors(tensors).item() == pytest.approx(1, rel=1e-5)
    assert parts.get_weight_norm([torch.tensor([math.nan])]) == -1 == parts.get_weight_norm([torch.tensor([math.inf])])
    assert parts.is_invalid_grad_norm(math.inf) and not parts.is_invalid_grad_norm(1.0)


def test_overflow_on_one_rank():
    found = parameters_with_gradients()
    assert not parts.CheckOverflow([found]).check()
    found[1].grad[0] = math.inf
    assert parts.CheckOverflow([found]).check()
    assert parts.CheckOverflow([found]).check_using_norm([1.0, -1.0], reduce_overflow=False)


def test_structures_are_kept():
    value = {"a": [torch.ones(2), 3], "b": (torch.ones(1, dtype=torch.int), None)}
    assert parts.get_tensor_bytes(value) == 12
    moved = parts.move_to_device(value, "meta", criterion_func=lambda tensor: tensor.is_floating_point())
    assert moved["a"][0].device.type == "meta" and moved["b"][0].device.type == "cpu" and moved["a"][1] == 3
    assert parts.compare_tensors_in_structures(value, parts.copy_to_device(value, "cpu", lambda tensor: True))
    assert not parts.compare_tensors_in_structures([torch.ones(1)], [torch.zeros(1)])


def test_a_copy_for_saving_has_a_storage_of_its_own():
    whole = torch.arange(1000.0)
    copied = clone_tensors_for_torch_save({"part": whole[:2], "n": 1})
    assert copied["part"].untyped_storage().nbytes() == 8 and copied["part"].tolist() == [0, 1]


def test_call_to_str():
    assert parts.call_to_str("f", 1, "a", x=[2]) == "f(1, 'a', x=[2])"


def test_on_device():
    with OnDevice(dtype=torch.bfloat16, device="meta"):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    kept = {name: (tensor.device.type, tensor.dtype) for name, tensor in model.state_dict().items()}
    assert kept["0.weight"] == ("meta", torch.bfloat16) and kept["1.num_batches_tracked"] == ("meta", torch.int64)
    with OnDevice(dtype=torch.half, enabled=False):
        assert torch.zeros(1).dtype == torch.float32


@pytest.mark.parametrize("drop_last, sizes", [(False, [4, 4, 2]), (True, [4, 4])])
def test_each_rank_gets_its_share_of_the_data(drop_last, sizes):
    loaders = [DeepSpeedDataLoader(list(range(20)), batch_size=4, pin_memory=True, local_rank=rank, tput_timer=None,
                                   num_local_io_workers=0, data_parallel_world_size=2, data_parallel_rank=rank,
                                   dataloader_drop_last=drop_last) for rank in (0, 1)]
    batches = [[batch.tolist() for batch in loader] for loader in loaders]
    assert [len(batch) for batch in batches[0]] == sizes and len(loaders[0]) == len(sizes)
    seen = [sample for rank in batches for batch in rank for sample in batch]
    assert len(set(seen)) == len(seen) == 2 * sum(sizes)


def test_a_repeating_loader_begins_again():
    loader = RepeatingLoader([1, 2, 3])
    assert [next(loader) for _ in range(7)] == [1, 2, 3, 1, 2, 3, 1] and len(loader) == 3


def test_bandwidths_of_collectives():
    # 1 MB in 1 ms is 8 Gbit/s; over 4 ranks an all-reduce moves it twice, and 2 * 3 / 4 of it over each link.
    assert bandwidths("all_reduce", 10**6, 1.0, 4) == pytest.approx((16, 12))
    assert bandwidths("all_gather_into_tensor", 10**6, 1.0, 4) == pytest.approx((32, 24))
    assert bandwidths("all_to_all_single", 10**6, 1.0, 4) == pytest.approx((8, 6))
    assert bandwidths("broadcast", 10**6, 1.0, 4) == pytest.approx((8, 8))
    assert [readable_bytes(count) for count in (0, 1500, 3 * 2**20)] == ["0B", "1.46 KB", "3.0 MB"]


def test_a_trimmed_mean_leaves_its_values_alone():
    values = [100.0, 1.0, 3.0, 2.0, 4.0]
    assert trimmed_mean(values, 0.2) == 3.0 and values[0] == 100.0
    assert trimmed_mean([], 0.1) == 0


def test_expert_groups():
    # 8 ranks, 2 tensor-parallel, 2 hold all experts: data-parallel groups are 0 2 4 6 and 1 3 5 7.
    assert expert_parallel_ranks(8, tensor=2, expert=2) == (
        [[0, 2], [4, 6], [1, 3], [5, 7]], [[0, 4], [2, 6], [1, 5], [3, 7]])
    assert expert_parallel_ranks(4, tensor=1, expert=2, data_before_expert=True) == ([[0, 2], [1, 3]], [[0, 1], [2, 3]])
    with pytest.raises(AssertionError, match="cannot be divided"):
        expert_parallel_ranks(6, tensor=1, expert=4)


def test_cores():
    assert parse_range_list("0,2-4,8") == [0, 2, 3, 4, 8]
    for wrong in ("0,2-6,5", "8,2", "6-2", "x"):
        with pytest.raises(ValueError):
            parse_range_list(wrong)


def test_timers():
    timers = SynchronizedWallClockTimer()
    for _ in range(2):
        timers("a").start()
        timers("a").stop()
    assert timers("a").elapsed(reset=False) == pytest.approx(2 * timers.get_mean(["a"], reset=False)["a"])
    timers("a").reset()
    assert timers("a").elapsed() == 0
    with pytest.raises(AssertionError, match="is not running"):
        timers("a").stop()


def test_places_of_ranks():
    alone = find_place({}, 29500)
    assert (alone.rank, alone.world_size, alone.address) == (0, 1, "127.0.0.1") and alone.port > 0
    of_many = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    assert find_place({**of_many, "MASTER_ADDR": "a"}, 29500).__dict__ == {
        "rank": 3, "world_size": 4, "local_rank": 1, "address": "a", "port": 29500}
    with pytest.raises(RuntimeError, match="rank 3 of 4 under Open MPI.*MASTER_ADDR"):
        find_place(of_many, 29500)


def test_accelerator_of_a_host_without_devices(monkeypatch):
    device = get_accelerator()
    if device.device_name() != "cpu":
        pytest.skip("this machine has devices")
    assert device.communication_backend_name() == "gloo" and device.is_available() and device.device_name(3) == "cpu"
    assert torch.float32 in device.supported_dtypes() and device.is_synchronized_device()
    assert device.total_memory() > device.memory_allocated() > 0
    assert device.LongTensor([1]).dtype == torch.int64 and device.on_accelerator(torch.ones(1))
    monkeypatch.setenv("LOCAL_SIZE", "3")
    assert device.device_count() == 3
    environment = {}
    device.set_visible_devices_envs(environment, [0, 2])
    assert environment == {"CUDA_VISIBLE_DEVICES": "0,2"}


def test_experts_get_param_groups_of_their_own():
    from deepspeed.moe.utils import configure_moe_param_groups, split_params_into_different_moe_groups_for_optimizer

    shared, *experts = (torch.nn.Parameter(torch.ones(size)) for size in (2, 2, 3, 1))
    for parameter, name in zip(experts, ("ep_size_2", "ep_size_2", "ep_size_4")):
        parameter.allreduce, parameter.group_name = False, name
    groups = split_params_into_different_moe_groups_for_optimizer({"params": [shared, *experts], "name": "x", "lr": 1})
    assert [(group["name"], len(group["params"]), group.get("moe", False), group["lr"]) for group in groups] == [
        ("x", 1, False, 1), ("ep_size_2", 2, True, 1), ("ep_size_4", 1, True, 1)]
    small = split_params_into_different_moe_groups_for_optimizer([{"params": experts, "name": "x"}], max_group_size=3)
    assert [sum(p.numel() for p in group["params"]) for group in small] == [0, 2, 3, 1]
    assert [group["name"] for group in configure_moe_param_groups([shared])] == ["dense-params"]


def test_builders_of_operators_answer_by_name():
    import deepspeed
    from deepspeed.ops.op_builder import CPUAdamBuilder, UtilsBuilder

    assert deepspeed.ops.__compatible_ops__[CPUAdamBuilder.NAME] and CPUAdamBuilder().is_compatible()
    whole = torch.arange(6.0).view(2, 3)
    as_bytes = UtilsBuilder().load().cast_to_byte_tensor(whole)
    assert (as_bytes.dtype, as_bytes.numel(), as_bytes.data_ptr()) == (torch.uint8, 24, whole.data_ptr())
