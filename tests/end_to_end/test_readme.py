"""Every command of README.md runs as it is printed there. Only the number of steps of its run file is lower here."""

import json
import os
import shutil
import subprocess

import pytest
from model_folders import minilm_folder, write_texts, write_tiny_bert
from readme import block
from tessera_runs import REPOSITORY, TESSERA, environment, finish, metrics, start, steps_done, wait_until

MINUTES = 4
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1, "OMPI_MCA_rmaps_base_oversubscribe": 1}


def shell(command, folder, **extra):
    """What a user pastes into a shell; it must succeed."""
    env = environment(PATH=f"{TESSERA.parent}:{os.environ['PATH']}", **extra)
    result = subprocess.run(["bash", "-c", command], cwd=folder, env=env, text=True, capture_output=True, timeout=60 * MINUTES,
                            stdin=subprocess.DEVNULL)
    assert result.returncode == 0, f"{command}\nexit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What README's run file names, and that file and its ds_config as they stand there."""
    made = tmp_path_factory.mktemp("readme")
    write_tiny_bert(made / "models" / "bert-base-uncased")
    write_texts(made / "wikitext.parquet", 400)
    write_texts(made / "held-out.parquet", 64, seed=2)
    run_file = block("Your own run", "yaml").replace("max_steps: 1000", "max_steps: 12").replace("save_steps: 200", "save_steps: 4")
    run_file = run_file.replace("max_length: 128", "max_length: 64")  # the tiny model's limit
    (made / "run.yaml").write_text(run_file)
    (made / "ds_config.json").write_text(block("Your own run", "json"))
    return made


def test_the_commands_of_your_own_run(folder):
    commands = block("Your own run", containing="tessera train")
    train = [command for command in commands if command.startswith("tessera train") and "output=" not in command]
    dry, first, resume = train
    assert "--dry-run" in dry and "--resume auto" in resume and first == "tessera train run.yaml --nproc 2"
    assert shell(commands[0], folder).stdout.count("ds_config.json:") >= 5
    assert "is ready to train" in shell(dry, folder).stdout and not (folder / "out").exists()

    stopped = start(*first.split()[1:], "--set", "training.max_steps=100000", cwd=folder)
    wait_until(lambda: steps_done(folder / "out") >= 3, "three steps")
    stopped.send_signal(2)
    assert "stopped after" in finish(stopped).out
    steps = len(metrics(folder / "out"))
    (folder / "run.yaml").write_text((folder / "run.yaml").read_text().replace("max_steps: 12", f"max_steps: {steps + 4}"))

    resumed = shell(resume, folder)
    assert f"after step {steps}" in resumed.stderr and "the micro batch is 8 instead of 16" in resumed.stderr, resumed.stderr
    assert len(metrics(folder / "out")) == steps + 4
    assert "nothing to do" in shell(resume, folder).stdout

    rest = [command for command in commands[1:] if command not in train and "bench io" not in command]
    assert len(rest) + len(train) + 2 == len(commands)
    for command in rest:
        if "mpirun" in command and shutil.which("mpirun") is None:
            continue
        shell(command, folder, **AS_ROOT)
    assert json.loads((folder / "t.json").read_text()) and (folder / "hf" / "model.safetensors").exists()


def test_bench_io_says_how_fast_the_drive_is(folder):
    command, = [each for each in block("Your own run", containing="tessera train") if "bench io" in each]
    assert '"aio":' in shell(command, folder).stdout


def test_the_commands_that_tell_whether_it_fits(folder):
    commands = block("Your own run", containing="tessera estimate")
    assert len(commands) == 3
    for command in commands:
        assert shell(command, folder).stdout.strip()


def test_the_example_in_c_plus_plus_starts_as_printed(folder):
    command, = block("From C++", containing="tessera launch")
    (folder / "build").symlink_to(REPOSITORY / "build")
    (folder / "MODEL_FOLDER").symlink_to(folder / "models" / "bert-base-uncased")
    (folder / "text.parquet").symlink_to(folder / "wikitext.parquet")
    shutil.rmtree(folder / "out", ignore_errors=True)
    shell(command, folder)
    assert any((folder / "out").rglob("manifest.json"))


def test_the_demo_ends_as_the_page_shows(tmp_path):
    minilm_folder()  # skips where it is not installed
    shown = block("Two commands", containing="done after")
    result = subprocess.run([REPOSITORY / "scripts" / "demo"], env=environment(DEMO_STEPS=3), text=True, capture_output=True,
                            timeout=60 * MINUTES)
    assert result.returncode == 0, result.stdout + result.stderr
    for words in shown[2:]:  # the report, line by line: how each begins
        begin = words.split()[0]
        assert any(line.split()[:1] == [begin] for line in result.stdout.splitlines()), f"{words}\n{result.stdout}"
