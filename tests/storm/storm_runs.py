"""What every part of the storm starts from: a tiny model and text, runs of them, and what must be true after a fault."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "end_to_end"))
from model_folders import write_texts, write_tiny_bert  # noqa: E402
from outcomes import Broken, hold  # noqa: E402
from tessera_runs import TESSERA, alive, descendants, environment, rank_pids, tessera, train_arguments, write_run_file  # noqa: E402

MOST_SECONDS = 90  # of any command here; one takes a second or two
GONE_WITHIN = 10  # seconds, all processes of a run after its end
# The same arithmetic wherever a run continues, and no wait longer than the storm's.
QUIET = {"OMP_NUM_THREADS": 1, "TESSERA_TIMEOUT": 30}
RAW = ("terminate called", "what():", "frame #", "Exception raised from", "Traceback", "json.exception", "AddressSanitizer",
       "a bug in Tessera")
SHM = Path("/dev/shm")


class Place:
    """A folder with a model, texts and run.yaml, from which runs start."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.model = write_tiny_bert(self.folder / "model", hidden_size=32)
        self.texts = self.folder / "texts"
        self.texts.mkdir()
        write_texts(self.texts / "train.parquet", 100, seed=1)
        for number, suffix in enumerate(("jsonl", "csv", "txt")):  # each has a reader of its own
            rows = pq.read_table(write_texts(self.folder / "rows.parquet", 100, seed=2 + number))["text"].to_pylist()
            lines = {"jsonl": [json.dumps({"text": row}) for row in rows], "csv": ["text", *rows], "txt": rows}[suffix]
            (self.texts / f"train.{suffix}").write_text("\n".join(lines) + "\n")
        self.run_file = write_run_file(self.folder, {
            "model": {"path": str(self.model)},
            "task": "mlm",
            "data": {"train": str(self.texts), "max_length": 16},
            "training": {"max_steps": 1000000, "save_steps": 1, "seed": 42},
            "deepspeed": {"train_batch_size": 12, "zero_optimization": {"stage": 0},
                          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}}},
        })


class Running:
    """A command under way whose output goes to files, so that no pipe of ours stops it."""

    def __init__(self, log, args, env=None, program=TESSERA):
        self.args, self.log = [str(arg) for arg in args], Path(log)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{log}.out", "w") as out, open(f"{log}.err", "w") as err:
            self.process = subprocess.Popen([str(program), *self.args], stdin=subprocess.DEVNULL,
                                            env=environment(**{**QUIET, **(env or {})}), stdout=out, stderr=err,
                                            start_new_session=True)
        self.pid = self.process.pid
        self.seen = {self.pid}

    def err(self):
        return Path(f"{self.log}.err").read_text(errors="replace")

    def ended(self):
        return self.process.poll() is not None

    def ranks(self):
        """{rank: pid}; a run of one rank has no launcher."""
        found = rank_pids(self.pid)
        self.seen.update(descendants(self.pid))
        return found or {0: self.pid}

    def wait(self, seconds=MOST_SECONDS):
        """The exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Broken(f"a hang: not finished within {seconds} s\n{self.err()[-2000:]}") from None

    def wait_until(self, condition, seconds):
        """Whether it came true while the run lived, in time."""
        end, look = time.monotonic() + seconds, 0
        while not self.ended() and (now := time.monotonic()) < end:
            if now >= look:  # reading all of /proc takes its time
                self.seen.update(descendants(self.pid))
                look = time.monotonic() + 0.03
            if condition():
                return True
            time.sleep(0.003)
        return False

    def pause(self, seconds):
        self.wait_until(lambda: False, seconds)

    def kill_all(self):
        for pid in [self.pid, *descendants(self.pid), *self.seen]:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        self.process.wait(30)

    def require_gone(self):
        """No process of it, and no shared memory."""
        end = time.monotonic() + GONE_WITHIN
        while alive(self.seen):
            hold(time.monotonic() < end, f"orphans: {alive(self.seen)} live {GONE_WITHIN} s after the end of the run")
            time.sleep(0.01)
        hold(not shared_memory_of(self.seen), f"left in {SHM}: {shared_memory_of(self.seen)}")

    def require_plain_words(self):
        text = self.err()
        for raw in RAW:
            hold(raw not in text, f"'{raw}' in what it said:\n{text[-6000:]}")


def run_of(place, log, ranks, settings, resume="auto", env=None):
    return Running(log, train_arguments(place.run_file, ranks, settings, resume), env)


def checked(*args, env=None):
    """A command that must end well."""
    result = tessera(*args, env={**QUIET, **(env or {})}, timeout=MOST_SECONDS)
    hold(result.code == 0, str(result))
    return result


def rows(output):
    """{step: (loss, grad_norm)} as hexadecimal texts. A last line that was cut off is none."""
    path = Path(output) / "metrics.jsonl"
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found[row["step"]] = (row["loss"].hex(), row["grad_norm"].hex())
    return found


def tags(output):
    """Steps of the published checkpoints, newest first."""
    found = [re.fullmatch(r"global_step(\d+)", path.parent.name) for path in (Path(output) / "checkpoints").glob("*/manifest.json")]
    return sorted((int(match[1]) for match in found if match), reverse=True)


def latest_step(output):
    """What `latest` names; 0 where there is no checkpoint."""
    path = Path(output) / "checkpoints" / "latest"
    return int(path.read_text().strip().removeprefix("global_step")) if path.exists() else 0


def resumed_step(said):
    """The step after which a run that said this went on; None where it said neither."""
    match = re.search(r"resumed \S+ after step (\d+)", said)
    return int(match[1]) if match else 0 if "starting from the beginning" in said else None


def require_whole(output):
    """Each checkpoint that has its name verifies, byte by byte."""
    for step in tags(output):
        checked("checkpoint", "verify", Path(output) / "checkpoints" / f"global_step{step}")


LEFT_OVER = re.compile(r".*\.(saving|old|new)|\.tessera.*")


def require_clean(output, swap=None):
    """After a run that ended well: nothing of any run before it is left."""
    left = [str(path.relative_to(output)) for path in Path(output).rglob("*") if LEFT_OVER.fullmatch(path.name)]
    hold(not left, f"left over: {left}")
    require_empty(swap)


def require_empty(swap):
    left = sorted(path.name for path in Path(swap).iterdir()) if swap else []
    hold(not left, f"left in the folder for offloaded state: {left}")


def shared_memory_of(pids):
    """Names in /dev/shm that have one of these processes in them, as LibTorch's and MPI's do; Tessera's own memory has no name."""
    names = [path.name for path in SHM.iterdir()] if SHM.is_dir() else []
    return [name for name in names if {int(number) for number in re.findall(r"\d+", name)} & set(pids)]


def require_same_numbers(found, reference, what):
    """Each row that was ever seen has the bits of the run that nothing disturbed."""
    for step, numbers in sorted(found.items()):
        hold(reference.get(step) == numbers, f"{what}: step {step} has {numbers} instead of {reference.get(step)}")
