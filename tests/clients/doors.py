"""The two doors that a client is started through: Tessera's `deepspeed`, and DeepSpeed itself beside the same packages."""

import os
import signal
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = Path(os.environ.get("TESSERA_BUILD", ROOT / "build" / "release"))
STOCK_PYTHON = (ROOT / ".venv-peers").resolve() / "bin" / "python"  # DeepSpeed compiles its operators anew for each path that it is found by


def own_environment(name):
    """The interpreter with that client's packages; scripts/setup --clients makes these environments."""
    return ROOT / (".venv" if name == "" else f".venv-clients/{name}") / "bin" / "python"


def packages_of(python):
    text = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True, check=True)
    return text.stdout.strip()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _environment(case, **own):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ACCELERATE_"))}
    return {**inherited, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1", "WANDB_DISABLED": "true", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1",
            "DISABLE_VERSION_CHECK": "1", "CLIENT_LAUNCHER": case.launcher, **own}


def _alone(python, case, folder):
    return [python]


def _torchrun(python, case, folder):
    return [python, "-m", "torch.distributed.run", "--nproc-per-node", case.ranks, "--master-port", free_port()]


def _accelerate(python, case, folder):
    return [python, "-m", "accelerate.commands.launch", "--config_file", folder / "accelerate.yaml", "--main_process_port", free_port()]


def tessera(case, folder):
    """(command before the program, environment). `folder`: where the case's program has written its files."""
    python = own_environment(case.environment)
    path = os.pathsep.join(map(str, (ROOT / "tests" / "python" / "start", HERE / "without_gpu", BUILD / "python", ROOT / "python" / "deepspeed",
                                    *case.path)))
    if case.launcher == "deepspeed":
        command = [python, "-m", "deepspeed.launcher.runner", "--num_gpus", case.ranks, "--master_port", free_port()]
    else:
        command = {"torchrun": _torchrun, "accelerate": _accelerate, "alone": _alone}[case.launcher](python, case, folder)
    return command, _environment(case, PYTHONPATH=path, PATH=f"{python.parent}{os.pathsep}{os.environ['PATH']}")


def stock(case, folder):
    """Ranks are started by torchrun in place of DeepSpeed's own launcher, which counts GPUs."""
    command = {"accelerate": _accelerate, "alone": _alone}.get(case.launcher, _torchrun)(STOCK_PYTHON, case, folder)
    path = os.pathsep.join(map(str, (HERE / "stock_start", HERE / "without_gpu", *case.path)))
    return command, _environment(case, PYTHONPATH=path, CLIENT_PACKAGES=packages_of(own_environment(case.environment)),
                                 DS_ACCELERATOR="cpu", LOCAL_SIZE=str(case.ranks), PATH=f"{STOCK_PYTHON.parent}{os.pathsep}{os.environ['PATH']}")


class Ran:
    def __init__(self, code, output):
        self.code, self.output = code, output

    def end(self, lines=12):
        return "\n".join(self.output.splitlines()[-lines:])


def run(door, case, program, cwd):
    """`program`: a script or --module and its name, and its arguments. All of its processes are gone afterwards."""
    command, environment = door(case, cwd)
    started = subprocess.Popen([*map(str, command), *map(str, program)], cwd=cwd, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        output, _ = started.communicate(timeout=case.seconds)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        output = f"{started.communicate()[0]}\nit did not end within {case.seconds} s"
    return Ran(started.returncode, output)
