"""Where it was measured: {what: text}."""

import datetime
import os
import platform
import subprocess

from harness import places


def describe():
    with open("/proc/cpuinfo") as file:
        lines = file.read().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    vectors = next((name for name in ("avx512f", "avx2") if name in flags), "no AVX2")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {model} ({vectors}), {memory / 2**30:.0f} GiB, Linux {platform.release().split('-')[0]}",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "Tessera": _first_line([places.TESSERA, "--version"]),
        "torch": _version(places.OUR_PYTHON, "torch"),
        "DeepSpeed": _version(places.PEERS_PYTHON, "deepspeed"),
        "fio": _first_line(["fio", "--version"]),
    }


def _version(python, package):
    return _first_line([python, "-c", f"import importlib.metadata as m; print(m.version({package!r}))"])


def _first_line(command):
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        said = []
    return said[0] if said else "not installed"
