"""The peers' side of bench/optimizer: like optimizer_steps.cpp, `optimizer_steps.py NUMEL` says which optimizers there are, then
reads names of cases and answers with seconds. In bf16 a peer's step is what a program must do around an fp32 optimizer: widen the gradient, step, round the
weights.

    torch_fp32, torch_bf16           torch.optim.AdamW(fused=True)
    deepspeed_fp32, deepspeed_bf16   DeepSpeedCPUAdam, where DeepSpeed is installed
"""

import os
import sys
import time

from harness.answers import answer_stream

answers = answer_stream()

import torch  # noqa: E402


def main():
    numel = int(sys.argv[1])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    weight = torch.nn.Parameter(torch.randn(numel))
    weight.grad = torch.randn(numel) * 1e-3
    grad16, compute = weight.grad.bfloat16(), weight.detach().bfloat16()
    settings = {"lr": 1e-4, "weight_decay": 0.01}
    optimizers = {"torch": torch.optim.AdamW([weight], fused=True, **settings)}
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        optimizers["deepspeed"] = DeepSpeedCPUAdam([weight], adamw_mode=True, **settings)
    except ImportError:
        pass
    print(",".join(optimizers), file=answers)
    for line in sys.stdin:
        peer, precision = line.strip().split("_")
        begin = time.perf_counter()
        if precision == "bf16":
            weight.grad.copy_(grad16)
        optimizers[peer].step()
        if precision == "bf16":
            with torch.no_grad():
                compute.copy_(weight)
        print(time.perf_counter() - begin, file=answers)


main()
