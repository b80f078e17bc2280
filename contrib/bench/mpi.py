# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Lines mpi.*: MPI with 2 and 4 ranks over nprdma next to tcp, and the memory
monitor's line. Both print many figures in one run."""

import glob
import hashlib
import os
import re

from measure import Row, all_values
from session import HERE, BenchError
from stats import median, ratio

KINDS = {"latency": ("Latency, microseconds (smaller is better)", "us"),
         "bandwidth": ("Bandwidth, MB/s (larger is better)", "MB/s"),
         "allreduce": ("Allreduce, microseconds (smaller is better)", "us")}
RANKS = (2, 4)
LAST_SIZE = 2097152


def sweep(kind, ranks):
    """All sizes in one run, as "CONTESTANT@SIZE". The emulation is not asked
    for: the installed settings choose the device, as in a user's shell. The
    counters prove that all ranks used nprdma."""
    def command(session, contestant, _size):
        counters = os.path.join(session.work, "counters")
        for path in glob.glob(counters + ".*"):
            os.remove(path)
        env = session.environment(
            contestant, {"UCX_NPRDMA_STATS": f"file:{counters}.%p"})
        if "UCX_NPRDMA_EMULATION" not in os.environ:
            del env["UCX_NPRDMA_EMULATION"]
        out = session.run(["mpirun.openmpi", "-np", str(ranks),
                           session.program("mpi_bench"), kind, str(LAST_SIZE)],
                          env, f"mpi_bench {kind} with {ranks} ranks over "
                          f"{contestant}", 120)
        if contestant == "nprdma":
            check_counters(counters, ranks)
        return {f"{contestant}@{size}": float(figure) for size, figure in
                (line.split() for line in out.splitlines())}
    return command


def check_counters(counters, ranks):
    """Each rank must have received active messages over nprdma."""
    used = 0
    for path in glob.glob(counters + ".*"):
        with open(path) as file:
            used += bool(re.search(r"^am_rx +[1-9]", file.read(), re.M))
    if used < ranks:
        raise BenchError(f"only {used} of {ranks} ranks used nprdma: Open MPI "
                         "chose another way")


def by_size(_session, values):
    """nprdma : tcp for each size."""
    return [ratio(name, name.replace("nprdma", "tcp"),
                  size=int(name.partition("@")[2]))
            for name in values if name.startswith("nprdma@")]


MPI = [Row(f"mpi.{kind}", f"MPI {kind}, {ranks} ranks", sweep(kind, ranks),
           ("nprdma", "tcp"), by_size, KINDS[kind][1])
       for kind in KINDS for ranks in RANKS]


def stamp(prefix):
    """Of the installation and of this directory."""
    digest = hashlib.sha256()
    for top in (os.path.join(prefix, "lib"), HERE):
        for folder, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(folder, name)
                digest.update(path.encode())
                if os.path.isfile(path):
                    with open(path, "rb") as file:
                        digest.update(file.read())
    return digest.hexdigest()


def text_table(results):
    """The figures by size, nprdma and tcp with 2 and with 4 ranks."""
    medians = {(r["what"], r["size"], name): median(values)
               for r in results for name, values in r["values"].items()}
    lines = []
    for kind, (title, _unit) in KINDS.items():
        lines += [title, "     bytes   2 ranks: nprdma       tcp"
                         "   4 ranks: nprdma       tcp"]
        for size in sorted({r["size"] for r in results
                            if r["line"] == f"mpi.{kind}"}):
            cells = [medians[f"MPI {kind}, {ranks} ranks", size, name]
                     for ranks in RANKS for name in ("nprdma", "tcp")]
            lines.append("{:10d}   {:15.2f} {:9.2f}   {:15.2f} {:9.2f}".format(
                size, *cells))
        lines.append("")
    return "\n".join(lines)


def monitor(session, _contestant, _size):
    """The lines "name value unit" of monitor_bench, as "name@unit"."""
    out = session.run([session.program("monitor_bench")], dict(os.environ),
                      "monitor_bench", 600)
    return {f"{name.strip()}@{unit}": float(figure) for name, figure, unit in
            re.findall(r"^(.+?)  +([0-9.]+) (\S+)$", out, re.M)}


MONITOR = [Row("monitor", "the memory monitor", monitor, ("nprdma",),
               all_values)]


def measured_before(output, current):
    """Prints the table of the same build, if there is one."""
    try:
        with open(os.path.join(output, ".stamp")) as file:
            if file.read() != current:
                return False
        with open(os.path.join(output, "table.txt")) as file:
            table = file.read()
    except FileNotFoundError:
        return False
    print("bench: measured before; --again would measure anew\n" + table)
    return True


def finish(results, output, current):
    """Writes and prints the table, if all of its lines were measured."""
    if {f"mpi.{kind}" for kind in KINDS} != {r["line"] for r in results}:
        return
    table = text_table(results)
    with open(os.path.join(output, "table.txt"), "w") as file:
        file.write(table)
    with open(os.path.join(output, ".stamp"), "w") as file:
        file.write(current)
    print("\n" + table.rstrip())
