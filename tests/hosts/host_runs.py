"""Runs of `tessera train` over the hosts of a cluster, and what they are compared with: the same ranks on this machine alone."""

from tessera_runs import TESSERA, wait_until, steps_done, write_run_file

# A host of one rank would give it all cores, and the number of threads decides in which order a product adds up.
THREADS = {"OMP_NUM_THREADS": 1}


def tiny_run(model, texts, **training):
    """No dropout, whose masks differ by rank."""
    return {"model": {"path": str(model), "init": "pretrained", "dropout": 0},
            "task": "mlm",
            "data": {"train": str(texts / "train.parquet"), "max_length": 32},
            "training": {"seed": 42, **training},
            "deepspeed": {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2},
                          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}}


def write_tiny_run(folder, model, texts, **training):
    return write_run_file(folder, tiny_run(model, texts, **training))


def settings_words(settings):
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def threads_on_every_host(folder):
    """Variables for the launcher; ssh hands on none of its own."""
    (folder / "deepspeed_env").write_text("".join(f"{name}={value}\n" for name, value in THREADS.items()))
    return {**THREADS, "DS_ENV_FILE": folder / "deepspeed_env"}


def start_train(hosts, run_file, output, *options, head="node1", env=None, slots=1, names=None):
    """From `head`, by ssh."""
    return hosts[head].start(TESSERA, "train", run_file, "--hostfile", hosts.hostfile(slots, names), "--set", f"output={output}", *options,
                             env={**threads_on_every_host(hosts.folder), **(env or {})})


def wait_for_steps(process, output, steps=3):
    wait_until(lambda: steps_done(output) >= steps or process.poll() is not None, f"{steps} steps")
    assert process.poll() is None, process.communicate(timeout=30)
