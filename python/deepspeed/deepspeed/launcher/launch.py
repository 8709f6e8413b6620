"""Starts this machine's ranks of a program: python -m deepspeed.launcher.launch --world_info=… script arguments.

The deepspeed launcher calls it, on each machine of a run. Each rank finds its place in the environment (RANK,
LOCAL_RANK, WORLD_SIZE, LOCAL_SIZE, CROSS_RANK, CROSS_SIZE, MASTER_ADDR, MASTER_PORT), and gets --local_rank=<k> after
the script.
"""

import contextlib
import os
import shutil
import sys
import time
from argparse import REMAINDER

from deepspeed.constants import CROSS_RANK, CROSS_SIZE, TORCH_DISTRIBUTED_DEFAULT_PORT
from deepspeed.launcher.command_line import OptionParser, whole_number
from deepspeed.utils.logging import set_log_level_from_string
from deepspeed.utils.numa import get_numactl_cmd
from tessera import _launch
from tessera.hostfile import decode_slots
from tessera.launch_error import refused, tells_users

PID_FILE_BASEPATH = "/tmp"
GRACE_SECONDS = 30  # for a rank that is asked to end


def parse_args(args=None):
    parser = OptionParser(prog="deepspeed.launcher.launch", description="Start a program's ranks on this machine")
    parser.add_argument("--node_rank", type=whole_number(0), default=0, help="Index of this machine")
    parser.add_argument("--master_addr", default="127.0.0.1", help="Address of rank 0's machine")
    parser.add_argument("--master_port", default=TORCH_DISTRIBUTED_DEFAULT_PORT, type=whole_number(1, 65535),
                        help="Free port on that machine")
    parser.add_argument("--world_info", default="None", help="All machines and their slots, in base64")
    parser.add_argument("--module", action="store_true", help="Run the script as a module, with python -m")
    parser.add_argument("--no_python", action="store_true", help="Run the script directly, without python")
    parser.add_argument("--no_local_rank", action="store_true", help="Do not pass --local_rank to the script")
    parser.add_argument("--save_pid", type=int, default=0, help="Write this process's ID to /tmp/<save_pid>.deepspeed")
    parser.add_argument("--enable_each_rank_log", default="None", help="Folder for one log file per rank")
    parser.add_argument("--bind_cores_to_rank", action="store_true", help="Bind each rank to its own cores (with numactl)")
    parser.add_argument("--bind_core_list", default=None, help="Cores to divide among the ranks, e.g. 0-3,8")
    parser.add_argument("--log_level", default="info", choices=["debug", "info", "warning", "error", "critical"])
    parser.add_argument("-q", "--quiet", action="store_true", help="Same as --log_level error")
    parser.add_argument("training_script", help="Program that every rank runs")
    parser.add_argument("training_script_args", nargs=REMAINDER)
    return parser.parse_args(args)


@tells_users
def main(args=None):
    sys.exit(run(parse_args(args)))


def check_program(args, script):
    """LaunchError if this machine has no such program to run."""
    if args.module and args.no_python:
        raise refused("--module and --no_python are both given", "the command line",
                      "keep one of them: a module needs Python")
    if args.no_python:
        found, kind = shutil.which(script), "program"
    elif not args.module:
        found, kind = os.path.isfile(script) or os.path.isfile(os.path.join(script, "__main__.py")), "script"
    else:
        return  # which Python finds, or says that it does not
    if not found:
        raise refused(f"{kind} '{script}' not found", os.getcwd(),
                      "give its path relative to this folder; the launcher's options go before it, the program's own after it")


def run(args):
    """Starts the ranks and waits for them; the exit code of all."""
    set_log_level_from_string("error" if args.quiet else args.log_level)
    check_program(args, args.training_script)
    slots_of = _all_slots(args.world_info)
    hosts = list(slots_of)
    if not 0 <= args.node_rank < len(hosts):
        raise refused(f"--node_rank is {args.node_rank}, but there {'is' if len(hosts) == 1 else 'are'} {len(hosts)} "
                      f"machine{'' if len(hosts) == 1 else 's'}", "the command line",
                      "use 0" if len(hosts) == 1 else f"use 0 to {len(hosts) - 1}")
    slots = slots_of[hosts[args.node_rank]]
    first_rank = sum(len(slots_of[host]) for host in hosts[:args.node_rank])
    shared = {
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, slots)),
        "MASTER_ADDR": args.master_addr,
        "MASTER_PORT": str(args.master_port),
        "WORLD_SIZE": str(sum(map(len, slots_of.values()))),
        "LOCAL_SIZE": str(len(slots)),
        CROSS_RANK: str(args.node_rank),
        CROSS_SIZE: str(len(hosts)),
    }
    if len(hosts) == 1 and not _launch.has_run_secret():
        shared["TESSERA_SECRET"] = _launch.make_run_secret()
    ranks = []
    for local_rank in range(len(slots)):
        rank = first_rank + local_rank
        environment = {**shared, "RANK": str(rank), "LOCAL_RANK": str(local_rank)}
        command = _command(args, local_rank, len(slots), environment)
        ranks.append((rank, command, environment, _log_of(args, rank)))
    with _pid_file(args.save_pid):
        return _launch.run_ranks(ranks, GRACE_SECONDS)


def _all_slots(world_info):
    if world_info == "None":
        raise refused("--world_info is missing", "the command line", "start the program with deepspeed, which passes it")
    return decode_slots(world_info)


def _command(args, local_rank, local_size, environment):
    command = []
    if args.bind_cores_to_rank:
        cores, command = get_numactl_cmd(args.bind_core_list, local_size, local_rank)
        environment["OMP_NUM_THREADS"] = str(len(cores))
    if not args.no_python:
        command = [*command, sys.executable, "-u", *(["-m"] if args.module else [])]
    place = [] if args.no_local_rank else [f"--local_rank={local_rank}"]
    return [*command, args.training_script, *place, *args.training_script_args]


def _log_of(args, rank):
    if args.enable_each_rank_log == "None":
        return ""
    try:
        os.makedirs(args.enable_each_rank_log, exist_ok=True)
    except OSError as error:
        raise refused(f"cannot write logs to {args.enable_each_rank_log}: {error.strerror}", "--enable_each_rank_log",
                      "name a folder that you can write to") from None
    return os.path.join(args.enable_each_rank_log, f"{time.strftime('%Y%m%d%H%M%S')}_rank{rank}.log")


@contextlib.contextmanager
def _pid_file(main_pid):
    if not main_pid:
        yield
        return
    path = os.path.join(PID_FILE_BASEPATH, f"{main_pid}.deepspeed")
    if os.path.exists(path):
        raise refused(f"{path} already exists", "--save_pid", f"remove it if no launcher {main_pid} is running")
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    try:
        yield
    finally:
        os.remove(path)


if __name__ == "__main__":
    main()
