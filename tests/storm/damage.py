"""Files that were damaged: each file of a checkpoint and of an exported folder, in each way, is found and named by
`tessera checkpoint verify`; a checkpoint is never loaded so.
"""

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from kills import Configuration
from outcomes import hold
from storm_runs import MOST_SECONDS, QUIET, RAW, checked, train_arguments
from tessera_runs import tessera

PROMISE = ("Each file of a checkpoint and of an exported folder is damaged in each way. `tessera checkpoint verify` ends "
           "with exit code 2 and names the file. What cannot matter is tried too: it verifies, and `tessera checkpoint diff` "
           "or a comparison of the files that are read finds nothing different.")
BLOCK = 4096
HOW = Configuration("stage 2, 2 ranks", 2, 2)
# (what is done, how often at other places)
WAYS = [("a bit flipped", 8), ("a byte changed", 4), ("a block zeroed", 2), ("truncated", 3), ("emptied", 1), ("missing", 1),
        ("doubled", 1), ("a byte appended", 1), ("swapped with another", 1), ("a folder in its place", 1)]
HARMLESS = ["an unknown file beside it"]


@dataclass
class Case:
    where: str  # checkpoint, export
    file: str
    way: str
    place: int

    def kind(self):
        return f"{self.where}: {self.way}"

    def about(self):
        return f"{self.file}: "


def change(path, way, draw, other):
    """Damages the file; the others that this changed too."""
    data = bytearray(path.read_bytes())
    at = draw.randrange(len(data))
    if way == "a bit flipped":
        data[at] ^= 1 << draw.randrange(8)
    elif way == "a byte changed":
        data[at] = (data[at] + draw.randint(1, 255)) % 256
    elif way == "a block zeroed":
        at = at // BLOCK * BLOCK
        block = data[at:at + BLOCK]
        data[at:at + BLOCK] = bytes(len(block)) if any(block) else b"\1" * len(block)
    elif way == "truncated":
        del data[at:]
    elif way == "emptied":
        data.clear()
    elif way == "doubled":
        data = data + data
    elif way == "a byte appended":
        data += b"\n"
    elif way == "swapped with another":
        own, theirs = path.read_bytes(), other.read_bytes()
        path.write_bytes(theirs)
        other.write_bytes(own)
        return [other]
    if way in ("missing", "a folder in its place"):
        path.unlink()
        if way != "missing":
            path.mkdir()
    else:
        path.write_bytes(data)
    return []


class Damage:
    def __init__(self, storm, place):
        self.storm, self.place = storm, place
        self.folder = place.folder / "damage"
        output = self.folder / "out"
        checked(*train_arguments(place.run_file, HOW.ranks, {**HOW.settings(output, ""), "training.max_steps": 2}))
        self.good = {"checkpoint": output / "checkpoints" / "global_step2", "export": output / "export"}
        self.latest = output / "checkpoints" / "latest"
        for folder in self.good.values():
            checked("checkpoint", "verify", folder)

    def cases(self):
        for where, folder in self.good.items():
            for file in sorted(path.name for path in folder.iterdir()):
                for way, times in WAYS:
                    for place in range(times):
                        yield Case(where, file, way, place)
            for way in HARMLESS:
                yield Case(where, "", way, 0)

    def try_case(self, name, case):
        draw = random.Random(f"{self.storm.seed}/{name}")
        folder = self.folder / "damaged" / case.where
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.good[case.where], folder)
        if case.way in HARMLESS:
            (folder / "notes.bin").write_bytes(b"unknown")
            checked("checkpoint", "verify", folder)
            if case.where == "checkpoint":
                checked("checkpoint", "diff", folder, self.good["checkpoint"])
            return ""
        files = sorted(path for path in folder.iterdir() if path.name != case.file)
        # the one that is most alike: shards have one size
        other = max(files, key=lambda path: (path.suffix == Path(case.file).suffix, path.stat().st_size))
        changed = [case.file, *(path.name for path in change(folder / case.file, case.way, draw, other))]
        result = tessera("checkpoint", "verify", folder, env=QUIET, timeout=MOST_SECONDS)
        hold(result.code == 2, f"taken for whole: {', '.join(changed)}\n{result}")
        hold(any(file in result.err for file in changed), f"{changed} is not named\n{result}")
        for raw in RAW:
            hold(raw not in result.err, str(result))
        if case.where == "checkpoint":  # no other door lets it in
            loaded = tessera("checkpoint", "diff", folder, self.good["checkpoint"], env=QUIET, timeout=MOST_SECONDS)
            hold(loaded.code == 2, f"what did not verify was read\n{loaded}")
        return ""


def run(storm, place, fraction):
    storm.begin("damage", PROMISE)
    damage = Damage(storm, place)
    cases = {f"damage/{number}": case for number, case in enumerate(damage.cases())}
    storm.try_drawn(cases, fraction, damage.try_case)
