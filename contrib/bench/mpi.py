# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Lines mpi.*: MPI with 2 and 4 ranks over nprdma next to UCX's shared memory
and tcp, many figures in one run."""

import os

import plot
from measure import Row, median, ratio

KINDS = {"latency": ("Latency, microseconds (smaller is better)", "us"),
         "bandwidth": ("Bandwidth, MB/s (larger is better)", "MB/s"),
         "allreduce": ("Allreduce, microseconds (smaller is better)", "us")}
RANKS = (2, 4)
CONTESTANTS = ("nprdma", "shm", "tcp")
LAST_SIZE = 2097152


def sweep(kind, ranks):
    """All sizes in one run, as "CONTESTANT@SIZE". The emulation is not asked
    for: the installed settings choose the device, as in a user's shell. All
    ranks must have used nprdma."""
    def command(session, contestant, _size):
        env = session.environment(contestant)
        if "UCX_NPRDMA_EMULATION" not in os.environ:
            del env["UCX_NPRDMA_EMULATION"]
        checked = [] if contestant != "nprdma" else [
            session.prefix + "/bin/nprdma-run", "--require"]
        out = session.run([*checked, "mpirun.openmpi", "-np", str(ranks),
                           session.program("mpi_bench"), kind, str(LAST_SIZE),
                           "8"],
                          env, f"mpi_bench {kind} with {ranks} ranks over "
                          f"{contestant}", 120)
        return {f"{contestant}@{size}": float(figure) for size, figure in
                (line.split() for line in out.splitlines())}
    return command


def by_size(values):
    """nprdma : tcp for each size, and what shared memory takes."""
    sizes = [name.partition("@")[2] for name in values
             if name.startswith("nprdma@")]
    return [ratio(f"nprdma@{size}", f"tcp@{size}", size=int(size))._replace(
        show=[f"{name}@{size}" for name in CONTESTANTS]) for size in sizes]


MPI = [Row(f"mpi.{kind}", f"MPI {kind}, {ranks} ranks", sweep(kind, ranks),
           CONTESTANTS, by_size, KINDS[kind][1])
       for kind in KINDS for ranks in RANKS]


def text_table(results):
    """The figures by size, with 2 and with 4 ranks."""
    medians = {(r["what"], r["size"], name): median(values)
               for r in results for name, values in r["values"].items()}
    lines = []
    for kind, (title, _unit) in KINDS.items():
        lines += [title, " " * 10 + "".join(
            f"{f'{ranks} ranks:':>11}" + "".join(
                f"{name:>10}" for name in CONTESTANTS) for ranks in RANKS)]
        for size in sorted({r["size"] for r in results
                            if r["line"] == f"mpi.{kind}"}):
            lines.append(f"{size:10d}" + "".join(" " * 11 + "".join(
                f"{medians[f'MPI {kind}, {ranks} ranks', size, name]:10.2f}"
                for name in CONTESTANTS) for ranks in RANKS))
        lines.append("")
    return "\n".join(lines)


def finish(results, facts, output):
    """Writes and prints the table, and draws the plot, if all lines were
    measured."""
    if {f"mpi.{kind}" for kind in KINDS} != {r["line"] for r in results}:
        return
    table = text_table(results)
    with open(os.path.join(output, "table.txt"), "w") as file:
        file.write(table)
    plot.finish(os.path.join(output, "nprdma-tcp.png"), facts, [
        (f"MPI {kind}, {ranks} ranks, nprdma on the emulated RNIC",
         KINDS[kind][1], plot.points(results, f"MPI {kind}, {ranks} ranks",
                                     {name: name for name in CONTESTANTS}))
        for kind in ("latency", "bandwidth") for ranks in RANKS])
    print("\n" + table.rstrip())
