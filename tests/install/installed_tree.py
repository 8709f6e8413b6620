"""What the tests of the installed tree share: the build, commands without anything in the environment that could help."""

import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TESSERA_BUILD", ROOT / "build" / "release"))
TIMEOUT = 900  # two sources that include LibTorch, on a busy machine
# Nothing that could help a loader or CMake to find something.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "CMAKE_BUILD_PARALLEL_LEVEL": "2"}


def run(*command, fails=False, cwd=None, **variables):
    done = subprocess.run([str(part) for part in command], env={**ENVIRONMENT, **variables}, cwd=cwd, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT)
    assert (done.returncode != 0) == fails, f"{command}\n{done.stdout}"
    return done.stdout


def install_and_move(folder):
    """Installed, stripped, and moved: nothing is left where it was installed."""
    run("cmake", "--install", BUILD, "--prefix", folder / "first", "--strip")
    (folder / "then").mkdir()
    (folder / "first").rename(folder / "then" / "elsewhere")
    return folder / "then" / "elsewhere"


def runpath(file):
    return re.search(r"RUNPATH.*\[(.*)\]", run("readelf", "-d", file)).group(1).split(":")


def needed(file):
    """The libraries that the file names, in the order in which a loader looks through them."""
    return re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", file))


def torch_of(prefix):
    """The folder of the torch package that the installed library was built with."""
    [outside] = [entry for entry in runpath(prefix / "lib" / "libtessera.so") if not entry.startswith("$ORIGIN")]
    return pathlib.Path(outside).parent
