"""The options that programs of bench/ share, and types of options whose errors say what is wrong."""

import argparse
import os


def parser(description):
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--json", metavar="FILE", help="write each measured value there as a line of JSON, too")
    result.add_argument("--show", metavar="FILE", help="measure nothing: the tables of what --json wrote")
    return result


def count(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 1 up")
    return int(text)


def counts(text):
    return [count(word) for word in text.split(",")]


def zero_stages(text):
    found = text.split(",")
    if not set(found) <= set("0123"):
        raise argparse.ArgumentTypeError(f"'{text}' is no list of ZeRO stages: 0,1,2,3")
    return [int(stage) for stage in found]


def existing_folder(text):
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"there is no folder '{text}'")
    return text
