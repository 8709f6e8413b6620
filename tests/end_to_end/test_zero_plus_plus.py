"""ZeRO++: secondary shards have the bits of stage 3, and weights and gradients in few bits train nearly as those of full precision."""

import pytest
import torch
from safetensors.torch import load_file
from tessera_runs import losses_and_norms, metrics, relative_difference, rows_of_metrics, tessera, train, train_arguments
from test_causal_lm import run_of
from test_expert_parallel import MODELS as MIXTURES
from test_tensor_parallel import MODELS

FAMILY = "llama, 2 key heads, tied"
HPZ = {"zero_hpz_partition_size": 2}
WEIGHTS, GRADIENTS = {"zero_quantized_weights": "true"}, {"zero_quantized_gradients": "true"}


def stage3(zero, steps=6, **more):
    keys = {"stage": 3, "stage3_param_persistence_threshold": 0, **zero}
    return {"deepspeed.train_batch_size": 8, "deepspeed.dataloader_drop_last": "true", "training.max_steps": steps,
            **{f"deepspeed.zero_optimization.{key}": value for key, value in keys.items()}, **more}


def bits_of(folder, run_file, ranks, settings):
    result = train(run_file, ranks, {**settings, "output": folder})
    return losses_and_norms(folder), result.err


@pytest.mark.sample("bf16, accumulation and checkpoints", "context ranks, fp32", "ranks of experts, fp32")
@pytest.mark.parametrize(("models", "family", "ranks", "inner", "settings"), [
    pytest.param(MODELS, FAMILY, 4, 2, {}, id="fp32"),
    pytest.param(MODELS, FAMILY, 4, 2, {"deepspeed.bf16.enabled": "true", "deepspeed.train_micro_batch_size_per_gpu": 1,
                                        "training.activation_checkpointing": "true"}, id="bf16, accumulation and checkpoints"),
    pytest.param(MODELS, FAMILY, 4, 2, {"parallel.context": 2}, id="context ranks, fp32"),
    pytest.param(MODELS, FAMILY, 4, 2, {"parallel.tensor": 2}, id="all that share, tensor ranks"),
    pytest.param(MIXTURES, "mixtral", 4, 2, {"parallel.expert": 2}, id="ranks of experts, fp32"),
    pytest.param(MODELS, FAMILY, 8, 2, {"parallel.replicate": 2}, id="replicas"),
])
def test_secondary_shards_have_the_bits_of_stage_3(tmp_path, models, family, ranks, inner, settings):
    _, run_file = run_of(tmp_path, family, models, packing="fill")
    plain, _ = bits_of(tmp_path / "plain", run_file, ranks, stage3({}, **settings))
    secondary, said = bits_of(tmp_path / "hpz", run_file, ranks, stage3({"zero_hpz_partition_size": inner}, **settings))
    assert f"ZeRO++: parameters are gathered within groups of {inner} ranks: a rank sends " in said
    assert len(plain) == 6 and secondary == plain


@pytest.mark.sample("all")
@pytest.mark.parametrize(("zero", "said"), [
    pytest.param(WEIGHTS, "parameters are gathered in 8 bits", id="weights"),
    pytest.param(GRADIENTS, "gradients are reduced in 8 bits within groups of 4 ranks", id="gradients of one host"),
    pytest.param({**HPZ, **GRADIENTS}, "gradients are reduced in 8 bits within groups of 2 ranks and in 4 between them", id="gradients"),
    pytest.param({**HPZ, **WEIGHTS, **GRADIENTS}, "parameters are gathered within groups of 2 ranks in 8 bits", id="all"),
])
def test_few_bits_train_nearly_as_all(tmp_path, zero, said):
    _, run_file = run_of(tmp_path, FAMILY, MODELS, packing="fill")
    train(run_file, 4, {**stage3({}, 20), "output": tmp_path / "plain"})
    assert said in train(run_file, 4, {**stage3(zero, 20), "output": tmp_path / "few"}).err
    few, plain = metrics(tmp_path / "few"), metrics(tmp_path / "plain")
    assert len(few) == 20 and few[-1]["loss"] < 0.99 * few[0]["loss"]
    differences = [relative_difference(a["loss"], b["loss"]) for a, b in zip(few, plain)]
    assert 1e-6 < max(differences) < 0.005


def test_few_bits_are_the_same_over_every_transport(tmp_path):
    _, run_file = run_of(tmp_path, FAMILY, MODELS, packing="fill")
    bits = []
    for backend in ("shm", "gloo"):
        train(run_file, 4, {**stage3({**HPZ, **WEIGHTS, **GRADIENTS}), "output": tmp_path / backend}, env={"TESSERA_BACKEND": backend})
        bits.append(losses_and_norms(tmp_path / backend))
    assert len(bits[0]) == 6 and bits[0] == bits[1]


def test_a_checkpoint_has_the_exact_weights_and_goes_on_with_and_without(tmp_path):
    """What is stored and exported was never rounded to 8 bits: a step of no size changes nothing."""
    _, run_file = run_of(tmp_path, FAMILY, MODELS, packing="fill")
    settings = {"training.save_steps": 3, "training.keep_last": 0}
    train(run_file, 4, {**stage3({**HPZ, **WEIGHTS}, 3, **settings), "deepspeed.optimizer.params.lr": 0, "output": tmp_path / "still"})
    file, = (tmp_path / "still" / "export").glob("*model.safetensors")
    begun = load_file(tmp_path / "model" / "model.safetensors")
    for name, value in load_file(file).items():
        if name in begun:
            torch.testing.assert_close(value, begun[name], rtol=0, atol=0)
    train(run_file, 4, {**stage3({**HPZ}, 6, **settings), "output": tmp_path / "whole"})
    for zero in ({}, HPZ, {"zero_hpz_partition_size": 4}):
        folder = tmp_path / str(len(zero) + zero.get("zero_hpz_partition_size", 0))
        train(run_file, 4, {**stage3(zero, 6, **settings), "output": folder}, resume=tmp_path / "whole" / "checkpoints" / "global_step3")
        went_on, whole = ([row["loss"] for row in rows_of_metrics(output)] for output in (folder, tmp_path / "whole"))
        assert len(went_on) == 3 and went_on == whole[3:]


@pytest.mark.parametrize(("zero", "more", "what", "fix"), [
    ({"stage": 2, **WEIGHTS}, {}, "'zero_optimization.zero_quantized_weights' is true, which only stage 3 supports", "remove the key"),
    ({"stage": 2, **HPZ}, {}, "'zero_optimization.zero_hpz_partition_size' is 2, which only stage 3 supports", "remove the key"),
    ({"zero_hpz_partition_size": 3}, {}, "parameters are sharded over 4 ranks, which do not make groups of 3", "use one of 1, 2, 4"),
    ({"zero_hpz_partition_size": 2}, {"parallel.context": 4}, "groups of 2, each with all 4 of one sample", "use one of 4"),
    ({**HPZ, "offload_param.device": "nvme", "offload_param.nvme_path": "/tmp"}, {}, "keeps in memory what 'offload_param' keeps on NVMe",
     "remove one of the two"),
])
def test_what_cannot_be_is_refused(tmp_path, zero, more, what, fix):
    run_file = run_of(tmp_path, FAMILY, MODELS)[1]
    result = tessera(*train_arguments(run_file, 4, stage3(zero, **more)))
    assert result.code == 2, str(result)
    assert what in result.err and fix in result.err, str(result)
