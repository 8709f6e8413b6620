"""scripts/cuda_build: which torch it asks for, what it refuses, and what its page says. The build itself is `make cuda-build`."""

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "scripts" / "cuda_build"


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The program's functions, with an environment in tmp_path."""
    loader = importlib.machinery.SourceFileLoader("cuda_build", str(PROGRAM))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("cuda_build", loader))
    loader.exec_module(module)
    monkeypatch.setattr(module, "ENVIRONMENT", tmp_path)
    return module


@pytest.fixture
def asked(program, monkeypatch):
    """What would be run, word by word."""
    calls = []
    monkeypatch.setattr(program, "run", lambda *command, **more: calls.append([str(word) for word in command]) or "")
    return calls


@pytest.mark.parametrize("version", ["2.10.0", "2.14.0", "2.13", "2.13.0+cpu", "nonsense"])
def test_another_release_is_refused(version):
    done = subprocess.run([sys.executable, PROGRAM, version], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("error:") == 1 and f"'{version}' is not a release of torch from 2.11 to 2.13" in done.stderr


def test_torch_for_cuda_is_asked_for_also_where_one_for_the_cpu_is_at_hand(program, asked, tmp_path):
    assert program.install("2.12.0") == tmp_path / "bin" / "python"
    venv, torch, without_torch, rest = asked
    assert venv[-1] == str(tmp_path)
    assert torch[-1] == "torch===2.12.0"  # 2.12.0+cpu is another name, and `==` would take it
    assert "--no-deps" in without_torch
    run, test = ((tmp_path / name).read_text() for name in ("requirements.txt", "requirements-test.txt"))
    assert "torch==" not in run and "pyarrow==" in run and without_torch[-1] == str(tmp_path / "requirements.txt")
    assert "setuptools==" not in test and "pytest==" in test  # which torch 2.12 wants older than it is pinned
    assert rest[-1] == torch[-2] == str(tmp_path / "requirements-test.txt")


def test_it_is_installed_once_for_each_release(program, asked):
    for version, calls in [("2.12.0", 4), ("2.12.0", 4), ("2.13.0", 8)]:
        program.install(version)
        assert len(asked) == calls


def test_a_torch_for_the_cpu_is_refused(program, monkeypatch):
    answer = {"interpreter": "3.11", "torch": "2.13.0+cpu", "cuda": None, "folder": "/torch", "nccl": None}
    monkeypatch.setattr(program, "run", lambda *command, **more: json.dumps(answer))
    with pytest.raises(program.StepFailed, match="torch 2.13.0.cpu of .* is not for CUDA"):
        program.describe(Path("python"))


def test_functions_of_cuda_and_nccl_are_told_from_others(program):
    for name in ("cudaMalloc", "cuInit", "ncclAllReduce", "cublasCreate_v2", "cudnnCreate"):
        assert program.NAME_OF_CUDA.search(f"                 U {name}")
    for name in ("curl_easy_init", "_ZN2at4cuda18cudaStreamExamplesE", "cuddle", "_ZN3c104cuda9NCCLThingEv"):
        assert not program.NAME_OF_CUDA.search(f"                 U {name}")


def test_the_page_says_what_ran_and_that_no_gpu_did(program, tmp_path, monkeypatch):
    monkeypatch.setattr(program, "PAGE", tmp_path / "page.md")
    rows = [program.attempt("C++ tests", lambda: "12 passed, 0 failed, 1 skipped")[0]]

    def fails():
        raise program.StepFailed("the first line\nthe second")
    row, good = program.attempt("Python tests", fails)
    about = {"interpreter": "3.11.2", "torch": "2.13.0+cu130", "cuda": "13.0", "folder": "/torch", "nccl": "2.29.7"}
    text = program.page(about, [*rows, row])
    assert not good
    assert "| C++ tests | 12 passed, 0 failed, 1 skipped |\n| Python tests | FAILED: the first line |" in text
    assert "## torch 2.13.0+cu130\n" in text and "CUDA 13.0, NCCL 2.29.7" in text and "Nothing on this page ran on a GPU" in text


def test_the_page_keeps_what_it_says_of_other_releases(program, tmp_path, monkeypatch):
    monkeypatch.setattr(program, "PAGE", tmp_path / "page.md")
    about = {"interpreter": "3.11.2", "cuda": "13.0", "folder": "/torch", "nccl": "2.29.7"}
    for release, said in (("2.12.0", "old"), ("2.13.0", "new"), ("2.12.0", "again")):
        program.PAGE.write_text(program.page({**about, "torch": release}, [["build", said]]))
    text = program.PAGE.read_text()
    assert text.count("# Built for CUDA") == 1 and text.count("## torch ") == 2 and "| build | old |" not in text
    assert text.index("## torch 2.13.0\n") < text.index("| build | new |") < text.index("## torch 2.12.0\n") < text.index("| build | again |")
