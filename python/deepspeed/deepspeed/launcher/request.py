"""The launcher's options as tessera._launch takes them."""

import sys

from tessera import _launch

_SAME = ("hostfile", "include", "exclude", "num_nodes", "num_gpus", "master_addr", "master_port", "launcher_args", "no_ssh",
         "node_rank", "bind_cores_to_rank")
_FORMS = ("module", "no_python", "no_local_rank")


def program_of(args, name, arguments):
    """What each rank executes."""
    form = [option for option in _FORMS if getattr(args, option, False)]
    return _launch.RankProgram(name, [str(word) for word in arguments], sys.executable, form)


def request_of(args, name, arguments):
    """A LaunchRequest of parsed options; one that this parser has not stays as it is."""
    request = _launch.LaunchRequest()
    request.program = program_of(args, name, arguments)
    for option in _SAME:
        if hasattr(args, option):
            setattr(request, option, getattr(args, option))
    request.save_pid = bool(getattr(args, "save_pid", False))
    request.ssh_port = getattr(args, "ssh_port", None) or 0
    request.venv_script = getattr(args, "venv_script", None) or ""
    request.bind_core_list = getattr(args, "bind_core_list", None) or ""
    logs = getattr(args, "enable_each_rank_log", "None")
    request.enable_each_rank_log = "" if logs == "None" else logs
    return request
