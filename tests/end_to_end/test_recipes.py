"""The recipes of examples/recipes run as they stand, with the small models of their script, and what they leave loads in transformers."""

import shutil
import statistics
import subprocess

import peft
import pytest
import transformers
from tessera_runs import REPOSITORY, TESSERA, evaluations, metrics, train

RECIPES = {"gpt2-from-scratch": "gpt2", "llama-lora": "llama-lora", "internlm2-qlora": "internlm2-qlora", "t5-translation": "t5-translation",
           "bert-mrpc": "bert-mrpc"}  # and the output of each
LOADED_BY = {"gpt2-from-scratch": transformers.AutoModelForCausalLM, "t5-translation": transformers.AutoModelForSeq2SeqLM,
             "bert-mrpc": transformers.AutoModelForSequenceClassification}


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipes") / "recipes"
    shutil.copytree(REPOSITORY / "examples" / "recipes", folder, ignore=shutil.ignore_patterns("models", "out"))
    made = subprocess.run([folder / "small-models", TESSERA], capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    return folder


def test_every_recipe_is_tried(recipes):
    assert {path.stem for path in recipes.glob("*.yaml")} == set(RECIPES)
    for path in recipes.glob("*.yaml"):
        assert path.name in (recipes / "README.md").read_text()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_learns(recipes, name):
    train(recipes / f"{name}.yaml", 2, timeout=400)
    output = recipes / "out" / RECIPES[name]
    losses = [row["loss"] for row in metrics(output)]
    quarter = len(losses) // 4
    falls_to = 0.95 if name == "internlm2-qlora" else 0.9  # XTuner's learning rate is for a model that knows much already
    assert statistics.mean(losses[-quarter:]) < falls_to * statistics.mean(losses[:quarter]), losses
    if name in LOADED_BY:
        _, found = LOADED_BY[name].from_pretrained(output / "export", output_loading_info=True)
        assert not any(found.values()), found
    else:
        assert peft.PeftConfig.from_pretrained(output / "export").r == (64 if "qlora" in name else 16)


def test_what_the_recipes_report(recipes):
    """After test_a_recipe_learns."""
    wanted = {"gpt2-from-scratch": "eval_perplexity", "t5-translation": "eval_bleu", "bert-mrpc": "eval_f1"}
    for name, metric in wanted.items():
        rows = evaluations(recipes / "out" / RECIPES[name])
        assert rows and all(metric in row for row in rows), name
