"""Arrays and numbers of NumPy in a file that torch.save wrote, such as the states of random numbers that programs keep: read without
running anything that the file names. Arrays of objects are not among them."""

import re

MADE_BY = re.compile(r"numpy\.(ndarray|dtype|_?core\.multiarray\.(_reconstruct|scalar))")


def is_of_numpy(name):
    return MADE_BY.fullmatch(name) is not None


def safe_globals(names):
    """What the names of is_of_numpy stand for, as torch.serialization.safe_globals takes it."""
    found = [name for name in names if is_of_numpy(name)]
    if not found:
        return []
    import numpy

    def empty(*_shape_and_kind):
        return numpy.ndarray.__new__(numpy.ndarray, (0,))  # its state, which comes next, has shape, kind and numbers

    makers = {"ndarray": numpy.ndarray, "dtype": numpy.dtype, "_reconstruct": empty, "scalar": numpy.float32(0).__reduce__()[0]}
    kinds = {type(numpy.dtype(code)) for code in numpy.typecodes["All"] if code != "O"}
    return [*((makers[name.rpartition(".")[2]], name) for name in found), *kinds]
