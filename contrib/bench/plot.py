# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Plots of results, by gnuplot: medians, and bars from the least to the largest
value of all turns."""

import subprocess

from measure import bare, median

HEAD = """set terminal pngcairo noenhanced size {width},{height} font "sans,10"
set output "{path}"
set multiplot layout {rows},2 title "{title}"
set logscale x 2
set logscale y 10
set grid
set format x "%.0b%B"
set key top left
set xlabel "bytes"
set style data yerrorlines
"""


def draw(path, title, panels):
    """`panels`: (title, label of y, {name: {size: values}}), two in a row.
    Returns whether the plot is there."""
    rows = (len(panels) + 1) // 2
    script = HEAD.format(width=1200, height=60 + 400 * rows, path=path,
                         rows=rows, title=title)
    for number, (head, label, lines) in enumerate(panels):
        shown = []
        for name, points in lines.items():
            data = f"$d{number}_{len(shown)}"
            rows = "\n".join(
                f"{size} {median(values)} {min(values)} {max(values)}"
                for size, values in sorted(points.items()))
            script += f"{data} << EOD\n{rows}\nEOD\n"
            shown.append(f'{data} title "{name}"')
        script += (f'set title "{head}"\nset ylabel "{label}"\n'
                   f"plot {', '.join(shown)}\n")
    try:
        return subprocess.run(["gnuplot"], input=script + "unset multiplot\n",
                              check=False, text=True).returncode == 0
    except FileNotFoundError:
        return False


def points(results, what, names):
    """{shown name: {size: values}} of the rows `what`; `names` has the shown
    name of each value's name."""
    return {shown: {r["size"]: r["values"][bare(name)] for r in results
                    if r["what"] == what and bare(name) in r["values"]}
            for name, shown in names.items()}


def finish(path, facts, panels):
    """Draws, and says so. The title has the day, the commit and the machine."""
    title = (f"{facts['date'][:10]}, {facts['commit']}, {facts['machine']}\\n"
             "(emulated RNIC: only ratios mean something)")
    print(f"plot: {path}" if draw(path, title, panels) else
          "no plot: gnuplot is not installed (gnuplot-nox)")
