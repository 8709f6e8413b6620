"""What the user of a launcher did wrong: told in three lines, and exit code 2. No torch here."""

import difflib
import functools
import sys

from tessera.error_report import made


class LaunchError(ValueError):
    """.what, .where and .fix: see docs/errors.md."""


def refused(what, where="", fix=""):
    """A LaunchError, to be raised."""
    return made(LaunchError, what, where, fix)


def nearest(name, known):
    """" Did you mean …" for a name that is nearly one of `known`; otherwise all of them."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"use one of {', '.join(known)}"


def tells_users(main):
    """A LaunchError in `main` ends the program with code 2, and three lines on standard error in place of a traceback."""

    @functools.wraps(main)
    def told(*args, **kwargs):
        try:
            return main(*args, **kwargs)
        except LaunchError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)

    return told
