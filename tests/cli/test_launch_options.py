"""Every option of `tessera launch`: what --dry-run says it does to the command, and the error that a wrong use of it is. What those
commands are in DeepSpeed is compared in tests/python/test_remote_command_lines.py."""

import pytest
import yaml
from tessera_runs import REPOSITORY, tessera

PDSH = ["--hostfile", "hosts", "--launcher", "pdsh", "--master_addr", "10.0.0.1"]
TWO = ["--hostfile", "hosts", "--master_addr", "10.0.0.1"]

# Option: (words of a good use, what --dry-run then says, words of a wrong one, its error).
OPTIONS = {
    "--nproc": (["--nproc", 3], "rank 2: ./train x", ["--nproc", 0], "--nproc is 0"),
    "--hostfile": (TWO, "8 ranks on 2 hosts, which meet at 10.0.0.1:29500", ["--hostfile", "none"], "there is no hostfile none"),
    "--include": ([*TWO, "--include", "w1:0,2"], "w1: slots 0, 2", [*TWO, "--include", "w9"], "'w9' is not in the list of machines"),
    "--exclude": ([*TWO, "--exclude", "w0:1"], "w0: slots 0, 2, 3", [*TWO, "--exclude", "w0:9"], "w0 has no slot 9"),
    "--num_nodes": ([*TWO, "--num_nodes", 1], "4 ranks on 1 host", [*TWO, "--num_nodes", 0], "--num_nodes is 0"),
    "--master_addr": (["--nproc", 2, "--master_addr", "10.0.0.7"], "meet at 10.0.0.7:", ["--nproc", 2, "--master_addr"], "--master_addr"),
    "--master_port": (["--nproc", 2, "--master_port", 2222], "meet at 127.0.0.1:2222", ["--nproc", 2, "--master_port", 70000],
                      "--master_port is 70000, and may be from 1 to 65535"),
    "--launcher": (PDSH, "pdsh -S -f 1024 -w w0,w1", ["--launcher", "nix"], "there is no launcher 'nix'"),
    "--launcher_args": ([*PDSH, "--launcher_args", "-R ssh"], "pdsh -S -f 1024 -w w0,w1 -R ssh", [*PDSH, "--launcher_args", "'a"],
                        "a quote is not closed: 'a"),
    "--no_ssh": ([*TWO, "--no_ssh", "--node_rank", 1], "rank 4: ./train x", ["--no_ssh", *TWO], "--no_ssh needs --node_rank"),
    "--node_rank": ([*TWO, "--no_ssh", "--node_rank", 0], "rank 0: ./train x", [*TWO, "--no_ssh", "--node_rank", 5],
                    "--node_rank is 5, and the machines are w0, w1"),
    "--force_multi": (["--force_multi", "--master_addr", "10.0.0.1"], "localhost 'exec ", ["--force_mult"], "has no option '--force_mult'"),
    "--ssh_port": ([*TWO, "--ssh_port", 2200], "-p 2200 w1", [*TWO, "--ssh_port", 0], "--ssh_port is 0, and may be from 1 to 65535"),
    "--venv_script": ([*TWO, "--venv_script", "/env.sh"], "w1 '. /env.sh && exec ", ["--venv_script"], "--venv_script"),
    "--bind_cores_to_rank": (["--nproc", 2, "--bind_cores_to_rank"], "rank 1: ", ["--bind_cores_to_ran"], "has no option '--bind_cores_to_ran'"),
    "--bind_core_list": (["--nproc", 1, "--bind_cores_to_rank", "--bind_core_list", "0"], "rank 0: ", ["--bind_core_list", "0-"], "'0-' is not a core"),
    "--enable_each_rank_log": ([*PDSH, "--enable_each_rank_log", "logs"], "--enable_each_rank_log=logs", ["--enable_each_rank_log"],
                               "--enable_each_rank_log"),
    "--save_pid": ([*PDSH, "--save_pid"], "--save_pid", ["--save_pi"], "has no option '--save_pi'"),
    "--max-restarts": (["--nproc", 2, "--max-restarts", 3], "2 ranks", ["--max-restarts", -1], "--max-restarts is -1, and may be 0 or more"),
    "--min-nproc": (["--nproc", 2, "--max-restarts", 3, "--min-nproc", 1], "2 ranks", ["--min-nproc", 0], "--min-nproc is 0, and may be from 1"),
    "--print-sbatch": (["--num_nodes", 2, "--nproc", 3, "--print-sbatch"], "#SBATCH --ntasks-per-node=3",
                       ["--print-sbatch", "--launcher", "ssh"], "--print-sbatch is for Slurm"),
    "--module": (["--module"], "-m ./train --local_rank=0 x", ["--module", "--no_python"], "--module and --no_python are both given"),
    "--no_python": (["--no_python"], "rank 0: ./train x", ["--no_python", "--module"], "--module and --no_python are both given"),
    "--no_local_rank": (["--module", "--no_local_rank"], "-m ./train x", ["--no_local_ran"], "has no option '--no_local_ran'"),
    "--config": (["--config", "two.yaml"], "2 ranks on 1 host", ["--config", "none.yaml"], "the file cannot be read"),
    "--dry-run": (["--dry-run"], "rank 0: ./train x", ["--dry-ru"], "has no option '--dry-ru'"),
    "--check": (["--nproc", 2, "--check"], "tessera check -- ./train x", ["--check", "--max-restarts", 1], "--check runs once"),
    "--json": (["--nproc", 2, "--check", "--json"], "tessera check --json -- ./train x", ["--json"], "--json requires --check"),
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "hosts").write_text("w0 slots=4\nw1 slots=4\n")
    (tmp_path / "train").write_text("#!/bin/sh\n")
    (tmp_path / "train").chmod(0o755)
    (tmp_path / "two.yaml").write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_machines: 1\nnum_processes: 2\n")
    return tmp_path


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_does_what_dry_run_says_and_its_wrong_use_is_an_error(option, folder):
    good, says, wrong, error = OPTIONS[option]
    result = tessera("launch", *good, "--dry-run", "./train", "x", cwd=folder)
    assert result.code == 0 and says in result.out, str(result)
    without_value = wrong == [*wrong[:-1], option]
    result = tessera("launch", *wrong, *([] if without_value else ["--dry-run", "./train", "x"]), cwd=folder)
    assert result.code == 2 and result.err.startswith("error: ") and error in result.err.splitlines()[0], str(result)


def test_every_option_is_here():
    frozen = yaml.safe_load((REPOSITORY / "tests" / "cli" / "cases" / "frozen" / "options.yaml").read_text())["tessera launch"]["options"]
    names = [set(each.split(",")) for each in frozen if "--help" not in each]
    assert [group for group in names if not group & set(OPTIONS)] == []
    assert len(names) == len(OPTIONS)
