# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""The report: one object for JSON, and the same as text."""

import json

import report as bench_report
from measure import with_size

FORMAT = "nprdma hwcheck 1"

ABOUT = (
    "This report says how nprdma's kernel module and an RDMA device work "
    "together on one machine.",
    "In it: the model, firmware and PCI address of the device; the IOMMU and "
    "what the module found out about it; PCIe settings; versions of the "
    "kernel and of libraries; limits of processes; model and size of the "
    "computer; results of tests; times of registration and data transfer; "
    "lines of the kernel's log about these parts, if there were any.",
)
WITHOUT_NAMES = ("Not in it: names of hosts and users, addresses of networks, "
                 "GUIDs, MAC addresses, serial numbers, paths of home "
                 "directories, other processes. Please read it before you "
                 "mail it.")
WITH_NAMES = ("Names of hosts and users, addresses and GUIDs are in it "
              "(--with-names).")

# Of each measurement; the others are the same for all
FIGURES = ("line", "what", "size", "scale", "unit", "kind", "contestants",
           "values", "figure", "ratio", "range", "limit", "verdict", "reason",
           "label", "show")


def make(facts, steps, results, kernel_log, left, interrupted, more):
    """The report. `more` is added as it is: date, commit, options."""
    failed = [step["name"] for step in steps if step["verdict"] == "failed"]
    status = ("interrupted" if interrupted else
              "failed" if failed or left else "passed")
    return {"format": FORMAT, "status": status, "failed": failed, **more,
            "facts": facts, "steps": steps,
            "measurements": [{name: result[name] for name in FIGURES
                              if name in result} for result in results],
            "kernel log": kernel_log, "left behind": left}


def finish(made, cleaner, with_names):
    """The report without names, and with what it says about itself."""
    about = [*ABOUT, WITH_NAMES if with_names else WITHOUT_NAMES]
    return {"about": about, **cleaner.clean(made)}


def as_json(made):
    """As text, in a fixed order."""
    return json.dumps(made, indent=1) + "\n"


def flat(value, indent="  "):
    """Lines of a nested object."""
    if not isinstance(value, dict):
        yield indent + show(value)
        return
    for name, item in value.items():
        if isinstance(item, dict) and item:
            yield f"{indent}{name}:"
            yield from flat(item, indent + "  ")
        elif isinstance(item, list) and any(isinstance(each, (dict, str))
                                            for each in item):
            yield f"{indent}{name}:"
            for number, each in enumerate(item):
                if number > 0 and isinstance(each, dict):
                    yield ""
                yield from flat(each, indent + "  ")
        else:
            yield f"{indent}{name}: {show(item)}"


def show(value):
    """A value as a person writes it."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple, dict)):
        return ", ".join(map(show, value)) or "none"
    return str(value)


def step_lines(step):
    """One step."""
    yield f"  {step['verdict']:<8} {step['name']} ({step['seconds']} s)"
    if step["reason"]:
        for line in step["reason"].splitlines():
            yield f"             {line}"
    if step["figures"]:
        yield from flat(step["figures"], " " * 13)


def as_text(made):
    """For a person."""
    lines = [made["format"], "", *made["about"], "",
             f"Status: {made['status']}" + (
                 f" ({', '.join(made['failed'])})" if made["failed"] else "")]
    for name in ("date", "commit"):
        lines.append(f"{name.capitalize()}: {show(made[name])}")
    for title, part in {"options": made["options"], **made["facts"]}.items():
        lines += ["", title.capitalize()]
        for each in part if isinstance(part, list) else [part]:
            lines += flat(each)
    lines += ["", "Steps"]
    for step in made["steps"]:
        lines += step_lines(step)
    lines += ["", "Measurements"]
    above = None
    for result in made["measurements"]:
        head = with_size(result["what"], result["size"], result["scale"])
        if head != above:
            above = head
            lines.append(f" {result['line']}: {head}")
        lines.append(bench_report.sentence(result))
    if not made["measurements"]:
        lines.append("  none")
    for title in ("kernel log", "left behind"):
        lines += ["", title.capitalize(),
                  *(f"  {line}" for line in made[title] or ["none"])]
    return "\n".join(lines) + "\n"
