#!/usr/bin/env python3
# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""rmem_stream.py COUNT [FILE]: three arrays of COUNT numbers, one pass after
another. It knows nothing of remote memory. With FILE the arrays are a mapping
of that file. Prints as rmem_graph does."""

import sys
import time

import numpy as np


def main(count, path=None):
    """Makes the arrays, and then measures."""
    if path is None:
        a, b, c = (np.empty(count) for _ in range(3))
    else:
        a, b, c = np.memmap(path, np.float64, "w+", shape=(3, count))
    start, cpu = time.perf_counter(), time.process_time()
    a[:], b[:] = 1, 2
    for _ in range(3):
        np.add(a, b, out=c)
        np.multiply(c, 0.5, out=b)
        np.add(b, c, out=a)
    total = float(a.sum())
    print(f"us {(time.perf_counter() - start) * 1e6:.0f} "
          f"cpu_us {(time.process_time() - cpu) * 1e6:.0f} "
          f"sum {total}")


main(int(sys.argv[1]), *sys.argv[2:])
