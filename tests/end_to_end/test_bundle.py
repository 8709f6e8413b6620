"""What `scripts/bundle` makes runs where there is neither network nor compiler nor any package: in a root with a shell and the C library
alone. Needs root, to make one."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tessera_runs import TESSERA, environment, metrics, tessera, write_run_file

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bundle"
TOOLS = ["sh", "tar", "uname", "dirname", "getconf"]  # what the archive and its install ask for
C_LIBRARY = ["libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2"]


def bundle(*words, cwd=None):
    return subprocess.run([sys.executable, SCRIPT, "--build", TESSERA.parent, *map(str, words)], cwd=cwd, capture_output=True, text=True,
                          timeout=300)


def libraries_of(program):
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True, timeout=20).stdout
    return [Path(word) for line in listed.splitlines() for word in line.split() if word.startswith("/")]


def make_root(root):
    """With a shell, the C library, and folders for what `enter` mounts."""
    for folder in ("bin", "proc", "dev", "tmp", "home"):
        (root / folder).mkdir(parents=True)
    files = set()
    for tool in TOOLS:
        found = Path(shutil.which(tool))
        shutil.copy2(found.resolve(), root / "bin" / tool)
        files |= set(libraries_of(found))
    folder = next(path for path in files if path.name == "libc.so.6").parent
    for path in files | {folder / name for name in C_LIBRARY}:
        (root / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path.resolve(), root / path.relative_to("/"))


def enter(root, script, **variables):
    """Runs a script in it, without a network."""
    mounts = f"ip link set lo up && mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev && exec chroot {root} /bin/sh -euc '{script}'"
    return subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "sh", "-c", mounts], capture_output=True, text=True, timeout=300,
                          env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/home", **variables})


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "ip", "patchelf"))):
        pytest.skip("needs root, unshare, iproute2 and patchelf")
    root = tmp_path_factory.mktemp("machine") / "root"
    make_root(root)
    tried = enter(root, "uname")
    if tried.returncode != 0:
        pytest.skip(f"this system gives no namespaces: {tried.stderr.strip()}")
    yield root
    shutil.rmtree(root)


def test_a_machine_without_anything_trains_to_the_same_losses(root, tiny_bert, texts, tmp_path):
    run = {"task": "mlm", "training": {"max_steps": 3, "seed": 42}, "deepspeed": {
        "train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "zero_optimization": {"stage": 3}}}
    here = write_run_file(tmp_path, {**run, "model": {"path": str(tiny_bert)}, "output": str(tmp_path / "out"),
                                     "data": {"train": str(texts / "train.parquet"), "max_length": 32}})
    there = tmp_path / "there.json"
    there.write_text(json.dumps({**run, "model": {"path": f"../models/{tiny_bert.name}"}, "output": "/home/out",
                                 "data": {"train": "train.parquet", "max_length": 32}}))
    done = bundle("--model", tiny_bert, "--data", texts / "train.parquet", "--data", there, "--output", root / "home" / "tessera.tar")
    assert done.returncode == 0, done.stderr

    threads = {"OMP_NUM_THREADS": "1"}
    moved = enter(root, "cd /home && tar xf tessera.tar && cd tessera-* && ./install && . ./env.sh && "
                        "tessera train data/there.json --nproc 2", **threads)
    assert moved.returncode == 0, moved.stdout + moved.stderr
    assert "ready: . /home/tessera-" in moved.stdout
    local = tessera("train", here, "--nproc", 2, env=threads)
    assert local.code == 0, str(local)
    losses = [[row["loss"] for row in metrics(out) if "loss" in row] for out in (root / "home" / "out", tmp_path / "out")]
    assert len(losses[0]) == 3 and losses[0] == losses[1]


PROGRAM = """
import deepspeed, torch
deepspeed.init_distributed()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}, "optimizer": {"type": "SGD", "params": {"lr": 0.05}},
          "gradient_clipping": 0}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for _ in range(3):
    loss = engine(torch.ones(2, 4)).square().mean()
    engine.backward(loss)
    engine.step()
print(f"loss {engine.global_rank} of {torch.distributed.get_world_size()}: {loss.item():.7f}\\n", end="", flush=True)
"""


@pytest.mark.sample()
def test_programs_for_deepspeed_run_from_the_wheels_alone(root, tmp_path):
    """In the archive's own environment, without a network; Python itself is the machine's."""
    done = bundle("--python", "--output", tmp_path / "tessera.tar")
    if done.returncode != 0 and "No matching distribution" in done.stderr:
        pytest.skip(f"no package index can be reached: {done.stderr}")
    assert done.returncode == 0, done.stderr
    (tmp_path / "program.py").write_text(PROGRAM)
    script = ("ip link set lo up && tar xf tessera.tar && tessera-*/install && . tessera-*/env.sh && tessera --version && "
              "command -v deepspeed && deepspeed --num_gpus 2 program.py")
    moved = subprocess.run(["unshare", "--net", "sh", "-euc", script], cwd=tmp_path, capture_output=True, text=True, timeout=400, env={
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"})
    assert moved.returncode == 0, moved.stdout + moved.stderr
    assert f"{tmp_path}/tessera-" in moved.stdout.partition("/bin/deepspeed")[0]

    torch.manual_seed(0)  # the same steps in torch alone
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        loss = model(torch.ones(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for rank in range(2):
        [said] = re.findall(rf"loss {rank} of 2: (\S+)", moved.stdout)
        assert float(said) == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("words, what", [
    (["--model", "nowhere"], "error: there is no nowhere"),
    (["--data", "a/x", "--data", "b/x"], "two of the paths are called x"),
    (["--requirements", "needs.txt"], "--requirements needs --python"),
    (["--output", "tessera.zip"], "--output is neither .tar nor .tar.gz"),
    (["--build", "nowhere"], "nowhere has no program: run make build"),
])
def test_what_cannot_be_bundled_is_one_error(words, what, tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x").write_text("text")
    done = bundle("--output", "t.tar", *words, cwd=tmp_path)
    assert done.returncode == 2 and what in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"], "nothing half made"


def test_install_names_another_processor(tmp_path):
    """Its script is for one architecture."""
    text = SCRIPT.read_text()
    script = text[text.index('INSTALL = r"""') + len('INSTALL = r"""'):].partition('"""')[0]
    (tmp_path / "install").write_text(script.replace("@machine@", "riscv128"))
    done = subprocess.run(["sh", tmp_path / "install"], capture_output=True, text=True, timeout=20, env=environment())
    assert done.returncode == 2 and f"this bundle is for riscv128, and this machine is {platform.machine()}" in done.stderr
