"""The three lines of an error: what was found, where, and what to do about it. No torch here: the launcher uses it."""

import sys


def as_text(what, where="", fix=""):
    """
    what
      where: …
      fix:   …
    """
    lines = [what]
    lines += [f"  where: {where}"] if where else []
    lines += [f"  fix:   {fix}"] if fix else []
    return "\n".join(lines)


def made(kind, what, where="", fix=""):
    """An exception of class `kind` with that text, and .what, .where and .fix as the engine's own errors have them."""
    error = kind(as_text(what, where, fix))
    error.what, error.where, error.fix = what, where, fix
    return error


def run_program(program):
    """Calls `program` and returns its exit code. A user never sees a traceback for a problem with files or the machine."""
    try:
        program()
    except (ValueError, OSError) as error:
        if not hasattr(error, "fix"):
            if not isinstance(error, OSError):
                raise
            error = as_text(error.strerror or error, error.filename or "a file",
                            "check the path, the permissions and the free space on the disk")
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
