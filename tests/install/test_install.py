"""The installed tree serves an outside project: find_package(Tessera), build, run, without a variable in the environment."""

import pathlib
import re

import pytest
from installed_tree import BUILD, needed, run, runpath, torch_of

OUTSIDE = pathlib.Path(__file__).resolve().parent / "outside"


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
    assert "$ORIGIN/../lib" in runpath(prefix / "bin" / "tessera")
    assert "$ORIGIN/" in runpath(prefix / "lib" / "libtessera.so")


def assert_standard_library_before_torch(file):
    libraries = needed(file)
    torch = [library for library in libraries if library.startswith(("libtorch", "libc10"))]
    assert torch and libraries.index("libstdc++.so.6") < libraries.index(torch[0]), (file, libraries)


# LibTorch 2.11 exports symbols of std::filesystem in the layout of an older compiler; a program that takes them crashes.
def test_the_standard_library_comes_before_libtorch(prefix):
    files = [prefix / "bin" / "tessera", prefix / "lib" / "libtessera.so", *(BUILD / "python" / "tessera").glob("_core*.so")]
    assert len(files) == 3 or not (BUILD / "python").exists()
    for file in files:
        assert_standard_library_before_torch(file)


def test_the_installed_headers_need_no_header_that_is_not_installed(prefix, tmp_path):
    headers = sorted(path.relative_to(prefix / "include").as_posix() for path in (prefix / "include").rglob("*.h"))
    listed = re.findall(r"\]\(\.\./(tessera/[\w/]+\.h)\)", (OUTSIDE.parents[2] / "docs" / "api.md").read_text())
    assert headers == sorted(listed) and len(headers) <= 25
    every = tmp_path / "every_header.cpp"
    every.write_text("".join(f"#include <{header}>\n" for header in headers))
    configure(prefix, tmp_path / "build", f"-DEVERY_HEADER={every}")
    run("cmake", "--build", tmp_path / "build", "--target", "every_header")


def test_a_moved_installation_runs_and_serves_an_outside_project(moved, tmp_path):
    assert "train" in run(moved / "bin" / "tessera", "--help")
    assert ".symtab" not in run("readelf", "-S", "-W", moved / "lib" / "libtessera.so")
    configure(moved, tmp_path / "build")
    run("cmake", "--build", tmp_path / "build", "--target", "outside")
    assert_standard_library_before_torch(tmp_path / "build" / "outside")
    # Adam reaches the minimum of a parabola: the slope becomes 3.
    assert abs(float(run(tmp_path / "build" / "outside").split()[-1]) - 3) < 0.01
    loaded = run("ldd", tmp_path / "build" / "outside")
    assert f"{moved}/lib/libtessera.so" in loaded and f"{moved}/lib/tessera/libarrow.so" in loaded


def test_nothing_installed_names_a_folder_outside_but_torch_s(moved):
    torch = torch_of(moved)
    for file in [moved / "bin" / "tessera", *(moved / "lib").glob("libtessera.so")]:
        assert [entry for entry in runpath(file) if not entry.startswith("$ORIGIN")] == [f"{torch}/lib"]
    for file in (moved / "lib" / "cmake" / "Tessera").iterdir():
        assert set(re.findall(r'"(/[^"$]*)"', file.read_text())) <= {f"{torch}/share/cmake/Torch"}, file


def test_a_torch_beside_the_moved_tree_comes_before_the_one_of_the_build(moved, tmp_path):
    link = moved / "torch"
    link.symlink_to(torch_of(moved))
    try:
        assert f"{moved}/torch/lib/libtorch_cpu.so" in run("ldd", moved / "bin" / "tessera").replace("bin/../", "")
        configure(moved, tmp_path / "build", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
        compiled = (tmp_path / "build" / "compile_commands.json").read_text()
        assert f"{moved}/torch/include" in compiled and f"{torch_of(moved)}/include" not in compiled
    finally:
        link.unlink()


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
