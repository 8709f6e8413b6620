"""Training state that is sharded within groups of ranks and replicated across them: the training of one process, the same bits at every stage."""

import pytest
from tessera_runs import losses_and_norms, tessera, train, train_arguments
from test_causal_lm import run_of
from test_tensor_parallel import MODELS, trained_as_one

FAMILY = "llama, 2 key heads, tied"


def replicated(stage, **more):
    return {"parallel.replicate": 2, "deepspeed.train_batch_size": 4, "deepspeed.dataloader_drop_last": "true",
            "deepspeed.zero_optimization.stage": stage, **more}


@pytest.mark.parametrize(("ranks", "settings", "mesh"), [
    (4, replicated(3), "dp_replicate 2 × dp_shard 2"), (2, replicated(1), "dp_replicate 2 × dp_shard 1"),
    (4, replicated(2, **{"parallel.tensor": 2}), "dp_replicate 2 × dp_shard 1 × tp 2"),
], ids=lambda value: "" if isinstance(value, dict) else str(value))
def test_replicas_train_as_one_process(tmp_path, ranks, settings, mesh):
    _, run_file = run_of(tmp_path, FAMILY, MODELS, packing="fill")
    trained_as_one(tmp_path, run_file, ranks, settings, mesh)


def test_the_same_bits_at_every_stage(tmp_path):
    _, run_file = run_of(tmp_path, FAMILY, MODELS, packing="fill")
    bits = []
    for stage in (1, 2, 3):
        train(run_file, 4, {**replicated(stage, **{"training.max_steps": 6}), "output": tmp_path / f"stage{stage}"})
        bits.append(losses_and_norms(tmp_path / f"stage{stage}"))
    assert len(bits[0]) == 6 and bits[1:] == [bits[0]] * 2


@pytest.mark.parametrize(("ranks", "stage", "what", "fix"), [
    (4, 0, "at ZeRO stage 0 every rank has all training state", "set zero_optimization.stage to 1, 2 or 3"),
    (3, 1, "3 ranks do not factor into dp_replicate 2 × dp_shard", "use 2 or 4 ranks"),
])
def test_what_cannot_be_is_refused_before_a_rank_starts(tmp_path, ranks, stage, what, fix):
    run_file = run_of(tmp_path, FAMILY, MODELS)[1]
    result = tessera(*train_arguments(run_file, ranks, replicated(stage)))
    assert result.code == 2, str(result)
    assert what in result.err and fix in result.err and "[rank" not in result.err, str(result)
