"""Runs a program as one rank under MPI: sets RANK and LOCAL_RANK from the variables that mpirun set, and starts it."""

import argparse
import os
import sys

from deepspeed.launcher.command_line import OptionParser
from deepspeed.launcher.constants import MPICH_LAUNCHER
from deepspeed.utils.numa import get_numactl_cmd
from tessera.error_report import made
from tessera.launch_error import LaunchError, tells_users

_RANK_NAMES = {MPICH_LAUNCHER: (["PMIX_RANK", "PMI_RANK"], ["PALS_LOCAL_RANKID", "MPI_LOCALRANKID"])}


def parse_args(args=None):
    parser = OptionParser(prog="deepspeed.launcher.launcher_helper", description="Run a program as one rank of an MPI job")
    parser.add_argument("--launcher", type=str, default=MPICH_LAUNCHER, help="MPI that started this process")
    parser.add_argument("--module", action="store_true", help="Run the script as a module, with python -m")
    parser.add_argument("--no_python", action="store_true", help="Run the script directly, without python")
    parser.add_argument("--bind_cores_to_rank", action="store_true", help="Bind each rank to its own cores (with numactl)")
    parser.add_argument("--bind_core_list", type=str, default=None, help="Cores to divide among the ranks, e.g. 0-3,8")
    parser.add_argument("user_script", type=str)
    parser.add_argument("user_args", nargs=argparse.REMAINDER)
    return parser.parse_args(args=args)


class RankUnknown(LaunchError, EnvironmentError):
    """The MPI launcher's variables do not say which rank this is."""


def env_mapping(env, rank_name_list=None, local_rank_name_list=None):
    """The environment with RANK and LOCAL_RANK, from the first of the names that are set. All that are set agree."""
    for name, sources in (("RANK", rank_name_list), ("LOCAL_RANK", local_rank_name_list)):
        values = {env[source] for source in sources or [] if source in env}
        if not values:
            raise made(RankUnknown, f"none of {', '.join(sources or [])} is set", "the environment",
                       "start the program with mpirun")
        if len(values) > 1:
            raise made(RankUnknown, f"{', '.join(sources)} disagree on {name}: {', '.join(sorted(values))}",
                       "the environment", "unset the ones left by another launcher")
        env[name] = values.pop()
    return env


@tells_users
def main(args=None):
    args = parse_args(args)
    env = env_mapping(os.environ.copy(), *_RANK_NAMES.get(args.launcher.lower(), _RANK_NAMES[MPICH_LAUNCHER]))
    command = []
    if args.bind_cores_to_rank:
        cores, command = get_numactl_cmd(args.bind_core_list, int(env["LOCAL_SIZE"]), int(env["LOCAL_RANK"]))
        env["OMP_NUM_THREADS"] = str(len(cores))
    if not args.no_python:
        command = [*command, sys.executable, "-u", *(["-m"] if args.module else [])]
    command = [*command, args.user_script, *args.user_args]
    os.execvpe(command[0], command, env)


if __name__ == "__main__":
    main()
