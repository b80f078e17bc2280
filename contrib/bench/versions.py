# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Rows of the table over two installations of nprdma, in one run."""

from session import CONTESTANTS
from stats import Judge, ratio

# Groups whose programs run on an installation
GROUPS = ("small", "large", "revoke", "prio", "order")


def compared(row):
    """The rows that compare the new with the old installation (session.old):
    one for each contestant of the row that is nprdma. Only limits that
    themselves compare new with old stay."""
    variants = [name for name in row.contestants if
                CONTESTANTS.get(name, {}).get("UCX_TLS") == "nprdma"]
    return [row._replace(
        what=row.what if len(variants) == 1 else f"{row.what}, {variant}",
        command=over_both(row.command, variant), contestants=("new", "old"),
        judges=both_judges(row), once=()) for variant in variants]


def over_both(command, variant):
    """The command on one of the two installations. Values with names get
    "NAME new" and "NAME old"."""
    def run(session, contestant, size):
        got = command(session if contestant == "new" else session.old,
                      variant, size)
        if not isinstance(got, dict):
            return got
        return {f"{name} {contestant}": value for name, value in got.items()}
    return run


def both_judges(row):
    """new : old of each value."""
    if not callable(row.judges) and any(judge.b == "old"
                                        for judge in row.judges):
        return row.judges
    return lambda _session, values: [
        compare(name, values) for name in values if name.endswith("new")]


def compare(name, values):
    """A ratio, or a difference where the old value may be 0."""
    old = name[:-len("new")] + "old"
    what = None if name == "new" else name[:-len(" new")]
    if min(values[old]) > 0:
        return ratio(name, old, what=what)
    return Judge("difference", name, old, None, None, (name, old), what)
