"""Ranks that end without a word of ours: the launcher says what their end means and what to do about it."""

import shutil
import signal
import subprocess
import sys

import pytest
from tessera_runs import tessera


def launch(*command, **how):
    return tessera("launch", "--nproc", 2, *command, timeout=60, **how)


@pytest.mark.parametrize("number, words, fix", [
    (signal.SIGKILL, "sent by the system when memory runs out, by a scheduler or by a person", "'tessera estimate' says how much a run needs"),
    (signal.SIGBUS, "/dev/shm is full", "--shm-size"),
    (signal.SIGILL, "an instruction this processor does not support", "built for a newer processor"),
])
def test_a_signal_at_the_start(number, words, fix):
    result = launch("sh", "-c", f"[ $RANK = 1 ] && kill -{number.value} $$; sleep 30")
    assert result.code == 128 + number, str(result)
    assert f"error: rank 1 was killed by {number.name}, " in result.err and words in result.err, str(result)
    assert "  fix:   " in result.err and fix in result.err, str(result)


def test_a_shared_library_that_is_not_there(tmp_path):
    """The loader of the system says so, before the program's first instruction."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "part.c").write_text("int part(void) { return 0; }\n")
    (tmp_path / "main.c").write_text("int part(void);\nint main(void) { return part(); }\n")
    for arguments in (["-shared", "-fPIC", "-o", "libcudart.so.12", "-Wl,-soname,libcudart.so.12", "part.c"],
                      ["-o", "program", "main.c", "./libcudart.so.12"]):
        subprocess.run([compiler, *arguments], cwd=tmp_path, check=True, timeout=60)
    (tmp_path / "libcudart.so.12").unlink()
    result = launch("./program", cwd=tmp_path)
    assert result.code == 127, str(result)
    assert "  so:    it did not find the shared library libcudart.so.12\n" in result.err, str(result)
    assert "module load cuda" in result.err, str(result)


def test_a_module_that_python_does_not_find(tmp_path):
    (tmp_path / "program.py").write_text("import sys\nimport no_such_module.part\n")
    result = launch("program.py", cwd=tmp_path, env={"PATH": f"{sys.prefix}/bin:/usr/bin:/bin"})
    assert result.code == 1, str(result)
    assert "  so:    its Python has no module 'no_such_module'\n" in result.err, str(result)
    assert "python3 -m pip install no_such_module" in result.err, str(result)
