# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Results: printed while they are measured, and as JSON."""

import contextlib
import datetime
import os
import re
import subprocess

from measure import median
from session import TOP

L3 = "/sys/devices/system/cpu/cpu0/cache/index3/size"


def machine():
    """CPUs, the size of their last cache, and kernel."""
    with open("/proc/cpuinfo") as file:
        found = re.search(r"^model name[^:]*: *(.*)", file.read(), re.M)
    cache = "unknown"
    with contextlib.suppress(OSError), open(L3) as file:
        cache = file.read().strip()
    system = os.uname()
    return (f"{os.sysconf('SC_NPROCESSORS_ONLN')} CPUs "
            f"({found.group(1) if found else 'unknown'}, L3 {cache}), "
            f"{system.sysname} {system.release}")


def commit():
    """Of this source tree. A source package has no history."""
    try:
        return subprocess.run(
            ["git", "-C", TOP, "describe", "--always", "--dirty",
             "--abbrev=7", "--exclude=*"], stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL, check=False).stdout.strip() or "unknown"
    except OSError:
        return "unknown"


def show_number(number):
    """Four digits, and no exponent."""
    if number == 0 or not 1e-3 <= abs(number) < 1e4:
        return f"{number:.0f}" if abs(number) >= 1 or number == 0 \
            else f"{number:.3g}"
    return f"{number:.4g}"


def subject(result):
    """The contestants as the kind compares them."""
    first, *others = result["contestants"]
    sign = {"ratio": " : ", "difference": " - "}.get(result["kind"])
    return f"{first}{sign}{others[0]}" if sign and others else first


def sentence(result):
    """One line for a person."""
    if result["verdict"] == "skipped":
        return f"  SKIPPED: {result['reason']}"
    medians = " : ".join(show_number(median(result["values"][name]))
                         for name in result["show"])
    name = result["label"]
    if name != result["what"]:
        name = f"{name} {subject(result)}".strip()
    if medians:
        unit = result["unit"] if result["kind"] != "value" else ""
        name += f"  ({medians}{' ' if unit else ''}{unit})"
    unit = "" if result["kind"] == "ratio" else result["unit"]
    limit, figure = result["limit"], result["figure"]
    if limit is not None:
        figure = round(figure, 3) or figure  # as the verdict has it
    line = f"  {name:<60} {show_number(figure):>10} {unit:<6}"
    if limit is not None:
        line += (f" ({limit['relation']} {show_number(limit['value'])}) "
                 f"{result['verdict']}")
    turns = max(map(len, result["values"].values()))
    if turns > 1:
        low, high = map(show_number, result["range"])
        line += f"; half of {turns} turns in {low} to {high}"
    return line.rstrip()


class Report:
    """Collects and prints results. `facts` is added to each: date, commit,
    machine, command; `limits`: whether a missed limit counts."""

    def __init__(self, facts, limits):
        self.facts, self.limits = facts, limits
        self.results, self.missed = [], 0

    def __call__(self, result):
        if result["kind"] == "begin":
            print(f"{result['line']}: {result['head']}", flush=True)
            return
        result = {**self.facts, **result}
        self.results.append(result)
        print(sentence(result), flush=True)
        if self.limits and result["verdict"] == "MISSED":
            self.missed += 1


def ucx_version():
    """Of the UCX that programs find; its releases say it in two ways."""
    said = ""
    with contextlib.suppress(OSError):
        said = subprocess.run(["ucx_info", "-v"], stdout=subprocess.PIPE,
                              text=True, check=False).stdout
    found = re.search(r"ersion[ =:]+([0-9.]+)", said)
    return found.group(1) if found else "unknown"


def facts(command):
    """Of this run."""
    return {"date": datetime.datetime.now().astimezone().isoformat(
                timespec="seconds"),
            "commit": commit(), "command": command,
            "machine": f"{machine()}, UCX {ucx_version()}"}


def save(results, path):
    """The results as JSON: a list of objects."""
    import json  # not in python3-minimal
    with open(path, "w") as file:
        json.dump(results, file, indent=1)
        file.write("\n")
