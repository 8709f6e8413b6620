"""tessera check and tessera launch --check by ranks of this host; tests/hosts/test_check_on_hosts.py has several hosts."""

import json
import os

import pytest
import torch
from tessera_runs import tessera


def found_by(*words, code, **settings):
    result = tessera(*words, "--json", **settings)
    assert result.code == code, str(result)
    return json.loads(result.out)


@pytest.mark.parametrize("words", [("check", "--nproc", 3), ("launch", "--nproc", 3, "--check")])
def test_ranks_of_this_host_have_nothing_wrong(words):
    found = found_by(*words, code=0)
    assert found["ranks"] == 3 and len(found["hosts"]) == 1
    assert found["hosts"][0]["version"] == tessera("--version").out.strip()
    assert found["hosts"][0]["libtorch"] == torch.__version__.partition("+")[0]
    shm = os.statvfs("/dev/shm")
    assert found["hosts"][0]["shared_memory_bytes"] == shm.f_blocks * shm.f_frsize
    assert found["collectives"] == dict.fromkeys(["all-reduce", "all-gather", "reduce-scatter", "broadcast"], True)
    assert [(link["from"], link["to"]) for link in found["links"]] == [(0, 1), (0, 2), (1, 2)]
    assert all(link["latency_s"] > 0 and link["there_bytes_per_s"] > 1e6 < link["back_bytes_per_s"] for link in found["links"])
    assert [each for each in found["findings"] if each["kind"] == "problem"] == []


def test_one_process_looks_at_its_host_alone(tmp_path):
    result = tessera("check", tmp_path)
    assert result.code == 0 and "checked 1 rank on 1 host\n" in result.out and "links" not in result.out, str(result)


@pytest.mark.parametrize("collective", ["all-reduce", "all-gather", "reduce-scatter", "broadcast"])
def test_a_wrong_collective_is_a_problem_that_names_the_first_wrong_rank(collective):
    found = found_by("check", "--nproc", 2, code=1, env={"TESSERA_FAULT": f"1:{collective}"})
    assert found["collectives"][collective] is False and list(found["collectives"].values()).count(True) == 3
    problem, = [each for each in found["findings"] if each["kind"] == "problem"]
    who = "rank 0" if collective == "all-gather" else "rank 1"  # what rank 1 sends wrong, rank 0 finds first
    assert problem["what"].startswith(f"the {collective} is wrong, first on {who}"), problem


def test_a_file_that_is_not_there_is_a_problem(tmp_path):
    (tmp_path / "there").write_text("text")
    result = tessera("launch", "--nproc", 2, "--check", tmp_path / "there", tmp_path / "none")
    assert result.code == 1, str(result)
    assert f"finds under '{tmp_path / 'none'}' no such file" in result.out and "1 of them cannot be read" in result.out, str(result)


def test_dry_run_prints_the_command_of_the_ranks():
    result = tessera("launch", "--nproc", 2, "--check", "--dry-run", "model")
    assert result.code == 0 and "check" in result.out and "model" in result.out, str(result)


def test_what_does_not_go_with_a_check_is_an_error():
    result = tessera("launch", "--nproc", 2, "--check", "--max-restarts", 1)
    assert result.code == 2 and "--check runs once" in result.err, str(result)
