"""engine.compile() at every stage, beside the same run without: run as two ranks by test_compile.py. Prints JSON: {"<stage>": {"plain": [losses],
"compiled": [losses], "graphs": how many the compiler was given, "weights": largest difference of the weights}}.
"""

import json
import warnings

warnings.filterwarnings("ignore")
import small_model  # noqa: E402
import torch  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402


def trained(stage, backend=None, **model):
    """(losses, whole weights, which rank 0 has)"""
    engine = small_model.start(small_model.made(**model), config=small_model.config(stage))[0]
    if backend is not None:
        engine.compile(backend=backend)
        assert engine.is_compiled
    losses, _ = small_model.trained(engine)
    return losses, engine._consolidated_16bit_state_dict() if stage == 3 else engine.module.state_dict()


def compared(stage, **model):
    torch._dynamo.reset()
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    plain, weights = trained(stage, **model)
    compiled, others = trained(stage, aot_autograd(fw_compiler=counted, bw_compiler=lambda graph, inputs: graph.forward), **model)
    return {"plain": plain, "compiled": compiled, "graphs": len(graphs),
            "weights": max(((others[name] - value).abs().max().item() for name, value in (weights or {}).items()), default=0)}


found = {stage: compared(stage) for stage in range(4)}
found["recomputed"] = compared(3, recomputes="plain")
if torch.distributed.get_rank() == 0:
    print(json.dumps(found))
