# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Plots of results, drawn by gnuplot: zcopy.png of the lines large.curves,
nprdma-tcp.png of the lines mpi.*, prio.png of the lines prio.link, policies.png
of policies.malloc and policies.mmap."""

import os
import subprocess

import report
from session import BenchError
from stats import median

CURVES = r"""
set terminal pngcairo size 1000,760 font "sans,10"
set multiplot layout 2,2 title "Emulated RNIC: ratios mean something, \
absolute figures do not"
set grid
set key left top
set style data linespoints
set logscale xy
set xlabel "bytes"
set xtics ("256" 256, "4K" 4096, "64K" 65536, "1M" 1048576, "16M" 16777216, \
           "256M" 268435456)
set title "Latency: RDMA READ (UCT get zcopy)"
set ylabel "microseconds"
plot $get_nprdma title "nprdma", $get_verbs title "rc\\_verbs (pinned)"
set title "Bandwidth: UCP tag messages"
set ylabel "MB/s"
set key right bottom
plot $bw_nprdma title "nprdma", $bw_verbs title "rc\\_verbs (pinned)"
set title "Registration and deregistration"
set key left top
set yrange [0.01:1000000]
set ylabel "microseconds"
plot $reg_nprdma title "nprdma, first of fresh memory", \
     $covered_nprdma title "nprdma, covered", \
     $reg_verbs title "rc\\_verbs (pinned)"
unset logscale
set xtics auto
set key right bottom
set title "Get of 1 MiB, some pages absent"
set xlabel "pages that are absent, %"
set yrange [0:*]
plot $rate_nprdma title "nprdma", \
     $rate_verbs with lines title "rc\\_verbs (pinned, none can be)"
unset multiplot
"""

MPI = r"""
set terminal pngcairo size 1200,520 font "sans,11"
set multiplot layout 1,2 title "Open MPI over nprdma (emulated RNIC) and tcp"
set style data linespoints
set logscale x 2
set logscale y 10
set grid
set xlabel "message size, bytes"
set format x "2^{%L}"
set key left top
set ylabel "latency, microseconds"
plot $latency_2_nprdma title "nprdma 2 ranks", \
     $latency_2_tcp title "tcp 2 ranks", \
     $latency_4_nprdma title "nprdma 4 ranks", \
     $latency_4_tcp title "tcp 4 ranks"
set ylabel "bandwidth, MB/s"
set key right bottom
plot $bandwidth_2_nprdma title "nprdma 2 ranks", \
     $bandwidth_2_tcp title "tcp 2 ranks", \
     $bandwidth_4_nprdma title "nprdma 4 ranks", \
     $bandwidth_4_tcp title "tcp 4 ranks"
unset multiplot
"""

PRIO = r"""
set terminal pngcairo size 1000,480 font "sans,11"
set title "Operations of 8 bytes beside two of 16 MiB of one endpoint, link of \
1 GB/s (emulated RNIC)"
set style fill solid 0.8
set boxwidth 0.25
set logscale y 10
set grid y
set key right top
set ylabel "median, microseconds"
set yrange [0.5:*]
set xrange [0.5:9.5]
set xtics ("tag\nput" 1, "get\nput" 2, "add\nput" 3, "tag\nget" 4, \
           "get\nget" 5, "add\nget" 6, "tag\ntag" 7, "get\ntag" 8, \
           "add\ntag" 9)
set bmargin 5
set xlabel "small operation, and the large ones beside it" offset 0,-1
plot $link_alone using ($1-0.25):2 with boxes title "nothing beside", \
     $link_nprdma with boxes title "nprdma", \
     $link_unscheduled using ($1+0.25):2 with boxes title "no scheduler"
"""

# Words of prio.link's "what" in the order of the plot
PROBES = {"tag": 1, "get": 2, "fetch-add": 3}
BULKS = {"put": 0, "get": 3, "tag": 6}

# Title of each contestant, in the order of the debate
POLICY_TITLES = {"rcache": "registration cache", "direct": "pin each message",
                 "never-return": "malloc returns nothing",
                 "bounded": "bounded cache", "pool": "pool and copies",
                 "nprdma": "nprdma"}


def policies_script():
    """One panel for each kind of memory."""
    lines = ['set terminal pngcairo size 1200,520 font "sans,11"',
             'set multiplot layout 1,2 title "Messages, 10 at once '
             '(emulated RNIC): only ratios mean something"',
             "set style data linespoints", "set grid", "set key left top",
             'set xlabel "share of reused buffers"', 'set ylabel "MB/s"',
             "set logscale y"]
    for memory in ("malloc", "mmap"):
        lines += [f'set title "{memory}"', "plot " + ", ".join(
            f"${memory}_{name.replace('-', '_')} title \"{title}\""
            for name, title in POLICY_TITLES.items())]
    return "\n".join([*lines, "unset multiplot", ""])


def policies_data(results):
    """The smallest size."""
    data = {}
    rates = [result for result in results if
             result["what"].startswith("rate, r = ") and
             result["kind"] == "value" and
             result["line"] in ("policies.malloc", "policies.mmap")]
    for result in rates:
        if result["size"] == min(one["size"] for one in rates):
            memory = result["line"].partition(".")[2]
            for name, values in result["values"].items():
                data.setdefault(f"{memory}_{name.replace('-', '_')}",
                                []).append((float(result["what"][10:]),
                                            median(values)))
    return data


def curves_data(results):
    """Name of a gnuplot data block -> [(x, median)], for CURVES."""
    data = {}
    for result in results:
        if result["line"] == "large.curves" and result["values"]:
            what = result["what"].partition(",")[0]
            for name, values in result["values"].items():
                data.setdefault(f"{what}_{name}", []).append(
                    (result["size"], median(values)))
    for x, y in data.get("rate_verbs", [])[:1]:
        data["rate_verbs"] = [(x, y), (100, y)]
    return data


def mpi_data(results):
    """The same for MPI."""
    data = {}
    for result in results:
        if result["line"].startswith("mpi."):
            kind = result["line"][len("mpi."):]
            ranks = result["what"].split()[-2]
            for name, values in result["values"].items():
                data.setdefault(f"{kind}_{ranks}_{name}", []).append(
                    (result["size"], median(values)))
    return data


def prio_data(results):
    """The same for PRIO."""
    data = {}
    for result in results:
        if result["line"] != "prio.link" or not result["values"]:
            continue
        words = result["what"].split()
        x = PROBES[words[0]] + BULKS[words[words.index("beside") + 1]]
        for name, values in result["values"].items():
            if name.endswith(" busy"):
                continue
            name = {"relaxed": "nprdma", "atomic": "nprdma",
                    "unscheduled-relaxed": "unscheduled",
                    "unscheduled-atomic": "unscheduled"}.get(name, name)
            point = (x, median(values))
            if point not in data.setdefault(f"link_{name}", []):
                data[f"link_{name}"].append(point)
    return data


# Name of the files, script, its data, the lines that it needs
PLOTS = [("zcopy", CURVES, curves_data, {"large.curves"}),
         ("nprdma-tcp", MPI, mpi_data, {"mpi.latency", "mpi.bandwidth"}),
         ("prio", PRIO, prio_data, {"prio.link"}),
         ("policies", policies_script(), policies_data,
          {"policies.malloc", "policies.mmap"})]


def draw(script, data, path):
    """Runs gnuplot."""
    for name in [word.strip("$") for word in script.split()
                 if word.startswith("$")]:
        if name not in data:
            raise BenchError(f"no results for {name} of {path}")
    blocks = "".join(f"${name} << END\n" + "".join(
        f"{x} {y}\n" for x, y in points) + "END\n"
        for name, points in sorted(data.items()))
    done = subprocess.run(["gnuplot"], check=False, text=True,
                          input=f'{blocks}set output "{path}"\n{script}')
    if done.returncode != 0:
        raise BenchError("gnuplot failed")
    print(f"plot: {path}")


def plot(results, output):
    """Draws what there are results for into the directory `output`, and puts
    these results next to each plot. Returns the number of plots."""
    lines = {result["line"] for result in results}
    count = 0
    for name, script, data, needed in PLOTS:
        if not needed <= lines:
            continue
        count += 1
        os.makedirs(output, exist_ok=True)
        path = os.path.join(output, name)
        report.save([result for result in results
                     if result["line"].split(".")[0] ==
                     min(needed).split(".")[0]], path + ".json")
        try:
            draw(script, data(results), path + ".png")
        except FileNotFoundError:
            print("no plot: gnuplot is not installed (gnuplot-nox)")
    return count
