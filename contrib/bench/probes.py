# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Commands of the table: most functions here return a function (session,
contestant, size) that runs a program once and returns its value."""

import os
import subprocess
import sys

from session import TOP, BenchError, Skip, field_of

MIB = 1 << 20
GIB = 1 << 30

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


def uct(words, count=0, warm=50):
    """Latency of ucx_perftest over UCT."""
    def command(session, contestant, size):
        transport = "rc_verbs" if contestant == "verbs" else "nprdma"
        return session.perftest(contestant, LATENCY, [
            "-d", "npemu0:1", "-x", transport,
            *fill(words, size, count, warm)])
    return command


def ucx(name, field, words):
    """A field of a program on UCX."""
    def command(session, contestant, size):
        out = session.ucx(contestant, name, words.format(size=size).split())
        return field_of(out, field)
    return command


def ucx_fields(name, words, **fields):
    """Several fields of one run of it: name = field."""
    def command(session, contestant, size):
        out = session.ucx(contestant, name, words.format(size=size).split())
        return {key: field_of(out, field) for key, field in fields.items()}
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


def mpi(ranks, words):
    """The first value of mpi_bench, which prints lines "SIZE VALUE"."""
    def command(session, contestant, size):
        out = session.mpi(contestant, ranks, words.format(size=size).split())
        return float(out.split()[1])
    return command


def mpi_fields(ranks, words, *fields):
    """Fields of it."""
    def command(session, contestant, size):
        out = session.mpi(contestant, ranks, words.format(size=size).split())
        return {field: field_of(out, field) for field in fields}
    return command


def startup(session, contestant, size):
    """Start of two ranks; resident memory is reported for nprdma."""
    out = session.mpi(contestant, 2, ["startup", str(size)])
    values = {contestant: field_of(out, "us")}
    if contestant == "nprdma":
        values["rss_percent"] = field_of(out, "rss_percent")
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


def absent(kind, target):
    """A get from absent pages, and the CPU's own fault."""
    return ucx_fields("absent_bench", f"{kind} {target}", get="us",
                      own="own_us")


def cold(target, is_swap=False):
    """Gets of pages that are not in memory, of a file or in swap, and O_DIRECT
    reads of a file."""
    def run_in_group(session, contestant):
        if not has_swap():
            raise Skip("no swap, and no right to make a swap file")
        if session.swap_group is None:
            raise Skip("no control group from which the kernel takes memory")
        path, reclaim = session.swap_group
        return session.run(
            ["sh", "-c", 'echo $$ >"$1" && shift && exec "$@"', "sh",
             os.path.join(path, "cgroup.procs"),
             session.program("absent_bench"), "cold", target,
             os.path.join(path, reclaim)],
            session.environment(contestant), f"absent_bench cold {target}",
            120)

    def command(session, contestant, _size):
        out = (run_in_group(session, contestant) if is_swap else
               session.ucx(contestant, "absent_bench", ["cold", target],
                           seconds=120))
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


def swap_group(session):
    """A swap file, and a control group from which the kernel takes memory."""
    swap_file(session)
    for base, reclaim in (("/sys/fs/cgroup/memory", "memory.force_empty"),
                          ("/sys/fs/cgroup", "memory.reclaim")):
        path = os.path.join(base, f"nprdma-bench.{os.getpid()}")
        if session.swap_group is not None:
            return
        try:
            os.mkdir(path)
        except OSError:
            continue
        session.cleanups.append(lambda path=path: os.rmdir(path))
        if os.path.exists(os.path.join(path, reclaim)):
            session.swap_group = path, reclaim


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
