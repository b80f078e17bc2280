# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Lines lazy.*: memory that a program frees and allocates again, kept by
nprdma's settings, next to what it costs without them."""

import probes
from measure import Row
from probes import MIB
from stats import ratio, value


def malloc_row(ranks, sizes, limit=None, above=None):
    """Two buffers of malloc() around each call. `above` is by how much kept
    ones may be slower than the same ones."""
    return Row("lazy.malloc", f"MPI_Allreduce, {ranks} ranks, malloc and free, "
               "UCX_NPRDMA_MALLOC_KEEP=64m", probes.heap(ranks),
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
    message_row("lazy-unmap", ", UCX_NPRDMA_LAZY_UNMAP=256m", 2.5, *MESSAGES),
    message_row("nprdma", "", None, *MESSAGES),
]
