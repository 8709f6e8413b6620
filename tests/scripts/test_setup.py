"""scripts/setup asks apt and pip only for what is missing, and says in one line what it cannot do. All of them are stand-ins
here that write down how they were called."""

import shutil
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
REAL_TOOLS = ("bash", "cat", "dirname", "env", "grep", "head", "mkdir", "rm", "sha256sum", "sort", "timeout", "chmod")


class Machine:
    def __init__(self, folder: Path):
        self.folder = folder
        self.tools = folder / "bin"
        self.log = folder / "calls"
        self.project = folder / "project"
        self.tools.mkdir()
        shutil.copytree(TOP / "scripts", self.project / "scripts")
        for tool in REAL_TOOLS:
            (self.tools / tool).symlink_to(shutil.which(tool))
        self.stand_in("dpkg-query", 'for name in "${@:3}"; do echo "installed $name"; done')
        self.stand_in("cmake", "echo cmake version 3.25.1")
        self.stand_in("id", "echo 0")
        self.stand_in("apt-get", f'echo "apt-get $*" >>{self.log}')
        # Makes a .venv whose python writes down what pip was asked.
        self.stand_in("python3", f"""
if [ "$1 $2" = "-m venv" ]; then
  folder="${{@: -1}}"; echo "venv" >>{self.log}; rm -rf "$folder"; mkdir -p "$folder/bin"
  printf '#!/bin/bash\\n[ "$1" = -c ] || echo "python $*" >>{self.log}\\n' >"$folder/bin/python"; chmod +x "$folder/bin/python"
fi""")

    def stand_in(self, name: str, text: str) -> None:
        (self.tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.tools / name).chmod(0o755)

    def lacks(self, *packages: str) -> None:
        names = "|".join(packages)
        self.stand_in("dpkg-query", f'for name in "${{@:3}}"; do case $name in {names}) ;; *) echo "installed $name" ;; esac; done')

    def setup(self, *arguments: str, **environment: str) -> tuple[int, str, list[str]]:
        """Exit code, standard error, and the calls of apt-get and pip."""
        self.log.write_text("")
        done = subprocess.run([self.project / "scripts" / "setup", *arguments], env={"PATH": str(self.tools), **environment},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr, self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_a_fresh_machine_gets_torch_first_and_alone(machine):
    code, _, calls = machine.setup()
    assert code == 0
    assert calls[0] == "venv"
    assert calls[1].endswith("-c scripts/requirements-test.txt torch==2.13.0")
    assert calls[2].endswith("--no-deps -r scripts/requirements.txt")
    assert len(calls) == 3


def test_torch_may_come_from_an_index_of_its_own(machine):
    _, _, calls = machine.setup(TESSERA_TORCH_INDEX="file:///wheels")
    assert "--index-url file:///wheels" in calls[1]
    assert "--index-url" not in calls[2]


def test_a_second_run_asks_nobody(machine):
    machine.setup("--test")
    assert machine.setup("--test") == (0, "", [])
    assert machine.setup() == (0, "", [])


def test_a_changed_pin_is_installed(machine):
    machine.setup("--test")
    with open(machine.project / "scripts" / "requirements-test.txt", "a") as pins:
        pins.write("another==1.0\n")
    _, _, calls = machine.setup("--test")
    assert len(calls) == 1 and calls[0].endswith("-r scripts/requirements-test.txt")


def test_a_venv_without_its_interpreter_is_made_anew(machine):
    machine.setup()
    (machine.project / ".venv" / "bin" / "python").unlink()
    _, _, calls = machine.setup()
    assert calls[0] == "venv" and len(calls) == 3


def test_an_ssh_daemon_for_tests_is_not_started_on_this_machine(machine):
    machine.stand_in("install", f'echo "install $*" >>{machine.log}')
    machine.lacks("openssh-server")
    _, _, calls = machine.setup("--test")
    assert calls.index("install -D /dev/null /etc/ssh/sshd_not_to_be_run") < [call.endswith("openssh-server") for call in calls].index(True)


def test_asks_apt_only_for_what_is_missing_and_updates_once(machine):
    machine.lacks("libgloo-dev", "libgtest-dev")
    _, _, calls = machine.setup()
    apt = [call for call in calls if call.startswith("apt-get")]
    assert len(apt) == 2
    assert apt[0].endswith(" update")
    assert apt[1].endswith("install -y --no-install-recommends libgloo-dev")  # GoogleTest is for --test
    _, _, calls = machine.setup("--test")
    assert calls[1].endswith("install -y --no-install-recommends libgloo-dev libgtest-dev")


def test_peers_get_their_own_environment_and_what_deepspeed_is_built_with_first(machine):
    machine.lacks("fio", "libgtest-dev")
    machine.setup()
    _, _, calls = machine.setup("--peers", TESSERA_TORCH_INDEX="file:///wheels")
    assert calls[1].endswith("install -y --no-install-recommends fio")
    assert calls[2] == "venv"
    assert "--index-url file:///wheels torch==" in calls[3]
    assert calls[4].endswith("-c scripts/requirements-peers.txt ninja numpy setuptools wheel")
    assert calls[5].endswith("--no-build-isolation -r scripts/requirements-peers.txt")
    machine.stand_in("dpkg-query", 'for name in "${@:3}"; do echo "installed $name"; done')
    assert machine.setup("--peers") == (0, "", [])


def test_pythons_headers_come_from_apt_only_where_they_are_missing(machine):
    machine.lacks("python3-dev")
    assert not [call for call in machine.setup()[2] if call.startswith("apt-get")]
    python3 = machine.tools / "python3"
    python3.write_text(python3.read_text().replace("#!/bin/bash\n", '#!/bin/bash\n[[ "$*" != *Python.h* ]] || exit 1\n'))
    assert machine.setup()[2][1].endswith("install -y --no-install-recommends python3-dev")


def test_without_root_it_takes_sudo_which_may_not_ask(machine):
    machine.lacks("ninja-build")
    machine.stand_in("id", "echo 1000")
    machine.stand_in("sudo", f'echo "sudo $1" >>{machine.log}; shift; exec "$@"')
    code, _, calls = machine.setup()
    assert code == 0
    assert calls[0] == "sudo -n"
    assert calls[3].endswith("install -y --no-install-recommends ninja-build")


def test_without_root_and_sudo_one_line_says_so(machine):
    machine.lacks("ninja-build", "ccache")
    machine.stand_in("id", "echo 1000")
    code, error, calls = machine.setup()
    assert (code, calls) == (2, [])
    assert error == "error: these packages are missing, and installing them needs root or sudo: ninja-build ccache\n"


def test_openmpi_comes_along_where_there_is_no_mpi(machine):
    machine.lacks("libopenmpi-dev", "openmpi-bin")
    assert machine.setup()[2][1].endswith("install -y --no-install-recommends libopenmpi-dev openmpi-bin")
    machine.stand_in("mpicc", "exit 0")
    assert not [call for call in machine.setup()[2] if call.startswith("apt-get")]


def test_without_root_and_sudo_it_does_without_mpi_and_says_so(machine):
    machine.lacks("libopenmpi-dev", "openmpi-bin")
    machine.stand_in("id", "echo 1000")
    code, said, _ = machine.setup()
    assert code == 0
    assert said == ("setup: building without MPI: installing libopenmpi-dev openmpi-bin needs root or sudo, "
                    "and there is no mpicc on PATH\n")
    assert machine.setup("--test")[0] == 2  # whose tests are of both MPIs


def test_an_old_cmake_is_refused(machine):
    machine.stand_in("cmake", "echo cmake version 3.22.1")
    assert machine.setup()[:2] == (2, "error: cmake 3.22 is too old: 3.25 or newer is needed\n")


def test_an_unknown_option_is_refused(machine):
    assert machine.setup("--tset")[:2] == (2, "usage: scripts/setup [--test] [--fuzz] [--peers] [--clients]\n")
