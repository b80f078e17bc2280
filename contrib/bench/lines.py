# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""The table: line, what, command, contestants, limits.

small   small messages, idle processes
large   large messages, registration, absent pages, next to UCX's rc_verbs on
        the same emulated RNIC, which pins
start   allocating and registering memory, next to UCX's rc_verbs on the same
        emulated RNIC, which pins; first accesses to such memory
revoke  what each UCX_NPRDMA_REVOKE costs. With many messages of one buffer in
        flight strict revokes nothing; the latency shows its cost.
prio    small operations beside large ones of the same endpoint. In "off" nprdma
        has no scheduler, which has to show. "link" is on a link (NPEMU_LINK),
        which is busy all the time unless the CPU is too slow for it. "cost" is
        what the scheduler costs where nothing competes.
device  a device that need not be the emulated one (--device), in the modes that
        need no kernel module, next to UCX's own RC transport, which pins
plot    what README's plot shows, without limits
mpi     MPI over nprdma next to tcp, for the table and plot of quickstart
rmem    memory of another machine (rmem/bench)
claims  what others claim (claims.py)
kernel  the kernel module, in a guest (kernel.py)
"""

import sys

import kernel
import mpi as mpi_lines
import probes
from measure import (Row, difference, more_turns, notes, one_turn, ratio,
                     value)
from probes import BANDWIDTH, GIB, LATENCY, MIB, mpi, perftest, ucx, uct, volume
from session import TOP

sys.path.append(TOP + "/rmem/bench")
import rmem_rows  # noqa: E402

# --turns unless it is given
DEFAULT_TURNS = {"small": 7, "large": 5, "start": 1, "revoke": 7, "prio": 7,
                 "device": 5, "plot": 5, "mpi": 1, "rmem": 3, "kernel": 5,
                 "claims": 5}

# Groups whose programs run on an installation, so that two can be compared
OLD_AND_NEW = ("small", "large", "start", "revoke", "prio")

BULK = (65536, 262144, MIB, 4 * MIB)
TAG_BW = "-t tag_bw -s {size} -n {count} -w {warm}"

SMALL = [
    Row("small.tag_lat", "tag latency, 8 B",
        perftest(LATENCY, "-t tag_lat -s 8 -n 50000 -w 2000"),
        ("nprdma", "verbs", "tcp"),
        [ratio("nprdma", "verbs", "<=", 1.15),
         ratio("nprdma", "tcp", "<=", 0.25)]),
    # More than a page: the emulated RNIC makes no system call for these, so the
    # limit is less than what one takes with its copy
    Row("small.pages", "tag latency, 8 KiB",
        perftest(LATENCY, "-t tag_lat -s 8192 -n 20000 -w 1000"),
        ("nprdma", "verbs"), [value("nprdma", "<=", 1.3),
                              ratio("nprdma", "verbs", "<=", 1)]),
    Row("small.pages", "active message without UCP, 8 KiB",
        uct("-t am_lat -D bcopy -s 8192 -n 20000 -w 1000"),
        ("nprdma", "verbs"), [ratio("nprdma", "verbs", "<=", 1)]),
    Row("small.tag_bw", "tag bandwidth, 8 KiB",
        perftest(BANDWIDTH, "-t tag_bw -s 8192 -n 50000 -w 2000"),
        ("nprdma", "verbs"), [ratio("nprdma", "verbs", ">=", 0.9)], "MB/s"),
    Row("small.allreduce", "MPI_Allreduce of 8 B, 4 ranks",
        mpi(4, "allreduce 8"), ("nprdma", "tcp"),
        [ratio("nprdma", "tcp", "<=", 0.5)]),
    Row("small.put", "UCP put of 8 B and flush",
        ucx("ucp_bench", "put-pair 8", "put_us"),
        ("nprdma", "tcp"), [ratio("nprdma", "tcp", "<=", 0.5)]),
    Row("small.put", "UCP put of 8 B and flush, target computing for 1 s",
        ucx("ucp_bench", "put-computing",
            {"p99": "p99_us", "median": "median_us"}), ("nprdma",),
        [value("p99", "<=", 1000), *notes("median")], turns=one_turn),
    Row("small.pinned", "locked memory after all traffic, 4 ranks (largest)",
        mpi(4, "pinned", {"process": "process_locked_kb",
                          "application": "application_locked_kb"}),
        ("nprdma",), [value("process", "<=", 4096),
                      value("application", "<=", 0)], "kB", turns=one_turn),
    Row("small.idle", "CPU time of our threads, rank asleep for 3 s (largest)",
        mpi(2, "idle", "idle_cpu_us"), ("nprdma",),
        [value("nprdma", "<=", 0)], turns=one_turn),
]


def at_most_gib(session):
    """1 GiB, or what there is memory for."""
    return session.at_most(GIB)


def both(line, what, command, limit, **more):
    """A row of times: pinned : nprdma, as a speed-up of nprdma."""
    return Row(line, what, command, ("nprdma", "verbs"),
               [ratio("verbs", "nprdma", ">=", limit)], **more)


def absent_row(kind, what):
    """A get of an absent page, compared with the CPU's own page fault."""
    return Row("large.absent", f"get of an absent page, {what}",
               ucx("absent_bench", kind + " polling",
                   {"get": "us", "own": "own_us"}), ("nprdma",),
               [difference("get", "own", "<=", 4)], turns=more_turns,
               prepare=probes.swap_file)


def cold_row(target):
    """Gets of 16 absent pages at once, compared with the disk. A page that has
    come is as fast as one that was never absent."""
    return Row("large.cold", f"16 gets from a file : O_DIRECT, target {target}",
               probes.cold(target), ("nprdma",),
               [ratio("get16", "direct16", "<=", 1.5),
                ratio("beside", "atomic", "<=", 2),
                ratio("warm", "plain", "<=", 1.05),
                *notes("get1", "direct1")], turns=more_turns)


def apart(what, command, limit, **more):
    """By how much nprdma's latency may exceed that of verbs."""
    return Row("large.latency", what, command, ("nprdma", "verbs"),
               [difference("nprdma", "verbs", "<=", limit)], **more)


MPI_SIZES = {"sizes": (MIB, 4 * MIB, 16 * MIB)}
ONCE_SIZES = {"sizes": (4 * MIB, 16 * MIB, 64 * MIB)}

LARGE = [
    Row("large.bandwidth", "tag bandwidth",
        perftest(BANDWIDTH, TAG_BW, volume(8 * GIB)),
        ("nprdma", "verbs"), [ratio("nprdma", "verbs", ">=", 0.97)], "MB/s",
        BULK, turns=more_turns),
    apart("get 8 B", uct("-t get -D bcopy -s 8 -n 20000 -w 1000"), 0.1),
    apart("get 4 KiB", uct("-t get -D zcopy -s 4096 -n 20000 -w 1000"), 0.3),
    apart("put_zcopy", probes.put_and_read, "small READ", sizes=(65536,)),
    Row("large.registration", "mem_reg and mem_dereg, covered",
        probes.reg("covered"), ("nprdma",), [value("nprdma", "<=", 1)],
        sizes=(4096, MIB, at_most_gib)),
    Row("large.first", "first registration, untouched",
        probes.reg("first"), ("nprdma", "verbs"),
        [ratio("nprdma", "verbs", "<=", 0.01)],
        sizes=(64 * MIB, at_most_gib)),
    absent_row("fresh", "never touched"),
    absent_row("swapped", "in swap"),
    cold_row("sleeping"),
    cold_row("polling"),
    both("large.once", "message from buffers used once",
         mpi(2, "once {size}"), 1.5, **ONCE_SIZES),
    both("large.untouched",
         "message from buffers used once, receiver untouched",
         mpi(2, "untouched {size}"), 1.1, **ONCE_SIZES),
    both("large.allreduce", "MPI_Allreduce, 4 ranks, new buffers",
         mpi(4, "fresh {size}"), 1.15, turns=more_turns, **MPI_SIZES),
    both("large.warm", "MPI_Allreduce, 4 ranks, same buffers",
         mpi(4, "warm {size}"), 0.97, turns=more_turns, **MPI_SIZES),
    Row("large.kept", "MPI_Allreduce, 2 ranks, buffers mapped and unmapped, "
        "UCX_NPRDMA_LAZY_UNMAP=256m", mpi(2, "mapped {size}"),
        ("nprdma", "kept"), [ratio("nprdma", "kept", ">=", 1.5)], **MPI_SIZES),
    # Global Arrays' test of 400 KB per rank (scan_addc), and larger ones
    Row("large.window", "new MPI windows, put, got and freed, 4 ranks",
        mpi(4, "window {size}"), ("nprdma", "verbs", "tcp"),
        [ratio("nprdma", "verbs", "<=", 0.8), ratio("nprdma", "tcp")],
        sizes=(400 * 1024, 4 * MIB)),
    # The size of the L3 is in the last line of the run
    Row("large.pingpong", "MPI ping-pong of one buffer", mpi(2,
        "pingpong {size}"), ("nprdma", "verbs"),
        [ratio("nprdma", "verbs", "<=", 1.05)],
        turns=lambda turns: 8 * turns, sizes=(262144, MIB, 4 * MIB, 16 * MIB)),
    # How far apart the CPUs are changes from turn to turn on virtual machines,
    # and all of this with it, also the ratio
    Row("large.put", "put and flush, target polling : AM round trip",
        ucx("ucp_bench", "put-pair {size}",
            {"nprdma": "put_us", "am": "am_us", "ratio": "ratio"}), ("nprdma",),
        [value("ratio", "<=", 2, show=("nprdma", "am"), unit="round trips")],
        turns=more_turns, sizes=(8, 4096)),
]


def start_row(line, what, command, gain, size):
    """Start of two ranks, which touch one page in a hundred."""
    return Row("start." + line, what + ", 1 % touched", command,
               ("nprdma", "verbs"),
               [ratio("verbs", "nprdma", ">=", gain),
                value("rss_percent", "<=", 14, unit="%")], sizes=(size,))


START = [
    start_row("window", "MPI_Win_allocate", probes.startup(
        "mpi_bench", "startup"), 5, lambda session: session.at_most(GIB)),
    Row("start.window", "MPI_Win_allocate, all touched",
        mpi(2, "dense {size}", "us"), ("nprdma", "verbs"),
        [ratio("nprdma", "verbs", "<=", 1.1)],
        sizes=(lambda session: session.at_most(GIB),)),
    start_row("shmem", "shmem_init", probes.startup("shmem_bench"), 20,
              lambda session: session.at_most(4 * GIB)),
    Row("start.slab", "export of 64 GiB, untouched (pinned: the part that is "
        "got, scaled); a part of it written, and got twice",
        probes.slab, ("nprdma", "verbs"),
        [ratio("verbs", "nprdma", ">=", 20),
         ratio("nprdma first", "verbs first", what="first pass"),
         ratio("nprdma second", "verbs second", "<=", 1.05, what="second pass"),
         value("resident", unit="MiB")],
        sizes=(lambda session: session.at_most(2 * GIB),), turns=more_turns),
    *[Row("start.written", "get of 4 KiB from pages just written, target "
          + target, ucx("absent_bench", f"written {target}",
                        {"first": "us", "again": "again_us"}), ("nprdma",),
          [ratio("first", "again", "<=", 1.3)])
      for target in ("polling", "sleeping")],
]
LARGE, START = ([row._replace(prepare=row.prepare or probes.unlimited_memlock)
                 for row in rows] for rows in (LARGE, START))


def revoke_row(line, what, command, unit, sizes, relation=None, limit=None):
    """lazy may have a limit, strict is reported."""
    return Row(line, what, command, ("never", "lazy", "strict"),
               [ratio("lazy", "never", relation, limit),
                ratio("strict", "never")], unit, sizes)


REVOKE = [
    revoke_row("revoke.bandwidth", "tag bandwidth",
               perftest(BANDWIDTH, TAG_BW, volume(2 * GIB, 16000)), "MB/s",
               BULK, ">=", 0.98),
    revoke_row("revoke.latency", "tag latency",
               perftest(LATENCY, "-t tag_lat -s {size} -n 2000 -w 50"), "us",
               (65536, MIB), "<=", 1.02),
]


# Contestants whose small operations may pass large puts
ORDERS = {"atomic": ", UCX_NPRDMA_ORDER=atomic",
          "relaxed": ", UCX_NPRDMA_ORDER=ucp"}

PROBES = {"tag": "tag message of 8 B there and back", "get": "get of 8 B",
          "add": "fetch-add of 8 B"}
BUSY = {"unit": "of the time"}


def beside(probe, bulk, ours="nprdma"):
    """What a row measures."""
    return f"{PROBES[probe]} beside {bulk} of 16 MiB{ORDERS.get(ours, '')}"


def prio_row(probe, bulk, ours="nprdma", limited=True):
    """A small operation beside two large ones, next to rc_verbs. Each small one
    is posted when the last is done, so with rc_verbs most of those beside tag
    are in the moments when the target does not move data. What others wait is
    only in the 99th percentile."""
    p50, p99 = f"{ours} p50", f"{ours} p99"
    return Row("prio." + bulk, beside(probe, bulk, ours),
               probes.prio(probe, bulk), (ours, "verbs"),
               [value(p50, "<=", 60 if limited else None),
                ratio(p50, "verbs p50", "<=",
                      0.05 if limited and bulk != "tag" else None),
                ratio(p99, "verbs p99", "<=", 0.05 if limited else None),
                ratio(p99, p50, "<=", 4 if limited else None),
                *notes(f"{ours} mb", "verbs mb", unit="MB/s")])


def prio_off_row(bulk):
    """The same with and without the scheduler."""
    return Row("prio.off", beside("get", bulk), probes.prio("get", bulk),
               ("nprdma", "unscheduled"),
               [ratio("unscheduled p50", "nprdma p50", ">=", 5)])


def prio_flood_row(bulk):
    """Large operations beside many small ones."""
    return Row("prio.flood", f"{bulk} of 1 MiB beside a flood of puts of 8 B",
               ucx("prio_bench", "flood " + bulk,
                   {"alone": "alone_mb", "beside": "beside_mb",
                    "rate": "small_per_s", "gap": "gap_ms"}), ("nprdma",),
               [ratio("beside", "alone", ">=", 0.5, unit="MB/s"),
                value("gap", "<=", 10, unit="ms"),
                value("rate", unit="small ones in a second")])


def prio_link_row(probe, bulk, ours="nprdma", gain=None):
    """The same on a link, next to the unloaded link, and without the scheduler:
    that has to be at least `gain` times the unloaded one."""
    off = f"unscheduled-{ours}" if ours in ORDERS else "unscheduled"
    return Row("prio.link", beside(probe, bulk, ours) + ", link",
               probes.linked(probe, bulk), (ours, "alone", off),
               [ratio(ours, "alone", "<=", 2),
                ratio(off, "alone", gain and ">=", gain),
                *(value(f"{name} busy", ">=", probes.LINK_BUSY, **BUSY)
                  for name in (ours, off))])


def prio_cost_row(what, words):
    """What the scheduler costs where nothing competes."""
    return Row("prio.cost", what, perftest(BANDWIDTH, words, volume(2 * GIB)),
               ("nprdma", "unscheduled"),
               [ratio("nprdma", "unscheduled", ">=", 0.98)], "MB/s",
               (65536, MIB, 16 * MIB), turns=more_turns)


PRIO = [
    prio_row("tag", "put", "atomic"),
    # The message waits for the puts, as it does on RC
    Row("prio.put", beside("tag", "put"), probes.prio("tag", "put"),
        ("nprdma", "verbs"), [ratio("nprdma p50", "verbs p50", "<=", 1)]),
    prio_row("get", "put"),
    prio_row("tag", "get"),
    prio_row("get", "get"),
    prio_row("tag", "tag"),
    # The target moves the data, so with verbs nothing is in the way of gets
    prio_row("get", "tag", limited=False),
    prio_row("add", "put", "relaxed"),
    prio_row("add", "put", limited=False),
    prio_row("add", "tag"),
    prio_off_row("put"),
    prio_off_row("get"),
    prio_flood_row("put"),
    prio_flood_row("get"),
    prio_link_row("tag", "put", "atomic"),
    prio_link_row("get", "put", gain=100),
    prio_link_row("add", "put", "relaxed", gain=100),
    prio_link_row("tag", "get"),
    prio_link_row("get", "get", gain=100),
    prio_link_row("add", "get", "relaxed", gain=100),
    prio_link_row("tag", "tag"),
    # The target moves the data, so nothing is in the way
    prio_link_row("get", "tag"),
    prio_link_row("add", "tag"),
    prio_cost_row("tag bandwidth", TAG_BW),
    prio_cost_row("put bandwidth", "-t ucp_put_bw -s {size} -n {count} "
                  "-w {warm}"),
    prio_cost_row("get bandwidth", "-t ucp_get -s {size} -n {count} -w {warm} "
                  "-O 16"),
    Row("prio.cost", "active message without UCP, 8 B",
        uct("-t am_lat -D short -s 8 -n 50000 -w 2000"),
        ("nprdma", "unscheduled"),
        [difference("nprdma", "unscheduled", "<=", 0.01)], turns=more_turns),
]

def device_rows(mode):
    """Nothing is promised of a device that was never seen."""
    def row(test, what, field, unit, sizes):
        words = f"-t {test} -s {{size}} -n {{count}} -w {{warm}}"
        return Row("device." + mode, what, probes.on_device(
            field, words, volume(64 * MIB, 2000)), (mode, "pinned"),
            [ratio(mode, "pinned")], unit, sizes)

    return [row("tag_lat", "tag latency", LATENCY, "us", (8, 8192)),
            row("ucp_get", "get latency", LATENCY, "us", (8, 4096, 65536)),
            row("tag_bw", "tag bandwidth", BANDWIDTH, "MB/s", BULK)]


def plot_row(kind, what, command, contestants, unit, sizes):
    """Values that are drawn, without limits."""
    return Row("plot." + kind, what, command, contestants, notes(*contestants),
               unit, sizes, prepare=probes.unlimited_memlock)


PAIR = ("nprdma", "verbs")
PLOT_SIZES = (64, 1024, 4096, 16384, *BULK)
PLOT = [
    plot_row("get", "get, latency", perftest(
        LATENCY, "-t ucp_get -s {size} -n {count} -w {warm}",
        volume(GIB, 20000)), PAIR, "us", PLOT_SIZES),
    plot_row("tag", "tag messages, bandwidth", perftest(
        BANDWIDTH, TAG_BW, volume(2 * GIB, 100000)), PAIR, "MB/s", PLOT_SIZES),
    plot_row("registration", "registration and deregistration",
             probes.registration, ("nprdma", "covered", "verbs"), "us",
             (4096, 65536, MIB, 16 * MIB, 256 * MIB)),
    plot_row("beside", "get of 8 B beside two puts of this size",
             ucx("prio_bench", "get put {size}", "p50_us"),
             ("nprdma", "unscheduled", "verbs"), "us",
             (*BULK, 16 * MIB)),
]
PLOT_NAMES = {"nprdma": "nprdma", "covered": "nprdma, memory covered",
              "unscheduled": "nprdma, UCX_NPRDMA_SCHED=n",
              "verbs": "rc_verbs, pinned"}

DEVICE = [*device_rows("copy"), *device_rows("odp")]

GROUPS = {"small": SMALL, "large": LARGE, "start": START, "revoke": REVOKE,
          "prio": PRIO, "device": DEVICE, "plot": PLOT,
          "mpi": mpi_lines.MPI, "rmem": rmem_rows.RMEM,
          "kernel": kernel.KERNEL}
