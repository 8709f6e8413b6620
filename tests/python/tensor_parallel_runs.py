"""transformers' models over tensor ranks, by their own plans, on four ranks: run by test_tensor_parallel.py. Prints JSON, {"<function>": what
rank 0 got}.

The expected losses, norms and weights are those of plain PyTorch with the whole model and the whole batch on each rank.
"""

import functools
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import peft  # noqa: E402
import tessera  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import transformers  # noqa: E402
from tessera import tensor_parallel  # noqa: E402

from cut_models import CLIP, STEPS, trained_on, trained_plainly, weights_of  # noqa: E402
from hand_made_models import NORMS, OF_THREE, UNEQUAL, Language, rules  # noqa: E402
from misuse_runs import said  # noqa: E402
from named_runs import NamedRuns  # noqa: E402

run = NamedRuns()
SIZES = {"hidden_size": 30, "intermediate_size": 45, "num_hidden_layers": 2, "max_position_embeddings": 64, "vocab_size": 53}
MODELS = {  # none of whose sizes divides by 2 or 4, where it may be odd
    "llama": (transformers.LlamaConfig, {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10, "attention_bias": True,
                                         "mlp_bias": True}),
    "tied": (transformers.LlamaConfig, {"num_attention_heads": 10, "num_key_value_heads": 2, "head_dim": 10, "tie_word_embeddings": True}),
    "qwen3": (transformers.Qwen3Config, {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 10}),
    "mixtral": (transformers.MixtralConfig, {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "num_local_experts": 3,
                                             "output_router_logits": True, "router_aux_loss_coef": 0.1}),
    "qwen2_moe": (transformers.Qwen2MoeConfig, {"num_attention_heads": 3, "num_key_value_heads": 3, "num_experts": 4, "num_experts_per_tok": 2,
                                                "moe_intermediate_size": 13, "shared_expert_intermediate_size": 17}),
    "phi3": (transformers.Phi3Config, {"num_attention_heads": 3, "num_key_value_heads": 3, "pad_token_id": 0}),
    "olmoe": (transformers.OlmoeConfig, {"num_attention_heads": 3, "num_key_value_heads": 3, "num_experts": 4, "num_experts_per_tok": 2}),
    "phi3 in one": (transformers.Phi3Config, {"num_attention_heads": 3, "num_key_value_heads": 3, "pad_token_id": 0}),
    "bloom": (transformers.BloomConfig, {"n_head": 3, "n_layer": 2, "hidden_dropout": 0.0}),
    "deepseek_v2": (transformers.DeepseekV2Config, {
        "num_attention_heads": 6, "num_key_value_heads": 6, "kv_lora_rank": 8, "q_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6,
        "v_head_dim": 5, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
        "moe_intermediate_size": 13, "topk_method": "greedy", "n_group": 1, "topk_group": 1}),
    "neox": (transformers.GPTNeoXConfig, {"num_attention_heads": 3, "use_parallel_residual": False}),
}


ADAPTED = {"llama with LoRA": {"target_modules": "all-linear"}, "phi3 with LoRA": {"target_modules": "all-linear", "use_rslora": True}}
HAND_MADE = {  # the model, and the block `tensor_parallel` that says how it is cut
    "fused": ({}, {"partition_config": rules(OF_THREE, NORMS, {"patterns": [".*words\\.weight"], "partition_type": "row"}, strict_mode=True)}),
    "of few key heads": ({"key_heads": 2}, {"partition_config": rules(UNEQUAL, NORMS)}),
    "with one table": ({"is_tied": True}, {"partition_config": rules(OF_THREE, NORMS)}),
}
BLOCKS = {"bloom": {"preset_model": "bloom"}, "phi3 in one": {"preset_model": "phi3", "partition_config": {"layer_specs": [
    {"patterns": [".*lm_head"], "partition_type": "column", "gather_output": True}]}}, **{name: block for name, (_, block) in HAND_MADE.items()}}


def adapted(name, **settings):
    base = made(name)
    return peft.get_peft_model(base, peft.LoraConfig(r=3, lora_alpha=1, init_lora_weights=False, task_type="CAUSAL_LM", **settings))


def made(name):
    if name in ADAPTED:
        return adapted(name.removesuffix(" with LoRA"), **ADAPTED[name])
    torch.manual_seed(7)
    if name in HAND_MADE:
        return Language(**HAND_MADE[name][0])
    kind, sizes = MODELS[name]
    implementations = {"attn_implementation": "sdpa", **({"experts_implementation": "eager"} if "moe" in name or name in ("mixtral", "deepseek_v2") else {})}
    if name == "bloom":
        implementations = {}
    model = transformers.AutoModelForCausalLM.from_config(kind(**{**SIZES, **sizes}), **implementations)
    with torch.no_grad():
        for each in model.modules():  # so that what is in no gradient is seen
            if "Norm" in type(each).__name__:
                each.weight.uniform_(0.5, 1.5)
    return model


def texts():
    return torch.randint(53, (4, 12), generator=torch.Generator().manual_seed(3))


def settings(stage, **more):
    return {"train_batch_size": 4, "gradient_clipping": CLIP, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}}, **more}


def plainly(name, steps=STEPS):
    """(losses, norms, weights)."""
    return trained_plainly(made(name), lambda model: model(input_ids=texts(), labels=texts()).loss, steps)


def on_engine(engine, data_rank, data_ranks, steps=STEPS):
    return trained_on(engine, texts().chunk(data_ranks)[data_rank], steps)


def by_its_plan(name, size, stage):
    """The model over so many ranks: the losses and norms, and what a whole model loads of the checkpoint."""
    expected = plainly(name)
    model = made(name)
    if dist.get_rank() > 0:  # rank 0's values count
        torch.nn.init.ones_(next(model.parameters()))
    engine, *_ = tessera.initialize(model=model, config=settings(stage, tensor_parallel={"autotp_size": size, **BLOCKS.get(name, {})}))
    cut = sum(hasattr(parameter, "tessera_part") for parameter in model.parameters())
    losses = on_engine(engine, dist.get_rank() // size, dist.get_world_size() // size)
    return {"cut": cut, "expected": expected[:2], "found": losses,
            **weights_of(engine, lambda: tessera.initialize(model=made(name), config=settings(3))[0], expected[2])}


for case in [("llama", 2, 0), ("llama", 2, 3), ("tied", 4, 1), ("qwen3", 4, 2), ("neox", 2, 2), ("mixtral", 4, 3), ("qwen2_moe", 2, 1), ("phi3", 2, 3),
             ("olmoe", 4, 0), ("deepseek_v2", 4, 2), ("bloom", 2, 1), ("phi3 in one", 2, 0), ("fused", 4, 2), ("of few key heads", 2, 3),
             ("with one table", 2, 1), ("llama with LoRA", 2, 3), ("phi3 with LoRA", 2, 1)]:
    run["{}, {} ranks, stage {}".format(*case)] = functools.partial(by_its_plan, *case)


@run
def through_deepspeed_s_names():
    """tp_model_init, an optimizer of the program's own, groups, and weights that are whole for a while and written to."""
    import deepspeed
    from deepspeed.module_inject.layers import GatherReplacedLayerParams
    from deepspeed.utils import groups

    expected = plainly("qwen3", steps=4)
    model = deepspeed.tp_model_init(model=made("qwen3"), tp_size=2, dtype=torch.float32)
    is_whole_still = tensor_parallel.ranks_that_cut(model, "tp") == 1
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01),
        config={"train_batch_size": 4, "gradient_clipping": CLIP, "zero_optimization": {"stage": 1}})
    losses, norms = on_engine(engine, dist.get_rank() // 2, 2, steps=4)
    weight = model.model.layers[0].self_attn.q_proj.weight
    before = tuple(weight.shape)
    with GatherReplacedLayerParams([weight], model, enabled=True):
        within = tuple(weight.shape)
        gathered = float((weight - expected[2]["model.layers.0.self_attn.q_proj.weight"]).abs().max())
        weight.data.zero_()
    return {"whole until initialize": is_whole_still, "expected": expected[:2], "found": [losses, norms],
            "shapes": [before, within, tuple(weight.shape)], "gathered": gathered, "written": float(weight.abs().max()),
            "ranks": [groups.get_tensor_model_parallel_world_size(), groups.get_tensor_model_parallel_rank(),
                      dist.get_process_group_ranks(groups.get_tensor_model_parallel_group()), engine.get_tensor_parallel_rank(),
                      engine.mp_world_size, engine.dp_world_size]}


@run
def over_other_numbers_of_ranks():
    """Three steps over two ranks, a checkpoint, and three more over one, two and four, each with the rest for data."""
    expected = plainly("qwen3", steps=6)

    def start(size):
        parallel = {"tensor_parallel": {"autotp_size": size}} if size > 1 else {}
        return tessera.initialize(model=made("qwen3"), config=settings(2, **parallel))[0], dist.get_rank() // size, dist.get_world_size() // size

    engine, *share = start(2)
    first, folder = on_engine(engine, *share, steps=3), [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    engine.save_checkpoint(folder[0])
    engine.destroy()
    found = {}
    for size in (1, 2, 4):
        engine, *share = start(size)
        engine.load_checkpoint(folder[0])
        found[size] = on_engine(engine, *share, steps=3)
        engine.destroy()
    return {"expected": expected[:2], "first": first, "found": found}


@run
def made_under_zero_init():
    import deepspeed

    model = made("qwen3")
    deepspeed.zero.Init(module=model)
    pieces = sum(parameter.numel() for parameter in model.parameters())
    engine, *_ = tessera.initialize(model=model, config=settings(3, tensor_parallel={"autotp_size": 2}))
    return {"pieces": pieces, "losses": on_engine(engine, dist.get_rank() // 2, 2, 4), "expected": plainly("qwen3", 4)[:2]}


@run
def what_cannot_be_cut():
    def start(model, **more):
        return said(tessera.initialize, model=model, config=settings(1, tensor_parallel={"autotp_size": 4}), **more)

    class Own(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    embedding = {"target_modules": ["q_proj", "embed_tokens"]}
    transposed = made("mixtral")
    for layer in transposed.model.layers:
        layer.mlp.experts.is_transposed = True
    own = made("qwen3")
    own.model.layers[1].mlp.up_proj.__class__ = Own
    return {"no plan": start(torch.nn.Linear(4, 4)), "heads": start(made("llama")), "a forward of its own": start(own),
            "an adapter of lengths": start(adapted("qwen3", target_modules=["q_proj"], use_dora=True)), "an adapter of words": start(adapted("qwen3", **embedding)),
            "sizes": said(tessera.initialize, model=made("llama"), config=settings(1, tensor_parallel={"autotp_size": 3})),
            "a style": said(tensor_parallel.cut, made("qwen3"), tessera._core.Mesh.of_world(
                tessera.world.world_of(), [("dp_shard", 0), ("tp", 2)], "here"), tensor_parallel.TransformersPlan({"lm_head": "local_colwise"})),
            "latents": said(tensor_parallel.cut, made("qwen3"), tessera._core.Mesh.of_world(
                tessera.world.world_of(), [("dp_shard", 0), ("tp", 2)], "here"), tensor_parallel.TransformersPlan({"lm_head": "mla_kv_a_proj"})),
            "experts that lie otherwise": said(tensor_parallel.cut, transposed, tessera._core.Mesh.of_world(
                tessera.world.world_of(), [("dp_shard", 0), ("tp", 2)], "here"),
                tensor_parallel.TransformersPlan({"model.layers.*.mlp.experts.gate_up_proj": "packed_colwise", "model.layers.*.mlp.experts.down_proj": "rowwise",
                                                  "model.layers.*.mlp.experts": "moe_tp_experts"}))}


@run
def different_batches():
    """On every rank: what the first forward says to tensor ranks of which one has other texts; then, once all have the same, its loss."""
    engine, *_ = tessera.initialize(model=made("llama"), config=settings(1, tensor_parallel={"autotp_size": 2}))
    ids = texts()[:2]
    refused = said(lambda: engine(input_ids=ids + (dist.get_rank() == 3), labels=ids))
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, refused)
    return {"told": told, "goes on": float(engine(input_ids=ids, labels=ids).loss)}


@run
def what_all_ranks_drop_alike():
    """{case: [replicas that differ between two ranks that share a model, its losses on both, those without dropout]}, of parts of different sizes."""
    def trained_on_both(model):
        engine, *_ = tessera.initialize(model=model, config=settings(1, tensor_parallel={"autotp_size": 2}))
        torch.manual_seed(11)
        losses, _ = on_engine(engine, dist.get_rank() // 2, 2, 4)
        whole = {name: parameter.detach().double().sum().item() for name, parameter in model.named_parameters() if not hasattr(parameter, "tessera_part")}
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, (whole, losses))
        return sorted(name for name in whole if found[0][0][name] != found[1][0][name]), [found[0][1], found[1][1]], len(whole)

    def model(name, drops):
        torch.manual_seed(7)
        kind, sizes = MODELS[name]
        places = [key for key in kind().to_dict() if "dropout" in key and key != "classifier_dropout"]
        return transformers.AutoModelForCausalLM.from_config(kind(**{**SIZES, **sizes, **dict.fromkeys(places, 0.3 if drops else 0.0)}),
                                                             attn_implementation="eager")

    def with_lora(drops):
        return peft.get_peft_model(model("llama", drops), peft.LoraConfig(r=3, target_modules="all-linear", init_lora_weights=False,
                                                                          lora_dropout=0.3 if drops else 0.0, task_type="CAUSAL_LM"))

    makers = {"llama": functools.partial(model, "llama"), "neox": functools.partial(model, "neox"), "with LoRA": with_lora}
    return {name: [*trained_on_both(make(True)), trained_on_both(make(False))[1][0]] for name, make in makers.items()}


@run
def rules_that_are_not_understood():
    def start(*more, model=None, **settings_of_rules):
        block = {"autotp_size": 2, "partition_config": rules(*more, **settings_of_rules)}
        return said(tessera.initialize, model=model or Language(), config=settings(1, tensor_parallel=block))

    nothing = {"patterns": ["nobody"], "partition_type": "row"}
    return {"a key": start({"pattern": ".*"}), "a key of the block": start(specs=[]), "a kind": start({**nothing, "partition_type": "diagonal"}),
            "an expression": start({**nothing, "patterns": ["*"]}), "a shape": start({**OF_THREE, "shape": [3, -1], "partition_dim": 2}),
            "a row of parts": start({**nothing, "shape": [-1, [10, 20]]}), "a layer without a rule": start(OF_THREE, model=torch.nn.Sequential(Language()), strict_mode=True),
            "thirds": start({**OF_THREE, "shape": [7, -1]}), "no layer": start(model=torch.nn.Linear(4, 4))}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    run.print_results(sys.argv[1:])
