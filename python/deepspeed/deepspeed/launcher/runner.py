"""The command `deepspeed`: starts a program once for each slot of this machine, or of the machines of a hostfile.

    deepspeed train.py --deepspeed_config ds.json            all devices of this machine
    deepspeed --include localhost:0,2 train.py               two of them
    deepspeed --hostfile hosts --launcher slurm train.py     many machines

On a machine without CUDA devices a slot is just a number: --num_gpus 2 starts two ranks.
"""

import argparse
import os
import shlex
import subprocess
import sys
from collections import OrderedDict

from deepspeed import _names
from deepspeed._not_yet import sentence
from deepspeed.constants import TORCH_DISTRIBUTED_DEFAULT_PORT
from deepspeed.launcher import launch, multinode_runner as runners
from deepspeed.launcher.command_line import OptionParser, whole_number
from deepspeed.launcher.constants import (
    IMPI_LAUNCHER,
    MPICH_LAUNCHER,
    MVAPICH_LAUNCHER,
    OPENMPI_LAUNCHER,
    PDSH_LAUNCHER,
    SLURM_LAUNCHER,
)
from deepspeed.launcher.request import program_of, request_of
from deepspeed.launcher.this_machine import device_count_of_driver, is_this_machine, port_is_taken
from deepspeed.utils.logging import logger, set_log_level_from_string
from deepspeed.utils.numa import get_numactl_cmd
from tessera import _launch, hostfile
from tessera.launch_error import nearest, refused, tells_users

_names.serve(__name__)

DLTS_HOSTFILE = "/job/hostfile"
EXPORT_ENVS = _launch.exported_prefixes()
DEEPSPEED_ENVIRONMENT_NAME = os.getenv("DS_ENV_FILE", ".deepspeed_env")
SSH_SECONDS = 60

LAUNCHER_CLASSES = {
    PDSH_LAUNCHER: runners.PDSHRunner,
    OPENMPI_LAUNCHER: runners.OpenMPIRunner,
    MPICH_LAUNCHER: runners.MPICHRunner,
    IMPI_LAUNCHER: runners.IMPIRunner,
    SLURM_LAUNCHER: runners.SlurmRunner,
    MVAPICH_LAUNCHER: runners.MVAPICHRunner,
}


# The command line

def parse_args(args=None):
    """Everything after the script's name is the script's."""
    parser = _parser()
    ours, theirs = _split_at_script(parser, sys.argv[1:] if args is None else [str(word) for word in args])
    found = parser.parse_args(ours)
    found.user_args = theirs
    return found


def _parser():
    parser = OptionParser(
        prog="deepspeed", description="Start a program's ranks on this machine or on many",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    where = parser.add_argument_group("where")
    where.add_argument("-H", "--hostfile", type=str, default=DLTS_HOSTFILE, help="File of machines, with lines such as 'worker-0 slots=4'")
    where.add_argument("-i", "--include", type=str, default="", help="Machines and slots to use: host[:slot,slot…][@host…]")
    where.add_argument("-e", "--exclude", type=str, default="", help="Machines and slots to leave out, in the same form as --include")
    where.add_argument("--num_nodes", type=whole_number(-1), default=-1, help="Use the first N machines in the hostfile")
    where.add_argument("--num_gpus", "--num_accelerators", type=whole_number(-1), default=-1,
                       help="Use slots 0 to N-1 on each machine")
    where.add_argument("--master_port", default=TORCH_DISTRIBUTED_DEFAULT_PORT, type=whole_number(1, 65535),
                       help="Free port on rank 0's machine")
    where.add_argument("--master_addr", default="", type=str, help="Address of that machine (default: found with ssh)")
    where.add_argument("--bind_cores_to_rank", action="store_true", help="give each rank cores of its own (numactl)")
    where.add_argument("--bind_core_list", type=str, default=None, help="the cores to share out, like 0-3,8")

    many = parser.add_argument_group("many machines")
    many.add_argument("--launcher", default=PDSH_LAUNCHER, type=str, help=", ".join(LAUNCHER_CLASSES))
    many.add_argument("--launcher_args", default="", type=str, help="Arguments for that launcher, as one string")
    many.add_argument("--node_rank", default=-1, type=whole_number(-1), help="Index of this machine, with --no_ssh")
    many.add_argument("--no_ssh", action="store_true", help="Run this command on every machine yourself instead of using ssh")
    many.add_argument("--no_ssh_check", action="store_true", help="Do not test ssh first")
    many.add_argument("--force_multi", action="store_true", help="Use the multi-node launcher even for one machine")
    many.add_argument("--ssh_port", type=whole_number(1, 65535), default=None, help="ssh port on the machines")
    many.add_argument("--venv_script", type=str, default=None, help="Script that activates the Python environment there")

    how = parser.add_argument_group("how")
    how.add_argument("--module", action="store_true", help="the script is a module: python -m")
    how.add_argument("--no_python", action="store_true", help="the script is a program of its own")
    how.add_argument("--no_local_rank", action="store_true", help="do not pass --local_rank to the script")
    how.add_argument("--save_pid", action="store_true", help="Write the launcher's process ID to /tmp/<its ID>.deepspeed")
    how.add_argument("--enable_each_rank_log", default="None", type=str, help="folder for one log file per rank")
    how.add_argument("--autotuning", default="", choices=["tune", "run"], type=str, help="Not supported by Tessera yet")
    how.add_argument("--elastic_training", action="store_true", help="Not supported by Tessera yet")
    how.add_argument("--min_elastic_nodes", type=whole_number(-1), default=-1, help="Of --elastic_training")
    how.add_argument("--max_elastic_nodes", type=whole_number(-1), default=-1, help="Of --elastic_training")
    how.add_argument("--log_level", default="info", choices=["debug", "info", "warning", "error", "critical"])
    how.add_argument("-q", "--quiet", action="store_true", help="the same as --log_level error")
    parser.add_argument("user_script", type=str, help="Program to run, followed by its own arguments")
    return parser


def _split_at_script(parser, words):
    """(our words with the script's name, the script's words). A value is tied to its flag: it may begin with -."""
    ours, at = [], 0
    while at < len(words) and words[at].startswith("-"):
        name, has_value = words[at].split("=")[0], "=" in words[at]
        actions = {option: action for option, action in parser._option_string_actions.items()
                   if option == name or (name.startswith("--") and option.startswith(name))}
        action = actions.get(name) or next(iter(actions.values()), None)
        if action is None:
            raise parser.unknown(name)
        alone = has_value or action.nargs == 0 or at + 1 == len(words)
        tied = name.startswith("--") and not alone
        ours += [f"{name}={words[at + 1]}"] if tied else words[at:at + (1 if alone else 2)]
        at += 1 if alone else 2
    return ours + words[at:at + 1], words[at + 1:]


# Machines and slots

def fetch_hostfile(hostfile_path):
    """{host: slots}, or None without such a file: then this machine is used."""
    if not os.path.isfile(hostfile_path):
        if hostfile_path != DLTS_HOSTFILE:  # where nobody named one, nobody misses it
            logger.warning(f"no hostfile {hostfile_path}: using this machine only")
        return None
    with open(hostfile_path, errors="replace") as file:  # bytes that are no text belong to no machine
        return _parse_hostfile(file.readlines(), hostfile_path)


def _parse_hostfile(hostfile_lines, name="the hostfile"):
    return OrderedDict(hostfile.parse_hostfile(hostfile_lines, name))


def _stable_remove_duplicates(data):
    return list(dict.fromkeys(data))


def parse_node_config(node_config):
    return hostfile.parse_node(node_config)


def parse_node_config_list(node_config_list):
    return hostfile.parse_nodes(node_config_list)


def parse_resource_filter(host_info, include_str="", exclude_str=""):
    return OrderedDict(hostfile.filter_slots(host_info, include_str, exclude_str))


def parse_inclusion_exclusion(resource_pool, inclusion, exclusion):
    slots_of = OrderedDict((host, list(range(count))) for host, count in resource_pool.items())
    return parse_resource_filter(slots_of, include_str=inclusion, exclude_str=exclusion)


def apply_num_nodes_and_gpus(active_resources, num_nodes, num_gpus):
    """The first machines, and slots 0…N-1 on each; -1 or 0 leaves them as they are."""
    return OrderedDict(_launch.first_hosts(hostfile.pairs_of(active_resources), num_nodes, num_gpus))


def encode_world_info(world_info):
    return hostfile.encode_slots(world_info)


def _choose_slots(args, request, pool):
    """{host: slots} to use; `pool` is None on a single machine without hostfile."""
    if pool is None:
        _launch.check_without_hostfile(request)
        pool = {"localhost": _slots_of_this_machine(args)}
    return OrderedDict(_launch.choose_hosts(request, hostfile.pairs_of(pool)))


def _slots_of_this_machine(args):
    if args.num_gpus > 0:  # slots 0…N-1, as they are given; and torch need not be loaded to count devices
        there = device_count_of_driver() if os.environ.get("DS_ACCELERATOR") != "cpu" else 0
        if 0 < there < args.num_gpus:
            raise refused(f"--num_gpus is {args.num_gpus}, and this machine has {there} GPU{'s' * (there != 1)}",
                          "the command line", f"use at most {there}; DS_ACCELERATOR=cpu starts ranks without a GPU")
        return args.num_gpus
    from deepspeed.accelerator import get_accelerator
    device = get_accelerator()
    count = device.device_count()
    if device.device_name() == "cpu" and args.include:  # slots are only numbers: those that are asked for are there
        wanted = hostfile.parse_nodes(args.include).get("localhost", [])
        count = max([count, *(slot + 1 for slot in wanted)])
    return count


def _include_visible_devices(args):
    """Without a hostfile, CUDA_VISIBLE_DEVICES stands for --include, and leaves the environment."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not visible:
        return
    if args.include or args.exclude or args.num_nodes > 0 or args.num_gpus > 0:
        logger.warning(f"CUDA_VISIBLE_DEVICES={visible} is ignored: the command line says which slots to use")
    else:
        if not all(slot.strip().isdigit() for slot in visible.split(",")):
            raise refused(f"CUDA_VISIBLE_DEVICES is '{visible}', which does not name slots by number", "the environment",
                          "name devices by their numbers, like 0,1; or unset it and use --include localhost:0,1")
        args.include = f"localhost:{visible}"
    del os.environ["CUDA_VISIBLE_DEVICES"]


# Running

@tells_users
def main(args=None):
    code = run(parse_args(args))
    if code:
        sys.exit(code)


def run(args):
    """The exit code of the ranks. Everything that can be refused is, before a machine is asked for anything."""
    set_log_level_from_string("error" if args.quiet else args.log_level)
    _check_arguments(args)
    pool = fetch_hostfile(args.hostfile)
    if pool is None:
        if not args.force_multi:
            _launch.require_program(program_of(args, args.user_script, args.user_args))
        _include_visible_devices(args)
    request = request_of(args, args.user_script, args.user_args)
    slots_of = _choose_slots(args, request, pool)
    many = args.force_multi or (len(slots_of) > 1 and not args.no_ssh)
    runner = _runner(args, pool, slots_of) if many else None
    if runner is None:
        _check_local_run(args, request, slots_of)
    if pool is None and not args.master_addr:
        args.master_addr = "127.0.0.1"
    if many and not args.no_ssh_check and pool is not None:
        _check_ssh(next(iter(slots_of)), args.ssh_port)
    if not args.master_addr:
        args.master_addr = _address_of(next(iter(slots_of)), args)
    return _run_here(args, slots_of) if runner is None else _run_on_many(args, runner, slots_of)


def _check_arguments(args):
    """What is wrong whatever the machines are."""
    if args.autotuning:
        raise refused(sentence("deepspeed.autotuning"), "--autotuning", "leave the option out")
    if args.elastic_training or args.min_elastic_nodes != -1 or args.max_elastic_nodes != -1:
        raise refused("Elastic training is not in Tessera", "--elastic_training",
                      "leave the option out: a run saves and goes on with fewer or more ranks (`tessera launch --max-restarts`, docs/reliability.md)")
    if args.launcher.lower() not in LAUNCHER_CLASSES:
        raise refused(f"--launcher is '{args.launcher}'", "the command line",
                      nearest(args.launcher.lower(), list(LAUNCHER_CLASSES)))
    _launch.check_host_options(request_of(args, args.user_script, args.user_args))
    _launch.check_core_options(args.bind_cores_to_rank, args.bind_core_list or "")


def _check_local_run(args, request, slots_of):
    """What only matters where this machine starts ranks."""
    _launch.require_program(request.program)
    hosts = list(slots_of)
    if args.no_ssh:
        _launch.check_own_node_rank(request, hostfile.pairs_of(slots_of))
    elif not is_this_machine(hosts[0]):
        raise refused(f"'{hosts[0]}' is not this machine", args.hostfile,
                      "add --force_multi to reach it through the launcher; in a hostfile, call this machine localhost")
    here = len(slots_of[hosts[max(args.node_rank, 0)]])
    if args.bind_cores_to_rank:
        get_numactl_cmd(args.bind_core_list, here, 0)
    if args.node_rank <= 0 and _rank_count(slots_of) > 1 and port_is_taken(args.master_port):
        raise refused(f"port {args.master_port} is in use on this machine, and rank 0 needs it", "--master_port",
                      "choose another with --master_port, or stop the run that uses it")


def _rank_count(slots_of):
    return sum(map(len, slots_of.values()))


def _run_here(args, slots_of):
    """launch.py, in this process."""
    node_rank = args.node_rank if args.no_ssh else 0
    words = [f"--world_info={encode_world_info(slots_of)}", f"--node_rank={node_rank}",
             f"--master_addr={args.master_addr}", f"--master_port={args.master_port}",
             f"--enable_each_rank_log={args.enable_each_rank_log}", f"--log_level={args.log_level}"]
    words += [f"--{name}" for name in ("module", "no_python", "no_local_rank", "bind_cores_to_rank", "quiet")
              if getattr(args, name)]
    words += [f"--save_pid={os.getpid()}"] if args.save_pid else []
    words += [f"--bind_core_list={args.bind_core_list}"] if args.bind_core_list else []
    found = launch.parse_args([*words, args.user_script])
    found.training_script_args = args.user_args
    here, everywhere = len(list(slots_of.values())[node_rank]), _rank_count(slots_of)
    of_all = f" of {everywhere}" if here < everywhere else ""
    logger.info(f"starting {here}{of_all} rank{'s' * (everywhere != 1)} of {args.user_script}"
                + (" on this machine" if of_all else ""))
    return launch.run(found)


def _runner(args, pool, slots_of):
    """The MultiNodeRunner that args.launcher names, once it can start these ranks."""
    kind = LAUNCHER_CLASSES[args.launcher.lower()]
    made = kind(args, encode_world_info(slots_of), *([] if kind is runners.PDSHRunner else [pool or slots_of]))
    made.check_slots(slots_of)
    _launch.require_launcher_installed(made.name)
    return made


def _run_on_many(args, runner, slots_of):
    env = os.environ.copy()
    env["PYTHONPATH"] = _launch.python_path_with(os.path.abspath("."), env)
    for key, value in _exports(env).items():
        runner.add_export(key, value)
    end_command = []
    command = runner.get_cmd(env, slots_of)
    if isinstance(runner, runners.PDSHRunner):
        command, end_command, env = command
    logger.info(f"cmd = {shlex.join(command)}")
    return _launch.run_remote(runner.name, command, end_command, dict(env))


def _exports(env):
    """The variables that go to all machines: by prefix, and those of the file .deepspeed_env."""
    from deepspeed.accelerator import get_accelerator
    _launch.require_no_open_secret(dict(env))
    found = dict(_launch.exported_variables(dict(env), list(get_accelerator().export_envs())))
    found.update(_launch.read_environment_file(DEEPSPEED_ENVIRONMENT_NAME))
    return found


def _parse_environment(lines, path):
    return dict(_launch.parse_environment_file(list(lines), path))


# Reaching other machines

def _ssh(host, port, *command):
    words = ["ssh", "-o", "PasswordAuthentication=no", *(["-p", str(port)] if port else []), host, *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=SSH_SECONDS, check=True).stdout


def _check_ssh(host, port):
    try:
        _ssh(host, port, "hostname")
    except (subprocess.SubprocessError, OSError) as error:
        raise refused(f"ssh to {host} without a password does not work ({error})", host,
                      "set up keys for it, or run this command on every machine with --no_ssh --node_rank") from error


def _address_of(host, args):
    """The address of the machine with rank 0, by `hostname -I` there."""
    if args.no_ssh:
        raise refused("--no_ssh needs --master_addr: without ssh the address of rank 0 cannot be found", "the command line",
                      "give --master_addr")
    try:
        here = host in ("localhost", "127.0.0.1")
        text = (subprocess.run(["hostname", "-I"], capture_output=True, text=True, timeout=SSH_SECONDS,
                               check=True).stdout if here else _ssh(host, args.ssh_port, "hostname", "-I"))
        return text.split()[0]
    except (subprocess.SubprocessError, OSError, IndexError) as error:
        raise refused(f"cannot find the address of {host} ({error})", host, "give it with --master_addr") from error


if __name__ == "__main__":
    main()
