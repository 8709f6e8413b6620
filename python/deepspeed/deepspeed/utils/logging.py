"""The logger named DeepSpeed, and messages that only some ranks write.

It writes warnings and worse to standard output; `set_log_level_from_string`, the ds_config's log_level and
`logger.setLevel` change that.
"""

import functools
import json
import logging
import sys

log_levels = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}

_LINE = "[%(asctime)s] [%(levelname)s] [%(filename)s:%(lineno)d:%(funcName)s] %(message)s"


class LoggerFactory:
    """Makes loggers that write to standard output in one form, and hand nothing on to the root logger."""

    @staticmethod
    def create_logger(name=None, level=logging.WARNING):
        if name is None:
            raise ValueError("a logger needs a name")
        made = logging.getLogger(name)
        made.setLevel(level)
        made.propagate = False
        if not made.handlers:
            handler = logging.StreamHandler(stream=sys.stdout)
            handler.setFormatter(logging.Formatter(_LINE))
            made.addHandler(handler)
        return made


logger = LoggerFactory.create_logger(name="DeepSpeed")


def get_log_level_from_string(log_level_str):
    level = log_levels.get(log_level_str.lower())
    if level is None:
        raise ValueError(f"log level {log_level_str!r} is unknown: use one of {', '.join(log_levels)}")
    return level


def set_log_level_from_string(log_level_str, custom_logger=None):
    level = get_log_level_from_string(log_level_str)
    target = logger if custom_logger is None else custom_logger
    target.setLevel(level)
    for handler in target.handlers:
        handler.setLevel(level)


def get_current_level():
    return logger.getEffectiveLevel()


def should_log_le(max_log_level_str):
    """True when the logger writes messages of this level."""
    return get_current_level() <= get_log_level_from_string(max_log_level_str)


def _my_rank():
    """The global rank, or -1 while no process group is there: then every process speaks."""
    from deepspeed import comm
    return comm.get_rank() if comm.is_initialized() else -1


def _speaks(my_rank, ranks):
    return not ranks or my_rank == -1 or -1 in ranks or my_rank in ranks


def get_dist_msg(message, ranks=None):
    """The message with its rank before it, or None where this rank is not among `ranks` (None or [-1]: all)."""
    my_rank = _my_rank()
    return f"[Rank {my_rank}] {message}" if _speaks(my_rank, ranks) else None


def log_dist(message, ranks=None, level=logging.INFO):
    text = get_dist_msg(message, ranks)
    if text is not None:
        logger.log(level, text, stacklevel=2)


@functools.lru_cache(None)
def _log_dist_once_cached(message, ranks, level):
    log_dist(message, ranks, level)


def log_dist_once(message, ranks=None, level=logging.INFO):
    _log_dist_once_cached(message, None if ranks is None else tuple(ranks), level)


@functools.lru_cache(None)
def warning_once(*args, **kwargs):
    logger.warning(*args, **kwargs)


logger.warning_once = warning_once


def print_dist(message, ranks=None):
    text = get_dist_msg(message, ranks)
    if text is not None:
        print(text)


def print_json_dist(message, ranks=None, path=None):
    """Writes a dict as JSON to the file `path`, with the rank in it, from the ranks named."""
    my_rank = _my_rank()
    if not _speaks(my_rank, ranks) or path is None:
        return
    with open(path, "w") as out:
        json.dump({**message, "rank": my_rank}, out)


def print_configuration(args, name):
    logger.info(f"{name}:")
    for key in sorted(vars(args)):
        logger.info(f"  {key:.<29} {getattr(args, key)}")
