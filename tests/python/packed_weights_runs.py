"""LoRA over a base that bitsandbytes quantized, as one rank or two: run by test_packed_weights.py. The first argument is a folder that
the runs share; then the names of runs. Prints JSON, {"<function>": what rank 0 got}.
"""

import gc
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import deepspeed  # noqa: E402
import peft  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import transformers  # noqa: E402
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad  # noqa: E402
from tessera.full_weights import state_dict_of  # noqa: E402
from torch import nn  # noqa: E402
from transformers.integrations import HfDeepSpeedConfig  # noqa: E402

from named_runs import NamedRuns  # noqa: E402

transformers.logging.set_verbosity_error()
run = NamedRuns()
FOLDER = Path(sys.argv[1])
VOCABULARY, ROWS = 61, 2
KINDS = {  # arguments of BitsAndBytesConfig
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "nf4 stored as bf16": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": torch.bfloat16},
    "int8": {"load_in_8bit": True},
}


def base(kind="nf4", layers=2):
    """As programs load it. Widths are multiples of 64, the block of NF4."""
    path = FOLDER / f"base of {layers}"
    if dist.get_rank() == 0 and not path.exists():
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64)).save_pretrained(path)
    dist.barrier()
    return transformers.AutoModelForCausalLM.from_pretrained(
        path, quantization_config=transformers.BitsAndBytesConfig(**KINDS[kind]), dtype=torch.float32)


def adapted(model):
    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM",
                                                      init_lora_weights=False)).train()


def config(stage, **more):
    block = {"stage": stage, "stage3_max_live_parameters": 0, "stage3_param_persistence_threshold": 0,
             "stage3_gather_16bit_weights_on_model_save": True, **more.pop("zero", {})}
    return {"train_micro_batch_size_per_gpu": ROWS, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "gradient_clipping": 1.0,
            "zero_optimization": block, **more}


def started(model, stage, **more):
    return deepspeed.initialize(model=model, config=config(stage, **more))[0]


def batch(number):
    """Of both ranks, also where there is one."""
    generator = torch.Generator().manual_seed(number)
    return torch.randint(VOCABULARY, (2, ROWS, 12), generator=generator)


def own(number):
    return batch(number)[dist.get_rank()]


def trained(engine, steps=3, first=0):
    """Losses, norms, and the sums of every adapter's gradient: the same bits or not."""
    losses, norms, gradients = [], [], []
    for number in range(first, first + steps):
        loss = engine(input_ids=own(number), labels=own(number)).loss
        engine.backward(loss)
        gradients.append([safe_get_full_grad(parameter).double().sum().item() for parameter in trainable(engine.module)])
        engine.step()
        losses.append(float(loss))
        norms.append(float(engine.get_global_grad_norm()))
    return {"losses": losses, "norms": norms, "gradients": gradients}


def plainly_trained(model, steps=3):
    """By torch, on both ranks' rows: rank 0's losses and norms before clipping."""
    optimizer = torch.optim.AdamW(trainable(model), lr=1e-2, weight_decay=0.0)
    losses, norms = [], []
    for number in range(steps):
        for rank, ids in enumerate(batch(number)):
            loss = model(input_ids=ids, labels=ids).loss
            (loss / 2).backward()
            if rank == 0:
                losses.append(float(loss))
        norms.append(float(nn.utils.clip_grad_norm_(trainable(model), 1.0)))
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "norms": norms}


def trainable(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def packed(model):
    return [parameter for parameter in model.parameters() if type(parameter).__name__ in ("Params4bit", "Int8Params")]


def bytes_of(tensors):
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors if tensor is not None)


def whole_bytes(parameters):
    """Of the parameters themselves, wherever they are now."""
    return sum(getattr(each, "ds_numel", each.numel()) * each.element_size() for each in parameters)


def sums_of_bytes(weights):
    return [int(weight.data.view(torch.uint8).long().sum()) for weight in weights]


def int8_references(model):
    return [module.state.CB for module in model.modules() if hasattr(module, "init_8bit_state")]


@run
def the_same_at_every_stage():
    found = {}
    for kind in KINDS:
        found[kind] = {"plain": plainly_trained(adapted(base(kind)))}
        for stage in (0, 2, 3):
            engine = started(adapted(base(kind)), stage)
            weights = packed(engine.module)
            found[kind][str(stage)] = {
                **trained(engine), "weights": len(weights), "whole": whole_bytes(weights),
                "held": bytes_of(weights) + (bytes_of(int8_references(engine.module)) if kind == "int8" and stage == 3 else 0),
                "byte units": sum(name.endswith("(bytes)") for name, *_ in engine.core.units()),
                "in units": sum(numel for name, _, _, numel in engine.core.units() if name.endswith("(bytes)")),
                "state bytes": engine.core.model_state_bytes}
    return found


@run
def variants():
    """At stages 0 and 3: all that changes when or from where a weight comes."""
    found = {}
    for name, more in {"bf16": {"bf16": {"enabled": True}}, "recomputed": {}, "evaluated in between": {},
                       "on the host": {"zero": {"offload_param": {"device": "cpu"}}},
                       "persistent": {"zero": {"stage3_param_persistence_threshold": 10**9}}}.items():
        found[name] = {}
        for stage in (0, 3):
            model = adapted(base())
            if name == "recomputed":
                model.enable_input_require_grads()
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            engine = started(model, stage, **(more if stage == 3 or name == "bf16" else {}))
            if name == "evaluated in between" and stage == 3:  # at stage 0 bitsandbytes itself would not train on
                engine.eval()
                with torch.no_grad():
                    engine(input_ids=own(0))
                engine.train()
            found[name][str(stage)] = trained(engine)
    return found


def adapters_of(engine):
    return [safe_get_full_fp32_param(parameter).double().sum().item() for parameter in trainable(engine.module)]


@run
def saved():
    """Checkpoints of stages 0 and 3, and what follows in each run."""
    found = {}
    for stage in (0, 3):
        engine = started(adapted(base()), stage)
        trained(engine)
        for frozen_too in (True, False):
            engine.save_checkpoint(FOLDER / f"stage {stage}", tag=f"frozen {frozen_too}", exclude_frozen_parameters=not frozen_too)
        engine.save_16bit_model(FOLDER / f"weights {stage}", "model.bin")
        engine.save_16bit_model(FOLDER / f"weights {stage}", "adapters.bin", exclude_frozen_parameters=True)
        state = engine._zero3_consolidated_16bit_state_dict()
        if dist.get_rank() == 0:
            engine.module.save_pretrained(FOLDER / f"adapter {stage}", state_dict=state, safe_serialization=True)
        recovered = state_dict_of(FOLDER / f"stage {stage}", "frozen True")
        names = [name for name, parameter in engine.module.named_parameters() if parameter.requires_grad]
        found[str(stage)] = {"adapters": adapters_of(engine), "recovered": sorted(recovered),
                             "recovered adapters": [recovered[name].double().sum().item() for name in names]}
        found[str(stage)]["then"] = trained(engine, first=3)
    return found


@run
def loaded():
    """Into stages 0 and 3 by as many ranks as there are."""
    found = {}
    for stage in (0, 3):
        for source in (0, 3):
            for tag in ("frozen True", "frozen False"):
                engine = started(adapted(base()), stage)
                engine.load_checkpoint(FOLDER / f"stage {source}", tag=tag)
                adapters = adapters_of(engine)
                found[f"{source} -> {stage}, {tag}"] = {"adapters": adapters, "then": trained(engine, first=3)}
    return found


@run
def merged():
    """PEFT's merge of the same adapters, by GatheredParameters where weights are sharded; also once the engine is gone."""
    found = {}
    for name, stage in (("stage 0", 0), ("stage 3", 3), ("after the engine", 3)):
        engine = started(adapted(base()), stage)
        trained(engine, steps=1)
        model = engine.module
        if name == "after the engine":
            engine.destroy()
        with deepspeed.zero.GatheredParameters(list(model.parameters())):
            weights = packed(model)
            found[name] = {"kinds": sorted({type(each).__name__ for each in weights}), "bytes": sums_of_bytes(weights)}
            merged = model.merge_and_unload()
            found[name]["merged"] = sums_of_bytes(packed(merged))
            found[name]["loss"] = float(merged(input_ids=batch(9)[0], labels=batch(9)[0]).loss)
    return found


class _Most:
    """The most bytes that a rank held, at any assignment of a parameter, of the packed weights that were loaded so far."""

    def __enter__(self):
        self.loaded, self.most, self._register = [], 0, nn.Module.register_parameter

        def register(module, name, parameter):
            if type(parameter).__name__ in ("Params4bit", "Int8Params") and not parameter.is_meta:
                self.loaded.append(parameter)
                self.most = max(self.most, self.held())
            self._register(module, name, parameter)

        nn.Module.register_parameter = register
        return self

    def held(self):
        pieces = [getattr(each, "tessera_piece", None) for each in self.loaded]
        return bytes_of(self.loaded) + bytes_of(piece.piece for piece in pieces if piece is not None)

    def __exit__(self, *_):
        nn.Module.register_parameter = self._register


@run
def made_under_zero_init():
    found = {}
    for kind in KINDS:
        plain = base(kind)
        largest = max(each.numel() * each.element_size() for each in packed(plain))
        keeps = HfDeepSpeedConfig(config(3))  # as the Trainer does: transformers is told of stage 3
        with deepspeed.zero.Init(config_dict_or_path=config(3)), _Most() as most:
            model = base(kind)
        del keeps
        gc.collect()
        weights = packed(model)
        found[kind] = {"whole": whole_bytes(weights), "largest": largest, "most": most.most, "weights": len(weights),
                       "same kinds": [type(each).__name__ for each in weights] == [type(each).__name__ for each in packed(plain)],
                       "left whole": [name for name, each in model.named_parameters() if each.numel()]}
        model = adapted(model)
        with deepspeed.zero.GatheredParameters(packed(model)):
            found[kind]["gathered"] = all(torch.equal(a.data.view(torch.uint8), b.data.view(torch.uint8))
                                          for a, b in zip(packed(model), packed(plain), strict=True))
        found[kind]["3"] = trained(started(model, 3))
        with deepspeed.zero.Init(config_dict_or_path=config(3)):
            model = base(kind)
        found[kind]["0"] = trained(started(adapted(model), 0))
        found[kind]["without"] = trained(started(adapted(plain), 3))
    return found


def resident():
    """(now, at most since the last call), bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    now, most = (1024 * int(line.split()[1]) for key in ("VmRSS:", "VmHWM:") for line in lines if line.startswith(key))
    Path("/proc/self/clear_refs").write_text("5\n")
    return now, most


class _Blocks(nn.Module):
    """Packed weights alone, 8 MiB in each of the blocks; nobody calls it."""

    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Module() for _ in range(blocks))
        for block in self.blocks:
            block.weight = nn.Parameter(torch.randint(255, (8 << 20,), dtype=torch.uint8), requires_grad=False)
        self.adapter = nn.Linear(4, 4)


@run
def peak_of_initialize():
    """By how much an engine of parameters made under Init grows the process: the pieces become the shards."""
    blocks = 32
    with deepspeed.zero.Init(config_dict_or_path=config(3)):
        model = _Blocks(blocks)
    before, _ = resident()
    engine = started(model, 3)
    after, most = resident()
    return {"whole": blocks << 23, "at most": most - before, "then": after - before, "units": len(engine.core.units())}


if __name__ == "__main__":
    deepspeed.init_distributed()
    torch.set_num_threads(1)
    run.print_results(sys.argv[2:])
