# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Lines mpi.*: MPI with 2 and 4 ranks over nprdma next to tcp, many figures in
one run."""

import os
import subprocess

from measure import Row, median, ratio

KINDS = {"latency": ("Latency, microseconds (smaller is better)", "us"),
         "bandwidth": ("Bandwidth, MB/s (larger is better)", "MB/s"),
         "allreduce": ("Allreduce, microseconds (smaller is better)", "us")}
RANKS = (2, 4)
PLOT = r"""
set terminal pngcairo size 1200,520 font "sans,11"
set output "{plot}"
set datafile commentschars "LBAb"
set multiplot layout 1,2 title "Open MPI over nprdma (emulated RNIC) and tcp"
set style data linespoints
set logscale x 2
set logscale y 10
set grid
set xlabel "message size, bytes"
set format x "2^{{%L}}"
names = "'nprdma 2 ranks' 'tcp 2 ranks' 'nprdma 4 ranks' 'tcp 4 ranks'"
set key left top
set ylabel "latency, microseconds"
plot for [c=2:5] "{table}" index 0 using 1:c title word(names, c - 1)
set ylabel "bandwidth, MB/s"
set key right bottom
plot for [c=2:5] "{table}" index 1 using 1:c title word(names, c - 1)
unset multiplot
"""
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
    """nprdma : tcp for each size."""
    return [ratio(name, name.replace("nprdma", "tcp"),
                  size=int(name.partition("@")[2]))
            for name in values if name.startswith("nprdma@")]


MPI = [Row(f"mpi.{kind}", f"MPI {kind}, {ranks} ranks", sweep(kind, ranks),
           ("nprdma", "tcp"), by_size, KINDS[kind][1])
       for kind in KINDS for ranks in RANKS]


def text_table(results):
    """The figures by size, nprdma and tcp with 2 and with 4 ranks. gnuplot
    reads it as well: two empty lines end what one plot shows."""
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
        lines += ["", ""]
    return "\n".join(lines)


def draw(table, plot):
    """The plot, by gnuplot. Returns whether it is there."""
    try:
        return subprocess.run(
            ["gnuplot"], input=PLOT.format(table=table, plot=plot),
            check=False, text=True).returncode == 0
    except FileNotFoundError:
        return False


def finish(results, output):
    """Writes and prints the table, and draws the plot, if all lines were
    measured."""
    if {f"mpi.{kind}" for kind in KINDS} != {r["line"] for r in results}:
        return
    os.makedirs(output, exist_ok=True)
    table, plot = text_table(results), os.path.join(output, "nprdma-tcp.png")
    path = os.path.join(output, "table.txt")
    with open(path, "w") as file:
        file.write(table)
    print(f"plot: {plot}" if draw(path, plot) else
          "no plot: gnuplot is not installed (gnuplot-nox)")
    print("\n" + table.rstrip())
