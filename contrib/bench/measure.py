# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Rows of the table, the loop that measures one of them, and its figures and
limits. A guest has only python3-minimal, which has no module `statistics`."""

import collections

from session import CONTESTANTS, BenchError, Skip

# One row of the table:
#   line         its name for the command line; rows of one name belong together
#   what         what is measured
#   command      function (session, contestant, size) that returns one value, or
#                several as {name: value}; raises Skip if it cannot be measured.
#                A name may end in "@" and more, which the results do not show.
#   contestants  names that alternate: one value of each per turn
#   judges       figures and limits, or a function (values) that returns them
#   unit         of the values
#   sizes        one measurement for each; an entry may be a function of the
#                session. (None,): there is no size
#   scale        what a size counts: "bytes" or "pages"
#   turns        function of --turns: how many turns this row has
#   prepare      function of the session that is called before
Row = collections.namedtuple(
    "Row", "line what command contestants judges unit sizes scale turns "
    "prepare", defaults=("us", (None,), "bytes", None, None))

# What one figure is made of. `kind` says how it is computed from the values of
# `a` and `b` (EVALUATE), `relation` and `limit` what must hold; a limit of None
# only reports, and a name is the median of its values. `show` names values
# whose medians are printed with it, `what`, `size` and `unit` override the
# row's.
Judge = collections.namedtuple(
    "Judge", "kind a b relation limit show what size unit",
    defaults=(None, None, None, (), None, None, None))


def median(values):
    """The middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[-1 - middle]) / 2


def half_range(values):
    """The values between which half of all values are: (low, high)."""
    ordered = sorted(values)
    skipped = (len(ordered) + 3) // 4 - 1
    return ordered[skipped], ordered[-1 - skipped]


def of_pairs(combine):
    """Evaluates turn by turn: median and range of the combined values. Medians
    of both would come from different turns."""
    def evaluate(first, second):
        if len(first) != len(second):
            raise ValueError(f"{len(first)} values and {len(second)} values "
                             "are no pairs")
        combined = [combine(a, b) for a, b in zip(first, second)]
        return median(combined), half_range(combined)
    return evaluate


# Kind -> function of two lists of values that returns (figure, range)
EVALUATE = {
    "ratio": of_pairs(lambda a, b: a / b),
    "difference": of_pairs(lambda a, b: a - b),
    "value": lambda a, b: (median(a), half_range(a)),
}


def ratio(a, b, relation=None, limit=None, **more):
    """Median of the ratios a : b of all pairs of turns."""
    return Judge("ratio", a, b, relation, limit, (a, b), **more)


def difference(a, b, relation=None, limit=None, **more):
    """The same of differences."""
    return Judge("difference", a, b, relation, limit, (a, b), **more)


def value(name, relation=None, limit=None, **more):
    """Median of the values of one name."""
    return Judge("value", name, None, relation, limit, **more)


def notes(*names, **more):
    """Values that are reported without a limit."""
    return [value(name, **more) for name in names]


def verdict(figure, relation, limit):
    """"ok", "MISSED", or "reported" without a limit. The figure is compared
    as it is printed, with three decimals."""
    if limit is None:
        return "reported"
    rounded = round(figure, 3)
    holds = rounded <= limit if relation == "<=" else rounded >= limit
    return "ok" if holds else "MISSED"


def more_turns(turns):
    """For figures that are close to their limit: a median of more values has
    a smaller error."""
    return 4 * turns + 1


def one_turn(_turns):
    """For what does not vary, or varies within the program."""
    return 1


def show_size(size, scale="bytes"):
    """A size as a person writes it; empty if there is none."""
    if size is None:
        return ""
    if scale == "pages":
        return f"{size} page(s) at a time"
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"


def bare(name):
    """The name of a value without what only makes it unique."""
    return name.partition("@")[0]


def take_turns(measure, contestants, turns):
    """Calls measure(contestant) in the order A B B A ..., so that a change in
    the machine's speed disturbs all; returns {name: list of values}. What
    could be measured once has to be in each turn."""
    values = {}
    for turn in range(turns):
        for contestant in list(contestants)[::-1 if turn % 2 else 1]:
            try:
                got = measure(contestant)
            except Skip as reason:
                if turn == 0:
                    raise
                raise BenchError(f"no longer possible: {reason}") from reason
            if not isinstance(got, dict):
                got = {contestant: got}
            for name, figure in got.items():
                values.setdefault(name, []).append(figure)
    return values


def measure_row(session, row, turns, sizes, report):
    """Measures a row for each of its sizes, or for `sizes` if that is not
    None, and gives each figure to report(result). Before that, report() gets
    a result of kind "begin" without a figure."""
    turns = (row.turns or int)(turns)
    if row.prepare is not None:
        row.prepare(session)
    for size in sizes or row.sizes:
        size = size(session) if callable(size) else size
        measure_size(session, row, turns, size, report)


def measure_size(session, row, turns, size, report):
    """One size of a row."""
    result = {"line": row.line, "size": size, "scale": row.scale,
              "what": row.what, "unit": row.unit,
              "head": ", ".join(filter(None, [
                  row.what, show_size(size, row.scale)]))}
    report({**result, "kind": "begin"})
    try:
        values = take_turns(
            lambda contestant: row.command(session, contestant, size),
            row.contestants, turns)
    except Skip as reason:
        report({**result, "kind": "skipped", "contestants":
                list(row.contestants), "values": {}, "figure": None,
                "ratio": None, "range": None, "limit": None,
                "verdict": "skipped", "reason": str(reason)})
        return
    judges = row.judges
    for judge in judges(values) if callable(judges) else judges:
        report({**result, **evaluate(judge, values)})


def evaluate(judge, values):
    """The figure of a judge with its limit and verdict, and the values that
    it is made of."""
    figure, around = EVALUATE[judge.kind](values[judge.a], values.get(judge.b))
    limit = judge.limit
    if isinstance(limit, str):
        limit = median(values[limit])
    names = [n for n in dict.fromkeys((judge.a, judge.b, *judge.show))
             if n is not None]
    result = {
        "kind": judge.kind, "contestants": [bare(name) for name in names],
        "values": {bare(name): values[name] for name in names},
        "show": [bare(name) for name in judge.show], "figure": figure,
        "ratio": figure if judge.kind == "ratio" else None, "range": around,
        "limit": None if limit is None else
                 {"relation": judge.relation, "value": limit},
        "verdict": verdict(figure, judge.relation, limit),
        "label": judge.what or show_size(judge.size),
    }
    for name in ("what", "size", "unit"):
        if getattr(judge, name) is not None:
            result[name] = getattr(judge, name)
    return result


# ---- rows over two installations of nprdma (session.old), in one run ----

def over_both(row):
    """The rows that compare the new with the old installation: one for each
    contestant of the row that is nprdma."""
    variants = [name for name in row.contestants if
                CONTESTANTS.get(name, {}).get("UCX_TLS") == "nprdma"]
    return [row._replace(
        what=row.what if len(variants) == 1 else f"{row.what}, {variant}",
        command=command_of_both(row.command, variant),
        contestants=("new", "old"), judges=new_to_old) for variant in variants]


def command_of_both(command, variant):
    """The command on one of the two installations. Values with names get
    "NAME new" and "NAME old"."""
    def run(session, contestant, size):
        got = command(session if contestant == "new" else session.old,
                      variant, size)
        if not isinstance(got, dict):
            return got
        return {f"{name} {contestant}": figure for name, figure in got.items()}
    return run


def new_to_old(values):
    """A ratio of each value, or a difference where the old one may be 0."""
    judges = []
    for name in values:
        if name.endswith("new"):
            old = name[:-len("new")] + "old"
            compare = ratio if min(values[old]) > 0 else difference
            judges.append(compare(name, old, what=name[:-len(" new")] or None))
    return judges
