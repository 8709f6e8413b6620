"""The task classification from the command line: BERT, RoBERTa and DistilBERT trained as transformers trains them, their metrics, the best
checkpoint, patience, frozen parameters, held-out shares, and inputs that make no sense."""

import csv
import json
import math
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from fixtures import STAGES
from safetensors.torch import load_file
from tessera_runs import evaluations, losses_and_norms, metrics, tessera, train, train_arguments, write_run_file
from test_causal_lm import LETTERS
from test_instruction_tuning import ids_of

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 48}
MODELS = {"Bert": SIZES, "Roberta": {**SIZES, "type_vocab_size": 1, "pad_token_id": 0},
          "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 48}}
LABELS = ["lots", "none", "some"]
STEPS = 20


def rows_of(count, seed, labels=LABELS):
    rand = random.Random(seed)
    rows = []
    for i in range(count):
        word = lambda longest: " ".join(rand.choice("abcdefgh") for _ in range(rand.randint(1, longest)))  # noqa: E731
        rows.append({"text": word(12), "other": word(8), "label": labels[i % len(labels)]})
    return rows


def write_rows(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def make_model(folder, name, head="SequenceClassification", **config):
    torch.manual_seed(0)
    made = getattr(transformers, name + "Config")(vocab_size=len(LETTERS), initializer_range=0.2, **MODELS[name], **config)
    model = getattr(transformers, f"{name}For{head}")(made).eval()
    model.save_pretrained(folder / "model")
    (folder / "model" / "vocab.txt").write_text("\n".join(LETTERS) + "\n")
    return model


def labelled(count=len(LABELS)):
    return {"num_labels": count, "id2label": dict(enumerate(LABELS)), "label2id": {label: i for i, label in enumerate(LABELS)}}


def run_of(folder, *, pairs=True, train_rows=None, eval_rows=None, lr=1e-3, **training):
    data = {"train": write_rows(folder / "train.jsonl", train_rows or rows_of(16, 1)), "max_length": 24, "padding": "longest"}
    if eval_rows:
        data["eval"] = write_rows(folder / "eval.jsonl", eval_rows)
    if pairs:
        data["text_pair_column"] = "other"
    return write_run_file(folder, {
        "model": {"path": str(folder / "model"), "dropout": 0}, "task": "classification", "data": data,
        "training": {"max_steps": STEPS, "device": "cpu", **training},
        "deepspeed": {"train_batch_size": 16, "gradient_clipping": 0, "zero_optimization": {"stage": 0},
                      "optimizer": {"type": "AdamW", "params": {"lr": lr, "weight_decay": 0}}}})


def inputs_of(row, model, pairs=True):
    first, second = ids_of(f"[CLS] {row['text']} [SEP]"), ids_of(f"{row['other']} [SEP]") if pairs else []
    inputs = {"input_ids": torch.tensor([first + second])}
    if model.config.model_type == "bert":
        inputs["token_type_ids"] = torch.tensor([[0] * len(first) + [1] * len(second)])
    return inputs


def logits_of(model, rows, pairs=True):
    return torch.cat([model(**inputs_of(row, model, pairs)).logits for row in rows])


def loss_of(model, rows, pairs=True, labels=LABELS):
    return torch.nn.functional.cross_entropy(logits_of(model, rows, pairs), torch.tensor([labels.index(row["label"]) for row in rows]))


def train_in_torch(model, rows, steps, lr=1e-3, pairs=True, labels=LABELS):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, weight_decay=0)
    losses = []
    for _ in range(steps):
        loss = loss_of(model, rows, pairs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def f1_of(wanted, given, label):
    tp = sum(w == g == label for w, g in zip(wanted, given))
    fp = sum(g == label != w for w, g in zip(wanted, given))
    fn = sum(w == label != g for w, g in zip(wanted, given))
    return 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 0.0


def load_export(output, name):
    model, info = getattr(transformers, f"{name}ForSequenceClassification").from_pretrained(output / "export", output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


@pytest.mark.sample("Roberta-0")
@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("name", MODELS)
def test_transformers_trains_alike(tmp_path, name, stage):
    """And the metrics are those of transformers' own predictions by the export, over 7 rows that two ranks share unequally."""
    model = make_model(tmp_path, name, **labelled())
    rows, held_out = rows_of(16, 1), rows_of(7, 2)
    run_file = run_of(tmp_path, train_rows=rows, eval_rows=held_out)
    result = train(run_file, 2, {"output": tmp_path / "out", "deepspeed.zero_optimization.stage": stage})
    want = train_in_torch(model, rows, STEPS)
    assert [row["loss"] for row in metrics(tmp_path / "out")] == pytest.approx(want, rel=1e-5)
    assert want[-1] < 0.9 * want[0]
    assert "3 labels: lots 6, none 5, some 5" in result.err and "new:" not in result.err, str(result)

    exported = load_export(tmp_path / "out", name)
    config = json.loads((tmp_path / "out" / "export" / "config.json").read_text())
    assert config["architectures"] == [f"{name}ForSequenceClassification"]
    assert config["id2label"] == {str(i): label for i, label in enumerate(LABELS)} and config["num_labels"] == 3
    assert config["label2id"] == {label: i for i, label in enumerate(LABELS)}
    torch.testing.assert_close(logits_of(exported, held_out), logits_of(model, held_out), rtol=1e-3, atol=1e-3)

    wanted = [LABELS.index(row["label"]) for row in held_out]
    given = logits_of(exported, held_out).argmax(1).tolist()
    last = evaluations(tmp_path / "out")[-1]
    present = sorted(set(wanted) | set(given))
    assert last["eval_samples"] == 7
    assert last["eval_loss"] == pytest.approx(loss_of(exported, held_out).item(), rel=1e-5)
    assert last["eval_accuracy"] == sum(w == g for w, g in zip(wanted, given)) / 7
    assert last["eval_f1"] == pytest.approx(sum(f1_of(wanted, given, label) for label in present) / len(present), rel=1e-12)


@pytest.mark.sample("Roberta")
@pytest.mark.parametrize("name", MODELS)
def test_the_same_bits_at_every_stage(tmp_path, name):
    make_model(tmp_path, name, **labelled())
    run_file = run_of(tmp_path, eval_rows=rows_of(7, 2))
    more = {"deepspeed.train_batch_size": 8, "training.max_steps": 6, "model.dropout": 0.1}
    for stage in STAGES:
        train(run_file, 2, {**more, "deepspeed.zero_optimization.stage": stage, "output": tmp_path / f"stage{stage}"})
    bits = [losses_and_norms(tmp_path / f"stage{stage}") for stage in STAGES]
    assert len(bits[0]) == 6 and bits[1:] == [bits[0]] * 3
    keys = ("eval_loss", "eval_accuracy", "eval_f1")
    found = [[[row[key] for key in keys] for row in evaluations(tmp_path / f"stage{stage}")] for stage in STAGES]
    assert found[0] and found[1:] == [found[0]] * 3
    train(run_file, 2, {**more, "deepspeed.zero_optimization.stage": 3, "training.activation_checkpointing": "true", "output": tmp_path / "again"})
    assert losses_and_norms(tmp_path / "again") == bits[0]


def test_two_labels_have_a_binary_f1_and_a_bare_model_gets_a_new_head(tmp_path):
    """The labels are those that the data has, sorted: no, yes; the second is the positive one."""
    make_model(tmp_path, "Bert", head="MaskedLM")
    rows, held_out = rows_of(16, 1, ["yes", "no"]), rows_of(9, 2, ["yes", "no"])
    result = train(run_of(tmp_path, pairs=False, train_rows=rows, eval_rows=held_out, max_steps=4), 2, {"output": tmp_path / "out"})
    new = next(line for line in result.err.splitlines() if "new: " in line)
    assert set(new.split("new: ")[1].split(", ")) == {"bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"}
    assert "accuracy" in result.out and "f1" in result.out
    exported = load_export(tmp_path / "out", "Bert")
    assert exported.config.id2label == {0: "no", 1: "yes"}
    wanted, given = [["no", "yes"].index(row["label"]) for row in held_out], logits_of(exported, held_out, pairs=False).argmax(1).tolist()
    last = evaluations(tmp_path / "out")[-1]
    assert last["eval_f1"] == pytest.approx(f1_of(wanted, given, 1), rel=1e-12)
    assert last["eval_accuracy"] == sum(w == g for w, g in zip(wanted, given)) / 9


@pytest.mark.parametrize("values", [["a", "b"], [0, 1], [False, True]], ids=str)
def test_labels_of_every_kind_in_every_format(tmp_path, values):
    make_model(tmp_path, "DistilBert", head="MaskedLM")
    run_file = run_of(tmp_path, max_steps=3)
    rows = rows_of(16, 1, values)
    for suffix in ("jsonl", "csv", "parquet"):
        if suffix == "csv" and isinstance(values[0], bool):
            continue
        train(run_file, 1, {"data.train": write_rows(tmp_path / f"rows.{suffix}", rows), "output": tmp_path / suffix})
        assert losses_and_norms(tmp_path / suffix) == losses_and_norms(tmp_path / "jsonl")
        names = json.loads((tmp_path / suffix / "export" / "config.json").read_text())["id2label"]
        assert list(names.values()) == ([str(value).lower() for value in values] if isinstance(values[0], bool) else [str(v) for v in values])


def test_a_resumed_run_is_the_whole_one(tmp_path):
    make_model(tmp_path, "Bert", **labelled())
    run_file = run_of(tmp_path, eval_rows=rows_of(7, 2), eval_steps=2)
    more = {"deepspeed.train_batch_size": 4, "model.dropout": 0.1, "deepspeed.zero_optimization.stage": 3, "training.best_by": "eval_f1"}
    train(run_file, 2, {**more, "training.max_steps": 12, "output": tmp_path / "whole"})
    train(run_file, 2, {**more, "training.max_steps": 7, "output": tmp_path / "parts"})
    train(run_file, 2, {**more, "training.max_steps": 12, "output": tmp_path / "parts"}, resume="auto")
    assert losses_and_norms(tmp_path / "parts") == losses_and_norms(tmp_path / "whole")
    best = [(tmp_path / output / "checkpoints" / "best_checkpoint").read_text() for output in ("parts", "whole")]
    values = {row["step"]: row["eval_f1"] for row in evaluations(tmp_path / "parts")}
    assert best[0] == f"global_step{max(values, key=values.get)}\n"
    whole = {row["step"]: row["eval_f1"] for row in evaluations(tmp_path / "whole")}
    assert best[1] == f"global_step{max(whole, key=whole.get)}\n"


def end_of(values, patience):
    """(steps taken, step of the best) of a run with these values of each evaluation."""
    best, since = None, 0
    for step, value in sorted(values.items()):
        best, since = (step, 0) if best is None or value < values[best] else (best, since + 1)
        if since == patience:
            return step, best
    return max(values), best


def test_patience_and_the_best_checkpoint(tmp_path):
    """What is held out has the labels of the training rows turned round, so that its loss soon grows."""
    make_model(tmp_path, "DistilBert", **labelled())
    turned = [{**row, "label": LABELS[(LABELS.index(row["label"]) + 1) % 3]} for row in rows_of(16, 1)]
    run_file = run_of(tmp_path, eval_rows=turned, eval_steps=1, best_by="eval_loss", patience=3, keep_last=1)
    output = {"output": tmp_path / "out", "training.max_steps": 40}
    result = train(run_file, 2, {**output, "deepspeed.zero_optimization.stage": 2})
    values = {row["step"]: row["eval_loss"] for row in evaluations(tmp_path / "out")}
    end, best = end_of(values, 3)
    assert max(values) == end < 40, values
    assert f"training stops after step {end}: 3 evaluations without a better eval_loss" in result.err, str(result)
    assert f"stopped after {end} steps: 3 evaluations without a better eval_loss" in result.out
    checkpoints = tmp_path / "out" / "checkpoints"
    assert (checkpoints / "best_checkpoint").read_text() == f"global_step{best}\n"
    assert {path.name for path in checkpoints.glob("global_step*")} >= {f"global_step{best}", f"global_step{end}"}
    assert loss_of(load_export(tmp_path / "out", "DistilBert"), turned).item() == pytest.approx(values[best], rel=1e-5)

    again = train(run_file, 2, output, resume="auto")
    assert f"training stops after step {end}" in again.err and len(metrics(tmp_path / "out")) == end
    train(run_file, 2, {**output, "training.patience": 5}, resume="auto")
    values = {row["step"]: row["eval_loss"] for row in evaluations(tmp_path / "out")}
    assert (max(values), int((checkpoints / "best_checkpoint").read_text().removeprefix("global_step"))) == end_of(values, 5)
    assert max(values) > end


def test_frozen_parameters_keep_their_values(tmp_path):
    model = make_model(tmp_path, "Bert", **labelled())
    before = load_file(tmp_path / "model" / "model.safetensors")
    rows = rows_of(16, 1)
    run_file = run_of(tmp_path, train_rows=rows)
    frozen = ["bert.embeddings", "bert.encoder.layer.[0]", "bert.encoder.layer.1.output.dense.bias"]
    for stage in (0, 3):
        train(run_file, 2, {"output": tmp_path / f"out{stage}", "deepspeed.zero_optimization.stage": stage, "model.freeze": json.dumps(frozen)})
    for name, parameter in model.named_parameters():
        if name.startswith(("bert.embeddings.", "bert.encoder.layer.0.")) or name == frozen[2]:
            parameter.requires_grad_(False)
    want = train_in_torch(model, rows, STEPS)
    for stage in (0, 3):
        assert [row["loss"] for row in metrics(tmp_path / f"out{stage}")] == pytest.approx(want, rel=1e-5)
        after = load_file(tmp_path / f"out{stage}" / "export" / "model.safetensors")
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed == {name for name, parameter in model.named_parameters() if parameter.requires_grad} - {
            name for name in before if torch.equal(before[name], after[name])}
        assert not any(name.startswith(("bert.embeddings.", "bert.encoder.layer.0.")) for name in changed)
        assert "classifier.weight" in changed and frozen[2] not in changed
    train(run_file, 2, {"output": tmp_path / "all", "training.max_steps": 1})
    # What is frozen has no moments: two fp32 numbers of each parameter.
    held_back = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    states = [metrics(tmp_path / output)[0]["model_state_bytes"] for output in ("out0", "all")]
    assert states[1] - states[0] >= 8 * held_back


def test_a_share_of_the_training_data_is_held_out(tmp_path):
    make_model(tmp_path, "Bert", **labelled())
    run_file = run_of(tmp_path, train_rows=rows_of(40, 1), max_steps=2)
    for ranks in (1, 2):
        result = train(run_file, ranks, {"data.eval_share": 0.25, "deepspeed.train_batch_size": 6, "output": tmp_path / f"out{ranks}"})
        assert "10 samples of data.train are held out, 30 are trained on" in result.err, str(result)
    losses = [[row["eval_loss"] for row in evaluations(tmp_path / f"out{ranks}")] for ranks in (1, 2)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and evaluations(tmp_path / "out2")[-1]["eval_samples"] == 10
    assert metrics(tmp_path / "out1")[-1]["epoch"] == pytest.approx(2 / 5)  # 30 samples, 6 a step
    other = train(run_file, 1, {"data.eval_share": 0.25, "training.seed": 7, "output": tmp_path / "other"})
    assert "10 samples" in other.err and evaluations(tmp_path / "other")[-1]["eval_loss"] != losses[0][-1]


def test_language_models_report_their_perplexity(tiny_run, tmp_path, texts):
    tiny_run["data"]["eval"] = str(texts / "held_back.parquet")
    tiny_run["training"]["max_steps"] = 2
    result = train(write_run_file(tmp_path, tiny_run), 2, {"output": tmp_path / "out"})
    last = evaluations(tmp_path / "out")[-1]
    assert last["eval_perplexity"] == pytest.approx(math.exp(last["eval_loss"]), rel=1e-12)
    assert f"perplexity {last['eval_perplexity']:.4f}" in result.err


BAD = [
    ({"data.labels": "[lots, non, some]"}, "'none' in the column 'label' is none of the labels"),
    ({"data.label_column": "lable"}, "there is no column 'lable'"),
    ({"data.text_pair_column": "second"}, "there is no column 'second'"),
    ({"data.labels": "[lots]"}, "names one label alone"),
    ({"data.labels": "[lots, none, lots]"}, "names 'lots' twice"),
    ({"data.train": "one.jsonl"}, "all rows have the label 'lots'"),
    ({"data.train": "floats.jsonl"}, "'label' is 0.5, which is no label"),
    ({"data.train": "floats.csv"}, "'0.5' in the column 'label' is a number, but no whole one"),
    ({"data.train": "floats.parquet"}, "the column 'label' holds double, not labels"),
    ({"data.train": "texts.txt"}, "a .txt file has texts alone"),
    ({"data.packing": "fit"}, "which the task classification does not know"),
    ({"data.long_text": "chunk"}, "its label is that of the whole"),
    ({"adapter.rank": 2}, "an adapter beside the model is not supported by the task classification"),
    ({"training.best_by": "eval_acuracy"}, "did you mean 'eval_accuracy'"),
    ({"model.freeze": "[bert.embedings]"}, "did you mean 'bert.embeddings'"),
    ({"model.freeze": "['*']"}, "every parameter of the model is frozen"),
    ({"data.eval_share": 0.3}, "but 'data.eval' names what to evaluate on"),
    ({"data.eval": "[]", "data.eval_share": 0.01}, "holds out 0 of 16 samples"),
    ({"data.eval": "[]", "training.patience": 2}, "there is nothing to evaluate on"),
    ({"task": "clm"}, "and a 'bert' is none"),
]


@pytest.fixture(scope="module")
def bad_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    make_model(folder, "Bert", head="MaskedLM")
    run_of(folder, eval_rows=rows_of(7, 2))
    write_rows(folder / "one.jsonl", rows_of(16, 1, ["lots"]))
    for suffix in ("jsonl", "csv", "parquet"):
        write_rows(folder / f"floats.{suffix}", rows_of(16, 1, [0.5, 1.5]))
    (folder / "texts.txt").write_text("a b\nc d\n")
    return folder


@pytest.mark.parametrize("settings, what", BAD, ids=str)
def test_what_makes_no_sense_is_one_clear_error(bad_folder, settings, what):
    result = tessera(*train_arguments("run.yaml", 2, {"output": "out", **settings}), cwd=bad_folder)
    assert result.code == 2 and what in result.err, str(result)
    assert not (bad_folder / "out" / "checkpoints").exists()


@pytest.mark.parametrize("labels, what", [("[none, lots, some]", "in another order"), ("[a, b]", "names 2 labels, but the model tells 3 apart")])
def test_a_head_that_is_there_keeps_its_labels(tmp_path, labels, what):
    make_model(tmp_path, "Bert", **labelled())
    result = tessera(*train_arguments(run_of(tmp_path), 1, {"output": tmp_path / "out", "data.labels": labels}))
    assert result.code == 2 and what in result.err, str(result)


def test_predicting_numbers_is_refused(tmp_path):
    make_model(tmp_path, "Bert", num_labels=1, problem_type="regression")
    result = tessera(*train_arguments(run_of(tmp_path), 1, {"output": tmp_path / "out"}))
    assert result.code == 2 and "problem_type is regression, which is not supported" in result.err, str(result)
