"""Starts this machine's ranks of a program: python -m deepspeed.launcher.launch --world_info=… script arguments.

The deepspeed launcher calls it, on each machine of a run. Each rank finds its place in the environment (RANK,
LOCAL_RANK, WORLD_SIZE, LOCAL_SIZE, CROSS_RANK, CROSS_SIZE, MASTER_ADDR, MASTER_PORT), and gets --local_rank=<k> after
the script.
"""

import sys
from argparse import REMAINDER

from deepspeed.constants import TORCH_DISTRIBUTED_DEFAULT_PORT
from deepspeed.launcher.command_line import OptionParser, whole_number
from deepspeed.launcher.request import request_of
from deepspeed.utils.logging import set_log_level_from_string
from tessera import _launch
from tessera.launch_error import refused, tells_users


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


def run(args):
    """Starts the ranks and waits for them; the exit code of all."""
    set_log_level_from_string("error" if args.quiet else args.log_level)
    request = request_of(args, args.training_script, args.training_script_args)
    _launch.require_program(request.program)
    if args.world_info == "None":
        raise refused("--world_info is missing", "the command line", "start the program with deepspeed, which passes it")
    return _launch.run_node(request, _launch.decode_world_info(args.world_info), args.node_rank, args.save_pid)


if __name__ == "__main__":
    main()
