"""Files that are damaged, or made up to harm: each is one clear error with exit code 2, in a moment, and nothing is read that
lies outside of what was given."""

import collections
import json
import os
import re
import resource
import shutil
import struct
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from tessera_runs import tessera, train, train_arguments, write_run_file

MOST_MEMORY = 4 << 30  # bytes of addresses, LibTorch's own included


def with_little_memory():
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))


def refused(*args, what, seconds=5):
    """One message, none of a library's own, and no more memory than a damaged file may take."""
    result = tessera(*args, timeout=60, preexec=with_little_memory)
    assert result.code == 2, str(result)
    assert what in result.err, str(result)
    for raw in ("json.exception", "Exception raised from", "what():", "terminate called", "frame #"):
        assert raw not in result.err, str(result)
    assert len(result.err) < 5000, str(result)
    assert result.seconds < seconds, str(result)


@pytest.fixture
def model(tiny_bert, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_bert, folder)
    return folder


@pytest.fixture
def run(tiny_run, model, tmp_path):
    tiny_run["model"] = {"path": str(model)}
    tiny_run["training"] = {"max_steps": 1}
    tiny_run["output"] = str(tmp_path / "out")
    return tiny_run


def refused_by_train(run, folder, what):
    refused(*train_arguments(write_run_file(folder, run)), what=what)


# ---- lengths


def with_record(source, target, name, change):
    """A copy of a zip archive whose record of that name has other bytes."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            data = old.read(entry)
            new.writestr(entry.filename, change(data) if entry.filename.endswith(name) else data)


def test_a_record_of_a_state_dict_that_was_cut_short(run, model, tmp_path):
    """Its tensor would reach into the process's own memory, which would be trained on and exported."""
    state = safetensors.torch.load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    torch.save(state, tmp_path / "whole.bin")
    with zipfile.ZipFile(tmp_path / "whole.bin") as archive:
        largest = max((entry for entry in archive.infolist() if "/data/" in entry.filename), key=lambda entry: entry.file_size)
    name = "/".join(largest.filename.split("/")[-2:])
    with_record(tmp_path / "whole.bin", model / "pytorch_model.bin", name, lambda data: data[:16])
    refused_by_train(run, tmp_path, f"has 16 bytes instead of {largest.file_size}")
    shutil.copy(tmp_path / "whole.bin", model / "pytorch_model.bin")
    train(write_run_file(tmp_path, run))


class Rebuilt:
    """Pickled as the tensor with these numbers of elements (offset, size, stride) of a storage of ten."""

    def __init__(self, *place):
        self.place = place

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, (torch.zeros(10)._typed_storage(), *self.place, False, collections.OrderedDict())


@pytest.mark.parametrize("place", [(0, (11,), (1,)), (1, (10,), (1,)), (0, (2,), (10,)), (10, (), ()), (-1, (10,), (1,)), (9, (2,), (-1,)),
                                   (0, (2**40, 2**40), (2**40, 1)), (0, (2,), (2**62,))], ids=str)
def test_a_tensor_of_a_state_dict_that_lies_outside_of_its_storage(run, model, tmp_path, place):
    name = "bert.embeddings.LayerNorm.weight"
    state = safetensors.torch.load_file(model / "model.safetensors")
    assert name in state
    (model / "model.safetensors").unlink()
    torch.save(state | {name: Rebuilt(*place)}, model / "pytorch_model.bin")
    refused_by_train(run, tmp_path, "not a state dict of tensors: ")


def test_a_storage_that_many_tensors_share_is_read_once(run, model, tmp_path):
    shared = torch.zeros(1 << 18)
    state = safetensors.torch.load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    torch.save(state | {f"more.{i}": shared[:] for i in range(6000)}, model / "pytorch_model.bin")
    result = tessera(*train_arguments(write_run_file(tmp_path, run)), timeout=60, preexec=with_little_memory)
    assert result.code == 0, str(result)


def write_safetensors(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize("header, bytes_of_data, what", [
    ({"a": F32, "b": {**F32, "data_offsets": [4, 12]}, "c": {"dtype": "F32", "shape": [0], "data_offsets": [16, 16]}}, 16, "overlap"),
    (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}', 16, "names 'a' twice"),
    ({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}, 8, "impossible shape"),
    ({"a": {**F32, "shape": [-2]}}, 8, "impossible shape"),
    (b"[" * 100_000, 8, "nested more than 100 levels"),
    (b'{"a": 1e999}', 8, "a number that is too large"),
])
def test_headers_of_safetensors(run, model, tmp_path, header, bytes_of_data, what):
    write_safetensors(model / "model.safetensors", header, bytes(bytes_of_data))
    refused_by_train(run, tmp_path, what)


@pytest.mark.parametrize("change, what", [
    (lambda values: values.to(torch.int64), "holds int64, which are no weights"),
    (lambda values: values.index_fill(0, torch.tensor([0]), float("nan")), "has values that are not finite"),
])
def test_weights_that_are_none(run, model, tmp_path, change, what):
    state = safetensors.torch.load_file(model / "model.safetensors")
    name = "bert.encoder.layer.0.attention.self.query.weight"
    state[name] = change(state[name])
    safetensors.torch.save_file(state, model / "model.safetensors")
    refused_by_train(run, tmp_path, f"'{name}' {what}")


# ---- paths


@pytest.fixture
def checkpoint(run, tmp_path):
    train(write_run_file(tmp_path, run))
    return tmp_path / "out" / "checkpoints"


def test_a_latest_that_leads_out_of_its_folder(checkpoint, tmp_path):
    shutil.copytree(checkpoint / "global_step1", tmp_path / "elsewhere")
    for text in ("../../elsewhere", "/etc", "a" * 100_000):
        (checkpoint / "latest").write_text(text)
        refused("checkpoint", "verify", checkpoint, what="")


@pytest.mark.parametrize("name", ["shard-00000-of-00001.safetensors", "manifest.json"])
def test_a_link_that_leads_out_of_a_checkpoint(checkpoint, tmp_path, name):
    file = checkpoint / "global_step1" / name
    shutil.move(file, tmp_path / "outside")
    file.symlink_to(tmp_path / "outside")
    refused("checkpoint", "verify", checkpoint, what=f"{name} is a link to")


def test_checksums_cannot_be_switched_off(checkpoint):
    manifest = checkpoint / "global_step1" / "manifest.json"
    text = re.sub(r'"xxh3": "[0-9a-f]{16}",\n( *)"tag"', r'"xxh3": "0000000000000000",\n\1"tag"', manifest.read_text())
    manifest.write_text(text.replace('"version": 3', '"version": 1'))
    refused("checkpoint", "verify", checkpoint, what="does not match its checksum")


@pytest.mark.parametrize("entry, what", [("../outside.safetensors", "does not name a file of this folder"), (5, "does not name a file"),
                                         ({"a": 1}, "does not name a file"), ("/etc/passwd", "does not name a file")])
def test_a_weight_map_that_leads_out_of_its_folder(run, model, tmp_path, entry, what):
    shutil.move(model / "model.safetensors", tmp_path / "outside.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": entry}}))
    refused_by_train(run, tmp_path, what)


def test_what_a_link_points_to_is_left_alone(run, tmp_path):
    """A link that somebody left where a file is to be written, in a folder that others may write to."""
    other = tmp_path / "others-file"
    other.write_text("kept")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "metrics.jsonl.new").symlink_to(other)
    train(write_run_file(tmp_path, run))
    assert other.read_text() == "kept"


# ---- anything at all where JSON is expected

DEEP = "[" * 100_000


@pytest.mark.parametrize("name, text", [
    ("config.json", DEEP), ("config.json", '{"intermediate_size": ' + DEEP), ("config.json", '{"vocab_size": 1e999}'),
    ("config.json", '{"a": ' + "1" * 400 + "}"), ("config.json", '{"architectures": ' + "[" * 90 + "]" * 90 + "}"),
    ("config.json", '{"architectures": 5, "model_type": "bert"}'), ("config.json", '{"model_type": 5}'), ("config.json", '{"model_type": null}'),
    ("config.json", '{"model_type": "bert", "num_hidden_layers": 1000000000}'), ("config.json", '{"model_type": "bert", "hidden_size": -64}'),
    ("config.json", '{"model_type": "bert", "hidden_size": 0}'), ("config.json", '{"model_type": "bert", "vocab_size": "many"}'),
    ("config.json", '{"model_type": "bert", "hidden_act": 7}'), ("config.json", '{"model_type": "bert", "hidden_act": "tanhx"}'),
    ("config.json", '{"model_type": ["bert"]}'), ("config.json", '{"model_type": "' + "b" * 10_000 + '"}'),
    ("config.json", '{"hidden_dropout_prob": -1}'), ("config.json", '{"attention_probs_dropout_prob": 1}'),
    ("config.json", '{"layer_norm_eps": 0}'), ("config.json", '{"initializer_range": 1e300}'), ("config.json", '{"is_decoder": true}'),
    ("config.json", '{"is_decoder": "x"}'), ("config.json", '{"position_embedding_type": "relative_key"}'),
    ("tokenizer_config.json", DEEP), ("tokenizer_config.json", '{"additional_special_tokens": 5}'), ("tokenizer_config.json", '{"cls_token": 5}'),
    ("tokenizer.json", DEEP), ("tokenizer.json", '{"model": {"type": "WordPiece", "vocab": ' + DEEP), ("tokenizer.json", '{"model": 5}'),
    ("tokenizer.json", '{"added_tokens": 5, "model": {"type": "WordPiece", "vocab": {"[UNK]": 0}}, "pre_tokenizer": {"type": "BertPreTokenizer"}}'),
    ("tokenizer.json", '{"model": {"type": "WordPiece", "vocab": {"a": 1e999}}}'), ("tokenizer.json", "\x00"),
])
def test_files_of_a_model(run, model, tmp_path, name, text):
    (model / name).write_text(text)
    refused_by_train(run, tmp_path, name)


@pytest.mark.parametrize("line, what", [
    (DEEP, "nested more than 100 levels"), ('{"text": 1e999}', "a number that is too large"), ('{"text": ' + "1" * 400 + "}", "too large"),
    ('{"text": "a", "text": "b"}', "names 'text' twice"), ('{"text": 5}', "not a string"), ('{"text": "a"', "column 13"), ("5", "not an object")])
def test_lines_of_text(run, tmp_path, line, what):
    (tmp_path / "data.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    run["data"]["train"] = str(tmp_path / "data.jsonl")
    refused_by_train(run, tmp_path, what)
    refused_by_train(run, tmp_path, "data.jsonl:2")


def test_a_page_of_parquet_that_is_not_as_its_checksum_says(run, tmp_path):
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"text": ["bababa dodo"] * 50 + ["gugu"] * 50}), path, write_page_checksum=True, compression="none",
                   use_dictionary=False)
    damaged = bytearray(path.read_bytes())
    values = b"\4\0\0\0gugu" * 2  # in the page, not in the statistics
    damaged[damaged.index(values) + 5] ^= 1
    path.write_bytes(damaged)
    run["data"]["train"] = str(path)
    refused_by_train(run, tmp_path, "data.parquet")


def test_metrics_that_were_damaged_are_no_reason_to_stop(run, tmp_path):
    train(write_run_file(tmp_path, run))
    metrics = tmp_path / "out" / "metrics.jsonl"
    good = metrics.read_text()
    metrics.write_text(good + '{"step": "one"}\n{"step": ' + DEEP + '\n{"step": 1e999}\n[]\n{"st')
    run["training"]["max_steps"] = 2
    train(write_run_file(tmp_path, run), resume="auto")
    assert metrics.read_text().startswith(good)
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines() if '"loss"' in line] == [1, 2]


# ---- what is no file


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "missing"])
@pytest.mark.parametrize("where", ["run file", "ds_config", "data", "weights", "config.json", "vocab.txt"])
def test_what_is_no_file(run, model, tmp_path, where, kind):
    """A pipe would be waited for, and a device read for ever."""
    names = {"run file": tmp_path / "given.yaml", "ds_config": tmp_path / "ds.json", "data": tmp_path / "data.jsonl",
             "weights": model / "model.safetensors", "config.json": model / "config.json", "vocab.txt": model / "vocab.txt"}
    place = names[where]
    run["data"]["train"] = str(place) if where == "data" else run["data"]["train"]
    run["deepspeed"] = str(place) if where == "ds_config" else run["deepspeed"]
    run_file = write_run_file(tmp_path, run)
    if place.exists():
        place.unlink()
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place.symlink_to("/dev/zero")
    elif kind == "folder":
        place.mkdir()
    refused("train", place if where == "run file" else run_file, what="")


@pytest.mark.parametrize("args, what", [
    (["--set", "training.max_steps=0", "--set", "training.epochs=1e300"], "more steps than can be counted"),
    (["--resume", ""], "--resume"), (["--set", ".=1"], ".=1"), (["--set", "=1"], "=1"), (["--set", "training..seed=1"], "training..seed"),
    (["--set", "deepspeed=/dev/null"], "/dev/null"), (["--set", 'output=""'], "'output' is empty"), (["--set", "output=" + "a" * 300], "File name too long"),
    (["--set", "model.path=" + "a" * 300], "aaa"), (["--set", "data.train=" + "a" * 300], "File name too long"),
    (["--set", 'deepspeed.zero_optimization={"stage":3,"offload_optimizer":{"device":"nvme","nvme_path":"/tmp","buffer_count":1000000000}}'], "buffer_count"),
])
def test_values_that_make_no_sense(run, tmp_path, args, what):
    refused("train", write_run_file(tmp_path, run), *args, what=what)


def test_a_bomb_of_aliases(tmp_path):
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    (tmp_path / "run.yaml").write_text("\n".join(levels) + "\n")
    refused("train", tmp_path / "run.yaml", what="run.yaml")


def test_very_many_keys(tmp_path):
    (tmp_path / "run.yaml").write_text("".join(f"key{n}: {n}\n" for n in range(200_000)))
    refused("train", tmp_path / "run.yaml", what="run.yaml")
    (tmp_path / "ds.json").write_text(json.dumps({f"key{n}": n for n in range(200_000)}))
    refused("config", "check", tmp_path / "ds.json", what="ds.json")
