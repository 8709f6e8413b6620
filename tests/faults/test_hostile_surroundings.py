"""An environment and limits that make no sense: one clear error, in a moment, with exit code 2."""

import resource

import pytest
from tessera_runs import tessera, train_arguments, write_run_file


@pytest.fixture
def run_file(tiny_run, tmp_path):
    tiny_run["training"] = {"max_steps": 1}
    tiny_run["output"] = str(tmp_path / "out")
    return write_run_file(tmp_path, tiny_run)


def refused(arguments, what, env=None, limit=None):
    set_limit = (lambda: resource.setrlimit(*limit)) if limit else None
    result = tessera(*arguments, env=env, preexec=set_limit, timeout=60)
    assert result.code == 2 and what in result.err, str(result)
    for raw in ("what():", "terminate called", "frame #", "Exception raised from"):
        assert raw not in result.err, str(result)
    assert result.seconds < 10, str(result)


@pytest.mark.parametrize("env, what", [
    ({"TESSERA_TIMEOUT": "x"}, "TESSERA_TIMEOUT is 'x', not a whole number"), ({"TESSERA_TIMEOUT": "-1"}, "TESSERA_TIMEOUT is -1"),
    ({"TESSERA_TIMEOUT": "1e300"}, "TESSERA_TIMEOUT is '1e300'"), ({"TESSERA_TIMEOUT": "9" * 20_000}, "more bytes"),
    ({"TESSERA_TIMEOUT": "9000000000000000000"}, "use a number from 1 to 31536000"),
    ({"TESSERA_BACKEND": "x"}, "no communication backend 'x'"),
    ({"TESSERA_KEEP_MEMORY": "x"}, "TESSERA_KEEP_MEMORY is 'x'"), ({"TESSERA_SECRET": "x"}, "the run's secret has 1 characters"),
    ({"TESSERA_SECRET_FILE": "/dev/zero"}, "this is a device"), ({"TESSERA_SECRET_FILE": "missing"}, "No such file"),
])
def test_variables_of_tessera(run_file, env, what):
    refused(train_arguments(run_file, 2), what, env=env)


RANK = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("env, what", [
    ({"RANK": "x"}, "RANK is 'x'"), ({"RANK": "-1"}, "RANK=-1 is out of range"), ({"RANK": "2"}, "RANK=2 is out of range"),
    ({"RANK": ""}, "RANK is not"), ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0"), ({"WORLD_SIZE": "99999999999"}, "WORLD_SIZE=99999999999"),
    ({"LOCAL_RANK": "-1"}, "LOCAL_RANK is -1"), ({"LOCAL_RANK": "2"}, "LOCAL_RANK is 2"), ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE is 0"),
    ({"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE is 3"), ({"MASTER_PORT": "0"}, "MASTER_PORT is 0"),
    ({"MASTER_PORT": "65536"}, "MASTER_PORT is 65536"), ({"MASTER_PORT": "tcp://"}, "MASTER_PORT is 'tcp://'"),
    ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
])
def test_variables_of_launchers(run_file, env, what):
    refused(["train", run_file], what, env={**RANK, **env})


def test_a_level_of_the_log_that_is_none_is_no_reason_to_say_nothing(run_file):
    result = tessera(*train_arguments(run_file), env={"TESSERA_LOG_LEVEL": "loud"})
    assert result.code == 0 and "TESSERA_LOG_LEVEL is 'loud'" in result.err and "info: " in result.err, str(result)


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_too_few_descriptors(run_file, backend):
    refused(train_arguments(run_file, 2), "may have 16 files and connections open", env={"TESSERA_BACKEND": backend},
            limit=(resource.RLIMIT_NOFILE, (16, 16)))


def test_descriptors_that_one_only_has_to_ask_for(run_file):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    result = tessera(*train_arguments(run_file, 2), preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (16, hard)))
    assert result.code == 0, str(result)


def test_too_little_address_space(run_file):
    """LibTorch is loaded, and no thread can be started."""
    refused(train_arguments(run_file), "", limit=(resource.RLIMIT_AS, (500 << 20, 500 << 20)))
