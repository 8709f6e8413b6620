"""A ds_config as a dict, from whatever a program hands over: a dict, a file, or base64 text.

Files may be JSON or Hjson, which is JSON as people write it: comments (# // /* */), trailing or missing commas,
unquoted keys, and strings without quotes that end with their line. A key given twice is refused.
"""

import base64
import binascii
import json
import os
import re

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?\Z")
_WORDS = {"true": True, "false": False, "null": None,
          "NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class ConfigTextError(ValueError):
    """The text is neither JSON nor Hjson; the message has the line and the column."""


def read_config(source):
    """The config that `source` means. A str is a path if there is such a file, otherwise base64 of the text."""
    if isinstance(source, dict):
        return source
    if isinstance(source, (str, os.PathLike)) and os.path.exists(source):
        with open(source, encoding="utf-8-sig") as file:
            return parse_config(file.read(), os.fspath(source))
    if isinstance(source, str):
        try:
            text = base64.urlsafe_b64decode(source).decode("utf-8")
            return parse_config(text, "the base64 text")
        except (binascii.Error, UnicodeDecodeError, ConfigTextError):
            raise ValueError(f"there is no ds_config at {source!r}, and it is not base64-encoded JSON either; give the path of an existing file, or a dict") from None
    raise ValueError(f"a ds_config must be a dict or the path of a JSON file, not {type(source).__name__}")


def parse_config(text, name="the config"):
    try:
        found = json.loads(text, object_pairs_hook=dict_without_duplicates)
    except json.JSONDecodeError:
        found = _Hjson(text, name).parse()
    if not isinstance(found, dict):
        raise ConfigTextError(f"{name} holds {type(found).__name__}; a ds_config must be an object: {{...}}")
    return found


def dict_without_duplicates(ordered_pairs):
    """A dict of the pairs; ValueError with the names of keys that come twice."""
    found = dict(ordered_pairs)
    if len(found) != len(ordered_pairs):
        keys = [key for key, _ in ordered_pairs]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        raise ValueError(f"keys that appear twice in the ds_config: {', '.join(twice)}; keep one of each")
    return found


class _Hjson:
    """One pass over the text; `at` is the next character."""

    def __init__(self, text, name):
        self.text, self.name, self.at = text, name, 0

    def parse(self):
        self.skip_blank()
        braces = self.peek() == "{"
        found = self.value() if braces else self.members(end="")
        self.skip_blank()
        if self.at < len(self.text):
            self.fail("unexpected text after the end of the config")
        return found

    def fail(self, what):
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - self.text.rfind("\n", 0, self.at)
        raise ConfigTextError(f"{what}, {self.name}:{line}:{column}")

    def peek(self, length=1):
        return self.text[self.at:self.at + length]

    def skip_blank(self, also=""):
        """Over white space, comments, and the characters `also`."""
        while self.at < len(self.text):
            if self.text[self.at].isspace() or self.text[self.at] in also:
                self.at += 1
            elif self.text[self.at] == "#" or self.peek(2) == "//":
                self.at = self.find("\n", or_end=True)
            elif self.peek(2) == "/*":
                self.at = self.find("*/", "a comment is not closed") + 2
            else:
                return

    def find(self, what, complaint="", or_end=False):
        found = self.text.find(what, self.at)
        if found < 0 and not or_end:
            self.fail(complaint)
        return len(self.text) if found < 0 else found

    def value(self):
        self.skip_blank()
        first = self.peek()
        if first == "{":
            self.at += 1
            return self.members(end="}")
        if first == "[":
            return self.items()
        if self.peek(3) == "'''":
            return self.long_string()
        if first in ('"', "'"):
            return self.quoted(first)
        return self.unquoted()

    def members(self, end):
        pairs = []
        while True:
            self.skip_blank(also=",")
            if self.peek() == end:
                self.at += len(end)
                return dict_without_duplicates(pairs)
            if self.at >= len(self.text):
                self.fail("an object is not closed: '}' is missing")
            key = self.key()
            self.skip_blank()
            if self.peek() != ":":
                self.fail(f"key {key!r} has no ':' after it")
            self.at += 1
            pairs.append((key, self.value()))

    def key(self):
        if self.peek() in ('"', "'"):
            return self.quoted(self.peek())
        found = re.compile(r"[^\s,:\[\]{}]+").match(self.text, self.at)
        if not found:
            self.fail("expected a key")
        self.at = found.end()
        return found[0]

    def items(self):
        self.at += 1
        found = []
        while True:
            self.skip_blank(also=",")
            if self.peek() == "]":
                self.at += 1
                return found
            if self.at >= len(self.text):
                self.fail("a list is not closed: ']' is missing")
            found.append(self.value())

    def quoted(self, quote):
        found = re.compile(rf"{quote}(?:[^{quote}\\\n]|\\.)*{quote}").match(self.text, self.at)
        if not found:
            self.fail("a string is not closed")
        self.at = found.end()
        inside = found[0][1:-1]
        if quote == "'":
            inside = inside.replace("\\'", "'").replace('"', '\\"')
        try:
            return json.loads(f'"{inside}"', strict=False)
        except json.JSONDecodeError:
            self.fail(f"{found[0]} contains an escape that JSON does not have")

    def long_string(self):
        self.at += 3
        end = self.find("'''", "a ''' string is not closed")
        lines = self.text[self.at:end].strip().split("\n")
        self.at = end + 3
        return "\n".join(line.strip() for line in lines)

    def unquoted(self):
        """A number, true, false or null up to the next sign that can end it; anything else is text to the line's end."""
        start = self.at
        for self.at in range(start, len(self.text) + 1):
            ends_line = self.peek() in ("", "\n", "\r")
            if not ends_line and self.peek() not in (",", "}", "]", "#") and self.peek(2) not in ("//", "/*"):
                continue
            word = self.text[start:self.at].strip()
            if word in _WORDS:
                return _WORDS[word]
            if _NUMBER.match(word):
                return json.loads(word)
            if ends_line:
                break
        if not word or word[0] in ",:}]":
            self.at = start
            self.fail("expected a value")
        return word
