"""scripts/run_tests counts what ctest and pytest did, and lets no suite that did not run pass for one that did."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]

CTEST_OF_EACH_OUTCOME = """
cmake_minimum_required(VERSION 3.25)
project(outcomes NONE)
enable_testing()
add_test(NAME good COMMAND true)
add_test(NAME bad COMMAND false)
add_test(NAME not_built COMMAND ${CMAKE_BINARY_DIR}/not_built)
add_test(NAME skips_itself COMMAND echo SKIPPED)
set_tests_properties(skips_itself PROPERTIES SKIP_REGULAR_EXPRESSION SKIPPED)
add_test(NAME late COMMAND sleep 60)
set_tests_properties(late PROPERTIES TIMEOUT 1)
add_test(NAME off COMMAND true)
set_tests_properties(off PROPERTIES DISABLED ON)
"""
PYTEST_OF_EACH_OUTCOME = """
import pytest

def test_good(): pass
def test_bad(): assert False
@pytest.fixture
def broken(): raise OSError
def test_error(broken): pass
@pytest.mark.skip
def test_skipped(): pass
"""
NO_CTEST = "cmake_minimum_required(VERSION 3.25)\nproject(none NONE)\nenable_testing()\n"


@pytest.fixture
def project(tmp_path):
    """A project with the real run_tests, checks that pass, and this interpreter as its .venv's."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(TOP / "scripts" / "run_tests", tmp_path / "scripts")
    for check in ("check_layers", "check_format"):
        write_check(tmp_path, check, code=0)
    (tmp_path / "tests").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return tmp_path


def write_check(project, name, code):
    script = project / "scripts" / name
    script.write_text(f"#!/bin/sh\nexit {code}\n")
    script.chmod(0o755)


def run_tests(project, cmake_text, python_text=None):
    source = project / "cmake"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(cmake_text)
    subprocess.run(["cmake", "-S", source, "-B", project / "build" / "release", "-G", "Ninja"], check=True, timeout=120,
                   capture_output=True)
    if python_text is not None:
        (project / "tests" / "test_outcomes.py").write_text(python_text)
    done = subprocess.run([project / "scripts" / "run_tests"], capture_output=True, text=True, timeout=300,
                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))  # as a shell starts with &
    return done.returncode, done.stdout.splitlines()


def test_sums_each_outcome_over_both_suites(project):
    code, lines = run_tests(project, CTEST_OF_EACH_OUTCOME, PYTEST_OF_EACH_OUTCOME)
    # passed: two checks, good, test_good; failed: bad, not_built, late, test_bad, test_error; skipped: two and one.
    assert (code, lines[-1]) == (1, "4 passed, 5 failed, 3 skipped")
    assert any("tests passed" in line and "out of" in line for line in lines)  # ctest's own summary
    assert any(line.startswith("2 failed, 1 passed, 1 skipped") or "1 error" in line for line in lines)  # pytest's own
    named = [line.split()[-1] for line in lines[lines.index("FAILED bad bad") :] if line.startswith("FAILED")]
    assert named == ["bad", "not_built", "late", "test_bad", "test_error"]  # at the end, once more


def test_ends_with_what_a_failed_test_printed(project):
    printing = 'add_test(NAME talks COMMAND sh -c "echo because of this; exit 1")\n'
    code, lines = run_tests(project, NO_CTEST + printing)
    assert lines[-3:] == ["FAILED talks talks", "    because of this", "2 passed, 1 failed"]


def test_no_python_test_is_no_failure(project):
    code, lines = run_tests(project, NO_CTEST + "add_test(NAME good COMMAND true)\n")
    assert (code, lines[-1]) == (0, "3 passed, 0 failed")


def test_no_test_at_all_is_a_failure(project):
    code, lines = run_tests(project, NO_CTEST)
    assert (code, lines[-1]) == (1, "2 passed, 1 failed")


def test_a_python_file_that_does_not_load_is_a_failure(project):
    code, lines = run_tests(project, NO_CTEST + "add_test(NAME good COMMAND true)\n", "import no_such_module\n")
    assert (code, lines[-1]) == (1, "3 passed, 1 failed")


def test_a_check_that_fails_is_a_failure(project):
    write_check(project, "check_layers", code=1)
    code, lines = run_tests(project, NO_CTEST + "add_test(NAME good COMMAND true)\n")
    assert (code, lines[-1]) == (1, "2 passed, 1 failed")


def test_a_check_whose_tool_is_missing_is_skipped_and_not_passed(project):
    write_check(project, "check_format", code=77)
    code, lines = run_tests(project, NO_CTEST + "add_test(NAME good COMMAND true)\n")
    assert (code, lines[-1]) == (0, "2 passed, 0 failed, 1 skipped")


def test_tests_may_send_ctrl_c_though_the_run_is_in_the_background(project):
    not_ignored = "import signal\ndef test_it(): assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    code, lines = run_tests(project, NO_CTEST, not_ignored)
    assert (code, lines[-1]) == (0, "3 passed, 0 failed")


def test_peers_print_their_figures_and_count_a_skipped_comparison_as_failed(project):
    folder = project / "tests" / "python"
    folder.mkdir()
    (folder / "test_peers.py").write_text("""import json, pytest
pytestmark = pytest.mark.peers
def test_compares(record_property): record_property("figure", json.dumps(["stage 1", 2.5e-7]))
@pytest.mark.skip
def test_skipped(): pass
""")
    done = subprocess.run([project / "scripts" / "run_tests", "--peers"], capture_output=True, text=True, timeout=120)
    assert "| stage 1 | 2.5e-07 |" in done.stdout.splitlines()
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "1 passed, 1 failed")
