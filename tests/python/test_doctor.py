"""python -m tessera.doctor: what it says of environments that are right and wrong."""

import os
import subprocess
import sys

import pytest
import ranks


def doctor(*folders, packages=tuple(ranks.PACKAGES), **variables):
    """(exit code, lines); `folders` come before the packages."""
    path = os.pathsep.join(map(str, [*folders, *packages]))
    environment = {name: value for name, value in os.environ.items() if name not in ranks.OF_A_RANK}
    done = subprocess.run([sys.executable, "-m", "tessera.doctor"], env={**environment, "PYTHONPATH": path, **variables}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert "Traceback" not in done.stdout, done.stdout
    return done.returncode, done.stdout.splitlines()


def says(lines, state, *parts):
    """Whether a line of that state has all of these, and is followed by what to do where something is wrong."""
    for line, following in zip(lines, [*lines[1:], ""]):
        if line.startswith(f"[{state}]") and all(part in line for part in parts):
            return state == "ok" or following.strip().startswith("fix: ")
    return False


def listed(folder, name, version, *requirements):
    """The folder, in which a package is listed as installed."""
    place = folder / f"{name}-{version}.dist-info"
    place.mkdir(parents=True)
    wanted = "".join(f"Requires-Dist: {each}\n" for each in requirements)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{wanted}")
    return folder


def test_an_environment_that_is_right():
    code, lines = doctor()
    assert code == 0, lines
    assert says(lines, "ok", "torch 2.") and says(lines, "ok", "tessera ") and says(lines, "ok", "deepspeed is Tessera's")
    assert says(lines, "ok", "transformers ", "accelerate ")


def test_the_start_that_a_wheel_brings():
    """Where there is none, and ranks would not be counted."""
    assert says(doctor()[1], "warning", "ranks without a GPU are counted", "only where a program imports deepspeed")


def test_deepspeed_itself_before_ours(tmp_path):
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text('__version__ = "0.19.8"\n')
    code, lines = doctor(listed(tmp_path, "deepspeed", "0.19.8"))
    assert code == 0 and says(lines, "warning", "deepspeed is DeepSpeed itself", str(tmp_path))


def test_two_that_are_listed(tmp_path):
    assert says(doctor(listed(tmp_path, "deepspeed", "0.18.1"))[1], "warning", "also lists deepspeed 0.18.1")


def test_no_names_at_all():
    code, lines = doctor(packages=ranks.PACKAGES[:1])
    assert code == 2 and says(lines, "failed", "there is no package deepspeed")


def test_a_torch_that_the_engine_was_not_built_for(tmp_path):
    code, lines = doctor(listed(tmp_path, "torch", "2.9.1"))
    assert code == 2 and says(lines, "failed", "this build of tessera is for torch 2.", "but torch 2.9.1 is installed"), lines
    assert not any("tessera 0." in line for line in lines)


def test_packages_for_another_torch(tmp_path):
    listed(tmp_path, "torchvision", "0.26.0", "torch==2.11.0", "numpy")
    listed(tmp_path, "torchaudio", "2.11.0", "torch>=2.0", "torch==1.0; extra == 'old'")
    lines = doctor(tmp_path)[1]
    assert says(lines, "warning", "torchvision 0.26.0 is for torch ==2.11.0") and not any("torchaudio" in line for line in lines)


def test_variables_that_a_launcher_left():
    assert says(doctor(LOCAL_RANK="0", WORLD_SIZE="2")[1], "warning", "LOCAL_RANK, WORLD_SIZE are set")


@pytest.mark.parametrize("interpreter, belongs", [(sys.executable, True), ("/somewhere/else/bin/python", False)])
def test_whose_command_it_is(tmp_path, interpreter, belongs):
    command = tmp_path / "deepspeed"
    command.write_text(f"#!{interpreter}\n")
    command.chmod(0o755)
    lines = doctor(PATH=str(tmp_path))[1]
    state, text = ("ok", "the command deepspeed") if belongs else ("warning", "belongs to another environment")
    assert says(lines, state, text, str(tmp_path)), lines


def test_help_says_what_it_is_for():
    done = subprocess.run([sys.executable, "-m", "tessera.doctor", "--help"], env=ranks.environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "python -m tessera.doctor" in done.stdout
