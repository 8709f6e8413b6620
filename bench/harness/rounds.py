"""Cases take turns in rounds, in another order in each, so that a machine that slows down for a while slows all alike; a ratio
is one within a round, given as the median over rounds and the quartiles around it."""

import random
import statistics
from typing import NamedTuple


def turns(cases, rounds, warm_ups=1):
    """Pairs (round, case); the round of a warm-up is None."""
    for number in range(-warm_ups, rounds):
        order = list(cases)
        random.Random(number).shuffle(order)
        for case in order:
            yield (number if number >= 0 else None), case


class Spread(NamedTuple):
    low: float
    middle: float
    high: float


def spread(values):
    """Quartiles; of a single value, that value."""
    return Spread(*(statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3))
