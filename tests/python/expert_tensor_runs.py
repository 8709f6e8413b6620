"""transformers' mixtures over ranks that share out the experts (DeepSpeed's block expert_parallel), on four ranks: run by test_expert_tensors.py.
Prints JSON, {"<function>": what rank 0 got}.

The expected losses, norms and weights are those of plain PyTorch with the whole model and the whole batch on each rank.
"""

import functools
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import tessera  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import transformers  # noqa: E402
from deepspeed.moe.utils import is_moe_param  # noqa: E402
from deepspeed.utils import groups  # noqa: E402
from torch import nn  # noqa: E402

from cut_models import CLIP, STEPS, trained_on, trained_plainly, weights_of  # noqa: E402
from misuse_runs import said  # noqa: E402
from named_runs import NamedRuns  # noqa: E402

run = NamedRuns()
WORDS, ROWS = 53, 4
SIZES = {"hidden_size": 20, "intermediate_size": 28, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
         "max_position_embeddings": 64, "vocab_size": WORDS, "num_experts_per_tok": 2}
MODELS = {
    "mixtral": (transformers.MixtralConfig, {"num_local_experts": 4, "output_router_logits": True, "router_aux_loss_coef": 0.05}),
    "qwen3_moe": (transformers.Qwen3MoeConfig, {"num_experts": 8, "moe_intermediate_size": 12, "decoder_sparse_step": 2, "norm_topk_prob": True}),
    "qwen2_moe": (transformers.Qwen2MoeConfig, {"num_experts": 4, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 16}),
    "deepseek_v3": (transformers.DeepseekV3Config, {
        "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 12, "first_k_dense_replace": 1, "n_shared_experts": 1,
        "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 6, "num_key_value_heads": 4, "head_dim": 4}),
    "gpt_oss": (transformers.GptOssConfig, {"num_local_experts": 4, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}),
}


def made(name, implementation="grouped_mm", **more):
    kind, sizes = MODELS[name]
    torch.manual_seed(7)
    config = kind(**{**SIZES, **sizes, **more})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation=implementation)
    with torch.no_grad():  # so that routers choose for a reason, and what is in no gradient is seen
        for key, value in (*model.named_parameters(), *model.named_buffers()):
            if "norm" in key or key.endswith(("bias", "sinks")):
                value.uniform_(0.5, 1.5)
            elif key.endswith(("gate.weight", "router.weight")):
                value.normal_(0, 0.5)
    return model.train()


def texts():
    return torch.randint(WORDS, (ROWS, 12), generator=torch.Generator().manual_seed(3))


def settings(stage, size, **more):
    return {"train_batch_size": ROWS, "gradient_clipping": CLIP, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
            "expert_parallel": {"enabled": size > 1, "autoep_size": size, **more}}


def plainly(name, steps=STEPS):
    """(losses, norms, weights). A row at a time, as each rank has its own: the balance loss is not that of all rows together."""
    return trained_plainly(made(name), lambda model: torch.stack([model(input_ids=row, labels=row).loss for row in texts().split(1)]).mean(), steps)


def trained(engine, steps=STEPS):
    return trained_on(engine, texts()[dist.get_rank()].unsqueeze(0), steps)


def experts_of(model):
    return [list(value.shape) for name, value in model.named_parameters() if name.endswith("experts.down_proj") and value.numel()]


def mixture(name, size, stage, implementation):
    """Over so many ranks that share out its experts: the losses and norms, and what a whole model loads of the checkpoint."""
    expected = plainly(name)
    model = made(name, implementation)
    if dist.get_rank() > 0:  # rank 0's values count
        nn.init.ones_(next(model.parameters()))
    engine, *_ = tessera.initialize(model=model, config=settings(stage, size))
    shapes = experts_of(model)
    losses = trained(engine)
    return {"shapes": shapes, "expected": expected[:2], "found": losses,
            **weights_of(engine, lambda: tessera.initialize(model=made(name), config=settings(3, 1))[0], expected[2])}


MIXTURES = [("mixtral", 2, 0, "grouped_mm"), ("mixtral", 4, 3, "eager"), ("qwen3_moe", 2, 3, "grouped_mm"), ("qwen2_moe", 2, 1, "eager"),
            ("deepseek_v3", 4, 2, "grouped_mm"), ("gpt_oss", 2, 3, "batched_mm")]
for case in MIXTURES:
    run["{}, {} ranks, stage {}, {}".format(*case)] = functools.partial(mixture, *case)


@run
def over_other_ranks():
    """A run that goes on over other numbers of ranks, at other stages."""
    expected = plainly("qwen3_moe")
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    losses, norms = [], []
    for life, (size, stage) in enumerate([(2, 1), (4, 3), (1, 0), (2, 3)]):
        engine, *_ = deepspeed.initialize(model=made("qwen3_moe"), config=settings(stage, size))
        if life:
            engine.load_checkpoint(folder[0])
        these = trained(engine, 5)
        losses += these[0]
        norms += these[1]
        engine.save_checkpoint(folder[0], tag=f"life{life}")
        engine.destroy()
    return {"found": [losses, norms], "expected": expected[:2]}


@run
def two_experts_of_four():
    """Every token goes to the same two, so that two ranks' experts run on none."""
    def indifferent(model):
        with torch.no_grad():
            for key, value in model.named_parameters():
                if key.endswith("gate.weight"):
                    value.zero_()
        return model
    results = {}
    for stage in (0, 2, 3):
        model = indifferent(made("mixtral", "eager"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        expected = []
        for _ in range(3):  # ties go to the first experts, in one process and over ranks
            loss = torch.stack([model(input_ids=row, labels=row).loss for row in texts().split(1)]).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            expected.append(loss.item())
        config = {**settings(stage, 4), "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "gradient_clipping": 0}
        engine, *_ = tessera.initialize(model=indifferent(made("mixtral", "eager")), config=config)
        results[stage] = {"found": trained(engine, 3)[0], "expected": expected}
        engine.destroy()
    return results


@run
def at_deepspeed_s_names():
    model = made("mixtral")
    engine, *_ = deepspeed.initialize(model=model, config=settings(1, 2, preset_model="mixtral"))
    marked = sorted({name.rpartition(".")[2] for name, parameter in model.named_parameters() if is_moe_param(parameter)})
    return {"marked": marked, "groups": [groups._get_expert_parallel_world_size("ep_size_2"), groups._get_expert_data_parallel_world_size("ep_size_2")],
            "losses": trained(engine, 2)[0], "expected": plainly("mixtral", 2)[0]}


@run
def made_under_zero_init():
    model = made("mixtral")
    deepspeed.zero.Init(module=model)
    pieces = sum(parameter.numel() for parameter in model.parameters())
    engine, *_ = tessera.initialize(model=model, config=settings(3, 2))
    return {"pieces": pieces, "losses": trained(engine, 4), "expected": plainly("mixtral", 4)[:2]}


@run
def by_pattern():
    """Only the second layer's."""
    model = made("mixtral")
    engine, *_ = tessera.initialize(model=model, config=settings(0, 2, moe_layer_pattern=r"model\.layers\.1\.mlp", expert_pattern="experts"))
    return {"shapes": experts_of(model), "losses": trained(engine, 2)[0], "expected": plainly("mixtral", 2)[0]}


@run
def misuse():
    def start(model, config, **more):
        return said(tessera.initialize, model=model, config=config, **more)
    return {
        "no experts": start(nn.Linear(2, 2), settings(0, 2)),
        "pattern": start(made("mixtral"), settings(0, 2, moe_layer_pattern="layers.7")),
        "ranks": start(made("mixtral"), settings(0, 3)),
        "experts": start(made("mixtral", num_local_experts=6), settings(0, 4)),
        "mesh_param": start(made("mixtral"), settings(0, 4), mesh_param=(1, 4)),
        "tensor": start(made("mixtral"), {**settings(0, 2), "tensor_parallel": {"autotp_size": 2}}),
        "router": start(made("mixtral"), settings(0, 2, score_func="sigmoid")),
        "cut experts": start(made("mixtral"), settings(0, 2, expert_tensor_parallel_size=2)),
        "balance": start(made("mixtral"), settings(0, 2, load_balance_coeff=0.1)),
    }


if __name__ == "__main__":
    dist.init_process_group("gloo")
    run.print_results(sys.argv[1:])
