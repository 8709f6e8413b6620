"""The task dpo from the command line, beside plain torch loops over transformers' and PEFT's models with the paper's loss."""

import copy
import json

import peft
import pytest
import torch
import yaml
from fixtures import STAGES
from safetensors.torch import load_file, save_file
from tessera_runs import evaluations, losses_and_norms, metrics, tessera, train, train_arguments
from test_adapters import peft_model
from test_causal_lm import run_of
from test_instruction_tuning import TEMPLATE, ids_of, letters

PROMPTS = [[(5 * i + j * j) % 26 for j in range(2 + i % 4)] for i in range(16)]
CHOSEN = [[(11 * i + 2 * j) % 26 for j in range(1 + i % 5)] for i in range(16)]
REJECTED = [[(11 * i + 2 * j + 13) % 26 for j in range(1 + (i + 2) % 5)] for i in range(16)]
TEXTS = [{"prompt": letters(p), "chosen": " " + letters(c), "rejected": " " + letters(r)} for p, c, r in zip(PROMPTS, CHOSEN, REJECTED)]
MESSAGES = [{"prompt": [{"role": "user", "content": letters(p)}], "chosen": [{"role": "assistant", "content": letters(c)}],
             "rejected": [{"role": "assistant", "content": letters(r)}]} for p, c, r in zip(PROMPTS, CHOSEN, REJECTED)]
# (prompt's tokens, chosen, rejected): prompt and answer each
PAIRS = [(len(p) + 1, *(ids_of(f"[CLS] {letters(p)} {letters(answer)} [SEP]") for answer in (c, r))) for p, c, r in zip(PROMPTS, CHOSEN, REJECTED)]


def preference_run(folder, rows=TEXTS, held_out=None):
    model, run_file = run_of(folder, "llama")
    settings = {"task": "dpo", "data.train": folder / "train.jsonl", "output": folder / "out"}
    for name, some in {"train": rows, "eval": held_out}.items():
        if some:
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
            settings[f"data.{name}"] = folder / f"{name}.jsonl"
    return model, run_file, settings


def log_probs(model, pairs):
    """Of each answer together: (chosen, rejected) of each pair."""
    both = []
    for prompt, *answers in pairs:
        for ids in answers:
            row = torch.tensor([ids])
            each = model(row).logits[0, :-1].log_softmax(-1).gather(1, row[0, 1:, None])[:, 0]
            both.append(each[prompt - 1:].sum())
    return torch.stack(both).view(-1, 2)


def losses_of(policy, reference, pairs, loss="sigmoid", beta=0.1, smoothing=0.0):
    """Rafailov et al. 2023, equation 7; with smoothing Mitchell 2023 (cDPO); hinge: Liu et al. 2023 (RSO), section 3.2; ipo: Azar et al. 2023, equation 17,
    of means over the answers' tokens, as TRL's DPOTrainer has it."""
    ratios = policy - reference
    delta = beta * (ratios[:, 0] - ratios[:, 1])
    if loss == "hinge":
        return torch.relu(1 - delta)
    if loss == "ipo":
        lengths = torch.tensor([[len(ids) - prompt for ids in answers] for prompt, *answers in pairs])
        means = ratios / lengths
        return (means[:, 0] - means[:, 1] - 1 / (2 * beta)) ** 2
    return -torch.nn.functional.logsigmoid(delta) * (1 - smoothing) - torch.nn.functional.logsigmoid(-delta) * smoothing


def trained_by_torch(model, reference=None, pairs=PAIRS, steps=20, **options):
    """`reference`: gives the log-probabilities of the pairs; None: those of the model before it is trained."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0)
    first = copy.deepcopy(model)
    losses = []
    for _ in range(steps):
        with torch.no_grad():
            held = reference() if reference else log_probs(first, pairs)
        loss = losses_of(log_probs(model, pairs), held, pairs, **options).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def losses(folder):
    return [row["loss"] for row in metrics(folder)]


@pytest.mark.sample("2-3")
@pytest.mark.parametrize("nproc, stage", [(1, 0), (2, 0), (1, 3), (2, 3)])
def test_torch_trains_alike(tmp_path, nproc, stage):
    model, run_file, settings = preference_run(tmp_path)
    result = train(run_file, nproc, {**settings, "deepspeed.zero_optimization.stage": stage})
    assert "16 rows; 16 pairs" in result.err and "the reference: log-probabilities of 16 pairs" in result.err, str(result)
    want = trained_by_torch(model)
    assert losses(tmp_path / "out") == pytest.approx(want, rel=1e-5)
    assert want[-1] < 0.7 * want[0]
    exported = model.from_pretrained(tmp_path / "out" / "export")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(exported.get_parameter(name), parameter, rtol=1e-3, atol=1e-4)


@pytest.mark.sample("4-3")
@pytest.mark.parametrize("nproc, stage", [(2, 0), (4, 3)])
def test_tensor_ranks_have_the_reference_of_one_process(tmp_path, nproc, stage):
    model, run_file, settings = preference_run(tmp_path)
    settings.update({"parallel.tensor": 2, "deepspeed.zero_optimization.stage": stage})
    result = train(run_file, nproc, settings)
    assert result.err.count("the reference: log-probabilities of 16 pairs") == 1 and "tp 2" in result.err, str(result)
    assert losses(tmp_path / "out") == pytest.approx(trained_by_torch(model), rel=1e-5)
    again = train(run_file, nproc, {**settings, "training.max_steps": 22}, resume="auto")  # which reads it
    assert "the reference:" not in again.err, str(again)


@pytest.mark.sample("{'loss': 'ipo', 'beta': 0.4}")
@pytest.mark.parametrize("options", [{"loss": "sigmoid", "beta": 0.5, "smoothing": 0.2}, {"loss": "hinge", "beta": 0.3}, {"loss": "ipo", "beta": 0.4}], ids=str)
def test_other_losses(tmp_path, options):
    model, run_file, settings = preference_run(tmp_path)
    names = {"loss": "dpo.loss", "beta": "dpo.beta", "smoothing": "dpo.label_smoothing"}
    train(run_file, 2, {**settings, "deepspeed.train_micro_batch_size_per_gpu": 3, "deepspeed.train_batch_size": 18, "deepspeed.zero_optimization.stage": 2,
                        "data.padding": "longest", **{names[name]: value for name, value in options.items()}})
    want = trained_by_torch(model, **options)
    assert losses(tmp_path / "out") == pytest.approx(want, rel=1e-5, abs=2e-5)  # some end near 0
    assert want[-1] < 0.9 * want[0]


def test_messages_are_written_by_the_template(tmp_path):
    model, run_file, settings = preference_run(tmp_path, MESSAGES)
    (tmp_path / "simple.jinja").write_text(TEMPLATE)
    result = train(run_file, 2, {**settings, "data.chat_template": tmp_path / "simple.jinja"})
    assert "written by" in result.err, str(result)
    pairs = [(len(p) + 2, *(ids_of(f"q {letters(p)} z {letters(answer)}") for answer in (c, r))) for p, c, r in zip(PROMPTS, CHOSEN, REJECTED)]
    assert losses(tmp_path / "out") == pytest.approx(trained_by_torch(model, pairs=pairs), rel=1e-5)


@pytest.mark.sample("3-dora")
@pytest.mark.parametrize("dora", ["false", "true"], ids=["lora", "dora"])
@pytest.mark.parametrize("stage", [0, 3])
def test_a_new_adapter_beside_peft_whose_reference_is_the_model_without_it(tmp_path, stage, dora):
    model, run_file, settings = preference_run(tmp_path)
    settings.update({"adapter.rank": 4, "adapter.use_dora": dora, "deepspeed.zero_optimization.stage": stage})
    train(run_file, 1, {**settings, "training.max_steps": 1, "deepspeed.optimizer.params.lr": 0, "output": tmp_path / "first"})
    result = train(run_file, 2, settings)
    assert "the reference:" not in result.err and not (tmp_path / "out" / "reference.json").exists(), str(result)
    adapted = peft.PeftModel.from_pretrained(model, str(tmp_path / "first" / "export"), is_trainable=True)

    def base():
        with adapted.disable_adapter():
            return log_probs(adapted, PAIRS)

    want = trained_by_torch(adapted, base)
    assert losses(tmp_path / "out") == pytest.approx(want, rel=1e-5)
    assert want[-1] < 0.99 * want[0]
    got = load_file(tmp_path / "out" / "export" / "adapter_model.safetensors")
    for name, value in peft.get_peft_model_state_dict(adapted).items():
        torch.testing.assert_close(got[name], value, rtol=1e-3, atol=1e-4)


def test_an_adapter_that_was_trained_before_is_its_own_reference(tmp_path):
    """As in TRL 1.16, which keeps a copy of it."""
    model, run_file, settings = preference_run(tmp_path)
    adapted = peft_model(model, tmp_path / "adapter", "llama")
    result = train(run_file, 2, {**settings, "adapter.path": tmp_path / "adapter", "deepspeed.zero_optimization.stage": 3})
    assert "the reference: log-probabilities of 16 pairs" in result.err, str(result)
    assert losses(tmp_path / "out") == pytest.approx(trained_by_torch(adapted), rel=1e-5)


@pytest.mark.sample("bf16-adapter")
@pytest.mark.parametrize("adapter", [{}, {"adapter.rank": 4, "adapter.dropout": 0.1}], ids=["whole model", "adapter"])
@pytest.mark.parametrize("precision", [{}, {"deepspeed.bf16.enabled": "true"}], ids=["fp32", "bf16"])
def test_the_same_bits_at_every_stage(tmp_path, adapter, precision):
    _, run_file, settings = preference_run(tmp_path)
    more = {**settings, **adapter, **precision, "deepspeed.train_batch_size": 8, "training.max_steps": 6}
    for stage in STAGES:
        train(run_file, 2, {**more, "deepspeed.zero_optimization.stage": stage, "output": tmp_path / f"stage{stage}"})
    bits = [losses_and_norms(tmp_path / f"stage{stage}") for stage in STAGES]
    assert len(bits[0]) == 6 and bits[0][0] != bits[0][-1]
    assert bits[1:] == [bits[0]] * 3
    train(run_file, 2, {**more, "deepspeed.zero_optimization.stage": 3, "training.activation_checkpointing": "true", "output": tmp_path / "again"})
    assert losses_and_norms(tmp_path / "again") == bits[0]


@pytest.mark.sample("1-whole model", "2-adapter")
@pytest.mark.parametrize("adapter", [{}, {"adapter.rank": 4}], ids=["whole model", "adapter"])
@pytest.mark.parametrize("nproc", [1, 2])
def test_evaluations_report_rewards(tmp_path, nproc, adapter):
    """Of 11 pairs, so that ranks look at different numbers of them."""
    model, run_file, settings = preference_run(tmp_path, held_out=TEXTS[:11])
    train(run_file, nproc, {**settings, **adapter, "training.max_steps": 5, "training.eval_at_start": "true", "deepspeed.zero_optimization.stage": 3,
                            "deepspeed.train_micro_batch_size_per_gpu": 2})
    first, *_, last = evaluations(tmp_path / "out")
    assert first["eval_loss"] == pytest.approx(0.693147, rel=1e-5) and first["eval_reward_margin"] == pytest.approx(0, abs=1e-6)
    assert last["eval_samples"] == 11
    before = log_probs(model, PAIRS[:11])
    trained = model.from_pretrained(tmp_path / "model")
    if adapter:
        trained = peft.PeftModel.from_pretrained(trained, str(tmp_path / "out" / "export"))
    else:
        trained = model.from_pretrained(tmp_path / "out" / "export")
    after = log_probs(trained, PAIRS[:11])
    margins = 0.1 * ((after - before)[:, 0] - (after - before)[:, 1])
    assert last["eval_loss"] == pytest.approx(losses_of(after, before, PAIRS[:11]).mean().item(), rel=1e-5)
    assert last["eval_reward_margin"] == pytest.approx(margins.mean().item(), rel=1e-4, abs=2e-6)
    assert last["eval_reward_accuracy"] == pytest.approx((margins > 0).double().mean().item()) and last["eval_reward_accuracy"] > 0.5


def resumed(folder, change=None, **more):
    """A run of 4 steps, then of 10; `change` comes between them."""
    _, run_file, settings = preference_run(folder, held_out=TEXTS[:5])
    settings.update({"deepspeed.train_batch_size": 4, "deepspeed.zero_optimization.stage": 3, **more})
    train(run_file, 2, {**settings, "training.max_steps": 4})
    if change:
        change(folder)
    return run_file, settings, tessera(*train_arguments(run_file, 2, {**settings, "training.max_steps": 10}, resume="auto"))


@pytest.mark.sample("-adapter")
@pytest.mark.parametrize("adapter", [{}, {"adapter.rank": 4}], ids=["whole model", "adapter"])
@pytest.mark.parametrize("deleted", [False, True], ids=["", "without the file"])
def test_a_run_resumes_to_the_same_bits(tmp_path, deleted, adapter):
    run_file, settings, result = resumed(tmp_path, (lambda folder: (folder / "out" / "reference.json").unlink(missing_ok=True)) if deleted else None, **adapter)
    assert result.code == 0, str(result)
    assert ("the reference: log-probabilities of 21 pairs" in result.err) == (deleted and not adapter), str(result)
    train(run_file, 2, {**settings, "training.max_steps": 10, "output": tmp_path / "whole"})
    assert losses_and_norms(tmp_path / "out") == losses_and_norms(tmp_path / "whole")


def damage(folder):
    path = folder / "out" / "reference.json"
    text = path.read_text()
    place = text.index(".", text.index("log_probs")) + 1
    path.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1:])


def change_a_row(folder):
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [{**TEXTS[0], "chosen": " z z"}, *TEXTS[1:]]))


def change_the_model(folder):
    weights = load_file(folder / "model" / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, folder / "model" / "model.safetensors", {"format": "pt"})


@pytest.mark.sample("damaged", "other model")
@pytest.mark.parametrize("change, what", [(damage, "does not match its checksum"), (change_a_row, "computed with other data"), (change_the_model, "computed with another model"),
                                          (lambda folder: (folder / "out" / "reference.json").write_text("{"), "does not match its checksum")],
                         ids=["damaged", "other data", "other model", "cut"])
def test_a_reference_that_does_not_fit_is_refused(tmp_path, change, what):
    _, _, result = resumed(tmp_path, change)
    assert result.code == 2 and what in result.err and "reference.json" in result.err, str(result)


def test_a_run_that_begins_anew_does_not_read_it(tmp_path):
    _, run_file, settings = preference_run(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "reference.json").write_text("nothing")
    train(run_file, 1, {**settings, "training.max_steps": 1})
    written = json.loads((tmp_path / "out" / "reference.json").read_text())
    assert written["format"] == "tessera-reference" and len(written["log_probs"]) == 32
    again = tessera(*train_arguments(run_file, 1, {**settings, "training.max_steps": 1}))
    assert again.code == 2 and "already holds a run" in again.err, str(again)


@pytest.mark.parametrize("rows, what", [
    ([{"prompt": "a", "chosen": " b"}], "there is no 'rejected': its keys are 'prompt', 'chosen'"),
    ([TEXTS[0], {"chosen": "a b", "rejected": "c d"}], "'chosen' and 'rejected' begin with nothing in common"),
    ([{"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "user", "content": "b"}]}], "begin with nothing in common"),
    ([{"prompt": "a", "chosen": [{"content": "b"}], "rejected": [{"role": "user", "content": "b"}]}], "'chosen' is neither a text nor a list of messages with roles"),
    ([{"prompt": "a", "chosen": "b", "rejected": [{"role": "user", "content": "b"}]}], "one of 'chosen' and 'rejected' is a text, the other is not"),
    ([{"prompt": ["a"], "chosen": "b", "rejected": "c"}], "are texts, but 'prompt' is not"),
    ([{"prompt": "a", "chosen": " b", "rejected": " b"}, {"prompt": "a", "chosen": "", "rejected": " b"}],
     "no row is left of 2: in 0 the prompt fills data.max_length, in 1 an answer is empty, in 1 both answers are the same"),
    (MESSAGES, "has no chat template"),
], ids=range(8))
def test_rows_that_are_no_preferences_are_refused(tmp_path, rows, what):
    _, run_file, settings = preference_run(tmp_path, rows)
    result = tessera(*train_arguments(run_file, 1, settings))
    assert result.code == 2 and what in result.err, str(result)
    assert "train.jsonl" in result.err or rows is MESSAGES, str(result)


def test_what_is_left_out_and_cut_is_said(tmp_path):
    long = " ".join("a" * 30)
    rows = [*TEXTS, {"prompt": "a", "chosen": " b", "rejected": " b"}, {"prompt": "a", "chosen": "", "rejected": " b"}, {"prompt": long, "chosen": " b", "rejected": " c"},
            {"prompt": "a", "chosen": " b", "rejected": " " + long}]
    _, run_file, settings = preference_run(tmp_path, rows)
    result = train(run_file, 1, {**settings, "training.max_steps": 1})
    for text in ("20 rows; 17 pairs", "1 of 20 rows left out, because chosen and rejected are the same", "1 of 20 rows left out, because an answer is empty",
                 "1 of 20 rows left out, because the prompt alone fills data.max_length", "1 of 20 rows have an answer that is cut"):
        assert text in result.err, str(result)


@pytest.mark.parametrize("name, content, what", [
    ("train.txt", "a b\n", "preferences are not read from '.txt' files"), ("train.csv", "prompt,chosen,rejcted\na,b,c\n", "there is no column 'rejected'"),
    ("train.csv", "prompt,chosen,rejected\na,b\n", "the record has 2 values, but there are 3 columns"),
], ids=["txt", "column", "record"])
def test_files_that_do_not_fit_are_refused(tmp_path, name, content, what):
    _, run_file, settings = preference_run(tmp_path)
    (tmp_path / name).write_text(content)
    result = tessera(*train_arguments(run_file, 1, {**settings, "data.train": tmp_path / name}))
    assert result.code == 2 and what in result.err, str(result)


@pytest.mark.parametrize("settings, what", [
    ({"dpo.beta": 0}, "dpo.beta"), ({"dpo.label_smoothing": 0.5}, "dpo.label_smoothing"), ({"dpo.loss": "sigmoit"}, "dpo.loss"),
    ({"dpo.loss": "hinge", "dpo.label_smoothing": 0.1}, "'dpo.label_smoothing' is of the loss sigmoid"),
    ({"data.packing": "fit"}, "'data.packing' lays several samples in a row, which the task dpo does not know"),
    ({"task": "sft", "dpo.beta": 0.2}, "'dpo.beta' is of the task dpo, and the run's task is sft"),
], ids=str)
def test_what_makes_no_sense_is_refused(tmp_path, settings, what):
    _, run_file, own = preference_run(tmp_path)
    result = tessera(*train_arguments(run_file, 1, {**own, **settings}))
    assert result.code == 2 and what in result.err, str(result)


def test_a_run_without_a_run_file(tmp_path):
    preference_run(tmp_path)
    result = tessera("train", "--model", tmp_path / "model", "--task", "dpo", "--data", tmp_path / "train.jsonl", "--output", tmp_path / "out", "--lora", 8,
                     "--set", "training.max_steps=2", "--nproc", 2)
    assert result.code == 0, str(result)
    made = yaml.safe_load((tmp_path / "out" / "run.yaml").read_text())
    assert float(made["deepspeed"]["optimizer"]["params"]["lr"]) == pytest.approx(1e-5)  # a preference moves a model that writes well already
    assert len(metrics(tmp_path / "out")) == 2
