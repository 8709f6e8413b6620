"""README.md as a user meets it: its files and commands, taken from the page itself."""

import re
from dataclasses import dataclass

from tessera_runs import REPOSITORY

README = (REPOSITORY / "README.md").read_text()


@dataclass
class Block:
    language: str  # "" for commands
    text: str

    def commands(self):
        """Without the explanation behind each, which two spaces or ' # ' set off."""
        return [re.split(r"\s{2,}|\s#\s", line.strip())[0] for line in self.text.splitlines() if line.strip()]


def blocks(section):
    """The fenced blocks below a heading, in order."""
    text = README.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [Block(language, body) for language, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


def block(section, language="", containing=""):
    found = [each for each in blocks(section) if each.language == language and containing in each.text]
    assert len(found) == 1, f"README, {section}: {len(found)} blocks of '{language}' with {containing!r}"
    return found[0].text if language else found[0].commands()
