# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""The table: line, what, command, contestants, limits.

small   small messages, connections, idle processes
large   large messages, registration, absent pages, next to UCX's rc_verbs on
        the same emulated RNIC, which pins
revoke  what each UCX_NPRDMA_REVOKE costs. With many messages of one buffer in
        flight, as for bandwidth, strict finds another registration each time
        and revokes nothing; the latency shows its cost.
prio    small operations beside large ones of the same endpoint. In "off" nprdma
        has no scheduler, which has to show. "link", "batch", "port" and "train"
        are on a link (NPEMU_LINK), which is busy all the time unless the CPU is
        too slow for it. "cost" is what the scheduler costs where nothing
        competes; over two installations (--old), other lines show it.
order   puts that overlap nowhere, over two installations of nprdma (--old). In
        "same" all puts go to one place, so they must wait for each other: no
        limit. "unmap" is mmap() and munmap(), likewise.
lazy    memory that is freed and allocated again, kept or not (lazy.py)
choice  what UCP chooses by itself, next to the best that settings reach, at
        each size (choice.py)
policies what can be done with buffers between messages (policies.py)
monitor the memory monitor of a build tree (--build)
mpi     MPI over nprdma next to tcp, for the table and plot of quickstart
kernel  the kernel module, in a guest (kernel.py)
device  its windows on an emulated mlx5 adapter, in a guest (device.py)
softroce, windows
        whether data is right where addresses get other pages, in a guest on
        soft-RoCE, and on an emulated mlx5 adapter with the module (stale.py)
"""

import choice
import device
import kernel
import lazy
import mpi as mpi_lines
import policies
import probes
import stale
from measure import Row, more_turns, one_turn
from probes import BANDWIDTH, GIB, LATENCY, MIB, mpi, perftest, ucx, uct, volume
from stats import Earlier, Judge, ratio, value

# --turns unless it is given
DEFAULT_TURNS = {"small": 7, "large": 5, "revoke": 7, "order": 21,
                 "prio": 7, "lazy": 7, "choice": 3, "policies": 3,
                 "monitor": 1, "mpi": 1, "kernel": 5, "device": 5,
                 "softroce": 1, "windows": 1}

BULK = (65536, 262144, 1048576, 4194304)
TAG_BW = "-t tag_bw -s {size} -n {count} -w {warm}"


CACHE_LINE = Judge("extremes", "line_ns", what="a cache line there and back",
                   unit="ns")


def notes(*names, **more):
    """Values that are reported without a limit."""
    return [value(name, **more) for name in names]


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
    Row("small.pages", "tag latency",
        perftest(LATENCY, "-t tag_lat -s {size} -n 10000 -w 500"),
        ("nprdma", "verbs"), [ratio("nprdma", "verbs")],
        sizes=(16384, 65536)),
    Row("small.pages", "active message without UCP, 8 KiB",
        uct("-t am_lat -D bcopy -s 8192 -n 20000 -w 1000"),
        ("nprdma", "verbs"), [ratio("nprdma", "verbs", "<=", 1)]),
    Row("small.tag_bw", "tag bandwidth, 8 KiB",
        perftest(BANDWIDTH, "-t tag_bw -s 8192 -n 50000 -w 2000"),
        ("nprdma", "verbs"), [ratio("nprdma", "verbs", ">=", 0.9)], "MB/s"),
    Row("small.allreduce", "MPI_Allreduce of 8 B, 4 ranks",
        mpi(4, "mpi_bench", "allreduce 8"),
        ("nprdma", "tcp"), [ratio("nprdma", "tcp", "<=", 0.5)]),
    Row("small.put", "UCP put of 8 B and flush",
        ucx("ucp_bench", "median_us", "put-polling"),
        ("nprdma", "tcp"), [ratio("nprdma", "tcp", "<=", 0.5)]),
    Row("small.put", "UCP put of 8 B and flush, target without an endpoint",
        ucx("ucp_bench", "median_us", "put-listening"),
        ("nprdma", "tcp"), [ratio("nprdma", "tcp", "<=", 0.5)]),
    Row("small.put", "UCP put of 8 B and flush, target computing for 1 s",
        probes.ucx_fields("ucp_bench", "put-computing", p99="p99_us",
                          median="median_us", slowest="max_us",
                          clock_gap="gap_us"), ("nprdma",),
        [value("p99", "<=", 1000), *notes("median", "slowest", "clock_gap")],
        turns=one_turn),
    Row("small.pinned", "locked memory after all traffic, 4 ranks (largest)",
        probes.mpi_fields(4, "mpi_bench", "pinned", "process_locked_kb",
                          "application_locked_kb"), ("nprdma",),
        [value("process_locked_kb", "<=", 4096),
         value("application_locked_kb", "<=", 0)], "kB", turns=one_turn),
    Row("small.idle", "CPU time of our threads, rank asleep for 3 s (largest)",
        probes.mpi_fields(2, "mpi_bench", "idle", "idle_cpu_us"), ("nprdma",),
        [value("idle_cpu_us", "<=", 0)], turns=one_turn),
    Row("small.bandwidth", "tag bandwidth",
        perftest(BANDWIDTH, TAG_BW, volume(GIB // 2, 4000)),
        ("nprdma", "verbs", "tcp"), notes("nprdma", "verbs", "tcp"), "MB/s",
        BULK),
    Row("small.connect", "connection set-up, per endpoint",
        ucx("ucp_bench", "us_per_endpoint", "connect {size}"),
        ("nprdma", "tcp"), notes("nprdma", "tcp"),
        sizes=(2, 16, 64, 256), scale="endpoints"),
]


def at_most_gib(session):
    """1 GiB, or what there is memory for."""
    return session.at_most(GIB)


def startup_size(session):
    """Of each of two ranks, in whole pages."""
    return session.at_most(16 * GIB) // 2 // 4096 * 4096


def fresh(ranks, kind):
    """MPI with buffers of each size."""
    return mpi(ranks, "fresh_bench", kind + " {size}")


def both(line, what, command, limit, **more):
    """A row of times: pinned : nprdma, as a speed-up of nprdma."""
    return Row(line, what, command, ("nprdma", "verbs"),
               [ratio("verbs", "nprdma", ">=", limit)], **more)


def absent_row(kind, what):
    """A get of an absent page, compared with the CPU's own page fault."""
    return Row("large.absent", what, probes.absent(kind), ("nprdma",),
               [Judge("difference", "get", "own", "<=", 4, ("get", "own")),
                CACHE_LINE],
               turns=more_turns, prepare=probes.swap_file)


def sleeping_row(kind, what):
    """The same, and the target calls nothing of UCX."""
    return Row("large.absent", what, probes.absent(kind), ("nprdma",),
               notes("get"), turns=one_turn, prepare=probes.swap_file)


def cold_rows(kind):
    """Gets of 16 absent pages at once, compared with the disk: pages of a file,
    also without the threads that bring pages in, and pages in swap. A page that
    has come is as fast as one that was never absent."""
    shown = notes("get1", "direct1")
    limits = [ratio("get16", "direct16", "<=", 1.5),
              ratio("beside", "atomic", "<=", 2),
              ratio("warm", "plain", "<=", 1.05), *shown]
    return [
        Row("large.cold", f"16 gets from a file : O_DIRECT, target {kind}",
            probes.cold(kind), ("nprdma",), limits, turns=more_turns),
        Row("large.cold", f"the same without threads, target {kind}",
            probes.cold(kind), ("unthreaded",),
            [ratio("get16", "direct16"), ratio("beside", "atomic"), *shown],
            turns=more_turns),
        Row("large.cold", f"16 gets from swap : O_DIRECT, target {kind}",
            probes.cold(kind, True), ("nprdma",), limits, turns=more_turns,
            prepare=probes.swap_group)]


def apart(what, command, limit):
    """By how much nprdma's latency may exceed that of verbs."""
    return Row("large.latency", what, command, ("nprdma", "verbs"),
               [Judge("difference of medians", "nprdma", "verbs", "<=", limit,
                      ("nprdma", "verbs"))])


def curve(what, command, contestants, unit, *sizes, **more):
    """Points of large.curves, for zcopy.png."""
    return Row("large.curves", what, command, contestants,
               notes(*contestants), unit, sizes, **more)


def messages(size):
    """How many are timed; enough to hide what happens once."""
    return min(256 * MIB // size, 20000)


def tenth(count):
    """For warming up."""
    return max(count // 10, 50)


MPI_SIZES = {"sizes": (MIB, 4 * MIB, 16 * MIB)}
PUT_SIZES = {"sizes": (8, 4096)}

LARGE = [
    Row("large.bandwidth", "tag bandwidth",
        perftest(BANDWIDTH, TAG_BW, volume(8 * GIB)),
        ("nprdma", "verbs"), [ratio("nprdma", "verbs", ">=", 0.97)], "MB/s",
        BULK, turns=more_turns),
    apart("get 8 B",
          uct("-t get -D bcopy -s 8 -n 20000 -w 1000"), 0.1),
    apart("get 4 KiB",
          uct("-t get -D zcopy -s 4096 -n 20000 -w 1000"), 0.3),
    # The limit is a small READ
    apart("put_zcopy 64 KiB",
          uct("-t put_lat -D zcopy -s 65536 -n 10000 -w 500"),
          Earlier("get 8 B", "verbs")),
    Row("large.registration", "mem_reg and mem_dereg, covered",
        probes.reg_both("covered"), ("nprdma",), [value("nprdma", "<=", 1)],
        sizes=(MIB, at_most_gib)),
    Row("large.first", "first registration, untouched",
        probes.reg_both("first", {"UCX_IB_REG_METHODS": "direct"}),
        ("nprdma", "verbs"), [ratio("nprdma", "verbs", "<=", 0.01)],
        sizes=(at_most_gib,)),
    absent_row("fresh", "get of an absent page, never touched"),
    absent_row("swapped", "get of an absent page, in swap"),
    sleeping_row("fresh-sleeping", "get of an absent page, never touched, "
                 "target sleeping"),
    sleeping_row("swapped-sleeping", "get of an absent page, in swap, "
                 "target sleeping"),
    *cold_rows("sleeping"),
    *cold_rows("polling"),
    both("large.once", "message from buffers used once", fresh(2, "once"), 1.5,
         sizes=(4 * MIB, 16 * MIB, 64 * MIB)),
    both("large.untouched",
         "message from buffers used once, receiver untouched",
         fresh(2, "untouched"), 1.1, sizes=(4 * MIB, 16 * MIB, 64 * MIB)),
    both("large.allreduce", "MPI_Allreduce, 4 ranks, new buffers",
         fresh(4, "allreduce"), 1.15, turns=more_turns, **MPI_SIZES),
    both("large.warm", "MPI_Allreduce, 4 ranks, same buffers",
         fresh(4, "warm"), 0.97, turns=more_turns, **MPI_SIZES),
    # Global Arrays' test of 400 KB per rank (scan_addc), and larger ones
    Row("large.window", "new MPI windows, put, got and freed, 4 ranks",
        fresh(4, "window"), ("nprdma", "verbs", "tcp"),
        [ratio("nprdma", "verbs", "<=", 0.8), ratio("nprdma", "tcp")],
        sizes=(400 * 1024, 4 * MIB)),
    # How far apart the CPUs are changes from turn to turn on virtual machines,
    # and all of this with it, also the ratio
    Row("large.put", "put and flush, target polling : AM round trip",
        probes.put_pair, ("pair",),
        [value("am ratio", "<=", 2, show=("nprdma", "am"), unit="round trips"),
         CACHE_LINE], turns=more_turns, **PUT_SIZES),
    Row("large.put", "put and flush, target polling",
        probes.put_reference, ("verbs", "tcp", "ucp_am", "uct_am"),
        notes("verbs", "tcp", "ucp_am", "uct_am"), **PUT_SIZES),
    Row("large.put", "put and flush, target computing",
        ucx("ucp_bench", "median_us", "put-computing {size}"),
        ("nprdma", "verbs", "tcp"), notes("nprdma", "verbs", "tcp"),
        turns=one_turn, **PUT_SIZES),
    Row("large.pinned", "locked memory after all traffic, 4 ranks (largest)",
        probes.mpi_fields(4, "mpi_bench", "pinned", "application_locked_kb"),
        ("nprdma",), [value("application_locked_kb", "<=", 0)], "kB",
        turns=one_turn),
    Row("large.startup", "start of 2 ranks, 1 % touched", probes.startup,
        ("nprdma", "verbs"),
        [Judge("ratio of medians", "verbs", "nprdma", ">=", 20,
               ("verbs", "nprdma")),
         value("rss_percent", "<=", 14, unit="%")],
        sizes=(startup_size,), once=("verbs",)),
    # rc_verbs has no get_zcopy of less than 65 bytes
    curve("get", uct("-t get -D zcopy -s {size} -n {count} -w {warm}",
                     messages, tenth), ("nprdma", "verbs"), "us",
          128, 512, 4096, 16384, *BULK),
    curve("bw", perftest(BANDWIDTH, TAG_BW, messages, tenth),
          ("nprdma", "verbs"), "MB/s", 256, 1024, 4096, 8192, 16384, *BULK),
    curve("reg", probes.reg_both("first", {"UCX_IB_REG_METHODS": "direct"}),
          ("nprdma", "verbs"), "us", 4096, 65536, MIB, 16 * MIB, 256 * MIB),
    curve("covered", probes.reg_both("covered"), ("nprdma",), "us", 4096,
          65536, MIB, 16 * MIB, 256 * MIB),
    curve("rate", probes.absent_rate, ("nprdma",), "us", 0, 1, 2, 5, 10, 20,
          40, 60, 80, 100, scale="percent"),
    # Memory that is pinned, of which no page can be absent
    curve("rate, pinned", probes.absent_rate, ("verbs",), "us", 0,
          scale="percent"),
]
LARGE = [row._replace(prepare=row.prepare or probes.unlimited_memlock)
         for row in LARGE]


def revoke_row(line, what, command, unit, relation, limit, sizes):
    """lazy has a limit, strict is reported."""
    return Row(line, what, command, ("never", "lazy", "strict"),
               [ratio("lazy", "never", relation, limit),
                ratio("strict", "never")], unit, sizes)


REVOKE = [
    revoke_row("revoke.bandwidth", "tag bandwidth",
               perftest(BANDWIDTH, TAG_BW, volume(2 * GIB, 16000)), "MB/s",
               ">=", 0.98, BULK),
    revoke_row("revoke.latency", "tag latency",
               perftest(LATENCY, "-t tag_lat -s {size} -n 2000 -w 50"), "us",
               "<=", 1.02, (65536, MIB)),
    Row("revoke.message", "mem_reg, mkey_pack and mem_dereg",
        probes.reg("message"), ("never", "lazy", "strict"),
        notes("never", "lazy", "strict"), sizes=(65536, MIB)),
]


# Contestants whose small operations may pass large puts
ORDERS = {"atomic": ", UCX_NPRDMA_ORDER=atomic",
          "relaxed": ", UCX_NPRDMA_ORDER=ucp"}


def order_row(kind, what, limit, ours="nprdma"):
    """Two installations of nprdma: versions.py."""
    return Row("order." + kind, what + ORDERS.get(ours, ""),
               ucx("order_bench", "mb_per_s", kind + " {size}"),
               (ours,), [ratio("new", "old", limit and ">=", limit)],
               "MB/s", (16384, *BULK))


ORDER = [
    order_row("puts", "disjoint puts", 0.98),
    order_row("small", "disjoint puts, each followed by a put of 8 B", 0.98,
              "atomic"),
    order_row("atomics", "disjoint puts, each followed by an atomic", 0.98),
    order_row("same", "puts to one place", None),
    # Nothing is kept: both are off by default
    Row("order.unmap", "mmap and munmap, without the system calls",
        probes.reg("unmap"), ("nprdma",),
        [Judge("difference", "new", "old", "<=", 0.02, ("new", "old"))],
        sizes=(65536, MIB)),
]


PROBES = {"tag": "tag message of 8 B there and back", "get": "get of 8 B",
          "add": "fetch-add of 8 B"}


def prio_row(probe, bulk, ours="nprdma", limited=True):
    """A small operation beside two large ones, next to rc_verbs. Each small one
    is posted when the last is done, so with rc_verbs most of those beside tag
    are in the moments when the target does not move data. What others wait is
    only in the 99th percentile."""
    p50, p99 = f"{ours} p50", f"{ours} p99"
    return Row("prio." + bulk, f"{PROBES[probe]} beside {bulk} of 16 MiB"
               + ORDERS.get(ours, ""),
               probes.prio(probe, bulk), (ours, "verbs"),
               [value(p50, "<=", 60 if limited else None),
                ratio(p50, "verbs p50", "<=",
                      0.05 if limited and bulk != "tag" else None),
                ratio(p99, "verbs p99", "<=", 0.05 if limited else None),
                Judge("ratio", p99, p50, "<=", 4 if limited else None),
                *notes(f"{ours} mb", "verbs mb", unit="MB/s")])


def prio_ordered_row(probe, bulk):
    """With the order of RC it takes no longer than with rc_verbs."""
    return Row("prio." + bulk, f"{PROBES[probe]} beside {bulk} of 16 MiB",
               probes.prio(probe, bulk), ("nprdma", "verbs"),
               [ratio("nprdma p50", "verbs p50", "<=", 1)])


def prio_off_row(probe, bulk):
    """The same with and without the scheduler."""
    return Row("prio.off", f"{PROBES[probe]} beside {bulk} of 16 MiB",
               probes.prio(probe, bulk), ("nprdma", "unscheduled"),
               [ratio("unscheduled p50", "nprdma p50", ">=", 5)])


def prio_flood_row(bulk):
    """Large operations beside many small ones."""
    return Row("prio.flood", f"{bulk} of 1 MiB beside a flood of puts of 8 B",
               probes.ucx_fields("prio_bench", "flood " + bulk,
                                 alone="alone_mb", beside="beside_mb",
                                 rate="small_per_s", gap="gap_ms"),
               ("nprdma",),
               [ratio("beside", "alone", ">=", 0.5, unit="MB/s"),
                value("gap", "<=", 10, unit="ms"),
                value("rate", unit="small ones in a second")])


LINK_BUSY = {"unit": "of the time"}


def prio_link_row(probe, bulk, ours="nprdma", gain=None):
    """The same on a link, next to the unloaded link, and without the scheduler:
    that has to be at least `gain` times the unloaded one."""
    off = f"unscheduled-{ours}" if ours in ORDERS else "unscheduled"
    return Row("prio.link", f"{PROBES[probe]} beside {bulk} of 16 MiB, link"
               + ORDERS.get(ours, ""),
               probes.linked(probe, bulk), (ours, "alone", off),
               [ratio(ours, "alone", "<=", 2),
                ratio(off, "alone", gain and ">=", gain),
                *(value(f"{name} busy", ">=", probes.LINK_BUSY, **LINK_BUSY)
                  for name in (ours, off))])


def prio_batch_row(bulk):
    """Halves of the link for two endpoints (apart)."""
    return Row("prio.batch", f"16 {bulk} of 1 MiB beside one of 64 MiB, link",
               probes.batch(bulk), ("nprdma", "unscheduled"),
               [ratio("nprdma apart", "nprdma alone", "<=", 2.2),
                ratio("unscheduled apart", "unscheduled alone"),
                ratio("nprdma same", "nprdma alone"),
                value("nprdma busy", ">=", probes.LINK_BUSY, **LINK_BUSY)],
               "ms")


# What one interface may have on the link, in microseconds of its rate: as many
# slices of 512 KiB as the quota of the scheduler has
QUOTA_US = 3 * 524288 / probes.LINK_MB


def prio_port_row(arb):
    """Two processes share a port. In fifo a bound is judged, so by the 99th
    percentile: most probes are those that found nothing to wait for."""
    limit = ratio("nprdma", "alone", "<=", 2) if arb == "fair" else \
        Judge("difference", "nprdma p99", "twice alone", "<=", QUOTA_US,
              ("nprdma p99", "alone"))
    return Row("prio.port", f"{PROBES['tag']} beside puts of another process "
               f"on the port, {arb}", probes.linked("tag", "port", arb),
               ("nprdma", "alone", "unscheduled"),
               [limit, ratio("unscheduled", "alone"),
                value("unscheduled p99"),
                *(value(f"{name} busy", ">=", probes.LINK_BUSY, **LINK_BUSY)
                  for name in ("nprdma", "unscheduled"))])


def prio_train_row(arb):
    """An application."""
    return Row("prio.train", "step of a training loop, 4 ranks, link of "
               f"{probes.TRAIN_LINK}, {arb}", probes.train(arb),
               ("nprdma", "unscheduled"),
               [ratio("nprdma", "unscheduled", "<=", 0.8),
                ratio("no rows", "unscheduled"),
                ratio("nprdma rows", "unscheduled rows", unit="us"),
                value("no rows busy", ">=", probes.TRAIN_BUSY, **LINK_BUSY),
                *(value(f"{name} busy", **LINK_BUSY)
                  for name in ("nprdma", "unscheduled"))], "ms")


def signal_row(kind, what, sizes):
    """A signal behind a put, without a fence, and the answer to it."""
    return Row("prio.signal", what, ucx("signal_bench", "us", kind + " {size}"),
               ("nprdma", "verbs"), [ratio("nprdma", "verbs")], "us", sizes)


def prio_cost_row(what, words):
    """What the scheduler costs where nothing competes."""
    return Row("prio.cost", what, perftest(BANDWIDTH, words, volume(2 * GIB)),
               ("nprdma", "unscheduled"),
               [ratio("nprdma", "unscheduled", ">=", 0.98)], "MB/s",
               (65536, MIB, 16 * MIB), turns=more_turns)


PRIO = [
    prio_row("tag", "put", "atomic"),
    # The message waits for the puts, as it does on RC
    prio_ordered_row("tag", "put"),
    prio_row("get", "put"),
    prio_row("tag", "get"),
    prio_row("get", "get"),
    prio_row("tag", "tag"),
    # The target moves the data, so with verbs nothing is in the way of gets
    prio_row("get", "tag", limited=False),
    prio_row("add", "put", "relaxed"),
    prio_row("add", "put", limited=False),
    prio_row("add", "tag"),
    prio_off_row("get", "put"),
    prio_off_row("get", "get"),
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
    prio_batch_row("put"),
    prio_batch_row("get"),
    prio_port_row("fair"),
    prio_port_row("fifo"),
    # With fair shares the link itself has the small messages go first
    prio_train_row("fair"),
    prio_train_row("fifo"),
    signal_row("alone", "message there and back", (8,)),
    signal_row("message", "put, message behind it, and back", (8, 65536)),
    signal_row("flag", "put, put of 8 B behind it, and message back",
               (8, 65536)),
    prio_cost_row("tag bandwidth", TAG_BW),
    prio_cost_row("put bandwidth", "-t ucp_put_bw -s {size} -n {count} "
                  "-w {warm}"),
    prio_cost_row("get bandwidth", "-t ucp_get -s {size} -n {count} -w {warm} "
                  "-O 16"),
    Row("prio.cost", "active message without UCP, 8 B",
        uct("-t am_lat -D short -s 8 -n 50000 -w 2000"),
        ("nprdma", "unscheduled"),
        [Judge("difference", "nprdma", "unscheduled", "<=", 0.01,
               ("nprdma", "unscheduled"))], turns=more_turns),
]

GROUPS = {"small": SMALL, "large": LARGE, "revoke": REVOKE, "prio": PRIO,
          "order": ORDER, "lazy": lazy.LAZY, "choice": choice.CHOICE,
          "policies": policies.POLICIES,
          "monitor": mpi_lines.MONITOR, "mpi": mpi_lines.MPI,
          "kernel": kernel.KERNEL, "device": device.DEVICE,
          "softroce": stale.SOFTROCE, "windows": stale.WINDOWS}

# Groups that run in a guest
GUESTS = {"kernel": kernel.GUEST, "device": device.GUEST, **stale.GUESTS}
