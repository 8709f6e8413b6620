"""The installed tree serves an outside project: find_package(Tessera), build, run."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TESSERA_BUILD", ROOT / "build" / "release"))


def run(*command, cwd=None):
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_an_outside_project_builds_against_the_installed_tree_and_trains(tmp_path):
    prefix = tmp_path / "prefix"
    run("cmake", "--install", BUILD, "--prefix", prefix)
    assert (prefix / "bin" / "tessera").exists()
    project = ROOT / "tests" / "install" / "outside"
    run("cmake", "-S", project, "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        "-DCMAKE_BUILD_TYPE=Release")
    run("cmake", "--build", tmp_path / "build")
    # Adam reaches the minimum of a parabola: the slope becomes 3.
    assert abs(float(run(tmp_path / "build" / "outside").split()[-1]) - 3) < 0.01
    assert "train" in run(prefix / "bin" / "tessera", "--help")
