# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""The costs of operations (nprdma_perf.h) from measured times of messages, and
how they are written. No input, no output."""

KIB, MIB = 1 << 10, 1 << 20

# Of the messages that the costs are taken from
TINY, SMALL, STREAM, LARGEST = 8, KIB, 256 * KIB, 4 * MIB

TIMES = ("overhead", "latency", "rendezvous")
BANDWIDTHS = ("bandwidth", "am_bandwidth")

# From this size on a message shall be a rendezvous, however fast fragments are.
# Fragments stay in order, so what comes behind a message waits for all of its
# fragments, and of one that no receive waits for UCP keeps a copy.
LONGEST_IN_FRAGMENTS = 160 * KIB

# UCX_NPRDMA_PERF takes no bandwidths that UCX could not compute with
LEAST_TIME = 1e-9


def costs(latency, stream):
    """{name: seconds or bytes/s} from {size: {"bcopy": us, "get": us}}, the
    times one way of single messages and of messages among many. am_bandwidth
    is at most that with which both protocols take the same time for
    LONGEST_IN_FRAGMENTS."""
    overhead = stream[TINY]["bcopy"]
    once = latency[TINY]["bcopy"] - 2 * overhead
    extra = latency[SMALL]["get"] - latency[SMALL]["bcopy"]
    rendezvous = max(extra * 1e-6, LEAST_TIME)
    bandwidth = LARGEST / stream[LARGEST]["get"] * 1e6
    most = 1 / (1 / bandwidth + rendezvous / LONGEST_IN_FRAGMENTS)
    return {"overhead": max(overhead * 1e-6, LEAST_TIME),
            "latency": max(once * 1e-6, LEAST_TIME),
            "rendezvous": rendezvous,
            "bandwidth": bandwidth,
            "am_bandwidth": min(STREAM / stream[STREAM]["bcopy"] * 1e6, most)}


def crossing(times):
    """The smallest size from which on "get" is never slower than "bcopy"; None
    if there is none."""
    found = None
    for size in sorted(times, reverse=True):
        if times[size]["get"] > times[size]["bcopy"]:
            break
        found = size
    return found


def initializers(values):
    """Lines of C, as in nprdma_perf.c."""
    return ([f"    .{name:<14} = {values[name] * 1e9:.0f}e-9,"
             for name in TIMES] +
            [f"    .{name:<14} = {values[name] / 1e9:.3g}e9,"
             for name in BANDWIDTHS])


def setting(values):
    """The value of UCX_NPRDMA_PERF."""
    return ",".join([f"{name}:{values[name] * 1e9:.0f}ns" for name in TIMES] +
                    [f"{name}:{values[name] / MIB:.0f}MBs"
                     for name in BANDWIDTHS])
