"""Whatever is wrong with the input ends in exit code 2 and one message that names what, where and what to do.

The cases are text: cases/*.yaml, whose first comment is the grammar. A new case needs no code here.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from model_folders import write_texts
from tessera_runs import tessera

CASES = Path(__file__).parent / "cases"
DEADLINE = 60  # seconds

# Marks of an exception that nobody put into words.
RAW = ["Traceback", "terminate called", "what():", "frame #", "Exception raised from", "INTERNAL ASSERT", "nlohmann",
       "json.exception", "std::", "basic_string", "Aborted", "Segmentation", "bad_alloc", "invariant", "C++"]


def load_cases():
    for path in sorted(CASES.glob("*.yaml")):
        for case in yaml.safe_load(path.read_text()):
            yield pytest.param(case, id=f"{path.stem}: {case['name']}")


@pytest.fixture(scope="session")
def base(tiny_bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    shutil.copytree(tiny_bert, folder / "model")
    write_texts(folder / "train.parquet", 40)
    shutil.copytree(CASES / "base", folder, dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def base_after_a_run(base, tmp_path_factory):
    """So that no case can fail for another reason than the one it names, the run that they change must work."""
    folder = shutil.copytree(base, tmp_path_factory.mktemp("after") / "run")
    result = tessera("train", "run.yaml", "--nproc", 2, cwd=folder)
    assert result.code == 0, str(result)
    return folder


def apply(folder, case):
    for name, content in case.get("write", {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    for name, changes in case.get("replace", {}).items():
        text = (folder / name).read_text()
        for old, new in changes.items():
            assert old in text, f"{name} does not contain {old!r}"
            text = text.replace(old, new)
        (folder / name).write_text(text)
    for name in case.get("remove", []):
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    for name, size in case.get("truncate", {}).items():
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:size])
    for name, patch in case.get("patch", {}).items():
        content = bytearray((folder / name).read_bytes())
        for offset, value in patch.items():
            content[offset] = value
        (folder / name).write_bytes(content)


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", list(load_cases()))
def test_message_and_exit_code(case, base, base_after_a_run, tmp_path):
    folder = shutil.copytree(base_after_a_run if case.get("after_a_run") else base, tmp_path / "case")
    apply(folder, case)
    before = contents(folder)
    result = tessera(*shlex.split(case.get("command", "train run.yaml --nproc 2")), cwd=folder,
                     env=case.get("environment"), timeout=DEADLINE)

    assert result.code == case.get("exit", 2), str(result)
    for fragment in case["stderr"]:
        assert fragment in result.err, f"{fragment!r} is not in the message of\n{result}"
    for fragment in RAW:
        assert fragment not in result.err, f"{fragment!r} is in the message of\n{result}"
    messages = re.findall(r"^error: .*$", result.err, re.MULTILINE)
    assert len(messages) == len(set(messages)), f"a message stands there twice without a rank:\n{result}"
    assert len(result.err.splitlines()) < 40, f"one clear message is shorter than\n{result}"
    after = contents(folder)
    assert {name: after.get(name) for name in before} == before, f"a file was changed by\n{result}"


def test_the_ds_config_of_the_cases_works(base, tmp_path):
    result = tessera("train", base / "run.yaml", "--set", f"deepspeed={base / 'ds_config.json'}",
                     "--set", f"output={tmp_path / 'out'}")
    assert result.code == 0, str(result)
