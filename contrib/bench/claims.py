# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Group `claims`: what five papers claim, judged by rows of other groups or a
test, in one run that writes doc/claims.md. No verdict is written by hand."""

import collections
import subprocess

from lines import GROUPS
from measure import Row, difference, median, one_turn, ratio, value, verdict
from probes import MIB, ucx
from report import show_number
from session import TOP, Skip

# The limit of `judge` is the claim. `part`: one with which it holds in part;
# `needs`: why the emulated RNIC cannot decide; `also`: values to print
Claim = collections.namedtuple(
    "Claim", "source claimed here row judge part needs also",
    defaults=(None, None, ()))


def pick(line, start="", size=None):
    """The row of a line with this text, or else the first that begins so."""
    row = min((row for row in sum(GROUPS.values(), []) if row.line == line and
               row.what.startswith(start)), key=lambda row: row.what != start)
    return row._replace(sizes=(size,)) if size else row


def stale(_session, _contestant, _size):
    """test/bench/stale, whose controls must be wrong: 1 if it fails."""
    out = subprocess.run(
        ["ctest", "--test-dir", TOP + "/_build/check/plain/test", "-R",
         "guest.6.12.stale.softroce"], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False).stdout
    if "Passed" in out or "***Failed" in out:
        return int("***Failed" in out)
    raise Skip("guest.6.12.stale.softroce is not built, or was skipped")


NP, PRE = "NP-RDMA, arXiv 2310.11062", "Gerofi, EuroMPI 2016"
SRDMA, KONA = "sRDMA, 2023", "Kona, 2021"
PINNED, SPEED = ("nprdma", "verbs"), ("verbs", "nprdma")
TAG = "tag message of 8 B there and back beside put of 16 MiB"
BESIDE = ratio("nprdma p50", "verbs p50", "<=", 0.05)
COST = ("nprdma", "unscheduled")
SENT = ratio("lines sent", "lines changed", "<=", 1.35)
ODP = Row("device.odp", "get of an absent page", ucx(
    "absent_bench", "fresh polling", "us"), ("odp", "nprdma"), [])
STALE = Row("stale", "guest.6.12.stale.softroce", stale, ("failures",), [],
            "of 1", turns=one_turn)

CLAIMS = [
    Claim(NP, "+0.1 to 2 us if no page is absent", "get of 4 KiB: - pinned",
          pick("large.latency", "get 4"), difference(*PINNED, "<=", 2)),
    Claim(NP, "minor fault: 3.5 to 5.7 us", "get of a page never touched",
          pick("large.absent"), value("get", "<=", 5.7)),
    Claim(NP, "major fault: 60 us", "get of a page of a file : O_DIRECT read",
          pick("large.cold"), ratio("get1", "direct1", "<=", 1.5), 2),
    Claim(NP, "faults 500 times as fast as ODP", "get of a page never touched: "
          "ODP : nprdma", ODP, ratio("odp", "nprdma", ">=", 500),
          needs="ODP of npemu and soft-RoCE is the CPU's page fault"),
    Claim(NP, "start-up 20 times as fast", "shmem_init: pinned : nprdma",
          pick("start.shmem"), ratio(*SPEED, ">=", 20), 5),
    Claim(NP, "the same of a window", "MPI_Win_allocate: pinned : nprdma",
          pick("start.window"), ratio(*SPEED, ">=", 20), 5),
    Claim(NP, "the same of a slab", "export of 64 GiB: pinned : nprdma",
          pick("start.slab"), ratio(*SPEED, ">=", 20), 5),
    Claim(NP, "86 % less memory resident", "of an MPI window, 1 % touched",
          pick("start.window"), value("rss_percent", "<=", 14, unit="%")),
    Claim(NP, "slowdown of 5.4 %", "2 GiB got a second time: nprdma : pinned",
          pick("start.slab"),
          ratio("nprdma second", "verbs second", "<=", 1.054), 1.1),
    Claim(NP, "pool of five times its memory: mean +10 %", "4 KiB, zipf: such "
          "a file : memory; needed: hits for that", pick("rmem.pool"),
          ratio("mean", "memory mean", "<=", 1.1), also=("hits", "needed")),
    Claim(PRE, "registration cheaper by two orders of magnitude", "first one "
          "of 64 MiB: nprdma : pinned", pick("large.first", size=64 * MIB),
          ratio(*PINNED, "<=", 0.01)),
    Claim(PRE, "almost free for registered memory", "registration of 1 MiB",
          pick("large.registration", size=MIB), value("nprdma", "<=", 1)),
    Claim(PRE, "Allreduce up to 15 % faster", "new buffers of 4 MiB, 4 ranks: "
          "pinned : nprdma", pick("large.allreduce", size=4 * MIB),
          ratio(*SPEED, ">=", 1.15), 1),
    Claim(SRDMA, "small ones do not wait for large ones", "tag beside puts, "
          "`UCX_NPRDMA_ORDER=atomic`: nprdma : RC",
          pick("prio.put", TAG + ", UCX_NPRDMA_ORDER=atomic"),
          BESIDE._replace(a="atomic p50", show=("atomic p50", BESIDE.b)), 0.5),
    Claim(SRDMA, "the same in the order of RC", "tag beside puts: nprdma : RC",
          pick("prio.put", TAG), BESIDE, 0.5),
    Claim(SRDMA, "the same of reads", "get of 8 B beside puts: nprdma : RC",
          pick("prio.put", "get"), BESIDE, 0.5),
    Claim(SRDMA, "negligible cost in throughput", "tag bandwidth, 1 MiB: "
          "`SCHED=y` : `n`", pick("prio.cost", "tag bandwidth", MIB),
          ratio(*COST, ">=", 0.98), 0.95),
    Claim(SRDMA, "negligible cost in CPU time", "message of 8 B: - `SCHED=n`",
          pick("prio.cost", "active"), difference(*COST, "<=", 0.01), 0.05),
    Claim(KONA, "of a page with 1 dirty line, 1 travels", "bytes sent : changed"
          ", one page in 8", pick("rmem.amplify", "bytes sent, 1 "), SENT, 2),
    Claim(KONA, "of a page with 8 dirty lines, 8 travel", "the same",
          pick("rmem.amplify", "bytes sent, 8 "), SENT._replace(limit=1.15), 2),
    Claim(KONA, "however many pages are dirty", "the same, a line of each page",
          pick("rmem.amplify", "bytes sent, 1 line(s) of each"), SENT, 2),
    Claim(KONA, "remote memory without page faults", "8 bytes at random: window"
          ", which faults : `rmem_read()`", pick("rmem.explicit"),
          ratio("window", "call", ">=", 2.5), 1.5),
    Claim("2009, on registration caches", "right data without such a cache",
          "8 ways to change a mapping, of which UCX's cache must fail in 4",
          STALE, value("failures", "<=", 0)),
]


def rows():
    """Those of the claims, with few turns."""
    return [row._replace(
        line="claims", what=what, turns={one_turn: one_turn}.get(row.turns),
        judges=[judge._replace(show=(*judge.show, *also))])
            for _, what, _, row, judge, _, _, also in CLAIMS]


def decide(claim, result):
    """What was measured, and the verdict, by that alone."""
    if result["kind"] == "skipped":
        return "", "not measured: " + result["reason"]
    unit = "" if result["kind"] == "ratio" else " " + result["unit"]
    text = "{}{} ({} to {})".format(show_number(result["figure"]), unit,
                                    *map(show_number, result["range"]))
    for name in claim.also:
        text += f"; {name} {show_number(median(result['values'][name]))} %"
    if claim.needs:
        return text, "needs hardware: " + claim.needs
    for limit, said in ((claim.judge.limit, "holds"),
                        (claim.part, "holds in part")):
        if limit is not None and verdict(
                result["figure"], claim.judge.relation, limit) == "ok":
            return text, said
    return text, "does not hold"


def finish(results, facts, path):
    """Writes the table, of one result for each claim."""
    text = HEAD.format(**facts)
    for claim, result in zip(CLAIMS, results):
        text += "| " + " | ".join((
            claim.source, claim.claimed, claim.here, f"`{claim.row.line}`",
            f"{claim.judge.relation} {show_number(claim.judge.limit)}",
            *decide(claim, result))) + " |\n"
    with open(path, "w") as file:
        file.write(text)
    print("\n" + text)


HEAD = """# What others claim, and what holds here

`contrib/bench/bench run claims --output doc` has written this. The RNIC is
emulated: ratios mean something, microseconds say nothing of a network. Medians
of few turns, with the range of half of them; [more](measurements.md).

{date}, {commit}, {machine}.

| source | claimed | here | line | limit | measured | verdict |
|---|---|---|---|---|---|---|
"""
