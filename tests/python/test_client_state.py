"""What programs keep in checkpoints: values and tensors come back as they were, and no file makes a program run its code."""

import argparse
import base64
import collections
import datetime
import enum
import io
import math
import pathlib
import sys
import types

import numpy as np
import pytest
import torch

from tessera import _core
from tessera.client_state import decode, decode_old, encode

class Model(enum.Enum):
    ENCODER, DECODER = "encoder", object()


VALUES = {
    "plain": {"none": None, "yes": True, "count": 3, "large": 10**30, "rate": 0.1 + 0.2, "name": "ä\udc80", "empty": {}, "list": [1, [2.5]]},
    "not finite": [math.inf, -math.inf],
    "tuples": (1, ("a", [None])),
    "keys": {1: "one", (2, 3): "two", None: 0},
    "a key of ours": {"$": "pickle", "of": "no"},
    "sets": [{1, 2}, frozenset((3, 4)), set()],
    "others": [1 + 2j, range(2, 9, 3), b"\x00\xff", pathlib.Path("/a/b"), datetime.timedelta(days=1, microseconds=7),
               datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)],
    "collections": [collections.OrderedDict([("b", 1), ("a", 2)]), collections.Counter("aab"), collections.deque([1, 2], 5),
                    collections.defaultdict(list, {"x": [1]}), collections.defaultdict(None, {})],
    "namespaces": [argparse.Namespace(lr=0.1, names=["a"]), types.SimpleNamespace(x=(1,))],
    "enumerations": [Model.ENCODER, {"kind": Model.DECODER}, {Model.ENCODER: 1}],
    "torch": [torch.Size([2, 3]), torch.bfloat16, torch.device("cpu")],
}


def through(values, **how):
    text, tensors = encode(values, "client_state", **how)
    return decode(text, tensors, **how)


@pytest.mark.parametrize("name", VALUES)
def test_values_come_back_with_their_types(name):
    back = through(VALUES[name])
    assert back == VALUES[name]
    assert repr(back) == repr(VALUES[name])  # the types and orders, too


def test_a_member_of_an_enumeration_that_is_not_imported_comes_back_as_its_name(monkeypatch):
    """Its module is not imported for that, and no attribute of one that is imported is made."""
    text, tensors = encode({"kind": Model.ENCODER}, "client_state")
    assert decode(text.replace(__name__, "antigravity"), tensors) == {"kind": "Model.ENCODER"}
    assert "antigravity" not in sys.modules
    lazy = types.ModuleType("lazy")
    lazy.__getattr__ = lambda name: pytest.fail(f"{name} was asked for")
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    assert decode(text.replace(__name__, "lazy"), tensors) == {"kind": "Model.ENCODER"}
    assert decode(text.replace('"Model"', '"VALUES"'), tensors) == {"kind": "VALUES.ENCODER"}


def test_a_number_that_is_none():
    assert math.isnan(through({"loss": math.nan})["loss"])


@pytest.mark.parametrize("tensor", [
    torch.arange(6).reshape(2, 3).t(), torch.tensor(3.5), torch.empty(0, 4), torch.ones(2, dtype=torch.bfloat16),
    torch.tensor([True, False]), torch.ones(2, dtype=torch.complex64), torch.ones(3).to(torch.float8_e4m3fn),
    torch.nn.Parameter(torch.ones(2))], ids=str)
def test_tensors_come_back(tensor):
    back = through({"deep": [{"tensor": tensor}]})["deep"][0]["tensor"]
    assert back.dtype == tensor.dtype and back.shape == tensor.shape
    assert back.float().tolist() == tensor.float().tolist() if not tensor.is_complex() else torch.equal(back, tensor)
    _, tensors = encode({"deep": [{"tensor": tensor}]}, "client_state")
    assert list(tensors) == ["client_state.deep[0].tensor"]


def test_tensors_of_keys_that_read_alike():
    back = through({"a.b": torch.tensor(1), "a": {"b": torch.tensor(2)}})
    assert (int(back["a.b"]), int(back["a"]["b"])) == (1, 2)


@pytest.mark.parametrize("array", [np.arange(6, dtype=np.int16).reshape(2, 3).T, np.array(["a", "bc"]), np.zeros((0, 2)), np.float32(0.1),
                                   np.int64(7), np.bool_(True)], ids=repr)
def test_arrays_come_back(array):
    back = through({"of numpy": array})["of numpy"]
    assert type(back) is type(array) and back.dtype == array.dtype and np.array_equal(back, array)


def test_random_states_come_back():
    """As programs keep them to go on with the same numbers."""
    import random

    kept = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    back = through(kept)
    random.setstate(back["python"])
    np.random.set_state(back["numpy"])
    torch.set_rng_state(back["torch"])
    assert back["python"] == kept["python"]


def test_a_subclass_is_kept_as_what_it_is_one_of(caplog):
    class Names(dict):
        pass

    with caplog.at_level("INFO", "tessera"):
        assert through({"names": Names(a=1)}) == {"names": {"a": 1}}
    assert "client_state.names is a Names: the checkpoint keeps it as a dict" in caplog.text


class Holder:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value


@pytest.mark.parametrize("value, name", [
    (Holder(1), "Holder"), (lambda: 0, "builtins.function"), (Holder, "builtins.type"), (np.array([Holder(1)]), "numpy.ndarray"),
    (collections.defaultdict(lambda: 0), "collections.defaultdict"), (torch.nn.Linear(1, 1), "Linear")], ids=str)
def test_an_object_is_refused_with_its_key(value, name):
    with pytest.raises(_core.UsageError) as refused:
        encode({"epoch": 3, "args": [{"best": value}]}, "client_state")
    assert "client_state.args[0].best is a " in str(refused.value)
    assert name in str(refused.value)
    assert "trust_pickle=True" in str(refused.value)


def test_an_object_that_both_ends_trust_comes_back():
    text, tensors = encode({"best": Holder(5)}, "client_state", trust_pickle=True)
    assert decode(text, tensors, trust_pickle=True) == {"best": Holder(5)}
    with pytest.raises(_core.DataError, match=r"^the checkpoint holds an object of .*Holder that runs code when it is read"):
        decode(text, tensors)
    with pytest.raises(_core.UsageError, match="client_state.best cannot be pickled"):
        encode({"best": lambda: 0}, "client_state", trust_pickle=True)


class Harmful:
    """Unpickling one makes the file `marker`."""

    marker = None

    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path(self.marker),)


@pytest.fixture
def harmful(tmp_path):
    Harmful.marker = str(tmp_path / "it-ran")
    return Harmful()


def test_an_older_checkpoint_runs_nothing_unless_it_is_trusted(harmful, caplog):
    def saved(values):
        buffer = io.BytesIO()
        torch.save(values, buffer)
        return buffer.getvalue()

    plain = {"client": {"epoch": 3, "best": torch.ones(2)}, "buffers": collections.OrderedDict(seen=torch.zeros(1))}
    assert decode_old(saved(plain))["client"]["epoch"] == 3
    with pytest.raises(_core.DataError, match="runs? code when (they are|it is) read"):
        decode_old(saved({"client": harmful}))
    assert not pathlib.Path(harmful.marker).exists()
    with caplog.at_level("WARNING", "tessera"):
        decode_old(saved({"client": harmful}), trust_pickle=True)
    assert pathlib.Path(harmful.marker).exists()
    assert "read with pickle, which runs whatever code the file holds" in caplog.text


@pytest.mark.parametrize("text", [
    '{"$": "pickle", "class": "x", "of": "%PICKLE%"}', '{"$": "history_buffer", "of": [1]}', '{"$": "os:system", "of": "true"}',
    '{"$": "default_dict", "of": ["eval", {}]}', '{"$": "dtype", "of": "load"}', '{"$": "array", "of": ["|O", [1], "AAAAAAAAAAA="]}',
    '{"$": "array", "of": ["<f8", [1000000000000], ""]}', '{"$": "tensor", "of": "none"}', '{"$": ["list"]}', '{"$": "tuple"}',
    "[" * 100_000, '{"a":', "1" * 5000, ""])
def test_text_that_somebody_made_up_is_one_error(text, harmful):
    import pickle

    made_up = text.replace("%PICKLE%", base64.b64encode(pickle.dumps(harmful)).decode())
    with pytest.raises(_core.DataError):
        decode(made_up, {})
    assert not pathlib.Path(harmful.marker).exists()


def test_values_that_contain_themselves_or_are_very_deep():
    endless = []
    endless.append(endless)
    with pytest.raises(_core.UsageError, match="nested deeper than 100 levels, or contains itself"):
        encode({"a": endless}, "client_state")


def test_what_lightning_passes():
    """The keys of Lightning's dump_checkpoint, without the model's and the optimizer's."""
    checkpoint = {
        "epoch": 1, "global_step": 12, "pytorch-lightning_version": "2.5.0", "lr_schedulers": [{"base_lrs": [0.1], "last_epoch": 12}],
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 2, "completed": 1}}}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.25), "best_k_models": {"/a": torch.tensor(1.0)},
                                                          "best_model_path": "/a", "kth_value": torch.tensor(0.5), "last_model_path": ""}},
        "hparams_name": "kwargs", "hyper_parameters": {"lr": 1e-3, "layers": (1, 2)}, "MixedPrecision": {"scale": 65536.0}}
    back = through(checkpoint)
    assert back["callbacks"]["ModelCheckpoint{'monitor': None}"]["best_model_score"] == 0.25
    assert back["hyper_parameters"] == checkpoint["hyper_parameters"]
    assert list(back) == list(checkpoint)


def test_what_mmengine_passes(monkeypatch):
    """Its runner's meta, and its message hub, which keeps histories in objects of its own."""
    module = types.ModuleType("mmengine.logging.history_buffer")

    class HistoryBuffer:
        def __init__(self, log_history=(), count_history=(), max_length=1_000_000):
            self.max_length = max_length
            self._log, self._count = np.array(log_history), np.array(count_history)

        @property
        def data(self):
            return self._log, self._count

    HistoryBuffer.__module__, HistoryBuffer.__qualname__ = module.__name__, "HistoryBuffer"
    module.HistoryBuffer = HistoryBuffer
    for name in ("mmengine", "mmengine.logging"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    hub = {"log_scalars": collections.OrderedDict({"train/loss": HistoryBuffer([0.5, 0.25], [1, 1], 100)}),
           "runtime_info": collections.OrderedDict(iter=7, loop_stage="train", cfg="model = dict()"),
           "resumed_keys": collections.OrderedDict({"train/loss": True})}
    meta = {"seed": 5, "experiment_name": "x", "dataset_meta": {"CLASSES": ("cat", "dog"), "PALETTE": [(1, 2, 3)]}}
    back = through({"meta": meta, "message_hub": hub})
    assert back["meta"] == meta
    assert back["message_hub"]["runtime_info"] == hub["runtime_info"]
    history = back["message_hub"]["log_scalars"]["train/loss"]
    assert type(history) is HistoryBuffer and history.max_length == 100
    assert [list(part) for part in history.data] == [[0.5, 0.25], [1, 1]]
