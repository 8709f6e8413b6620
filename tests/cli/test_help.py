"""Names of subcommands and options are a promise to scripts; wording is not. cases/frozen/options.yaml freezes the names."""

import re
from pathlib import Path

import pytest
import yaml
from tessera_runs import tessera

OPTIONS = yaml.safe_load((Path(__file__).parent / "cases" / "frozen" / "options.yaml").read_text())


def section(text, title):
    found = re.search(rf"^{title}:\n((?:  .*\n?)*)", text, re.MULTILINE)
    return re.findall(r"^  (\S+)", found[1], re.MULTILINE) if found else []


@pytest.mark.parametrize("command", OPTIONS)
def test_options(command):
    result = tessera(*command.split()[1:], "--help")
    assert result.code == 0 and result.err == "", str(result)
    assert {title.lower(): section(result.out, title) for title in ("Positionals", "Options", "Subcommands")
            if section(result.out, title)} == OPTIONS[command]


def test_every_subcommand_is_frozen():
    listed = {f"{command} {name}" for command, sections in OPTIONS.items() for name in sections.get("subcommands", [])}
    assert listed | {"tessera"} == set(OPTIONS)


def test_the_version_is_one_line():
    result = tessera("--version")
    assert result.code == 0 and re.fullmatch(r"\d+\.\d+\.\d+\S*\n", result.out), str(result)
