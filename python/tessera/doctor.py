"""Says what of this Python environment a program written for DeepSpeed will meet, and what will not work: python -m tessera.doctor

One line for each thing looked at, with what to do about it where something is wrong; exit code 2 where training cannot start. It works
also where the engine cannot be loaded: `import tessera` leaves the check of torch to it.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import shutil
import site
import sys
import sysconfig
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

import tessera

_START = "tessera.pth"
_CLIENTS = ("transformers", "accelerate", "peft", "trl", "datasets", "bitsandbytes", "lightning", "llamafactory", "ms-swift")
_OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Report:
    """`failed`: whether something is in the way of any training."""

    def __init__(self):
        self.failed = False

    def fine(self, text):
        print(f"[ok]       {text}")

    def warn(self, text, fix):
        print(f"[warning]  {text}\n           fix: {fix}")

    def fail(self, text, fix):
        self.failed = True
        print(f"[failed]   {text}\n           fix: {fix}")


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def look_at_python(report):
    report.fine(f"Python {sys.version.split()[0]} ({sys.executable})")


def look_at_engine(report):
    """torch, and whether the engine loads on it."""
    torch = _version("torch")
    if torch is None:
        report.fail("torch is not installed", "pip install torch, 2.11 to 2.13, then Tessera's wheel for it")
        return
    try:
        tessera._check_torch()
    except ImportError as mismatch:
        what, _, fix = str(mismatch).splitlines()
        report.fail(what, fix.removeprefix("fix: "))
        return
    report.fine(f"torch {torch}")
    try:
        import torch  # noqa: F401  its libraries come before ours

        from tessera import _core
    except (ImportError, OSError) as error:
        report.fail(f"the engine cannot be loaded: {str(error).splitlines()[0]}",
                    "build it for this Python and this torch, in Tessera's repository: pip install --force-reinstall --no-deps ./python")
        return
    report.fine(f"tessera {_core.__version__} ({Path(tessera.__file__).parent})")


def look_at_names(report):
    """Which `deepspeed` programs get."""
    spec = importlib.util.find_spec("deepspeed")
    if spec is None or spec.origin is None:
        report.fail("there is no package deepspeed", "install Tessera's wheel, in its repository: pip install ./python")
        return
    place = Path(spec.origin).parent
    if "Tessera" not in (place / "__init__.py").read_text(encoding="utf-8"):
        report.warn(f"deepspeed is DeepSpeed itself ({place}): programs train with it, not with Tessera",
                    "pip uninstall deepspeed")
        return
    report.fine(f"deepspeed is Tessera's ({place})")
    others = {each.version for each in importlib.metadata.distributions(name="deepspeed") if not each.version.endswith("+tessera")}
    if others:
        report.warn(f"the environment also lists deepspeed {', '.join(sorted(others))}, by which clients may judge",
                    "pip uninstall deepspeed")


def look_at_command(report):
    command, own = shutil.which("deepspeed"), Path(sysconfig.get_path("scripts")) / "deepspeed"
    if command is None:
        report.warn("the command deepspeed is not on PATH",
                    f"put {own.parent} on PATH" if own.exists() else "use python -m deepspeed.launcher.runner, or install Tessera's wheel")
        return
    first = Path(command).read_bytes().split(b"\n", 1)[0].decode(errors="replace")
    interpreter = first.removeprefix("#!").strip()
    if first.startswith("#!/") and " " not in interpreter and Path(interpreter).parent.resolve() != Path(sys.executable).parent.resolve():
        report.warn(f"the command deepspeed ({command}) belongs to another environment ({interpreter})",
                    f"put {own.parent} first on PATH, or use python -m deepspeed.launcher.runner")
        return
    report.fine(f"the command deepspeed ({command})")


def look_at_start(report):
    """What counts ranks without a GPU: see cpu_ranks.py."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    if any((Path(folder) / _START).exists() for folder in folders):
        report.fine("Accelerate and the Trainer count ranks that have no GPU")
        return
    report.warn("ranks without a GPU are counted by Accelerate and the Trainer only where a program imports deepspeed before them",
                "install Tessera's wheel instead of using it from PYTHONPATH")


def look_at_clients(report):
    found = [f"{name} {version}" for name in _CLIENTS if (version := _version(name))]
    report.fine(", ".join(found) if found else "no client of DeepSpeed's that is known here is installed")


def look_at_requirements(report):
    """Packages that were built for another torch fail when they are imported, and clients with them."""
    torch = _version("torch")
    if torch is None:
        return
    for each in importlib.metadata.distributions():
        for text in each.requires or ():
            try:
                wanted = Requirement(text)
            except InvalidRequirement:
                continue
            applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
            if wanted.name == "torch" and applies and not wanted.specifier.contains(torch, prereleases=True):
                report.warn(f"{each.name} {each.version} is for torch {wanted.specifier}, and torch {torch} is installed",
                            f"install the release of {each.name} for this torch, or uninstall it")


def look_at_variables(report):
    left = [name for name in _OF_A_RANK if name in os.environ]
    if left:
        report.warn(f"{', '.join(left)} {'is' if len(left) == 1 else 'are'} set in this shell: programs started here take themselves for ranks",
                    f"unset {' '.join(left)}")


def main():
    argparse.ArgumentParser(prog="python -m tessera.doctor", description=__doc__.splitlines()[0]).parse_args()
    report = Report()
    for look in (look_at_python, look_at_engine, look_at_names, look_at_command, look_at_start, look_at_clients, look_at_requirements, look_at_variables):
        look(report)
    return 2 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
