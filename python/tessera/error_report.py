"""The three lines of an error: what was found, where, and what to do about it. No torch here: the launcher uses it."""


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
