# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Lines lazy.*: memory that a program frees and allocates again, kept by
nprdma's settings, next to what it costs without them."""

import probes
from measure import Row, one_turn
from probes import GIB, MIB
from stats import ratio, value


def malloc_row(ranks, sizes, limit=None, above=None):
    """Two buffers of malloc() around each call. `above` is by how much kept
    ones may be slower than the same ones."""
    return Row("lazy.malloc", f"MPI_Allreduce, {ranks} ranks, malloc and free, "
               "GLIBC_TUNABLES to keep 64 MiB", probes.heap(ranks),
               ("nprdma", "keep", "same"),
               [ratio("nprdma", "keep", ">=", limit),
                ratio("keep", "same", "<=", above),
                value("nprdma faults", unit="page faults"),
                value("keep faults", "<=", 4, unit="page faults")],
               sizes=sizes)


def message_row(contestant, what, limit, *sizes):
    """A message in new buffers, in turns with the same buffers."""
    return Row("lazy.message", f"message, buffers mapped and unmapped{what} : "
               "same buffers",
               probes.mpi_fields(2, "fresh_bench", "pair {size}", "fresh_us",
                                 "same_us"), (contestant,),
               [ratio("fresh_us", "same_us", limit and "<=", limit)],
               sizes=sizes)


def limited_row(name, contestant, what, *kinds):
    """What is kept, in a control group of 1.2 times the working set. With
    changing sizes it is of no use, and the kernel has to take it."""
    for kind, traffic in kinds:
        limit = ("<=", 1.05) if kind == "same" else ()
        yield Row(name, f"{traffic}, {what}, memory limited to 1.2 x "
                  "the working set", probes.limited(kind),
                  ("nprdma", contestant),
                  [ratio(contestant, "nprdma", *limit),
                   value(f"{contestant} peak", unit="x the working set")],
                  sizes=(96 * MIB,))


def registration(session, contestant, _size):
    """Microseconds of each size: covered, and the largest by the smallest."""
    times = {size: probes.reg("covered")(session, contestant, size)
             for size in REGISTRATIONS if size == session.at_most(size)}
    return {"flat": max(times.values()) / min(times.values()),
            **{f"covered@{size}": us for size, us in times.items()}}


def covered_judges(_session, values):
    """Flat: the same for all sizes."""
    return [value("flat", "<=", 1.5, unit="largest : smallest"),
            *(value(name, what=f"covered, {int(name.partition('@')[2]) >> 10} "
                    "KiB", unit="us") for name in values if "@" in name)]


def first_row(limit, *sizes):
    """Registrations of untouched memory, next to those that pin it."""
    return Row("lazy.registration", "first registration, untouched",
               probes.reg_both("first", {"UCX_IB_REG_METHODS": "direct"}),
               ("nprdma", "verbs"),
               [ratio("nprdma", "verbs", limit and "<=", limit)], sizes=sizes)


def sized(size):
    """That, or what there is memory for."""
    return lambda session: session.at_most(size)


REGISTRATIONS = (4096, 65536, MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB)
MESSAGES = (262144, MIB, 4 * MIB, 16 * MIB, 64 * MIB)

# Four ranks on two CPUs wait for each other's time slices: without limits
LAZY = [
    malloc_row(2, (MIB,), 2, 1.1),
    malloc_row(2, (4 * MIB, 16 * MIB)),
    malloc_row(4, (MIB,)),
    Row("lazy.allreduce", "MPI_Allreduce, 2 ranks, buffers mapped and "
        "unmapped, UCX_NPRDMA_LAZY_UNMAP=256m",
        probes.mpi(2, "fresh_bench", "mapped {size}"), ("nprdma", "lazy-unmap"),
        [ratio("nprdma", "lazy-unmap", ">=", 1.5)],
        sizes=(MIB, 4 * MIB, 16 * MIB)),
    # The kernel aligns mappings of 2 MiB and more to huge pages
    Row("lazy.huge", "MPI_Allreduce, 2 ranks, buffers mapped and unmapped, "
        "huge pages, UCX_NPRDMA_LAZY_UNMAP=256m",
        probes.huge(probes.mapped(2)),
        ("nprdma", "lazy-unmap", "zeroed", "same"),
        [ratio("nprdma", "lazy-unmap"),
         ratio("nprdma", "zeroed", what="most that is possible: same buffers, "
               "zeroed each time"),
         ratio("nprdma", "same", what="without the zeros: same buffers")],
        sizes=(MIB, 4 * MIB, 16 * MIB)),
    message_row("lazy-unmap", ", UCX_NPRDMA_LAZY_UNMAP=256m", 2.5, *MESSAGES),
    message_row("nprdma", "", None, *MESSAGES),
    *limited_row("lazy.limit", "lazy-unmap", "UCX_NPRDMA_LAZY_UNMAP=256m",
                 ("same", "buffers of one size mapped and unmapped"),
                 ("mmap", "buffers of changing sizes mapped and unmapped")),
    first_row(None, 4096, 65536, MIB, 16 * MIB),
    first_row(0.01, 64 * MIB, 256 * MIB, sized(GIB)),
    Row("lazy.registration", "mem_reg and mem_dereg, covered, 4 KiB to 1 GiB",
        registration, ("nprdma",),
        covered_judges, turns=one_turn),
]
