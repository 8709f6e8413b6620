"""The wheel, installed into a fresh environment, run the programs of examples/python as their README starts them."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from ranks import OF_A_RANK

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "python"
BUILD_TIMEOUT, RUN_TIMEOUT = 3000, 300  # without a compiler cache the engine takes a while


def environment(**extra):
    """Nothing of the checkout: what is imported comes from the wheels."""
    unwanted = ("PYTHONPATH", "TESSERA_TORCH", *OF_A_RANK)
    result = {key: value for key, value in os.environ.items() if key not in unwanted}
    return {**result, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
            "PYTHONDONTWRITEBYTECODE": "1", **extra}


def run(*command, fails=False, timeout=RUN_TIMEOUT, cwd=None, **extra):
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment(**extra), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
    assert (done.returncode != 0) == fails, f"{command}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    # The cache knows what the main build compiled under this compiler's name.
    cached = {"CCACHE_BASEDIR": str(ROOT), "CXX": os.environ.get("CXX", "c++"), "CMAKE_BUILD_PARALLEL_LEVEL": "2"}
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation", "-w", folder,
        ROOT / "python", timeout=BUILD_TIMEOUT, **cached)
    only, = folder.glob("*.whl")
    return only


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The interpreter of an environment with the wheel; torch and the others lie behind its own packages."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    interpreter = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", interpreter, "install", "-q", "--no-deps", "--no-index", wheel)
    own = Path(run(interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (own / "behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return interpreter


def losses(output):
    return [float(number) for number in re.findall(r"(?<![_a-z])loss'?:? '?([0-9.]+)", output)]


def test_the_doctor_finds_nothing_wrong(python):
    """Of what a wheel brings; other packages of this environment are theirs."""
    said = run(python, "-m", "tessera.doctor", PATH=os.pathsep.join([str(python.parent), os.environ["PATH"]]))
    for line in ("deepspeed is Tessera's", "the command deepspeed", "Accelerate and the Trainer count ranks that have no GPU"):
        assert f"[ok]       {line}" in said, said
    assert "[failed]" not in said


PROGRAMS = {
    "run_bert.py": "deepspeed --include localhost:0,1 run_bert.py --deepspeed --deepspeed_config bert_ds.json",
    "translate_t5.py": ("deepspeed --num_gpus=2 translate_t5.py --deepspeed ds_config.json --do_train "
                        "--output_dir {out}"),
    "train_accelerate.py": "accelerate launch --config_file accelerate_zero3.yaml train_accelerate.py",
    "lora_sft.py": "deepspeed --include localhost:0,1 lora_sft.py --deepspeed ds_config.json --output_dir {out}",
    "qlora_sft.py": "deepspeed --include localhost:0,1 qlora_sft.py --deepspeed ds_config_zero2.json --output_dir {out}",
    "pipeline.py": "deepspeed --include localhost:0,1 pipeline.py",
    "long_context.py": "deepspeed --include localhost:0,1 long_context.py --deepspeed ds_config.json --output_dir {out}",
}


@pytest.mark.sample("run_bert.py", "lora_sft.py")
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_example_trains_from_the_installed_wheel(program, python, tmp_path):
    """Without a compiler on the path: DeepSpeed's issue #8235."""
    command = PROGRAMS[program].format(out=tmp_path / "out").split()
    scripts = {"deepspeed": [python.parent / "deepspeed"],  # put there by the wheel
               "accelerate": [python, Path(sys.executable).parent / "accelerate"]}
    output = run(*scripts[command[0]], *command[1:], cwd=EXAMPLES, HF_HOME=str(tmp_path),
                 PATH=str(python.parent))
    curve = losses(output)
    assert len(curve) >= 3, output
    assert curve[-1] < 0.95 * curve[0], output


def test_the_readme_starts_the_examples_as_this_test_does():
    text = (EXAMPLES / "README.md").read_text()
    assert [command for command in PROGRAMS.values() if f"`{command.format(out='out')}`" not in text] == []


def test_the_notebook_trains_on_two_ranks(python, tmp_path):
    """Its cells one after another, with what they have printed before."""
    cells = [cell for cell in json.loads((EXAMPLES / "two_ranks.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
    program = tmp_path / "cells.py"
    program.write_text("\n".join("".join(cell["source"]) for cell in cells))
    output = run(python, program, cwd=tmp_path)
    curve = losses(output)
    assert len(curve) == 4 and curve[-1] < curve[0] / 2, output
    shapes = [line for line in output.splitlines() if line.startswith(("0.", "2."))]
    assert shapes == "".join(cells[-1]["outputs"][0]["text"]).splitlines()


def test_the_program_trains(python, tmp_path):
    """The command of the wheel, on the torch that lies behind this environment's own packages."""
    tessera = python.parent / "tessera"
    assert f"project(Tessera VERSION {run(tessera, '--version').strip()} " in (ROOT / "CMakeLists.txt").read_text()
    tokenizer = ROOT / "examples" / "recipes" / "tokenizers" / "llama"
    run(tessera, "init-model", "model", "--type", "llama", "--tokenizer", tokenizer, "--hidden", 32, "--layers", 2, cwd=tmp_path)
    output = run(tessera, "train", "--model", "model", "--task", "clm", "--data", ROOT / "tests" / "text" / "train.txt", "--nproc", 2,
                 "--set", "training.max_steps=2", "--set", "data.max_length=32", cwd=tmp_path)
    assert "done after 2 steps" in output and (tmp_path / "out" / "export" / "model.safetensors").exists()


def test_the_packages_are_those_of_the_wheel(python):
    code = """if True:
        import torch, deepspeed, tessera._core
        from importlib.metadata import version
        print(deepspeed.__file__, tessera._core.__file__, version("deepspeed"), version("tessera"))"""
    output = run(python, "-c", code, cwd="/")
    shim, core, shim_version, version = output.split()
    assert Path(shim).is_relative_to(python.parent.parent) and Path(core).is_relative_to(python.parent.parent)
    assert shim_version.endswith("+tessera")
    assert f"project(Tessera VERSION {version} " in (ROOT / "CMakeLists.txt").read_text()


def test_another_release_of_torch_is_refused_at_import(python):
    code = "import importlib.metadata as m; m.version = lambda name: '2.10.1'; import tessera"
    output = run(python, "-c", code, cwd="/", fails=True)
    for part in ("is for torch 2.", "torch 2.10.1 is installed", "fix: rebuild it for this torch"):
        assert part in output


def configure(tmp_path, *options):
    """What CMake says when it cannot configure the wheel's build, its lines joined."""
    parts = [f"-DTESSERA_BUILD_{part}" for part in ("PROGRAM=OFF", "TESTS=OFF", "EXAMPLES=OFF", "PYTHON=ON")]
    output = run("cmake", "-S", ROOT, "-B", tmp_path / "build", "-G", "Ninja", "-DSKBUILD=2", *parts, *options, fails=True)
    return " ".join(output.split())


def test_an_environment_without_torch_is_told_to_install_it(tmp_path):
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare")
    python = tmp_path / "bare" / "bin" / "python"
    output = configure(tmp_path, f"-DPython_EXECUTABLE={python}")
    assert f"torch is not installed for {python}" in output
    assert "install torch 2.11 to 2.13 first" in output


def test_an_unsupported_torch_is_refused_with_its_version(tmp_path):
    torch = tmp_path / "torch"
    cmake = torch / "share" / "cmake" / "Torch"
    cmake.mkdir(parents=True)
    (cmake / "TorchConfig.cmake").write_text(f"set(TORCH_INSTALL_PREFIX {torch})\n")
    (cmake / "TorchConfigVersion.cmake").write_text("set(PACKAGE_VERSION 2.10.0)\n")
    output = configure(tmp_path, f"-DTESSERA_TORCH={torch}")
    assert f"LibTorch 2.10.0 in {torch} is not supported: install torch 2.11 to 2.13" in output


def test_a_source_distribution_says_where_the_wheel_is_built(tmp_path):
    output = configure(tmp_path, f"-DPython_EXECUTABLE={sys.executable}", "-DSKBUILD_STATE=sdist")
    assert "Tessera has no source distribution" in output and "pip wheel --no-deps ./python" in output


@pytest.mark.sample()  # it takes a minute
def test_the_wheel_for_other_machines_carries_its_libraries(tmp_path):
    """For the C libraries of Ubuntu 22.04 (2.35), Debian 12 (2.36) and Ubuntu 24.04 (2.39)."""
    run(ROOT / "scripts" / "wheel", "--output", tmp_path)
    wheel, = tmp_path.glob("*.whl")
    assert int(re.search(r"manylinux_2_(\d+)_x86_64", wheel.name)[1]) <= 35
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "environment")
    run(sys.executable, "-m", "pip", "--python", tmp_path / "environment" / "bin" / "python", "install", "-q", "--no-deps", "--no-index", wheel)
    package, = tmp_path.glob("environment/lib/python3*/site-packages/tessera")
    for file in (package / "bin" / "tessera", *package.glob("_*.so")):
        for name, place in re.findall(r"(\S+) => (\S+)", run("ldd", file)):
            of_torch = name.startswith(("libtorch", "libc10", "libgomp"))
            of_system = re.match(r"lib(c|m|stdc\+\+|gcc_s|pthread|dl|rt)\.so", name)
            assert of_torch or of_system or Path(place).is_relative_to(package.parent), (file, name, place)
