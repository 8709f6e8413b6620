"""The commands that `deepspeed`'s launcher writes for many machines, with whichever deepspeed is installed.

    remote_commands.py CASES      a JSON list of {"launcher", "options", "exports"}; prints one of commands, or of an error's class
"""

import json
import os
import sys

from deepspeed.launcher import multinode_runner
from deepspeed.launcher.runner import encode_world_info, parse_args, parse_inclusion_exclusion

RUNNERS = {"pdsh": "PDSHRunner", "openmpi": "OpenMPIRunner", "mpich": "MPICHRunner", "impi": "IMPIRunner", "slurm": "SlurmRunner",
           "mvapich": "MVAPICHRunner"}
POOL = {"worker-0": 2, "worker-1": 2, "worker-2": 2}


def filtered(args):
    """As the launcher's main function does."""
    slots_of = parse_inclusion_exclusion(POOL, args.include, args.exclude)
    if args.num_nodes > 0:
        slots_of = dict(list(slots_of.items())[:args.num_nodes])
    return {host: list(range(args.num_gpus)) for host in slots_of} if args.num_gpus > 0 else slots_of


def command_of(launcher, options, exports):
    args = parse_args(options)
    slots_of = filtered(args)
    runner_class = getattr(multinode_runner, RUNNERS[launcher])
    world_info = encode_world_info(slots_of)
    runner = runner_class(args, world_info) if launcher == "pdsh" else runner_class(args, world_info, dict(POOL))
    for name, value in exports.items():
        runner.add_export(name, value)
    environment = {}
    command = runner.get_cmd(environment, slots_of)
    return {"words": command[0], "environment": environment} if launcher == "pdsh" else {"words": command, "environment": environment}


def stated(case):
    try:
        made = command_of(**case)
    except (ValueError, AssertionError, RuntimeError, SystemExit) as error:
        return {"refused": type(error).__name__}
    own = {str(os.getpid()): "<pid>", sys.executable: "<python>"}
    return {**made, "words": [own.get(word, word) for word in made["words"]]}


def main():
    print(json.dumps([stated(case) for case in json.loads(sys.argv[1])]))


if __name__ == "__main__":
    main()
