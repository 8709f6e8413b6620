"""Models of transformers that ranks share, beside the whole model in plain PyTorch: what tensor_parallel_runs.py and expert_tensor_runs.py have in common."""

import tempfile

import torch
import torch.distributed as dist

STEPS, CLIP = 20, 0.5


def trained_plainly(model, loss_of, steps=STEPS):
    """(losses, norms, weights). loss_of: of the model."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses, norms = [], []
    for _ in range(steps):
        loss = loss_of(model)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms, model.state_dict()


def trained_on(engine, own, steps=STEPS):
    """(losses, the mean over ranks, and norms). own: the token ids of this rank's batch."""
    losses, norms = [], []
    for _ in range(steps):
        loss = engine(input_ids=own, labels=own).loss
        engine.backward(loss)
        engine.step()
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, loss.item())
        losses.append(sum(found) / len(found))
        norms.append(float(engine.get_global_grad_norm()))
    return losses, norms


def weights_of(engine, start_whole, expected):
    """How far from the expected weights those are that it puts together, and those that an engine of the whole model loads of its checkpoint."""
    together = engine.consolidated_state_dict()
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    engine.save_checkpoint(folder[0], tag="twenty")
    whole = start_whole()
    whole.load_checkpoint(folder[0])
    found = whole.consolidated_state_dict(keeps_on=None)
    return {"of the weights": _difference(found, expected), "of what was put together": _difference(together, expected) if together else 0}


def _difference(weights, expected):
    assert weights.keys() == expected.keys()
    return max(float((weights[name] - value).abs().max()) for name, value in expected.items())
