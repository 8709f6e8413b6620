"""The clients' own tests of DeepSpeed, from their repositories' checkouts, on tiny models under the names that they ask a hub for."""

from case import Case
from laid_out import CHECKOUTS, HERE, METRICS, lay_out

OF_A_HUB = {"sshleifer/tiny-gpt2": "gpt2", "hf-internal-testing/tiny-random-gpt2": "gpt2", "gpt2": "gpt2-wide",
            "hf-internal-testing/tiny-random-gptj": "gptj", "patrickvonplaten/t5-tiny-random": "t5-pieces", "google-t5/t5-small": "t5-pieces",
            "peft-internal-testing/tiny-random-qwen-1.5-MoE": "qwen-moe", "apple/mobilevit-xx-small": "mobilevit",
            "hf-internal-testing/tiny-random-LlamaForCausalLM": "llama-wide", "bert-base-cased": "bert", "distilbert-base-uncased": "bert", "nyu-mll/glue": "glue"}
SUITES = {"transformers": ("transformers", "tests/deepspeed/test_deepspeed.py"), "accelerate": ("Accelerate", "tests/deepspeed")}  # {checkout: (client, tests)}


def own_tests(checkout):
    def program(inputs, output, ds_config):
        lay_out(ds_config.parent, **{path.name: path for path in METRICS.iterdir()}, **{name: inputs / model for name, model in OF_A_HUB.items()})
        return [HERE / "programs" / "own_tests.py", output / "tests.xml", checkout, CHECKOUTS / checkout / SUITES[checkout][1]]
    return program


CASES = [Case(client, "its own tests", own_tests(checkout), "all stages", "transformers", launcher="alone", path=(CHECKOUTS / checkout / "src",),
              of_tests=True, of_flaws=(".test_arange_bf16",), seconds=3000)
         for checkout, (client, tests) in SUITES.items() if (CHECKOUTS / checkout / tests).exists()]
