# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Statistics of measurements in turns, and limits. No input, no output."""

import collections

# What one figure is made of. `kind` says how it is computed from the values
# of `a` and `b` (EVALUATE), `relation` and `limit` what must hold; a limit of
# None only reports. `limit` may also be an Earlier. `show` names values whose
# medians are printed with it, `what`, `size` and `unit` override the row's.
Judge = collections.namedtuple(
    "Judge", "kind a b relation limit show what size unit",
    defaults=(None, None, None, (), None, None, None))

# A limit that is the median of what an earlier row of the line measured
Earlier = collections.namedtuple("Earlier", "what name")


def median(values):
    """The middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def half_range(values):
    """The values between which half of all values are: (low, high)."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    skipped = (len(ordered) + 3) // 4 - 1
    return ordered[skipped], ordered[-1 - skipped]


def pairs(combine, first, second):
    """One combined value for each turn."""
    if len(first) != len(second):
        raise ValueError(f"{len(first)} values and {len(second)} values "
                         "are no pairs")
    return [combine(a, b) for a, b in zip(first, second)]


def of_pairs(combine):
    """Evaluates turn by turn: median and range of the combined values."""
    def evaluate(a, b):
        combined = pairs(combine, a, b)
        return median(combined), half_range(combined)
    return evaluate


def of_medians(combine):
    """Combines the medians, for contestants with unequal numbers of turns."""
    return lambda a, b: (combine(median(a), median(b)), None)


def divide(a, b):
    """a : b"""
    return a / b


def subtract(a, b):
    """a - b"""
    return a - b


# Kind -> function of two lists of values that returns (figure, range or None)
EVALUATE = {
    "ratio": of_pairs(divide),
    "difference": of_pairs(subtract),
    "ratio of medians": of_medians(divide),
    "difference of medians": of_medians(subtract),
    "value": lambda a, b: (median(a), half_range(a)),
    "extremes": lambda a, b: (median(a), (min(a), max(a))),
}


def judge_verdict(figure, relation, limit):
    """"ok", "MISSED", or "reported" without a limit. The figure is compared
    as it is printed, with three decimals."""
    if limit is None:
        return "reported"
    rounded = round(figure, 3)
    holds = rounded <= limit if relation == "<=" else rounded >= limit
    return "ok" if holds else "MISSED"


def turn_order(contestants, turn):
    """A B, B A, A B, ...: a change in the machine's speed disturbs all."""
    return list(contestants) if turn % 2 == 0 else list(contestants)[::-1]


def ratio(a, b, relation=None, limit=None, **more):
    """Median of the ratios a : b of all pairs of turns."""
    return Judge("ratio", a, b, relation, limit, (a, b), **more)


def value(name, relation=None, limit=None, **more):
    """Median of the values of one name."""
    return Judge("value", name, None, relation, limit, **more)
