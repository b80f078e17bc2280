# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Commands of the table: most functions here return a function (session,
contestant, size) that runs a program once and returns its value."""

import os
import subprocess
import sys

from session import TOP, BenchError, Skip, field_of

MIB = 1 << 20
GIB = 1 << 30

# Exported without pinning
SLAB = 64 * GIB

# NPEMU_LINK: its rate in MB/s, and in words. A turn in which the link was busy
# for less of the time is discarded: the CPU copied what the link carries, and
# took longer. The last of LINK_TRIES counts in any case.
LINK_MB = 1000
LINK = "1GB/s"
LINK_BUSY = 0.9
LINK_TRIES = 3

# Fields of ucx_perftest's CSV line: median latency, bandwidth, messages in a
# second
LATENCY, BANDWIDTH, RATE = 2, 6, 8


def fill(words, size, count, warm):
    """The words of a command; {size}, {count} and {warm} are filled in."""
    number = count(size) if callable(count) else count
    return words.format(size=size, count=number,
                        warm=warm(number) if callable(warm) else warm).split()


def volume(amount, most=None):
    """A count of messages that carry `amount` bytes, `most` at most."""
    return lambda size: min(amount // size, most or amount)


def perftest(field, words, count=0, warm=50):
    """ucx_perftest over UCP."""
    def command(session, contestant, size):
        return session.perftest(contestant, field,
                                fill(words, size, count, warm))
    return command


def on_device(field, words, count=0, warm=50):
    """The same where a contestant may not work: skipped with UCX's reason."""
    def command(session, contestant, size):
        try:
            return perftest(field, words, count, warm)(session, contestant,
                                                       size)
        except BenchError as error:
            raise Skip(f"{contestant} does not work: {error}") from error
    return command


def uct(words, count=0, warm=50):
    """Latency of ucx_perftest over UCT."""
    def command(session, contestant, size):
        transport = "rc_verbs" if contestant == "verbs" else "nprdma"
        return session.perftest(contestant, LATENCY, [
            "-d", "npemu0:1", "-x", transport,
            *fill(words, size, count, warm)])
    return command


def pick(out, fields):
    """The value of a field, or {name: value} of {name: field}."""
    if isinstance(fields, str):
        return field_of(out, fields)
    return {name: field_of(out, field) for name, field in fields.items()}


def ucx(name, words, fields):
    """A program on UCX."""
    def command(session, contestant, size):
        return pick(session.ucx(contestant, name,
                                words.format(size=size).split()), fields)
    return command


def reg(kind):
    """Registration, by nprdma on npemu0, or by UCX's verbs memory domain."""
    def command(session, contestant, size):
        is_verbs = contestant == "verbs"
        out = session.ucx(contestant, "reg_bench", [
            "ib" if is_verbs else "nprdma", "npemu0", kind, str(size)],
            {"UCX_IB_REG_METHODS": "direct"} if is_verbs else None)
        return field_of(out, "us")
    return command


def registration(session, contestant, size):
    """Of fresh memory, or for the contestant "covered" of known memory."""
    is_covered = contestant == "covered"
    return reg("covered" if is_covered else "first")(
        session, "nprdma" if is_covered else contestant, size)


def mpi(ranks, words, fields=None):
    """mpi_bench; without fields it prints a line "SIZE VALUE"."""
    def command(session, contestant, size):
        out = session.mpi(contestant, ranks, words.format(size=size).split())
        return pick(out, fields) if fields else float(out.split()[1])
    return command


def startup(name, *words):
    """Start of two ranks; resident memory is reported for nprdma."""
    def command(session, contestant, size):
        out = session.mpi(contestant, 2, [*words, str(size)], name,
                          {"SHMEM_SYMMETRIC_HEAP_SIZE": str(size)})
        values = {contestant: field_of(out, "us")}
        if contestant == "nprdma":
            values["rss_percent"] = field_of(out, "rss_percent")
        return values
    return command


def slab(session, contestant, size):
    """All of it is exported, or if it is pinned `size`, the part that is
    written and got; the time for that is scaled."""
    length = size if contestant == "verbs" else SLAB
    out = session.ucx(contestant, "slab_bench", [str(length), str(size)])
    values = {contestant: field_of(out, "export_us") * SLAB / length,
              f"{contestant} first": field_of(out, "first_us"),
              f"{contestant} second": field_of(out, "second_us")}
    if contestant == "nprdma":
        values["resident"] = field_of(out, "resident_mb")
    return values


def put_and_read(session, contestant, size):
    """A large put, and a small READ of the one that pins."""
    put = uct("-t put_lat -D zcopy -s {size} -n 10000 -w 500")
    values = {contestant: put(session, contestant, size)}
    if contestant == "verbs":
        values["small READ"] = uct("-t get -D bcopy -s 8 -n 20000 -w 1000")(
            session, contestant, size)
    return values


def prio(probe, bulk):
    """A small operation beside large ones: values of each contestant."""
    def command(session, contestant, _size):
        out = session.ucx(contestant, "prio_bench", [probe, bulk])
        return {f"{contestant} p50": field_of(out, "p50_us"),
                f"{contestant} p99": field_of(out, "p99_us"),
                f"{contestant} mb": field_of(out, "mb_per_s")}
    return command


def linked(probe, bulk):
    """The same on a link, and the share of the time in which it was busy; the
    contestant "alone" has nothing large beside."""
    def command(session, contestant, _size):
        is_alone = contestant == "alone"
        for left in reversed(range(LINK_TRIES)):
            out = session.ucx(contestant, "prio_bench",
                              [probe, "none" if is_alone else bulk],
                              {"NPEMU_LINK": LINK + ",arb=fair"})
            share = field_of(out, "mb_per_s") / LINK_MB
            if is_alone or share >= LINK_BUSY:
                break
            print(f"  the link was busy for {share:.2f} of the time: "
                  + ("discarded" if left else "kept after as many tries"),
                  file=sys.stderr, flush=True)
        median = field_of(out, "p50_us")
        return {contestant: median} if is_alone else {
            contestant: median, f"{contestant} busy": share}
    return command


def cold(target):
    """Gets of pages of a file that are not in memory, and O_DIRECT reads."""
    def command(session, contestant, _size):
        out = session.ucx(contestant, "absent_bench", ["cold", target],
                          seconds=120)
        if field_of(out, "present") > 0:
            raise BenchError("pages were in memory before they were got")
        return {name: field_of(out, f"{name}_us")
                for name in ("get1", "direct1", "get16", "direct16", "atomic",
                             "beside", "warm", "plain")}
    return command


def has_swap():
    """Whether the kernel has any; the first line is a head."""
    with open("/proc/swaps") as file:
        return len(file.readlines()) > 1


def swap_file(session):
    """A swap file of 64 MiB for this run, if there is no swap. Without it,
    and without the right to make it, lines that need swap are skipped."""
    if has_swap():
        return
    path = os.path.join(TOP, f"_build/bench-swap.{os.getpid()}")
    os.makedirs(os.path.dirname(path), exist_ok=True)

    def remove():
        subprocess.run(["swapoff", path], stderr=subprocess.DEVNULL,
                       check=False)
        os.remove(path)

    done = subprocess.run(
        ["sh", "-c", 'fallocate -l 64M "$1" && chmod 600 "$1" && '
         'mkswap -q "$1" && swapon "$1"', "sh", path],
        stderr=subprocess.DEVNULL, check=False).returncode == 0
    if done:
        session.cleanups.append(remove)
    elif os.path.exists(path):
        os.remove(path)


def unlimited_memlock(_session):
    """The contestant that pins must be able to; root is not limited."""
    import resource  # not in python3-minimal
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK,
                           (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError) as error:
        if os.getuid() != 0:
            raise BenchError("the contestant that pins needs an unlimited "
                             "memlock limit: run this as root") from error
