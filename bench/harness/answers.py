"""A rank's side of processes.Process: lines from stdin, answers on a stdout that nobody else writes to.

Call answer_stream() before torch and DeepSpeed are imported: these and the compilers that they start talk on stdout, too, which
is stderr from then on.
"""

import os


def answer_stream():
    stream = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return stream
