"""ds_configs as people write them."""

import base64
import json
import math

import pytest
import torch  # noqa: F401  its libraries come before ours
from tessera._core import ConfigError
from tessera.config_text import parse_config, read_config


def test_a_dict_is_taken_as_it_is():
    given = {"train_batch_size": 1}
    assert read_config(given) is given


def test_a_file_may_have_comments_and_trailing_commas(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{\n  // sizes\n  "train_batch_size": 8, /* all ranks */\n  "a": [1, 2,], # two\n}\n')
    assert read_config(str(path)) == read_config(path) == {"train_batch_size": 8, "a": [1, 2]}


def test_hjson_without_quotes_commas_and_braces():
    text = ("train_batch_size: 8\noptimizer: {\n  type: AdamW with spaces\n  params: {lr: 1e-3, betas: [0.9\n 0.99]}\n}"
            "\non: true")
    assert parse_config(text) == {"train_batch_size": 8, "on": True,
                                  "optimizer": {"type": "AdamW with spaces",
                                                "params": {"lr": 1e-3, "betas": [0.9, 0.99]}}}


def test_signs_of_comments_inside_of_strings_are_text():
    assert parse_config('{"path": "a//b#c", \'other\': "say \\"x\\"",}') == {"path": "a//b#c", "other": 'say "x"'}


def test_long_strings():
    assert parse_config("{a: '''\n  one\n  two\n'''}") == {"a": "one\ntwo"}


def test_infinity_is_a_number():
    # Python's json writes it, and Accelerate gives steps_per_print: inf.
    assert math.isinf(parse_config(json.dumps({"steps_per_print": float("inf")}))["steps_per_print"])
    assert math.isinf(parse_config("{steps_per_print: Infinity,}")["steps_per_print"])


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "{a: 1, a: 2,}", '{"b": {"a": 1, "a": 2}}'])
def test_a_key_given_twice_is_refused(text):
    with pytest.raises(ValueError, match="a' is given twice"):
        parse_config(text)


@pytest.mark.parametrize("text, where", [("{a 1}", "1:4"), ('{"a": 1,\n "b": }', "2:7"), ("{a: [1, 2", "1:5"),
                                         ('{"a": "x\n', "1:7"), ("{} {}", "1:4")])
def test_errors_have_a_place(text, where):
    with pytest.raises(ConfigError) as refused:
        parse_config(text)
    assert refused.value.where == f"the config:{where}"


def test_base64():
    text = base64.urlsafe_b64encode(b'{"train_batch_size": 4}').decode()
    assert read_config(text) == {"train_batch_size": 4}


@pytest.mark.parametrize("source", ["/no/such/ds.json", None, 12])
def test_anything_else_is_refused(source):
    with pytest.raises(ValueError, match="path of"):
        read_config(source)
