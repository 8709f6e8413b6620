"""docs/troubleshooting.md: the messages on the page are those in the sources, and its links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
LITERALS = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
LABEL = re.compile(r"^(?:\[rank \d+\] )?(?:error|warning|  where|  fix|  so): +")
SHORTEST = 7  # characters in a row that a message has in common with a text of the sources
# What a message has besides: a word with a digit or a quote, and these, which are filled in.
FILLED_IN = re.compile(r"\S*[\d'=-]\S*|rank|ranks|SIG\w+|nvme|world|host|port|step|configuration|\W*")


def source_text():
    """All texts of the sources, those that stand one after the other joined as the compiler does."""
    texts = []
    for path in sorted(ROOT.glob("tessera/**/*.cpp")):
        code = re.sub(r"^\s*//.*$", "", path.read_text(), flags=re.MULTILINE)
        code = re.sub(r'"\s*\n\s*"', "", code)
        texts += LITERALS.findall(code)
    return re.sub(r"\{[^{}]*\}", "\n", "\n".join(texts))


SOURCES = source_text()
MESSAGES = [LABEL.sub("", line)
            for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()
            if LABEL.match(line) and not line.startswith("  where:")]
CONCLUSIONS = re.findall(r"^\| ((?:rank|every) .*?|ranks [cw].*?) \|", PAGE, re.MULTILINE)


def words_not_in_sources(message):
    covered = [False] * len(message)
    for begin in range(len(message)):
        end = begin + SHORTEST
        while end <= len(message) and message[begin:end] in SOURCES:
            covered[begin:end] = [True] * (end - begin)
            end += 1
    rest = "".join(" " if known else letter for letter, known in zip(message, covered))
    return [word for word in rest.split() if len(word) > 3 and not FILLED_IN.fullmatch(word.strip("(),;:."))]


def test_there_are_messages():
    assert len(MESSAGES) >= 30 and len(CONCLUSIONS) == 6, (MESSAGES, CONCLUSIONS)


@pytest.mark.parametrize("message", MESSAGES + CONCLUSIONS)
def test_a_message_of_the_page_is_one_of_the_sources(message):
    assert not words_not_in_sources(message), message


def test_a_message_that_is_not_in_the_sources_is_found():
    assert words_not_in_sources("rank 1 could not reach rank 0's rendezvous: no rank 0 harkens on node0:29500")


def test_links_lead_somewhere():
    headings = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
                for heading in re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        page, _, anchor = target.partition("#")
        assert not page or (ROOT / "docs" / page).exists(), target
        assert page or anchor in headings, target


def test_the_readme_leads_here():
    assert "docs/troubleshooting.md" in (ROOT / "README.md").read_text()
