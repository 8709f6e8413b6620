"""Generated tokens against transformers' generate() on the same weights, token for token: greedy, drawn from the same generator's
numbers, and by beam search."""

import json
import subprocess

import pytest
import torch
from test_causal_parity import TOOL, VOCAB, make_model

GENERATE = TOOL.parent / "generate_tool"
PROMPTS = [[5], [7, 20, 99, 3, 50], list(range(10, 40))]
EOS = 17


@pytest.fixture(scope="module", params=["llama3", "mistral", "gpt2"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model = make_model(request.param)
    model.save_pretrained(folder)
    return folder, model


def generated(folder, **options):
    done = subprocess.run([GENERATE, folder, json.dumps(options)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [int(token) for token in done.stdout.split()]


def wanted(model, prompt, **options):
    ids = torch.tensor([prompt])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
    return made[0, len(prompt):].tolist()


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_greedy(model, prompt):
    folder, reference = model
    for stop in ([], [EOS], [EOS, *range(60, 70)]):
        got = generated(folder, prompt=prompt, max_new_tokens=30, stop_tokens=stop)
        assert got == wanted(reference, prompt, max_new_tokens=30, do_sample=False, eos_token_id=stop or None)


@pytest.mark.parametrize("how", [{"temperature": 1.0}, {"temperature": 0.7, "top_k": 20}, {"temperature": 1.3, "top_p": 0.8},
                                 {"temperature": 0.9, "top_k": 40, "top_p": 0.5}], ids=str)
def test_drawn(model, how):
    folder, reference = model
    options = {"top_k": 0, "top_p": 1.0, **how}
    for seed in (1, 2):
        torch.manual_seed(seed)
        want = wanted(reference, PROMPTS[1], max_new_tokens=30, do_sample=True, eos_token_id=None, **options)
        assert generated(folder, prompt=PROMPTS[1], max_new_tokens=30, seed=seed, **how) == want


@pytest.mark.parametrize("beams", [2, 3, 5])
@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.0])
def test_beams(model, beams, penalty):
    folder, reference = model
    for prompt in PROMPTS:
        for stop in ([EOS], [EOS, *range(60, 75)]):
            got = generated(folder, prompt=prompt, max_new_tokens=16, stop_tokens=stop, beams=beams, length_penalty=penalty)
            want = wanted(reference, prompt, max_new_tokens=16, do_sample=False, num_beams=beams, length_penalty=penalty,
                          early_stopping=False, eos_token_id=stop)
            assert got == want, (prompt, stop)


@pytest.mark.parametrize("options, what", [
    ({"prompt": []}, "the prompt has no token"), ({"prompt": [1], "max_new_tokens": 0}, "max_new_tokens is 0"),
    ({"prompt": [1], "temperature": -1}, "the temperature is -1"), ({"prompt": [1], "top_p": 0}, "top_p is 0"),
    ({"prompt": [1], "beams": 0}, "the number of beams is 0"), ({"prompt": [1], "beams": 2, "temperature": 1}, "beam search draws nothing"),
], ids=str)
def test_options_that_make_no_sense_are_refused(model, options, what):
    done = subprocess.run([GENERATE, model[0], json.dumps(options)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and what in done.stderr, done.stderr


def test_the_vocabulary_is_that_of_the_models():
    assert VOCAB > 75  # or the stop tokens above are none
