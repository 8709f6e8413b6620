"""Generated tokens against transformers' generate() on the same weights, token for token: greedy, drawn from the same generator's
numbers, and by beam search."""

import itertools
import json
import subprocess

import pytest
import torch
from test_causal_parity import TOOL, VOCAB, make_model
from test_seq2seq_parity import make_model as make_seq2seq

GENERATE = TOOL.parent / "generate_tool"
PROMPTS = [[5], [7, 20, 99, 3, 50], list(range(10, 40))]
EOS = 17


SAMPLE = ("llama3", "gemma3", "t5")


@pytest.fixture(scope="module", params=["llama3", "mistral", "gemma3", "gpt2", "t5", "t5-1.1", "silu"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model = make_seq2seq(request.param) if request.param in ("t5", "t5-1.1", "silu") else make_model(request.param)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    return folder, model


def generate(folder, *requests):
    """The rows of all requests, one behind the other."""
    done = subprocess.run([GENERATE, folder, *map(json.dumps, requests)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [[int(token) for token in line.split()] for line in done.stdout.splitlines()]


def generated_rows(folder, **options):
    return generate(folder, options)


def generated(folder, **options):
    [row] = generated_rows(folder, **options)
    return row


def wanted_rows(model, prompts, **options):
    """Padded before the texts; an encoder's after them. What follows a row's end is padding, too."""
    longest, encodes = max(map(len, prompts)), model.config.is_encoder_decoder
    rows = [[(token, 1) for token in prompt] for prompt in prompts]
    rows = [row + [(0, 0)] * (longest - len(row)) if encodes else [(0, 0)] * (longest - len(row)) + row for row in rows]
    ids, mask = torch.tensor(rows).unbind(2)
    made = model.generate(ids, attention_mask=mask, pad_token_id=0, **options)[:, 1 if encodes else longest:].tolist()
    stops = options.get("eos_token_id") or []
    return [row[:next((at + 1 for at, token in enumerate(row) if token in stops), len(row))] for row in made]


def wanted(model, prompt, **options):
    [row] = wanted_rows(model, [prompt], **options)
    return row


@pytest.mark.sample(*(f"{kind}-{len(prompt)}" for kind in SAMPLE for prompt in PROMPTS))
@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_greedy(model, prompt):
    folder, reference = model
    stops = [[], [EOS], [EOS, *range(60, 70)]]
    got = generate(folder, *({"prompt": prompt, "max_new_tokens": 30, "stop_tokens": stop} for stop in stops))
    assert got == [wanted(reference, prompt, max_new_tokens=30, do_sample=False, eos_token_id=stop or None) for stop in stops]


WAYS = [{"temperature": 1.0}, {"temperature": 0.7, "top_k": 20}, {"temperature": 1.3, "top_p": 0.8}, {"temperature": 0.9, "top_k": 40, "top_p": 0.5}]


@pytest.mark.sample(*(f"{kind}-{how}" for kind in SAMPLE for how in WAYS))
@pytest.mark.parametrize("how", WAYS, ids=str)
def test_drawn(model, how):
    folder, reference = model
    options = {"top_k": 0, "top_p": 1.0, **how}
    got = generate(folder, *({"prompt": PROMPTS[1], "max_new_tokens": 30, "seed": seed, **how} for seed in (1, 2)))
    for seed, row in zip((1, 2), got, strict=True):
        torch.manual_seed(seed)
        assert row == wanted(reference, PROMPTS[1], max_new_tokens=30, do_sample=True, eos_token_id=None, **options)


@pytest.mark.sample("llama3-1.0-2", "llama3-0.0-3", "gemma3-0.0-2", "gemma3-2.0-5", "t5-0.0-5", "t5-1.0-2")
@pytest.mark.parametrize("beams", [2, 3, 5])
@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.0])
def test_beams(model, beams, penalty):
    folder, reference = model
    cases = list(itertools.product(PROMPTS, ([EOS], [EOS, *range(60, 75)])))
    rows = generate(folder, *({"prompt": prompt, "max_new_tokens": 16, "stop_tokens": stop, "beams": beams, "length_penalty": penalty}
                              for prompt, stop in cases))
    for (prompt, stop), got in zip(cases, rows, strict=True):
        want = wanted(reference, prompt, max_new_tokens=16, do_sample=False, num_beams=beams, length_penalty=penalty,
                      early_stopping=False, eos_token_id=stop)
        assert got == want, (prompt, stop)


@pytest.mark.sample(*SAMPLE)
def test_rows_of_different_lengths_are_each_what_they_are_alone(model):
    folder, reference = model
    free = generated_rows(folder, prompts=PROMPTS, max_new_tokens=24)
    for stop in ([], [free[1][4]]):  # which ends one row at least before the others
        how = {"max_new_tokens": 24, "stop_tokens": stop}
        got = generated_rows(folder, prompts=PROMPTS, **how)
        assert got == generate(folder, *({"prompt": prompt, **how} for prompt in PROMPTS))
        assert got == wanted_rows(reference, PROMPTS, max_new_tokens=24, do_sample=False, eos_token_id=stop or None)
    assert len(got[1]) <= 5 and len(free[1]) == 24


def common_prefix(one, other):
    return next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def turns_of(folder, turns, new=8):
    """Of each turn: its new tokens, and how many positions were computed."""
    done = subprocess.run([GENERATE, folder, json.dumps({"turns": turns, "max_new_tokens": new})], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [line.split("|") for line in done.stdout.splitlines()]
    return [([int(token) for token in tokens.split()], int(computed)) for tokens, computed in lines]


@pytest.mark.sample(*SAMPLE)
def test_a_text_that_begins_as_the_one_before_computes_only_what_is_new(model):
    """Turns that go on, that leave the one before in the middle, that are a part of it, or it itself, and that have nothing of it."""
    folder, reference = model
    if reference.config.is_encoder_decoder:
        pytest.skip("an encoder reads each text anew")
    longer = [*PROMPTS[1], *wanted(reference, PROMPTS[1], max_new_tokens=8, do_sample=False), 60, 61, 62]
    turns = [PROMPTS[1], longer, [*longer[:9], 63, 64], longer[:6], longer[:6], [70, 71]]
    kept, known = [], []
    for turn, (got, computed) in zip(turns, turns_of(folder, turns), strict=True):
        assert got == wanted(reference, turn, max_new_tokens=8, do_sample=False), turn
        known.append(min(common_prefix(kept, turn), len(turn) - 1))
        assert computed == len(turn) - known[-1] + 7, turn
        kept = [*turn, *got[:-1]]  # the last token was chosen, not read
    assert known == [0, 12, 9, 5, 5, 0]


def test_nothing_is_kept_of_a_text_whose_positions_were_turned_otherwise(tmp_path):
    """longrope turns texts of more than 24 tokens by other frequencies."""
    reference = make_model("llama-longrope")
    reference.generation_config.eos_token_id = None
    reference.save_pretrained(tmp_path)
    turns = [list(range(10, 28)), list(range(10, 30)), list(range(10, 42)), list(range(10, 48))]  # the second grows beyond
    got = turns_of(tmp_path, turns, new=5)
    assert [tokens for tokens, _ in got] == [wanted(reference, turn, max_new_tokens=5, do_sample=False) for turn in turns]
    assert [computed for _, computed in got] == [18 + 4, 2 + 4, 32 + 4, 6 + 4]


@pytest.mark.sample(*SAMPLE)
def test_rows_are_drawn_as_transformers_draws_them(model):
    folder, reference = model
    how = {"temperature": 0.9, "top_k": 40, "top_p": 0.8}
    for stop in ([], [EOS, *range(60, 70)]):
        torch.manual_seed(3)
        want = wanted_rows(reference, PROMPTS, max_new_tokens=20, do_sample=True, eos_token_id=stop or None, **how)
        assert generated_rows(folder, prompts=PROMPTS, max_new_tokens=20, stop_tokens=stop, seed=3, **how) == want


@pytest.mark.sample(*SAMPLE)
def test_beams_of_several_rows(model):
    folder, reference = model
    got = generated_rows(folder, prompts=PROMPTS, max_new_tokens=12, stop_tokens=[EOS], beams=3)
    assert got == [wanted(reference, prompt, max_new_tokens=12, do_sample=False, num_beams=3, early_stopping=False, eos_token_id=[EOS]) for prompt in PROMPTS]


def test_the_token_before_the_first_that_a_decoder_writes(tmp_path):
    model = make_seq2seq("t5")
    model.generation_config.eos_token_id = None
    model.save_pretrained(tmp_path)
    rows = [generated(tmp_path, prompt=PROMPTS[1], max_new_tokens=10, decoder_start=start) for start in (9, 0)]
    for start, got in zip((9, 0), rows):
        assert got == wanted(model, PROMPTS[1], max_new_tokens=10, do_sample=False, decoder_start_token_id=start, eos_token_id=None)
    assert rows[0] != rows[1]
    done = subprocess.run([GENERATE, tmp_path, json.dumps({"prompt": [1], "decoder_start": VOCAB})], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "decoder_start_token_id is 131, of 131 tokens" in done.stderr, done.stderr


REFUSED = [
    ({"prompt": []}, "the prompt has no token"), ({"prompt": [1], "max_new_tokens": 0}, "max_new_tokens is 0"),
    ({"prompt": [1], "temperature": -1}, "the temperature is -1"), ({"prompt": [1], "top_p": 0}, "top_p is 0"),
    ({"prompt": [1], "beams": 0}, "the number of beams is 0"), ({"prompt": [1], "beams": 2, "temperature": 1}, "beam search draws nothing"),
]


@pytest.mark.sample(*(f"llama3-{options}-{what}" for options, what in REFUSED))
@pytest.mark.parametrize("options, what", REFUSED, ids=str)
def test_options_that_make_no_sense_are_refused(model, options, what):
    done = subprocess.run([GENERATE, model[0], json.dumps(options)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and what in done.stderr, done.stderr


def test_the_vocabulary_is_that_of_the_models():
    assert VOCAB > 75  # or the stop tokens above are none
