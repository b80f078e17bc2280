# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Rows of the table, and the loop that measures one of them."""

import collections

from session import BenchError, Skip
from stats import (EVALUATE, Earlier, judge_verdict, median, turn_order,
                   value)

# One row of the table:
#   line         its name for the command line; rows of one name belong together
#   what         what is measured
#   command      function (session, contestant, size) that returns one value, or
#                several as {name: value}; raises Skip if it cannot be measured.
#                A name may end in "@" and more, which the results do not show.
#   contestants  names that alternate: one value of each per turn
#   judges       figures and limits (stats.Judge), or a function (session,
#                values) that returns them
#   unit         of the values
#   sizes        one measurement for each; an entry may be a function of the
#                session. (None,): there is no size
#   scale        what a size counts: SCALES
#   turns        function of --turns: how many turns this row has
#   once         contestants that have the first turn only
#   prepare      function of the session that is called before
Row = collections.namedtuple(
    "Row", "line what command contestants judges unit sizes scale turns once "
    "prepare", defaults=("us", (None,), "bytes", None, (), None))

SCALES = {"endpoints": "{} endpoints", "pages": "{} page(s) at a time",
          "percent": "{} % absent"}


def more_turns(turns):
    """For figures that are close to their limit: a median of more values has
    a smaller error."""
    return 4 * turns + 1


def three_times(turns):
    """For short turns."""
    return 3 * turns


def one_turn(_turns):
    """For what does not vary, or varies within the program."""
    return 1


def show_size(size, scale):
    """A size as a person writes it; empty if there is none."""
    if size is None:
        return ""
    if scale in SCALES:
        return SCALES[scale].format(size)
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"


def with_size(what, size, scale):
    """What is measured, with its size."""
    return what if size is None else f"{what}, {show_size(size, scale)}"


def take_turns(measure, contestants, turns, once=()):
    """Calls measure(contestant) in the order A B B A ...; returns {name: list
    of values}. What could be measured once has to be in each turn."""
    values = {}
    for turn in range(turns):
        for contestant in turn_order(contestants, turn):
            if turn > 0 and contestant in once:
                continue
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
              "head": with_size(row.what, size, row.scale)}
    report({**result, "kind": "begin"})
    try:
        values = take_turns(
            lambda contestant: row.command(session, contestant, size),
            row.contestants, turns, row.once)
    except Skip as reason:
        report({**result, "kind": "skipped", "contestants":
                list(row.contestants), "values": {}, "figure": None,
                "ratio": None, "range": None, "limit": None,
                "verdict": "skipped", "reason": str(reason)})
        return
    session.seen[row.line, row.what] = values
    judges = row.judges
    for judge in judges(session, values) if callable(judges) else judges:
        report({**result, **evaluate(session, row.line, judge, values)})


def bare(name):
    """The name of a value without what only makes it unique."""
    return name.partition("@")[0]


def resolve(session, line, limit):
    """A limit that is measured itself."""
    if isinstance(limit, Earlier):
        return median(session.seen[line, limit.what][limit.name])
    return limit


def evaluate(session, line, judge, values):
    """The figure of a judge with its limit and verdict, and the values that
    it is made of."""
    first, second = values[judge.a], values.get(judge.b)
    figure, around = EVALUATE[judge.kind](first, second)
    limit = resolve(session, line, judge.limit)
    names = [n for n in dict.fromkeys((judge.a, judge.b, *judge.show))
             if n is not None]
    result = {
        "kind": judge.kind, "contestants": [bare(name) for name in names],
        "values": {bare(name): values[name] for name in names},
        "show": [bare(name) for name in judge.show], "figure": figure,
        "ratio": figure if judge.kind.startswith("ratio") else None,
        "range": around,
        "limit": None if limit is None else
                 {"relation": judge.relation, "value": limit},
        "verdict": judge_verdict(figure, judge.relation, limit),
        "label": judge.what or show_size(judge.size, "bytes"),
    }
    for name in ("what", "size", "unit"):
        if getattr(judge, name) is not None:
            result[name] = getattr(judge, name)
    return result


def all_values(_session, values):
    """For commands that return many figures as "WHAT@UNIT": reports all."""
    return [value(name, what=bare(name), unit=name.partition("@")[2])
            for name in values]
