"""The training loops of Megatron-DeepSpeed and gpt-neox, on a tiny GPT."""

import base64
import json

from case import Case
from laid_out import CHECKOUTS, HERE

MEGATRON_DEEPSPEED = CHECKOUTS / "Megatron-DeepSpeed"


def pretrain_gpt(zero=0, tensor=1, stages=1, *more):
    """As examples_deepspeed/run_deepspeed_example.sh starts it, in fp32, with a tokenizer of numbers; one sample at a
    time, as the client's attention without a fused kernel takes no more."""
    def program(inputs, output, ds_config):
        ds_config.write_text(json.dumps({"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "steps_per_print": 1,
                                         "zero_optimization": {"stage": zero}, "wall_clock_breakdown": False}))
        return [HERE / "on_cpu.py", output / "steps.json", MEGATRON_DEEPSPEED / "pretrain_gpt.py", "--tensor-model-parallel-size", tensor,
                "--pipeline-model-parallel-size", stages, "--num-layers", 2, "--hidden-size", 64, "--num-attention-heads", 4, "--seq-length", 32,
                "--max-position-embeddings", 32, "--micro-batch-size", 1, "--global-batch-size", 4, "--train-iters", 6, "--lr", "6.0e-4", "--min-lr",
                "6.0e-6", "--lr-decay-style", "cosine", "--log-interval", 1, "--eval-iters", 2, "--eval-interval", 1000, "--data-path",
                inputs / "indexed", "--tokenizer-type", "NullTokenizer", "--vocab-size", 127, "--save-interval", 1000, "--save", output / "saved",
                "--split", "98,2,0", "--clip-grad", "1.0", "--weight-decay", "0.1", "--adam-beta1", "0.9", "--adam-beta2", "0.95",
                "--init-method-std", "0.006", "--attention-dropout", 0, "--hidden-dropout", 0, "--no-masked-softmax-fusion", "--no-bias-gelu-fusion",
                "--no-bias-dropout-fusion", "--no-gradient-accumulation-fusion", "--num-workers", 0, "--deepspeed", "--deepspeed_config", ds_config,
                "--zero-stage", zero, "--deepspeed-activation-checkpointing", "--checkpoint-activations", "--distributed-backend", "gloo", *more]
    return program


def of(client, name, program, zero, **more):
    return Case(client, name, program, zero, "megatron", **more)


GPT_NEOX = CHECKOUTS / "gpt-neox"


def neox(zero=0, tensor=1, stages=0):
    """By train.py and what deepy.py hands to it: the settings of its YAML files, as JSON in base64."""
    def program(inputs, output, ds_config):
        settings = {
            "pipe_parallel_size": stages, "model_parallel_size": tensor, "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32,
            "max_position_embeddings": 32, "norm": "layernorm", "pos_emb": "rotary", "no_weight_tying": True, "gpt_j_residual": False,
            "output_layer_parallelism": "column", "scaled_upper_triang_masked_softmax_fusion": False, "bias_gelu_fusion": False, "rope_fusion": False,
            "layernorm_fusion": False, "init_method": "small_init", "output_layer_init_method": "wang_init",
            "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.9, 0.95], "eps": 1e-8}}, "min_lr": 0.0001,
            "zero_optimization": {"stage": zero, "allgather_partitions": True, "allgather_bucket_size": 500000000, "overlap_comm": True,
                                  "reduce_scatter": True, "reduce_bucket_size": 500000000, "contiguous_gradients": True},
            "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "data_impl": "mmap", "num_workers": 0, "split": "1,0,0" if stages else "949,50,1",
            "checkpoint_activations": True, "checkpoint_num_layers": 1, "partition_activations": False, "synchronize_each_layer": True,
            "gradient_clipping": 1.0, "weight_decay": 0.1, "hidden_dropout": 0, "attention_dropout": 0, "precision": "fp32", "train_iters": 6,
            "lr_decay_iters": 6, "distributed_backend": "gloo", "lr_decay_style": "cosine", "warmup": 0.01, "checkpoint_factor": 1000,
            "eval_interval": 1000, "eval_iters": 2, "log_interval": 1, "steps_per_print": 1, "data_path": str(inputs / "indexed"),
            "tokenizer_type": "CharLevelTokenizer", "save": str(output / "saved"), "global_num_gpus": 2}
        encoded = base64.urlsafe_b64encode(json.dumps(settings).encode()).decode()
        return [HERE / "on_cpu.py", "--tell-of-cuda", output / "steps.json", GPT_NEOX / "train.py", "--megatron_config", encoded]
    return program


NO_PIPELINE = "--no-pipeline-parallel"
OF_MEGATRON = [
    *(of("Megatron-DeepSpeed", "pretrain_gpt.py, data-parallel", pretrain_gpt(stage, 1, 1, NO_PIPELINE), f"ZeRO-{stage}") for stage in range(4)),
    *(of("Megatron-DeepSpeed", "pretrain_gpt.py, tensor-parallel", pretrain_gpt(stage, 2, 1, NO_PIPELINE), f"ZeRO-{stage}") for stage in range(4)),
    # At stage 0 DeepSpeed's pipeline differs by so much from its own at stage 1; Tessera's is the same at both.
    of("Megatron-DeepSpeed", "pretrain_gpt.py, pipeline", pretrain_gpt(0, 1, 2), "ZeRO-0", tolerance=1e-4),
    of("Megatron-DeepSpeed", "pretrain_gpt.py, pipeline", pretrain_gpt(1, 1, 2), "ZeRO-1"),
] if MEGATRON_DEEPSPEED.exists() else []
OF_NEOX = [
    *(of("gpt-neox", "train.py, data-parallel", neox(stage), f"ZeRO-{stage}") for stage in range(4)),
    *(of("gpt-neox", "train.py, tensor-parallel", neox(stage, tensor=2), f"ZeRO-{stage}") for stage in range(2)),
    *(of("gpt-neox", "train.py, pipeline", neox(stage, stages=2), f"ZeRO-{stage}") for stage in range(2)),
] if GPT_NEOX.exists() else []
CASES = [*OF_MEGATRON, *OF_NEOX]
