"""The task seq2seq from the command line: T5 trained as transformers trains it, the same bits at every stage, documents' data."""

import json

import pytest
import sacrebleu
import torch
import transformers
from fixtures import STAGES
from tessera_runs import evaluations, losses_and_norms, metrics, tessera, train, train_arguments, write_run_file
from test_causal_lm import LETTERS
from test_instruction_tuning import ANSWERS, QUESTIONS, ids_of, letters

SIZES = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0}


def text_of(ids):
    return " ".join(LETTERS[token] for token in ids if not LETTERS[token].startswith("[")).replace(" ##", "")


def run_of(folder, starts=None, ends=None, **config):
    """`starts`, `ends`: the tokens with which generation_config.json has texts begin and end."""
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=len(LETTERS), **SIZES, **config))
    if starts:
        model.generation_config.decoder_start_token_id, model.generation_config.eos_token_id = LETTERS.index(starts), LETTERS.index(ends)
    model.save_pretrained(folder / "model")
    (folder / "model" / "vocab.txt").write_text("\n".join(LETTERS) + "\n")
    rows = [{"translation": {"en": letters(q), "ro": letters(a)}} for q, a in zip(QUESTIONS, ANSWERS)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = {"model": {"path": str(folder / "model")}, "task": "seq2seq",
           "data": {"train": str(folder / "train.jsonl"), "source_column": "translation.en", "target_column": "translation.ro",
                    "source_prefix": "t ", "max_length": 16, "max_target_length": 12},
           "training": {"max_steps": 20, "device": "cpu"},
           "deepspeed": {"train_batch_size": 16, "gradient_clipping": 0, "zero_optimization": {"stage": 0},
                         "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0}}}}
    return model, write_run_file(folder, run)


@pytest.mark.sample("max_length-t5-1.1")
@pytest.mark.parametrize("config", [{}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}], ids=["t5", "t5-1.1"])
@pytest.mark.parametrize("padding", ["longest", "max_length"])
def test_transformers_trains_alike(tmp_path, config, padding):
    model, run_file = run_of(tmp_path, **config)
    result = train(run_file, 2, {"output": tmp_path / "out", "deepspeed.zero_optimization.stage": 3, "data.padding": padding})
    assert "16 rows" in result.err, str(result)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
    rows = [(torch.tensor([ids_of(f"[CLS] t {letters(q)} [SEP]")]), torch.tensor([ids_of(f"[CLS] {letters(a)} [SEP]")])) for q, a in zip(QUESTIONS, ANSWERS)]
    want = []
    for _ in range(20):
        sums = [model(input_ids=source, labels=target).loss * target.shape[1] for source, target in rows]
        loss = sum(sums) / sum(target.shape[1] for _, target in rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        want.append(loss.item())
    assert [row["loss"] for row in metrics(tmp_path / "out")] == pytest.approx(want, rel=1e-5)
    assert want[-1] < 0.9 * want[0]
    exported, info = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out" / "export", output_loading_info=True)
    assert not any(info.values()), info
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(exported.get_parameter(name), parameter, rtol=1e-3, atol=1e-4)


@pytest.mark.sample("bf16")
@pytest.mark.parametrize("precision", [{}, {"deepspeed.bf16.enabled": "true"}], ids=["fp32", "bf16"])
def test_the_same_bits_at_every_stage(tmp_path, precision):
    _, run_file = run_of(tmp_path)
    more = {**precision, "deepspeed.train_batch_size": 8, "training.max_steps": 6, "model.dropout": 0.1}
    for stage in STAGES:
        train(run_file, 2, {**more, "deepspeed.zero_optimization.stage": stage, "output": tmp_path / f"stage{stage}"})
    bits = [losses_and_norms(tmp_path / f"stage{stage}") for stage in STAGES]
    assert len(bits[0]) == 6
    assert bits[1:] == [bits[0]] * 3
    train(run_file, 2, {**more, "deepspeed.zero_optimization.stage": 3, "training.activation_checkpointing": "true", "output": tmp_path / "again"})
    assert losses_and_norms(tmp_path / "again") == bits[0]


@pytest.mark.sample("2-3-5-[CLS]", "3-3-5-[PAD]")
@pytest.mark.parametrize("ranks, stage, scored, starts", [(1, 0, 7, "[PAD]"), (2, 3, 5, "[CLS]"), (3, 3, 5, "[PAD]"), (3, 2, 2, "[PAD]")])
def test_an_evaluation_scores_what_the_model_writes(tmp_path, ranks, stage, scored, starts):
    """By sacrebleu, of what transformers writes with the exported model. Ranks have texts of different lengths, fewer texts, or none. The
    model was trained to begin with [PAD]; where generation_config.json names another token, both begin with that."""
    _, run_file = run_of(tmp_path, starts=starts, ends="[SEP]")
    pairs = [(f"t {letters(q)}", letters(a)) for q, a in zip(QUESTIONS, ANSWERS)]
    held_out = pairs[9:]
    rows = [{"translation": {"en": letters(q), "ro": letters(a)}} for q, a in zip(QUESTIONS[9:], ANSWERS[9:])]
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = train(run_file, ranks, {"output": tmp_path / "out", "deepspeed.zero_optimization.stage": stage, "data.eval": tmp_path / "eval.jsonl",
                                     "deepspeed.train_batch_size": 12, "deepspeed.train_micro_batch_size_per_gpu": 1 if ranks > 1 else 3,
                                     "deepspeed.optimizer.params.lr": 5e-3, "training.max_steps": 120, "training.eval_steps": 60,
                                     "training.eval_bleu": scored}, timeout=300)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out" / "export").eval()
    chosen = [held_out[i * len(held_out) // scored] for i in range(scored)]
    texts = [text_of(model.generate(torch.tensor([ids_of(f"[CLS] {source} [SEP]")]), max_new_tokens=12, do_sample=False, num_beams=1)[0, 1:]) for source, _ in chosen]
    want = sacrebleu.corpus_bleu(texts, [[target for _, target in chosen]])
    got = [row["eval_bleu"] for row in evaluations(tmp_path / "out")]
    assert len(got) == 2 and got[-1] == pytest.approx(want.score, rel=1e-9)
    assert want.counts[0] > 0 and len({len(text) for text in texts}) > 1, texts
    assert f"bleu {want.score:.4f}" in result.err, str(result)


def test_scoring_changes_nothing_of_the_training(tmp_path):
    _, run_file = run_of(tmp_path)
    more = {"model.dropout": 0.1, "data.eval": tmp_path / "train.jsonl", "training.eval_steps": 2, "training.max_steps": 6, "deepspeed.zero_optimization.stage": 3}
    for scored in (0, 4):
        train(run_file, 2, {**more, "training.eval_bleu": scored, "output": tmp_path / str(scored)})
    assert losses_and_norms(tmp_path / "4") == losses_and_norms(tmp_path / "0")
    assert ["eval_bleu" in row for row in evaluations(tmp_path / "4")] == [True] * 3
    assert not any("eval_bleu" in row for row in evaluations(tmp_path / "0"))


@pytest.mark.parametrize("settings, what", [
    ({"training.eval_bleu": 3}, "and there is neither data.eval nor data.eval_share"),
    ({"data.packing": "fit"}, "which the task seq2seq does not know"), ({"data.target_column": "translation.de"}, "there is no column 'translation.de'"),
    ({"data.max_target_length": 2}, "data.max_target_length is 2"), ({"task": "clm"}, "and a 't5' is none"),
], ids=str)
def test_what_makes_no_sense_is_refused(tmp_path, settings, what):
    _, run_file = run_of(tmp_path)
    result = tessera(*train_arguments(run_file, 1, {"output": tmp_path / "out", **settings}))
    assert result.code == 2 and what in result.err, str(result)
