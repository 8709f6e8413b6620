"""Mixtures of experts that several ranks share out: the training of one process, the same bits at every stage, checkpoints of any mesh."""

import math

import pytest
import torch
import transformers
from fixtures import STAGES
from safetensors.torch import load_file, save_file
from tessera_runs import largest_difference, losses_and_norms, metrics, tessera, train, train_arguments
from test_causal_lm import run_of
from test_pipeline import over
from test_tensor_parallel import MODELS as DENSE
from test_tensor_parallel import SIZES, trained_as_one

EXPERTS = {**SIZES, "moe_intermediate_size": 15, "num_attention_heads": 6, "num_key_value_heads": 3}
MODELS = {
    "mixtral": (transformers.MixtralConfig, {**SIZES, "num_attention_heads": 6, "num_key_value_heads": 3, "num_local_experts": 4}),
    "qwen2_moe": (transformers.Qwen2MoeConfig, {**EXPERTS, "num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 21}),
    "balanced": (transformers.MixtralConfig, {**SIZES, "num_attention_heads": 6, "num_key_value_heads": 3, "num_local_experts": 4,
                                              "output_router_logits": True, "router_aux_loss_coef": 0.3}),
    "qwen3_moe": (transformers.Qwen3MoeConfig, {**EXPERTS, "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True}),
}


ROW_BY_ROW = {"deepspeed.train_micro_batch_size_per_gpu": 1}  # each is balanced by itself


def shared(expert, stage=2, **more):
    return {"parallel.expert": expert, "deepspeed.train_batch_size": 4, "deepspeed.dataloader_drop_last": "true",
            "deepspeed.gradient_clipping": 0.5, "deepspeed.zero_optimization.stage": stage, **more}


@pytest.mark.sample("qwen3_moe-4--dp_shard 2, ep 2", "qwen2_moe-4--dp_shard 1, ep 2, tp 2", "balanced-4--pp 2, dp_shard 1, ep 2")
@pytest.mark.parametrize(("family", "ranks", "settings", "mesh"), [
    ("mixtral", 2, shared(2, 0), "dp_shard 1 × ep 2"), ("qwen3_moe", 3, shared(3, 1, **{"deepspeed.train_batch_size": 3}), "dp_shard 1 × ep 3"),
    ("qwen3_moe", 4, shared(2, 3), "dp_shard 2 × ep 2"), ("qwen2_moe", 4, shared(4, 2), "dp_shard 1 × ep 4"),
    ("qwen2_moe", 4, shared(2, 3, **{"parallel.tensor": 2}), "dp_shard 1 × ep 2 × tp 2"),
    ("mixtral", 4, shared(2, 3, **{"parallel.context": 2}), "dp_shard 1 × ep 2 × cp 2"),
    ("balanced", 4, shared(2, 1, **{"parallel.context": 2, "model.router_z_loss": 0.1, **ROW_BY_ROW}), "dp_shard 1 × ep 2 × cp 2"),
    ("balanced", 4, shared(1, 2, **{"parallel.tensor": 2, "model.router_balance_loss": 0.2, **ROW_BY_ROW}), "dp_shard 2 × tp 2"),
    ("mixtral", 4, over(2, "zb1p", 8, **{"parallel.expert": 2}), "pp 2 × dp_shard 1 × ep 2"),
    ("balanced", 4, over(2, "interleaved", 8, **{"parallel.expert": 2}), "pp 2 × dp_shard 1 × ep 2"),
    ("qwen3_moe", 8, shared(2, 1, **{"parallel.pipeline": 2, **ROW_BY_ROW}), "pp 2 × dp_shard 2 × ep 2"),
], ids=lambda value: "" if isinstance(value, dict) else str(value).replace(" ×", ","))
def test_ranks_that_share_out_experts_train_as_one_process(tmp_path, family, ranks, settings, mesh):
    _, run_file = run_of(tmp_path, family, MODELS, packing="fill")
    trained_as_one(tmp_path, run_file, ranks, settings, mesh)


def test_an_adapter_trains_as_in_one_process(tmp_path):
    _, run_file = run_of(tmp_path, "mixtral", MODELS, packing="fill")
    trained_as_one(tmp_path, run_file, 2, shared(2, 3, **{
        "adapter.rank": 3, "deepspeed.optimizer.type": "SGD",
        "deepspeed.optimizer.params.lr": 0.5}), "dp_shard 1 × ep 2")


def test_ranks_whose_experts_get_no_token_hold_up_nobody(tmp_path):
    """Each token goes to one expert, and routers that know no difference choose the same one for all."""
    _, run_file = run_of(tmp_path, "mixtral", {"mixtral": (transformers.MixtralConfig, {**MODELS["mixtral"][1], "num_experts_per_tok": 1})},
                         packing="fill")
    file = tmp_path / "model" / "model.safetensors"
    weights = load_file(file)
    for name in [name for name in weights if name.endswith("moe.gate.weight")]:
        weights[name] = torch.zeros_like(weights[name])
    save_file(weights, file, {"format": "pt"})
    trained_as_one(tmp_path, run_file, 4, shared(2, 3), "dp_shard 2 × ep 2")
    exported, = (tmp_path / "cut" / "export").glob("*model.safetensors")
    after = load_file(exported)
    of_experts = [name for name in weights if ".experts." in name]
    changed = {name.partition(".experts.")[2].partition(".")[0] for name in of_experts if not torch.equal(after[name], weights[name])}
    assert len(of_experts) == 2 * 4 * 3 and len(changed) == 1


@pytest.mark.sample("bf16")
@pytest.mark.parametrize("precision", [{}, {"deepspeed.bf16.enabled": "true"}], ids=["fp32", "bf16"])
def test_the_same_bits_at_every_stage(tmp_path, precision):
    _, run_file = run_of(tmp_path, "qwen3_moe", MODELS, packing="fill")
    more = {"training.max_steps": 6, **precision}
    for stage in STAGES:
        train(run_file, 4, {**shared(2, stage, **more), "output": tmp_path / f"stage{stage}"})
    bits = [losses_and_norms(tmp_path / f"stage{stage}") for stage in STAGES]
    assert len(bits[0]) == 6
    assert bits[1:] == [bits[0]] * 3
    again = {"training.activation_checkpointing": "true", "deepspeed.zero_optimization.offload_optimizer.device": "cpu", "output": tmp_path / "again"}
    train(run_file, 4, {**shared(2, 3, **more), **again})
    assert losses_and_norms(tmp_path / "again") == bits[0]


def test_a_checkpoint_goes_on_over_any_mesh(tmp_path):
    _, run_file = run_of(tmp_path, "qwen3_moe", MODELS, packing="fill")
    train(run_file, 1, {**shared(1, 1), "training.max_steps": 10, "output": tmp_path / "whole"})
    lives = [(2, 2, {}), (4, 2, {"deepspeed.zero_optimization.stage": 3}), (1, 1, {}), (2, 2, {"deepspeed.zero_optimization.stage": 0}),
             (4, 2, {"parallel.tensor": 2})]
    for life, (ranks, expert, more) in enumerate(lives):
        train(run_file, ranks, {**shared(expert, 1), **more, "training.max_steps": 2 * life + 2, "output": tmp_path / "parts"},
              **({"resume": "auto"} if life else {}))
    whole, parts = metrics(tmp_path / "whole"), metrics(tmp_path / "parts")
    assert [row["step"] for row in parts] == [row["step"] for row in whole] == list(range(1, 11))
    assert largest_difference(parts, whole) < 1e-5
    assert not math.isclose(whole[0]["loss"], whole[-1]["loss"], rel_tol=0.01)


@pytest.mark.parametrize(("family", "ranks", "expert", "what", "fix"), [
    ("qwen3_moe", 4, 4, "6 experts do not go round 4 ranks", "use 3 or 6 ranks"),
    ("mixtral", 3, 2, "3 ranks do not factor into dp_shard × ep 2", "use 2 or 4 ranks"),
    ("qwen3", 2, 2, "this model has no experts to share out over 2 ranks", "leave parallel.expert out"),
])
def test_what_does_not_go_round_is_refused_before_a_rank_starts(tmp_path, family, ranks, expert, what, fix):
    run_file = run_of(tmp_path, family, {**DENSE, **MODELS})[1]
    result = tessera(*train_arguments(run_file, ranks, shared(expert)))
    assert result.code == 2, str(result)
    assert what in result.err and fix in result.err and "[rank" not in result.err, str(result)
