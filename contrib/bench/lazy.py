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


# Four ranks on two CPUs wait for each other's time slices: without limits
LAZY = [
    malloc_row(2, (MIB,), 2, 1.1),
    malloc_row(2, (4 * MIB, 16 * MIB)),
    malloc_row(4, (MIB,)),
]
