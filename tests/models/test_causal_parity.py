"""Causal language models in C++ against transformers on the same weights: logits, loss, every parameter's gradient, and logits over
caches, fp32. The folders are made here with transformers itself, tiny and random."""

import json
import os
import pathlib
import subprocess

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = pathlib.Path(os.environ.get("TESSERA_BUILD", ROOT / "build" / "release")) / "tests" / "causal_logits_tool"
VOCAB = 131

SMALL = {"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 96, "initializer_range": 0.2}
SMALL_GEMMA3 = {**SMALL, "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 20,
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
BALANCED = {"output_router_logits": True, "router_aux_loss_coef": 0.3}
SMALL_GPT2 = {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 48, "n_layer": 3, "n_head": 4, "initializer_range": 0.2}


def rope(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=24)
LONG_FACTORS = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0]
LONGROPE = rope("longrope", factor=4.0, original_max_position_embeddings=24, short_factor=[1.0] * 6, long_factor=LONG_FACTORS)
MODELS = {
    "llama": ("Llama", SMALL),
    "llama-tied": ("Llama", {**SMALL, "tie_word_embeddings": True}),
    "llama-biases": ("Llama", {**SMALL, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    "llama-head-dim": ("Llama", {**SMALL, "head_dim": 20, "pad_token_id": 3}),
    "llama-theta": ("Llama", {**SMALL, **rope("default", rope_theta=500000.0)}),
    "llama-linear": ("Llama", {**SMALL, **rope("linear", factor=2.0)}),
    "llama-dynamic": ("Llama", {**SMALL, **rope("dynamic", factor=2.0), "max_position_embeddings": 16}),
    "llama-yarn": ("Llama", {**SMALL, **YARN}),
    "llama-yarn-mscale": ("Llama", {**SMALL, **rope("yarn", factor=4.0, original_max_position_embeddings=24, mscale=0.7,
                                                    mscale_all_dim=1.0, beta_fast=16.0, beta_slow=2.0, truncate=False)}),
    "llama-longrope": ("Llama", {**SMALL, **LONGROPE}),
    "llama3": ("Llama", {**SMALL, **LLAMA3}),
    "mistral": ("Mistral", {**SMALL, "sliding_window": 7}),
    "mistral-wide": ("Mistral", {**SMALL, "sliding_window": None}),
    "qwen2": ("Qwen2", SMALL),
    "qwen2-window": ("Qwen2", {**SMALL, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {**SMALL, "head_dim": 16}),
    "mixtral": ("Mixtral", {**SMALL, "num_local_experts": 5, "num_experts_per_tok": 2, "rms_norm_eps": 1e-6}),
    "mixtral-window": ("Mixtral", {**SMALL, "sliding_window": 7, "num_local_experts": 3, "num_experts_per_tok": 3}),
    "mixtral-balanced": ("Mixtral", {**SMALL, "num_local_experts": 5, **BALANCED}),
    "qwen2-moe": ("Qwen2Moe", {**SMALL, **EXPERTS, "shared_expert_intermediate_size": 36, "norm_topk_prob": True}),
    "qwen3-moe": ("Qwen3Moe", {**SMALL, **EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "qwen3-moe-some-layers": ("Qwen3Moe", {**SMALL, **EXPERTS, **BALANCED, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    "gemma3": ("Gemma3Text", SMALL_GEMMA3),
    "gemma3-scaled": ("Gemma3Text", {**SMALL_GEMMA3, "attention_bias": True, "hidden_activation": "silu", "pad_token_id": 3, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}}),
    "gemma3-pattern": ("Gemma3Text", {**SMALL_GEMMA3, "layer_types": None, "sliding_window_pattern": 2, "tie_word_embeddings": False}),
    "gpt2": ("GPT2", SMALL_GPT2),
    "gpt2-scaled": ("GPT2", {**SMALL_GPT2, "scale_attn_by_inverse_layer_idx": True, "n_inner": 100, "activation_function": "relu",
                             "tie_word_embeddings": False}),
}
CLASSES = {"Llama": "LlamaForCausalLM", "Mistral": "MistralForCausalLM", "Qwen2": "Qwen2ForCausalLM", "Qwen3": "Qwen3ForCausalLM",
           "Mixtral": "MixtralForCausalLM", "Qwen2Moe": "Qwen2MoeForCausalLM", "Qwen3Moe": "Qwen3MoeForCausalLM",
           "GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}


def make_model(name):
    family, sizes = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**sizes)
    model = getattr(transformers, CLASSES[family])(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1:  # norms and biases that do something
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def make_input(length=40, rows=2, **more):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, VOCAB, (rows, length), generator=generator)
    labels = torch.where(torch.rand(ids.shape, generator=generator) < 0.6, ids, -100)
    return {"input_ids": ids, "labels": labels, **more}


def run_tool(folder, inputs, where, *more, tool=TOOL):
    save_file({name: tensor.contiguous() for name, tensor in inputs.items()}, where / "in.safetensors")
    done = subprocess.run([tool, folder, where / "in.safetensors", where / "out.safetensors", *map(str, more)],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return load_file(where / "out.safetensors"), done.stdout.splitlines()


def computed(model, inputs):
    logits = model(**{key: value for key, value in inputs.items() if key != "labels"}, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten(), reduction="sum")
    if getattr(model.config, "output_router_logits", False):
        whole = model(**inputs, use_cache=False)
        targets = (inputs["labels"][:, 1:] != -100).sum()
        torch.testing.assert_close(whole.loss - model.router_aux_loss_coef * whole.aux_loss, loss / targets)
        assert model.router_aux_loss_coef * whole.aux_loss > 0.1
        loss = loss + model.router_aux_loss_coef * whole.aux_loss * targets
    loss.backward()
    return logits.detach(), loss.detach()


def as_in_files(model):
    """{name: gradient}, of experts one by one, as the files have them, where transformers stacks them."""
    gradients = {}
    for name, parameter in model.named_parameters():
        path, _, stacked = name.rpartition(".experts.")
        if not path:
            gradients[name] = parameter.grad
            continue
        mixtral = type(model).__name__.startswith("Mixtral")
        parts = {"gate_up_proj": ("w1", "w3") if mixtral else ("gate_proj", "up_proj"), "down_proj": ("w2",) if mixtral else ("down_proj",)}
        if mixtral:
            path = path.replace(".mlp", ".block_sparse_moe")
        for expert, gradient in enumerate(parameter.grad):
            for part, piece in zip(parts[stacked], gradient.chunk(len(parts[stacked]))):
                gradients[f"{path}.experts.{expert}.{part}.weight"] = piece
    if type(model).__name__.startswith("Mixtral"):
        gradients = {name.replace(".mlp.gate.", ".block_sparse_moe.gate."): gradient for name, gradient in gradients.items()}
    return gradients


def expect_equal(model, inputs, got, present=None):
    logits, loss = computed(model, inputs)
    where = slice(None) if present is None else present.bool()
    torch.testing.assert_close(got["logits"][where], logits[where], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got["loss_sum"], loss, rtol=1e-5, atol=1e-5)
    for name, gradient in as_in_files(model).items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(got["grad/" + name], gradient, rtol=1e-5, atol=1e-5 * scale,
                                   msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", MODELS)
def test_logits_loss_and_gradients_agree(tmp_path, name):
    model = make_model(name)
    model.save_pretrained(tmp_path / "model")
    inputs = make_input()
    got, said = run_tool(tmp_path / "model", inputs, tmp_path, 9)
    assert said == []
    expect_equal(model, inputs, got)
    if "dynamic" not in name and "longrope" not in name:  # whose angles depend on how long the input is
        torch.testing.assert_close(got["cached_logits"], got["logits"], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "mixtral-balanced", "gemma3", "gpt2"])
def test_padding_changes_nothing(tmp_path, name, side):
    model = make_model(name)
    model.save_pretrained(tmp_path / "model")
    mask = torch.ones(2, 40, dtype=torch.int64)
    mask[1, slice(0, 13) if side == "left" else slice(27, None)] = 0
    inputs = make_input(attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
    inputs["labels"][mask == 0] = -100
    if side == "left":
        inputs["labels"][1, 13] = -100  # would be predicted from padding
    got, said = run_tool(tmp_path / "model", inputs, tmp_path, 20)
    assert said == []
    expect_equal(model, inputs, got, mask)
    torch.testing.assert_close(got["cached_logits"][mask.bool()], got["logits"][mask.bool()], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt2"])
def test_packed_documents_see_nothing_of_each_other(tmp_path, name):
    """Each document alone is what it is among others."""
    model = make_model(name)
    model.save_pretrained(tmp_path / "model")
    lengths = [[11, 29], [7, 20, 13]]
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
    inputs = make_input(position_ids=positions)
    inputs["labels"][positions == 0] = -100
    got, _ = run_tool(tmp_path / "model", inputs, tmp_path)
    loss = 0
    for row, parts in enumerate(lengths):
        at = 0
        for length in parts:
            part = slice(at, at + length)
            logits = model(inputs["input_ids"][row : row + 1, part], use_cache=False).logits
            torch.testing.assert_close(got["logits"][row : row + 1, part], logits.detach(), rtol=1e-5, atol=1e-5)
            loss = loss + torch.nn.functional.cross_entropy(logits[0, :-1], inputs["labels"][row, part][1:], reduction="sum")
            at += length
    loss.backward()
    torch.testing.assert_close(got["loss_sum"], loss.detach(), rtol=1e-5, atol=1e-5)
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(got["grad/" + key], parameter.grad, rtol=1e-5, atol=1e-5 * parameter.grad.abs().max().item())


@pytest.mark.parametrize("scaling", [LLAMA3, YARN, rope("default"), rope("linear", factor=4.0)], ids=lambda each: each["rope_parameters"]["rope_type"])
def test_positions_beyond_8192(tmp_path, scaling):
    torch.manual_seed(0)
    parameters = dict(scaling["rope_parameters"])
    if "original_max_position_embeddings" in parameters:
        parameters["original_max_position_embeddings"] = 8192
    config = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 2, "max_position_embeddings": 131072, "rope_parameters": parameters})
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "model")
    positions = torch.stack([torch.arange(8200, 8240), torch.arange(100000, 100040)])
    inputs = make_input(position_ids=positions, attention_mask=torch.ones(2, 40, dtype=torch.int64))
    got, _ = run_tool(tmp_path / "model", inputs, tmp_path)
    expect_equal(model, inputs, got)


def test_the_earlier_forms_of_rotary_keys(tmp_path):
    """rope_theta and rope_scaling, whose kind is under rope_type or type."""
    model = make_model("llama3")
    model.save_pretrained(tmp_path / "model")
    inputs = make_input()
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    parameters = config.pop("rope_parameters")
    for key in ("rope_type", "type"):
        scaling = {key: parameters["rope_type"], **{name: value for name, value in parameters.items() if name not in ("rope_type", "rope_theta")}}
        (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "rope_theta": parameters["rope_theta"], "rope_scaling": scaling}))
        got, _ = run_tool(tmp_path / "model", inputs, tmp_path)
        model.zero_grad()
        expect_equal(model, inputs, got)


def test_the_earlier_form_of_gemmas_keys(tmp_path):
    """A theta for each kind of layer, a scaling for full attention, and every n-th layer that does not slide."""
    model = make_model("gemma3-scaled")
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    for key in ("rope_parameters", "layer_types"):
        config.pop(key)
    earlier = {"rope_theta": 100000.0, "rope_local_base_freq": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window_pattern": 3}
    path.write_text(json.dumps({**config, **earlier}))
    model = transformers.Gemma3ForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert model.config.layer_types == SMALL_GEMMA3["layer_types"]
    assert model.config.rope_parameters["full_attention"]["factor"] == 8.0
    inputs = make_input()
    got, _ = run_tool(tmp_path / "model", inputs, tmp_path)
    expect_equal(model, inputs, got)


def test_internlm2_is_a_llama_with_its_matrices_in_another_order(tmp_path):
    model = make_model("llama")
    model.save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config.update(model_type="internlm2", architectures=["InternLM2ForCausalLM"], bias=False)
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    state = load_file(tmp_path / "model" / "model.safetensors")

    def fused(layer):
        query, key, value = (state[f"model.layers.{layer}.self_attn.{part}_proj.weight"] for part in "qkv")
        size, width = 12, 48
        return torch.cat([query.view(2, 2, size, width), key.view(2, 1, size, width), value.view(2, 1, size, width)], 1).reshape(-1, width)

    renamed = {"model.tok_embeddings.weight": state["model.embed_tokens.weight"], "output.weight": state["lm_head.weight"],
               "model.norm.weight": state["model.norm.weight"]}
    names = {"attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w3": "mlp.up_proj",
             "feed_forward.w2": "mlp.down_proj", "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    for layer in range(3):
        renamed[f"model.layers.{layer}.attention.wqkv.weight"] = fused(layer)
        for new, old in names.items():
            renamed[f"model.layers.{layer}.{new}.weight"] = state[f"model.layers.{layer}.{old}.weight"]
    save_file(renamed, tmp_path / "model" / "model.safetensors")
    inputs = make_input()
    got, said = run_tool(tmp_path / "model", inputs, tmp_path)
    assert said == []
    logits, loss = computed(model, inputs)
    torch.testing.assert_close(got["logits"], logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got["loss_sum"], loss, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("change, what", [
    ({"rope_scaling": {"rope_type": "lama3", "factor": 8.0}}, "did you mean 'llama3'?"),
    ({"rope_scaling": {"rope_type": "linear"}}, "factor is 0"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "do not enclose a band"),
    ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0]}}, "must have 6 numbers each"),
    ({"rope_scaling": 8}, "'rope_scaling' is not an object"),
    ({"rope_theta": -1.0}, "rope_theta is -1"),
    ({"num_key_value_heads": 3}, "does not divide num_attention_heads"),
    ({"hidden_act": "relu6"}, "'relu6', is not supported"),
    ({"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1000000000"),
    ({"rms_norm_eps": 0}, "'rms_norm_eps' is 0"),
    ({"model_type": "lama"}, "did you mean 'llama'?"),
    ({"model_type": "gemma3_text", "final_logit_softcapping": 30.0}, "final_logit_softcapping is set, which is not supported"),
    ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping is set, which is not supported"),
    ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention is set, which is not supported"),
    ({"model_type": "gemma3_text", "layer_types": ["full_attention"]}, "layer_types has 1 entries for 3 layers"),
    ({"model_type": "gemma3_text", "layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "layer_types names 'chunked_attention'"),
    ({"model_type": "gemma3_text", "sliding_window": None}, "sliding_window is null, but layers have one"),
    ({"model_type": "gemma3_text", "hidden_activation": "gelu_fast"}, "hidden_activation, 'gelu_fast', is not supported"),
    ({"model_type": "gemma3_text", "query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
    ({"model_type": "gemma3_text", "rope_parameters": {"rope_type": "default"}}, "rope_parameters names no kind of layer"),
    ({"model_type": "gemma3_text", "rope_parameters": {"full_attention": 8}}, "'rope_parameters' is not an object"),
], ids=str)
def test_a_config_that_makes_no_sense_is_refused(tmp_path, change, what):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL, **change}))
    done = subprocess.run([TOOL, tmp_path, "in", "out"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and what in done.stderr, done.stderr
