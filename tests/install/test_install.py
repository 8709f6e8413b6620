"""The installed tree serves an outside project: find_package(Tessera), build, run, without a variable in the environment."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TESSERA_BUILD", ROOT / "build" / "release"))
OUTSIDE = pathlib.Path(__file__).resolve().parent / "outside"
TIMEOUT = 900  # two sources that include LibTorch, on a busy machine
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent"}  # nothing that could help a loader or CMake


def run(*command, fails=False):
    done = subprocess.run([str(part) for part in command], env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT)
    assert (done.returncode != 0) == fails, f"{command}\n{done.stdout}"
    return done.stdout


def configure(prefix, build, *options, fails=False):
    return run("cmake", "-S", OUTSIDE, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
               "-DCMAKE_BUILD_TYPE=Release", *options, fails=fails)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("install") / "prefix"
    run("cmake", "--install", BUILD, "--prefix", prefix)
    return prefix


def test_the_installed_program_runs(prefix):
    assert "train" in run(prefix / "bin" / "tessera", "--help")


def test_the_plugins_for_mpi_are_installed_where_program_and_library_look_for_them(prefix):
    built = sorted(path.name for path in (BUILD / "lib").glob("libtessera_mpi_*.so"))
    assert sorted(path.name for path in (prefix / "lib").glob("libtessera_mpi_*.so")) == built
    for looks in [prefix / "bin" / "tessera", prefix / "lib" / "libtessera.so"]:
        assert "$ORIGIN/../lib" in run("readelf", "-d", looks)


def test_an_outside_project_builds_against_the_installed_tree_and_trains(prefix, tmp_path):
    configure(prefix, tmp_path / "build")
    run("cmake", "--build", tmp_path / "build", "--target", "outside")
    # Adam reaches the minimum of a parabola: the slope becomes 3.
    assert abs(float(run(tmp_path / "build" / "outside").split()[-1]) - 3) < 0.01


def test_the_installed_headers_need_no_header_that_is_not_installed(prefix, tmp_path):
    headers = sorted(path.relative_to(prefix / "include").as_posix() for path in (prefix / "include").rglob("*.h"))
    assert "tessera/tessera.h" in headers
    every = tmp_path / "every_header.cpp"
    every.write_text("".join(f"#include <{header}>\n" for header in headers))
    configure(prefix, tmp_path / "build", f"-DEVERY_HEADER={every}")
    run("cmake", "--build", tmp_path / "build", "--target", "every_header")


def test_the_installed_tree_may_be_moved(prefix, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    run("cp", "-a", prefix, elsewhere)
    assert "train" in run(elsewhere / "bin" / "tessera", "--help")
    configure(elsewhere, tmp_path / "build")
    assert f"{elsewhere}/lib" in (tmp_path / "build" / "build.ninja").read_text()


def test_another_release_of_libtorch_is_refused(prefix, tmp_path):
    torch = tmp_path / "torch" / "share" / "cmake" / "Torch"
    torch.mkdir(parents=True)
    (torch / "TorchConfig.cmake").write_text("set(TORCH_LIBRARIES c10)\n")
    (torch / "TorchConfigVersion.cmake").write_text("set(PACKAGE_VERSION 2.1.0)\n")
    output = " ".join(configure(prefix, tmp_path / "build", f"-DTESSERA_TORCH={tmp_path / 'torch'}", fails=True).split())
    assert "This Tessera was built with LibTorch" in output
    assert "but 2.1.0 was found in" in output


def test_a_libtorch_that_is_not_there_is_named(prefix, tmp_path):
    output = " ".join(configure(prefix, tmp_path / "build", f"-DTESSERA_TORCH={tmp_path / 'gone'}", fails=True).split())
    assert "point TESSERA_TORCH at an installed torch package" in output
