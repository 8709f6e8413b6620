"""The models of bench/models and bench/parallel, made by `tessera init-model` with random weights."""

import json

from harness import places
from harness.processes import run

MODELS = {
    "GPT-2 124 M": ["--type", "gpt2", "--hidden", 768, "--layers", 12, "--heads", 12, "--vocab", 50257, "--positions", 1024],
    "Llama 200 M": ["--type", "llama", "--hidden", 1024, "--layers", 12, "--heads", 16, "--kv-heads", 4, "--vocab", 32000, "--positions", 2048],
    "tiny": ["--type", "llama", "--hidden", 64, "--layers", 2, "--heads", 4, "--vocab", 500, "--positions", 512],
}


def make_model(name, folder):
    run("tessera init-model", [places.TESSERA, "init-model", folder, *MODELS[name]], places.thread_environment())
    config = json.loads((folder / "config.json").read_text())
    config.update({key: 0.0 for key in config if key.endswith(("_pdrop", "_dropout"))})
    for key in ("bos_token_id", "eos_token_id"):  # which would end a text
        config.pop(key, None)
    (folder / "config.json").write_text(json.dumps(config))
