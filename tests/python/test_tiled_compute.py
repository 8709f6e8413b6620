"""Functions that are computed a tile of a sequence at a time: tiled_runs.py is the program that trains; the rest is plain PyTorch."""

import weakref
from pathlib import Path

import deepspeed
import pytest
import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import SequenceTiledCompute, TiledFusedLogitsLoss, TiledMLP, sequence_tiled_compute
from ranks import run_for_json
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

WIDTH, INNER, WORDS = 8, 64, 50


@pytest.fixture(scope="module")
def runs():
    return run_for_json(Path(__file__).with_name("tiled_runs.py"), timeout=300)


@pytest.mark.parametrize("name, case", [
    *(("stages", f"stage {stage}") for stage in range(4)),
    *(("inside_a_checkpoint", way) for way in ("non-reentrant", "reentrant", "deepspeed's")),
    *(("transformers_models", case) for case in ("stage 1", "stage 3", "and checkpoints"))])
def test_training_is_that_of_whole_computations(runs, name, case):
    expected, found = runs[name]["expected"], runs[name]["found"][case]
    for those, these in zip(expected, found, strict=True):
        assert len(these) == 20
        assert these == pytest.approx(those, rel=1e-5)
    assert expected[0][-1] < 0.96 * expected[0][0]


class Feed(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.up, self.down, self.head = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH), nn.Linear(WIDTH, WORDS)
        self.dropout, self.calls = nn.Dropout(dropout), 0

    def feed(self, x):
        self.calls += 1
        return self.down(self.dropout(torch.tanh(self.up(x))))

    def loss(self, x, labels):
        self.calls += 1
        return cross_entropy(self.head(x).flatten(0, -2), labels.flatten(), reduction="sum")


def drawn(tokens, rows=2):
    torch.manual_seed(1)
    return torch.randn(rows, tokens, WIDTH, requires_grad=True), torch.randint(WORDS, (rows, tokens))


def by_mlp(module, x, labels, shards):
    return TiledMLP.apply(Feed.feed, module, x, shards, [module.up.weight]).square().sum()


def by_keywords(module, x, labels, shards):
    return sequence_tiled_compute(Feed.feed, x.shape[1], shards, {"x": x}, {"self": module}, "x", None, 1, None).square().sum()


def loss_by_keywords(module, x, labels, shards):
    return sequence_tiled_compute(lambda self, x, labels: self.loss(x, labels), x.shape[1], shards, {"x": x, "labels": labels}, {"self": module},
                                  "x", None, output_unshard_dimension=0, output_reduction="sum")


def fused_loss(module, x, labels, shards):
    return TiledFusedLogitsLoss.apply(Feed.loss, module, x, labels, None, shards, [module.head.weight], "sum")


def whole_feed(module, x, labels):
    return module.feed(x).square().sum()


def whole_loss(module, x, labels):
    return module.loss(x, labels)


TILED = [(by_mlp, whole_feed), (by_keywords, whole_feed), (loss_by_keywords, whole_loss), (fused_loss, whole_loss)]
by_name = pytest.mark.parametrize("tiled, whole", TILED, ids=lambda function: function.__name__)


def gradients(function, *arguments):
    torch.manual_seed(0)
    module = Feed()
    x, labels = drawn(11)
    loss = function(module, x, labels, *arguments)
    loss.backward()
    return [loss.detach(), x.grad, *(parameter.grad for parameter in module.parameters() if parameter.grad is not None)]


@by_name
@pytest.mark.parametrize("shards", [1, 3, 4, 11, 40])  # of 11 tokens, or of 22 in two rows
def test_any_number_of_tiles_gives_the_gradients_of_the_whole(tiled, whole, shards):
    expected, found = gradients(whole), gradients(tiled, shards)
    assert len(found) == len(expected) >= 4
    for these, those in zip(found, expected):
        torch.testing.assert_close(these, those, rtol=1e-5, atol=1e-5)


@by_name
def test_a_gradient_arrives_once(tiled, whole):
    module, arrived = Feed(), []
    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: arrived.append(name))
    x, labels = drawn(11)
    loss = tiled(module, x, labels, 5)
    assert not arrived
    loss.backward()
    assert arrived and len(set(arrived)) == len(arrived)


@by_name
def test_each_tile_is_computed_twice_with_gradients_and_once_without(tiled, whole):
    module = Feed()
    x, labels = drawn(12)
    with torch.no_grad():
        without = tiled(module, x, labels, 4)
    assert module.calls == 4 and not without.requires_grad
    loss = tiled(module, x, labels, 4)
    assert module.calls == 8 and torch.equal(loss, without)
    loss.backward()
    assert module.calls == 12


def test_tiles_without_a_gradient_of_their_input_have_those_of_parameters():
    found = []
    for function in (whole_loss, lambda *arguments: fused_loss(*arguments, 3)):
        torch.manual_seed(0)
        module = Feed()
        x, labels = drawn(11)
        function(module, x.detach(), labels).backward()
        found.append(module.head.weight.grad)
    torch.testing.assert_close(*found)


def test_dropout_is_the_same_when_a_tile_is_computed_again():
    """The gradient of sum(tiles) by each tile's own graph, which is kept."""
    module = Feed(dropout=0.5)
    x, _ = drawn(11)
    found = []
    for function in (lambda: torch.cat([module.feed(tile) for tile in x.chunk(4, -2)], -2), lambda: TiledMLP.apply(Feed.feed, module, x, 4, None)):
        torch.manual_seed(9)
        found.append(torch.autograd.grad(function().square().sum(), [x, *module.up.parameters(), *module.down.parameters()]))
        found[-1] += (torch.rand(3),)  # what is drawn afterwards
    assert all(torch.equal(these, those) for these, those in zip(*found))


def test_named_streams_of_random_numbers_are_the_same():
    deepspeed.checkpointing.model_parallel_cuda_manual_seed(11)
    streams, drawn_numbers = deepspeed.checkpointing.get_cuda_rng_tracker(), []

    def function(_, x):
        with streams.fork():
            drawn_numbers.append(torch.rand(4))
        return (x * drawn_numbers[-1]).sin()

    TiledMLP.apply(function, None, torch.ones(6, 4, requires_grad=True), 2, None).sum().backward()
    first, second, *again = drawn_numbers
    assert not torch.equal(first, second)
    assert sorted(each.tolist() for each in again) == sorted([first.tolist(), second.tolist()])


def test_the_state_of_autocast_is_the_same():
    module, dtypes = Feed(), []
    x, _ = drawn(8)

    def function(_, x):
        dtypes.append(module.up(x).dtype)
        return module.feed(x)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = TiledMLP.apply(function, None, x, 2, None)
    output.float().sum().backward()
    assert dtypes == [torch.bfloat16] * 4


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_mask_is_cut_too_and_a_mean_is_of_tiles(reduction):
    """Of 2 rows of 5 tokens, 4 tiles have 3, 3, 3 and 1."""
    module = Feed()
    x, labels = drawn(5)
    mask = torch.tensor([[True, True, False, True, True], [False, True, True, True, True]])

    def function(self, x, labels, mask):
        return cross_entropy(self.head(x)[mask], labels[mask])

    found = TiledFusedLogitsLoss.apply(function, module, x, labels, mask, 4, None, reduction)
    tiles = [slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 10)]
    of_tiles = torch.stack([function(module, *(each.flatten(0, 1)[tile] for each in (x, labels, mask))) for tile in tiles])
    torch.testing.assert_close(found, getattr(of_tiles, reduction)())
    torch.testing.assert_close(torch.autograd.grad(found, x), torch.autograd.grad(getattr(of_tiles, reduction)(), x))


def test_tensors_that_are_passed_whole_have_gradients():
    x, scale = torch.randn(2, 7, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    found = SequenceTiledCompute.apply(lambda x, scale: (x * scale).sin(), 7, 3, ["x"], ["scale"], "x", None, 1, None, x, scale)
    whole = (x * scale).sin()
    assert torch.equal(found, whole)
    for these, those in zip(*(torch.autograd.grad(output.sum(), [x, scale]) for output in (found, whole))):
        torch.testing.assert_close(these, those)


class LiveElements(TorchDispatchMode):
    """How many elements there were at once, of tensors that were made inside."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self._known = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        output = function(*arguments, **(keywords or {}))
        for tensor in torch.utils._pytree.tree_leaves(output):
            if torch.is_tensor(tensor) and (storage := tensor.untyped_storage()) not in self._known:
                self._known.add(storage)
                elements = storage.nbytes() // tensor.element_size()
                self.now += elements
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self._gone, elements)
        return output

    def _gone(self, elements):
        self.now -= elements


def most_elements(function, *arguments):
    module = Feed()
    x, labels = drawn(1024, rows=1)
    with LiveElements() as live:
        function(module, x, labels, *arguments).backward()
    return live.most


@by_name
def test_memory_is_that_of_a_tile(tiled, whole):
    """The whole keeps at least the result of its widest product and its gradient; of 16 tiles one has that, and what is kept of all tokens are a few
    times the input."""
    widest = 1024 * (WORDS if whole is whole_loss else INNER)
    assert most_elements(whole) >= 2 * widest
    assert most_elements(tiled, 16) <= 6 * 1024 * WIDTH + 4 * widest / 16 + sum(parameter.numel() for parameter in Feed().parameters()) * 3


@pytest.mark.parametrize("call, words", [
    (lambda x, y: TiledFusedLogitsLoss.apply(Feed.loss, Feed(), x, y, None, 2, None, None), "unknown reduction None: valid values are 'mean', 'sum'"),
    (lambda x, y: sequence_tiled_compute(Feed.feed, 6, 2, {"x": x}, {"self": Feed()}, "x", output_reduction="max"), "unknown reduction 'max'"),
    (lambda x, y: sequence_tiled_compute(Feed.feed, 8, 2, {"x": x}, {"self": Feed()}, "x"), "x has 6 tokens in its dimension 1, and seqlen is 8"),
    (lambda x, y: TiledFusedLogitsLoss.apply(Feed.loss, Feed(), x, y[:, 1:], None, 2, None, "sum"), "must begin with the same rows and tokens"),
    (lambda x, y: TiledFusedLogitsLoss.apply(Feed.loss, Feed(), x, y, y[0], 2, None, "sum"), "must begin with the same rows and tokens"),
])
def test_what_cannot_be_cut_is_refused(call, words):
    with pytest.raises(ValueError) as refused:
        call(*drawn(6))
    assert words in str(refused.value)
