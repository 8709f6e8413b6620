"""What the converters share: errors that end a program, and Tessera's checkpoint format (docs/checkpoint-format.md)."""

import json
import mmap
import os
import shutil
import struct
import sys
from pathlib import Path

import torch

try:
    import xxhash
except ImportError:  # then version 1 is written, which has no checksums
    xxhash = None

BLOCK_BYTES = 4 << 20
NO_SUM = "0" * 16
NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
         torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}
DTYPES = {name: dtype for dtype, name in NAMES.items()}


class Failure(Exception):
    """What was found, where, and what to do about it; ends the program with code 2."""

    def __init__(self, what, where, fix):
        super().__init__(f"{what}\n  where: {where}\n  fix:   {fix}")


def run_program(program):
    """Calls `program` and returns its exit code. A user never sees a traceback for a problem with files or the machine."""
    try:
        program()
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 2
    except OSError as error:
        where = error.filename or "a file"
        print(f"error: {error.strerror or error}\n  where: {where}\n  fix:   check the path, the permissions and the free space on the disk",
              file=sys.stderr)
        return 2
    return 0


def numel(shape):
    product = 1
    for size in shape:
        product *= size
    return product


def read_latest(folder):
    path = Path(folder) / "latest"
    return path.read_text(errors="replace").strip() if path.is_file() else ""


def check_tag(tag, where):
    """A tag names one folder below the one that holds checkpoints; it must not lead out of it."""
    if not tag or tag in (".", "..") or "/" in tag or "\0" in tag:
        raise Failure(f"'{tag}' is not the name of a checkpoint", where, "put the name of a folder there, or use --tag")
    return tag


def bytes_of(tensor):
    return memoryview(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


class SavingFolder:
    """<folder>/<tag>.saving, which becomes <folder>/<tag> when complete; `latest` is replaced last."""

    def __init__(self, folder, tag):
        self.folder, self.tag = Path(folder), tag
        self.path = self.folder / f"{tag}.saving"

    def __enter__(self):
        if (self.folder / self.tag).exists():
            raise Failure("there is already a checkpoint of this name", self.folder / self.tag,
                          "choose another folder with --to, or remove it")
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        return self.path

    def __exit__(self, kind, *_):
        if kind is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        for path in self.path.iterdir():
            sync(path)
        sync(self.path)
        self.path.rename(self.folder / self.tag)
        sync(self.folder)
        new = self.folder / "latest.new"
        new.write_text(self.tag)
        sync(new)
        new.replace(self.folder / "latest")
        sync(self.folder)


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SummedFile:
    """A file written front to back, with the XXH3-64 of each block of BLOCK_BYTES."""

    def __init__(self, path):
        self.file, self.bytes, self.sums = open(path, "wb"), 0, ""
        self.hash = xxhash and xxhash.xxh3_64()

    def write(self, data):
        data = memoryview(data)
        self.file.write(data)
        at = 0
        while at < len(data):
            part = data[at:at + BLOCK_BYTES - self.bytes % BLOCK_BYTES]
            at, self.bytes = at + len(part), self.bytes + len(part)
            if self.hash is not None:
                self.hash.update(part)
                if self.bytes % BLOCK_BYTES == 0:
                    self._end_block()

    def _end_block(self):
        self.sums += self.hash.hexdigest()
        self.hash.reset()

    def close(self):
        if self.hash is not None and self.bytes % BLOCK_BYTES:
            self._end_block()
        self.file.close()


def write_shard(path, plan, tensor_of):
    """A safetensors file; `plan` lists (name, dtype, numel), `tensor_of(index)` gives the tensors one by one, in order."""
    header, offset = {}, 0
    for name, dtype, count in plan:
        end = offset + count * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": [count], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data begins aligned
    shard = SummedFile(path)
    try:
        shard.write(struct.pack("<Q", len(text)) + text)
        for index, (name, dtype, count) in enumerate(plan):
            tensor = tensor_of(index)
            assert tensor.dtype == dtype and tensor.numel() == count, name
            shard.write(bytes_of(tensor))
    finally:
        shard.close()
    return {"name": Path(path).name, "bytes": shard.bytes, "xxh3": shard.sums}


def write_manifest(path, manifest, file):
    """Version 2 with checksums where xxhash is installed, otherwise version 1. `manifest` comes without format and files."""
    head = {"format": "tessera-checkpoint", "version": 2 if xxhash else 1}
    if xxhash:
        head["xxh3"] = NO_SUM
        manifest = {**manifest, "files": [file], "block_bytes": BLOCK_BYTES}
    else:
        manifest = {**manifest, "files": [{"name": file["name"], "bytes": file["bytes"]}]}
    text = json.dumps({**head, **manifest}, indent=1, ensure_ascii=False) + "\n"
    if xxhash:
        text = text.replace(NO_SUM, xxhash.xxh3_64(text.encode()).hexdigest(), 1)
    path.write_text(text, encoding="utf-8")


class TesseraCheckpoint:
    """A Tessera checkpoint opened for reading: `manifest`, and tensors of any kind, whole, one at a time."""

    def __init__(self, path):
        path = Path(path)
        if not (path / "manifest.json").is_file():
            if not (tag := read_latest(path)):
                raise Failure("there is no Tessera checkpoint here: neither manifest.json nor latest", path,
                              "name a checkpoint, or a folder of checkpoints")
            path = path / check_tag(tag, path / "latest")
        self.path = path
        self.manifest = self._read_manifest()
        self.shards = {}

    def damaged(self, what, name="manifest.json"):
        return Failure(f"the checkpoint is damaged: {what}", self.path / name,
                       "run tessera checkpoint verify, and name an earlier checkpoint in the same folder")

    def _read_manifest(self):
        path = self.path / "manifest.json"
        if not path.is_file():
            raise Failure("the checkpoint has no manifest.json", self.path, "name another checkpoint's folder")
        raw = path.read_bytes()
        try:
            manifest = json.loads(raw)
            version = manifest["version"]
            if manifest["format"] != "tessera-checkpoint" or not isinstance(version, int):
                raise ValueError("it is not in this format")
            for tensor in manifest["tensors"].values():
                covered = 0
                for file, first, count, *box in tensor["pieces"]:
                    extent = box[1] if box else tensor["shape"]
                    if not 0 <= file < len(manifest["files"]) or first < 0 or first + count > numel(extent):
                        raise ValueError("pieces do not fit together")
                    covered += count
                if covered != numel(tensor["shape"]):
                    raise ValueError("pieces do not cover their tensor")
            manifest["aliases"], manifest["engine_state"]
        except (ValueError, KeyError, TypeError) as error:
            raise self.damaged(f"manifest.json is not usable ({error})") from None
        if version > 3:
            raise Failure(f"the checkpoint has version {version} of the format, and this program reads versions up to 3", path,
                          "use the converter of the Tessera release that made it")
        if version > 1 and xxhash and not self._has_its_sum(raw):
            raise self.damaged("manifest.json does not match its checksum")
        return manifest

    @staticmethod
    def _has_its_sum(raw):
        place = raw.find(b'"xxh3": "') + len(b'"xxh3": "')
        zeroed = raw[:place] + NO_SUM.encode() + raw[place + 16:]
        return xxhash.xxh3_64(zeroed).hexdigest().encode() == raw[place:place + 16]

    def _shard(self, index):
        if index in self.shards:
            return self.shards[index]
        stored = self.manifest["files"][index]
        name = stored["name"]
        path = self.path / name
        if not path.is_file():
            raise self.damaged("a shard file is missing", name)
        if path.stat().st_size != stored["bytes"] or stored["bytes"] < 8:
            raise self.damaged(f"a shard file has {path.stat().st_size} bytes instead of {stored['bytes']}", name)
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch wants a buffer that could be written
        if xxhash and stored.get("xxh3"):
            sums = "".join(xxhash.xxh3_64(data[at:at + BLOCK_BYTES]).hexdigest() for at in range(0, len(data), BLOCK_BYTES))
            if sums != stored["xxh3"]:
                raise self.damaged("a shard file does not match its checksums", name)
        try:
            length = struct.unpack("<Q", data[:8])[0]
            header = json.loads(data[8:8 + length])
        except ValueError:
            raise self.damaged("a shard file has no safetensors header", name) from None
        self.shards[index] = data, 8 + length, header
        return self.shards[index]

    def _entry(self, tensor, kind, file):
        data, begin, header = self._shard(file)
        entry = header.get(f"{kind}/{tensor}")
        if entry is None or entry["dtype"] not in DTYPES:
            raise self.damaged(f"there is no '{kind}/{tensor}'", self.manifest["files"][file]["name"])
        return data, begin, entry

    def place(self, tensor):
        """Where the tensor's weight begins, to sort by: the first checkpointing rank writes in the model's order."""
        pieces = self.manifest["tensors"][tensor]["pieces"]
        if not pieces:
            return (0, 0)
        return pieces[0][0], self._entry(tensor, "weight", pieces[0][0])[2]["data_offsets"][0]

    def tensor(self, tensor, kind):
        """Each piece is a run of a box of the tensor; boxes are put together first, then the tensor of them."""
        stored, boxes = self.manifest["tensors"][tensor], {}
        shape = stored["shape"]
        for file, begin_in_box, count, *box in stored["pieces"]:
            data, begin, entry = self._entry(tensor, kind, file)
            dtype = DTYPES[entry["dtype"]]
            first, end = entry["data_offsets"]
            if end - first != count * dtype.itemsize or begin + end > len(data):
                raise self.damaged(f"'{kind}/{tensor}' has the wrong size", self.manifest["files"][file]["name"])
            offset, extent = box or ([0] * len(shape), shape)
            flat = boxes.setdefault((*offset, *extent), torch.empty(numel(extent), dtype=dtype))
            flat[begin_in_box:begin_in_box + count] = torch.frombuffer(data, dtype=dtype, count=count, offset=begin + first)
        if not boxes:
            return torch.empty(shape)
        whole = torch.empty(shape, dtype=next(iter(boxes.values())).dtype)
        for place, flat in boxes.items():
            offset, extent = place[:len(shape)], place[len(shape):]
            whole[tuple(slice(at, at + size) for at, size in zip(offset, extent))] = flat.view(extent)
        return whole
