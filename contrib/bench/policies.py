# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Lines policies.*: what can be done with buffers between messages, and what
each costs. doc/memory.md says what the contestants are and reads the result."""

import os
import re
import subprocess

import stale
from measure import (Row, bare, more_turns, one_turn, show_size,
                     three_times)
from probes import GIB, MIB, attempt, need_variable, unlimited_memlock
from session import BenchError, Skip, field_of
from stale import PROPOSALS
from stats import Judge, median, ratio, value

ORDER = " : ".join(PROPOSALS)

# The same for all contestants
SEED = "20090430"
SHARES = (0, 50, 90, 100)
FIELDS = {"mb_per_s": "MB/s", "peak_kb": "kB", "after_kb": "kB",
          "locked_kb": "kB", "faults": "faults/MiB"}
SAYS = {"mb_per_s": "rate", "peak_kb": "peak of resident memory",
        "after_kb": "resident 1 s after the last free",
        "locked_kb": "locked memory", "faults": "page faults"}

# Ways of policies_bench floor, and what is printed for each
FLOORS = {"pages": "no transport: page faults and munmap() alone",
          "copy": "no transport: these and one copy by a system call",
          "helped": "no transport: page faults by two threads"}

# What nprdma locks for itself at most, and the limit of policies.limit
MOST_LOCKED_KB = 4096
LIMIT_KIB = 8192

# Of stale_bench control
STALE_TURNS = 20


def read_stream(contestant, out):
    """{"CONTESTANT@PERCENT FIELD": value} of what policies_bench prints, and
    the traffic: what all contestants must have had alike."""
    values, traffic = {}, []
    for line in out.splitlines():
        percent, wrong = int(field_of(line, "percent")), field_of(line, "wrong")
        if wrong != 0:
            raise BenchError(f"{wrong:.0f} messages of {contestant} had wrong "
                             f"data at {percent} % of reused buffers")
        traffic.append(tuple(field_of(line, name) for name in
                             ("percent", "messages", "fresh", "choices")))
        for field in FIELDS:
            values[f"{contestant}@{percent} {field}"] = field_of(line, field)
    if tuple(int(one[0]) for one in traffic) != SHARES:
        raise BenchError(f"policies_bench printed other shares: {out.strip()}")
    return values, traffic


def check_traffic(session, key, contestant, traffic):
    """One seed means one traffic."""
    first = session.seen.setdefault(("traffic", *key), traffic)
    if traffic != first:
        raise BenchError(f"{contestant} had other traffic: {traffic}, not "
                         f"{first}")
    for percent, messages, fresh, _choices in traffic:
        if fresh * 100 != messages * (100 - percent):
            raise BenchError(f"{fresh:.0f} of {messages:.0f} buffers were new "
                             f"at {percent:.0f} % of reused ones")


def run_stream(session, contestant, size, memory):
    """Values of one run."""
    out = session.mpi(contestant, 2, "policies_bench",
                      ["stream", str(size), memory, SEED])
    values, traffic = read_stream(contestant, out)
    check_traffic(session, (memory, size), contestant, traffic)
    return values


def stream(memory, needed=None):
    """The command of a row; `needed` is a variable of nprdma."""
    def command(session, contestant, size):
        if needed is not None:
            need_variable(session, needed)
        return run_stream(session, contestant, size, memory)
    return command


def read_rate(session, name, memory, size, percent, out):
    """MB/s of what policies_bench rate or floor prints."""
    traffic = tuple(field_of(out, field) for field in
                    ("percent", "messages", "fresh", "choices"))
    if field_of(out, "wrong") != 0:
        raise BenchError(f"{field_of(out, 'wrong'):.0f} messages of {name} had "
                         "wrong data")
    check_traffic(session, ("rate", memory, size, percent), name, (traffic,))
    return field_of(out, "mb_per_s")


def rate(memory, percent, needed=None):
    """The command of a row of one share: a short run, so that there can be
    many. A contestant may also be one of FLOORS."""
    def command(session, contestant, size):
        if needed is not None:
            need_variable(session, needed)
        words = [str(size), memory, SEED, str(percent)]
        if contestant in FLOORS:
            out = session.mpi("nprdma", 2, "policies_bench",
                              ["floor", *words, contestant])
        else:
            out = session.mpi(contestant, 2, "policies_bench",
                              ["rate", *words])
        return read_rate(session, contestant, memory, size, percent, out)
    return command


def stale_control(session, contestant, size):
    """The number of wrong messages that are found where half of them are."""
    out = session.mpi(contestant, 2, "stale_bench",
                      ["control", str(size), str(STALE_TURNS)])
    return field_of(out, "wrong")


def show_share(percent):
    """As the documents write it."""
    return f"r = {percent / 100:g}"


def many_turns(turns):
    """For a ratio that is close to its limit. Neighbouring runs differ by some
    5 %, and all of them by half."""
    return 12 * turns + 1


def shown(contestants, main="nprdma", limits=None):
    """One figure for each share and field: the value of `main`, shown with all
    contestants. `limits`: {field: (relation, limit)} of `main`."""
    for field, unit in FIELDS.items():
        for percent in SHARES:
            relation, limit = (limits or {}).get(field, (None, None))
            yield value(f"{main}@{percent} {field}", relation, limit,
                        show=tuple(f"{name}@{percent} {field}"
                                   for name in contestants),
                        what=f"{SAYS[field]}, {show_share(percent)}", unit=unit)


def speed(first, second, percent, relation, limit):
    """A limit for a ratio of rates."""
    return ratio(f"{first}@{percent} mb_per_s", f"{second}@{percent} mb_per_s",
                 relation, limit, what=f"rate, {show_share(percent)}, "
                 f"{first} : {second}")


def stream_row(memory):
    """All proposals on one traffic. Rates have their limits in the rows of
    policies.reused and policies.fresh."""
    return Row(f"policies.{memory}", f"stream, {memory} ({ORDER})",
               stream(memory), PROPOSALS,
               list(shown(PROPOSALS, limits={
                   "locked_kb": ("<=", MOST_LOCKED_KB)})),
               "MB/s", (MIB, 16 * MIB), prepare=unlimited_memlock)


def broken(session, contestant, size):
    """The number of wrong messages that the checker finds where one byte of one
    message was changed, for each share."""
    out = session.mpi(contestant, 2, "policies_bench",
                      ["stream", str(size), "mmap", SEED, "break"])
    found = [field_of(line, "wrong") for line in out.splitlines()]
    if any(count > 1 for count in found):
        raise BenchError(f"{contestant}: more was wrong than was changed")
    return sum(found)


def model(session, contestant, size):
    """The pool, and what it would reach if the receiver's copy were replaced by
    what `policies_bench remap` measures in the same turn. Rates in MB/s are
    bytes in a microsecond."""
    rates = run_stream(session, contestant, size, "mmap")
    out = session.run([session.program("policies_bench"), "remap", str(size)],
                      session.environment(contestant), "policies_bench remap")
    parts = {name: field_of(out, name + "_us")
             for name in ("swap", "copy", "give", "refill")}
    result = {f"{name}@us": us for name, us in parts.items()}
    for percent in (0, 100):
        rate = rates[f"{contestant}@{percent} mb_per_s"]
        result.update({f"{name}@{percent}": rate for name, rate in
                       modelled(size, rate, parts).items()})
    return result


def modelled(size, rate, parts):
    """The rate of the pool, and the two models of it."""
    rest = max(size / rate - parts["copy"], 0)
    return {"pool": rate, "model-swap": size / (rest + parts["swap"]),
            "model-give": size / (rest + parts["give"] + parts["refill"])}


def model_judges():
    """No limit: it is no contestant."""
    for percent in (0, 100):
        for name in ("model-swap", "model-give"):
            yield ratio(f"{name}@{percent}", f"pool@{percent}", what="model of "
                        f"remapping, {show_share(percent)}, {name} : pool")
    for name in ("swap", "give"):
        yield ratio(f"{name}@us", "copy@us", what=f"{name} : copy", unit="us")


def locked_limit():
    """The command below which memory may be locked up to the limit. root is
    not limited unless it gives up the right."""
    limit = ["prlimit", f"--memlock={LIMIT_KIB * 1024}:{LIMIT_KIB * 1024}"]
    if os.getuid() == 0:
        return ["setpriv", "--bounding-set=-ipc_lock", *limit]
    return limit


def limited(session, contestant, size):
    """The rate at r = 1, 0 if the program does not run."""
    done = subprocess.run([*locked_limit(), "true"], check=False,
                          stderr=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Skip("the limit of locked memory cannot be set here")
    out, is_whole = attempt(session, contestant, "policies_bench",
                            ["stream", str(size), "mmap", SEED],
                            below=locked_limit())
    if not is_whole:
        return 0
    values, _traffic = read_stream(contestant, out)
    return values[f"{contestant}@100 mb_per_s"]


def startup(session, contestant, size):
    """A window of memory of which 1 % is touched."""
    out = session.mpi(contestant, 2, "fresh_bench", ["startup", str(size)])
    return {f"{contestant}@us": field_of(out, "us"),
            f"{contestant}@rss": field_of(out, "rss_percent")}


def startup_size(session):
    """Of each of two ranks."""
    return session.at_most(GIB) // 2 // 4096 * 4096


def keep_row():
    """nprdma's malloc() next to one that never returns anything."""
    contestants = ("rcache", "never-return", "nprdma", "malloc-keep")
    return Row("policies.keep", f"stream, malloc ({' : '.join(contestants)})",
               stream("malloc"), contestants,
               [*shown(contestants, "malloc-keep",
                       {"locked_kb": ("<=", MOST_LOCKED_KB)}),
                speed("malloc-keep", "never-return", 0, ">=", 0.97),
                # Its bound, 256m, is in session.CONTESTANTS
                Judge("difference of medians", "malloc-keep@0 after_kb",
                      "nprdma@0 after_kb", "<=", 256 * 1024,
                      what="resident after, r = 0", unit="kB")],
               "MB/s", (MIB, 16 * MIB), prepare=unlimited_memlock)


def lazy_row():
    """Blocks that are kept when they are unmapped."""
    contestants = ("rcache", "nprdma", "lazy-unmap")
    return Row("policies.lazy", f"stream, mmap ({' : '.join(contestants)})",
               stream("mmap", "UCX_NPRDMA_LAZY_UNMAP"), contestants,
               [*shown(contestants, "lazy-unmap",
                       {"locked_kb": ("<=", MOST_LOCKED_KB)}),
                speed("lazy-unmap", "nprdma", 0, ">=", 1.15)],
               "MB/s", (MIB, 16 * MIB), prepare=unlimited_memlock)


def reused_row(line, memory, contestants, sizes, turns, needed=None):
    """The limit for buffers that are used again, from many short runs: the rate
    of all contestants changes by half within seconds, with where their pages
    lie and with what else the host does. Neighbouring runs see the same."""
    judges = [ratio("nprdma", "rcache", ">=", 0.97,
                    what="rate, r = 1, nprdma : rcache")]
    if "lazy-unmap" in contestants:
        # Nothing is unmapped
        judges.append(ratio("lazy-unmap", "nprdma", ">=", 0.97,
                            what="rate, r = 1, lazy-unmap : nprdma"))
    return Row(f"policies.{line}",
               f"{memory}, r = 1 ({' : '.join(contestants)})",
               rate(memory, 100, needed), contestants, judges, "MB/s", sizes,
               turns=turns, prepare=unlimited_memlock)


def fresh_row(line, sizes, turns):
    """The limit for new buffers, and how near to it any transport could be."""
    contestants = ("rcache", "nprdma", "pool", *FLOORS)
    judges = [ratio("nprdma", "rcache", ">=", 1,
                    what="rate, r = 0, nprdma : rcache"),
              ratio("pool", "rcache", what="rate, r = 0, pool : rcache"),
              *(ratio(name, "rcache", what=f"{text} : rcache")
                for name, text in FLOORS.items()),
              ratio("nprdma", "copy", ">=", 0.9,
                    what="rate, r = 0, nprdma : its page faults and copies")]
    return Row(f"policies.{line}", f"mmap, r = 0 ({' : '.join(contestants)})",
               rate("mmap", 0), contestants, judges, "MB/s", sizes, turns=turns,
               prepare=unlimited_memlock)


# Contestants with a row of their own, and its memory
OWN_MEMORY = {"malloc-keep": "malloc", "lazy-unmap": "mmap"}

POLICIES = [
    Row("policies.checker", "one byte of a message changed, for each of four "
        "shares", broken, ("rcache", "nprdma"),
        [value(name, ">=", len(SHARES), unit="found")
         for name in ("rcache", "nprdma")], "found", (MIB,), turns=one_turn,
        prepare=unlimited_memlock),
    Row("policies.checker", "half of the messages have what was there before",
        stale_control, ("rcache", "nprdma"),
        [value(name, relation, STALE_TURNS, unit="found")
         for name in ("rcache", "nprdma") for relation in ("<=", ">=")],
        "found", (MIB,), turns=one_turn, prepare=unlimited_memlock),
    stream_row("malloc"),
    stream_row("mmap"),
    Row("policies.remap", "model of remapping the pool's pages (no contestant)",
        model, ("pool",), list(model_judges()), "MB/s",
        (65536, MIB, 16 * MIB)),
    keep_row(),
    lazy_row(),
    reused_row("reused", "malloc", ("rcache", "nprdma"), (65536, MIB),
               many_turns),
    reused_row("reused", "mmap", ("rcache", "nprdma", "lazy-unmap"),
               (65536, MIB), many_turns, "UCX_NPRDMA_LAZY_UNMAP"),
    reused_row("reused-large", "malloc", ("rcache", "nprdma"),
               (16 * MIB, 64 * MIB), more_turns),
    reused_row("reused-large", "mmap", ("rcache", "nprdma"),
               (16 * MIB, 64 * MIB), more_turns),
    fresh_row("fresh", (MIB,), three_times),
    fresh_row("fresh-large", (16 * MIB,), None),
    fresh_row("fresh-large", (64 * MIB,), one_turn),
    Row("policies.startup", f"start of 2 ranks, 1 % touched ({ORDER})",
        startup, PROPOSALS,
        [value("nprdma@us", show=tuple(f"{name}@us" for name in PROPOSALS),
               what="start", unit="us"),
         value("nprdma@rss", show=tuple(f"{name}@rss" for name in PROPOSALS),
               what="resident after the start", unit="%")],
        sizes=(startup_size,), turns=one_turn, prepare=unlimited_memlock),
    Row("policies.limit", f"stream with ulimit -l {LIMIT_KIB} ({ORDER}; 0: "
        "does not run)", limited, PROPOSALS,
        [value("nprdma", ">=", 1, show=PROPOSALS, what="limited")], "MB/s",
        (MIB,),
        turns=one_turn),
    *stale.POLICIES_STALE,
]


def medians(results):
    """{(line, what, size, contestant): median} of all measured values."""
    found = {}
    for result in results:
        for name, values in result["values"].items():
            found[result["line"], result["what"], result["size"],
                  bare(name)] = median(values)
    return found


def counts_for(line, name):
    """Whether a row is of a contestant, and not only beside another one."""
    return name in OWN_MEMORY or line not in ("policies.keep", "policies.lazy")


def compare(found, name, base, percent):
    """{(memory, size): rate of `name` : rate of `base`}, where both are."""
    rates = {}
    what = f"{SAYS['mb_per_s']}, {show_share(percent)}"
    for (line, its, size, contestant), rate in found.items():
        reference = found.get((line, what, size, base))
        if ((its, contestant) == (what, name) and reference and
                counts_for(line, name)):
            rates[line.partition(".")[2], size] = rate / reference
    return rates


def largest(found, name, field):
    """The largest value of a field, None without one."""
    return max((figure for (line, what, _size, contestant), figure in
                found.items() if contestant == name and
                what.startswith(SAYS[field]) and counts_for(line, name)),
               default=None)


def faults_of(found, name):
    """What is against a proposal, in words, each from figures."""
    against = []
    for percent in (0, 100):
        rates = compare(found, name, "rcache", percent)
        if rates and min(rates.values()) < 0.9:
            against.append(f"slower than rcache at {show_share(percent)} "
                           f"({min(rates.values()):.2f})")
    locked = largest(found, name, "locked_kb")
    if locked is not None and locked > MOST_LOCKED_KB:
        against.append(f"locks {locked / 1024:.0f} MiB")
    after = largest(found, name, "after_kb")
    other = largest(found, "rcache", "after_kb")
    if after is not None and other is not None and after > other + 4096:
        against.append(f"keeps {(after - other) / 1024:.0f} MiB more than "
                       "rcache when all is freed")
    for (line, _what, _size, contestant), rate in found.items():
        if (line, contestant) == ("policies.limit", name) and rate < 1:
            against.append(f"does not run with ulimit -l {LIMIT_KIB}")
    return against + stale.against(found, name)


def verdict(found, name):
    """One line that is computed from the figures."""
    words = []
    for percent in (0, 100):
        rates = compare(found, name, "rcache", percent)
        if rates and name != "rcache":
            low, high = min(rates.values()), max(rates.values())
            words.append(f"{low:.2f} to {high:.2f} x rcache at "
                         f"{show_share(percent)}")
    for field, label in (("locked_kb", "locked"),
                         ("after_kb", "left resident")):
        figure = largest(found, name, field)
        if figure is not None:
            words.append(f"{label} {figure / 1024:.1f} MiB")
    words += stale.summary(found, name)
    if not words:
        return None
    against = faults_of(found, name)
    return (f"{name}: {', '.join(words)}. " +
            (f"Against it: {', '.join(against)}." if against
             else "Nothing against it."))


def verdict_of_model(found):
    """Where the models beat the pool, and the contestant without copies."""
    lines = []
    for name in ("model-swap", "model-give"):
        sizes, other = [], []
        for (line, what, size, contestant), rate in sorted(
                found.items(), key=lambda item: str(item)):
            if line == "policies.remap" and contestant == name:
                share = re.search(r"r = [0-9.]+", what).group()
                pool = found.get((line, what, size, "pool"))
                best = found.get(("policies.mmap", f"{SAYS['mb_per_s']}, "
                                  f"{share}", size, "nprdma"))
                sizes.append(f"{rate / pool:.2f} "
                             f"({show_size(size, 'bytes')}, {share})")
                if best:
                    other.append(rate / best)
        if sizes:
            lines.append(f"{name} (a model): {', '.join(sizes)} x the pool" +
                         (f"; at most {max(other):.2f} x nprdma"
                          if other else "") + ".")
    return lines


def verdicts(results):
    """One for each proposal that was measured."""
    found = medians(results)
    names = (*PROPOSALS, *OWN_MEMORY)
    lines = [verdict(found, name) for name in names]
    return [line for line in lines if line] + verdict_of_model(found)


def cell(found, memory, what, size, name):
    """A median; that of a contestant with a row of its own is of that row."""
    lines = {"malloc-keep": "policies.keep", "lazy-unmap": "policies.lazy"}
    own = OWN_MEMORY.get(name, memory)
    line = lines.get(name, f"policies.{memory}")
    return found.get((line, what, size, name)) if own == memory else None


def speed_row(label, figures):
    """A row of speed_table()."""
    return f"| {label} | " + " | ".join(
        "" if figure is None else f"{figure:.0f}" for figure in figures) + " |"


def speed_table(results):
    """By memory and size: the rate of each share, and the largest value of what
    should be small."""
    found, names = medians(results), (*PROPOSALS, *OWN_MEMORY)
    rows = []
    for memory in ("malloc", "mmap"):
        sizes = {key[2] for key in found if key[0] == f"policies.{memory}"}
        for size in sorted(sizes):
            shown_size = show_size(size, "bytes")
            for field, unit in FIELDS.items():
                figures = {percent: [
                    cell(found, memory, f"{SAYS[field]}, {show_share(percent)}",
                         size, name) for name in names] for percent in SHARES}
                if field == "mb_per_s":
                    rows += [speed_row(f"{memory}, {shown_size}: {unit}, "
                                       f"{show_share(percent)}", its)
                             for percent, its in figures.items()]
                    continue
                most = [None if None in column else max(column)
                        for column in zip(*figures.values())]
                rows.append(speed_row(f"{memory}, {shown_size}: {SAYS[field]}, "
                                      f"{unit}", most))
    for line, what, label, scale in (
            ("startup", "start", "start of 2 ranks, ms", 1e-3),
            ("startup", "resident after the start",
             "resident after the start, % of the window", 1),
            ("limit", "limited", f"`ulimit -l {LIMIT_KIB}`: MB/s, r = 1 (0: "
             "does not run)", 1)):
        for size in {key[2] for key in found
                     if key[:2] == (f"policies.{line}", what)}:
            figures = [found.get((f"policies.{line}", what, size, name))
                       for name in names]
            rows.append(speed_row(label, [None if figure is None else
                                          figure * scale
                                          for figure in figures]))
    if rows:
        rows = ["| most of all r, except rates | " + " | ".join(names) + " |",
                "|---" * (len(names) + 1) + "|", *rows]
    return rows


def conclude(results):
    """What a run has shown: tables and verdicts, as lines."""
    parts = [speed_table(results), stale.table(medians(results)),
             verdicts(results)]
    return [line for part in parts if part for line in [*part, ""]]
