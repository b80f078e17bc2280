#!/usr/bin/env python3
# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""h5py_rows.py DIR: all ranks write one HDF5 file together and read it.

Rank r writes every row r + n * size of a matrix, so collective writes exchange
the rows by MPI. Then each rank reads a block of rows that others wrote.
"""

import hashlib
import os
import sys

from mpi4py import MPI
import numpy
import h5py

ROWS, COLUMNS = 1024, 2048


def row(number):
    return (numpy.arange(COLUMNS, dtype=numpy.int64) * 2654435761
            + number * 40503) % 1000003


def main():
    comm = MPI.COMM_WORLD
    path = os.path.join(sys.argv[1], "rows.h5")
    if not h5py.get_config().mpi:
        sys.exit("this h5py is not parallel")

    with h5py.File(path, "w", driver="mpio", comm=comm) as file:
        matrix = file.create_dataset("matrix", (ROWS, COLUMNS), "i8")
        own = range(comm.rank, ROWS, comm.size)
        with matrix.collective:
            matrix[comm.rank::comm.size, :] = numpy.array(
                [row(number) for number in own])

    block = ROWS // comm.size
    first = (comm.size - 1 - comm.rank) * block
    with h5py.File(path, "r", driver="mpio", comm=comm) as file:
        with file["matrix"].collective:
            found = file["matrix"][first:first + block, :]
    for number in range(block):
        if not numpy.array_equal(found[number], row(first + number)):
            print(f"rank {comm.rank}: row {first + number} is wrong",
                  file=sys.stderr)
            comm.Abort(1)

    parts = comm.gather((first, hashlib.sha256(found.tobytes()).hexdigest()))
    if comm.rank == 0:
        for start, digest in sorted(parts):
            print(f"rows from {start}: {digest}")


main()
