"""The options that the programs in bench/ share, and option types whose errors say what is wrong."""

import argparse
import os


def parser(description):
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--json", metavar="FILE", help="Also write each measured value to FILE as a line of JSON")
    result.add_argument("--show", metavar="FILE", help="Show the tables of a file that --json wrote, without measuring")
    return result


def count(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return int(text)


def counts(text):
    return [count(word) for word in text.split(",")]


def words_of(known):
    """Of these, with commas between them."""
    def read(text):
        found = text.split(",")
        if unknown := [word for word in found if word not in known]:
            raise argparse.ArgumentTypeError(f"there is no '{unknown[0]}': {', '.join(known)}")
        return found
    return read


def zero_stages(text):
    found = text.split(",")
    if not set(found) <= set("0123"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of ZeRO stages such as 0,1,2,3")
    return [int(stage) for stage in found]


def existing_folder(text):
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"there is no folder '{text}'")
    return text
