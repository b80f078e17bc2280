# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""The report: one object for JSON, and the same as text, without names of hosts
and users, addresses, GUIDs and serial numbers. What is collected is a list of
chosen facts; taking names out is the second guard, for texts of other
programs."""

import re

import report as bench_report
from measure import with_size

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

HEX2, HEX4, HEXES = "[0-9a-fA-F]{2}", "[0-9a-fA-F]{4}", "[0-9a-fA-F]{1,4}"
START, END = "(?<![0-9a-zA-Z])", "(?![0-9a-zA-Z]|:[0-9a-fA-F])"

# PCI addresses stay: they say nothing about the owner
PCI = re.compile(rf"\b(?:{HEX4}:)?{HEX2}:{HEX2}\.[0-7]\b")

# Applied in this order
PATTERNS = [(instead, re.compile(pattern)) for instead, pattern in (
    # 20 bytes: IPoIB. 8 bytes: a GUID. 6 bytes: Ethernet.
    ("<mac>", rf"{START}{HEX2}(?:[:-]{HEX2}){{5,19}}{END}"),
    # GIDs and IPv6 addresses with all groups; GUIDs, which have 4 groups
    ("<ip>", rf"{START}(?:{HEXES}:){{7}}{HEXES}{END}"),
    ("<guid>", rf"{START}{HEX4}(?::{HEX4}){{3}}{END}"),
    # With groups left out. The end may be an IPv4 address.
    ("<ip>", rf"{START}(?:{HEXES}(?::{HEXES}){{0,6}})?::(?:(?:{HEXES}:){{0,6}}"
             rf"(?:\d+(?:\.\d+){{3}}|{HEXES}))?{END}"),
    ("<guid>", r"(?<![0-9a-fA-Fx])(?:0x)?[0-9a-fA-F]{16}(?![0-9a-fA-F])"),
    ("<ip>", r"(?<![\d.])[1-9]\d{0,2}(?:\.\d{1,3}){3}(?:/\d+)?(?![\d.])"
             r"(?=\W|$)"),
    ("<serial>", r"(?i:(?<=serial number)(\W+)\S+|\b(?:S/?N)[:=] *\S+)"),
    ("<uuid>", rf"\b{HEX4}{HEX4}(?:-{HEX4}){{3}}-{HEX4}{HEX4}{HEX4}\b"),
    ("<mail>", r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"),
    ("<home>", r"/(?:home|Users)/[^\s/:'\"]+|/root(?=[/\s:'\"]|$)"))]

# Names of users that say nothing, and are words of reports
COMMON = {"root", "admin", "user", "test", "guest", "nobody", "localhost"}


class Cleaner:
    """Replaces names in texts; `folders` is {path: what to write instead}."""

    def __init__(self, hosts, users, folders):
        found = dict(folders)
        for host in hosts:
            short, _, domain = host.partition(".")
            found.update({host: "<host>", short: "<host>", domain: "<domain>"})
        found.update(dict.fromkeys(users, "<user>"))
        self.words = [
            (found[word], re.compile(
                ("" if "/" in word else r"(?<![\w.-])") + re.escape(word) +
                r"(?![\w-])", re.IGNORECASE))
            for word in sorted(found, key=len, reverse=True)
            if len(word) > 1 and word not in COMMON]

    def text(self, text):
        """The text without names."""
        for instead, pattern in self.words:
            text = pattern.sub(instead, text)
        kept = []

        def keep(found):
            kept.append(found.group())
            return f"\0{len(kept) - 1}\0"

        text = PCI.sub(keep, text.replace("\0", ""))
        for instead, pattern in PATTERNS:
            text = pattern.sub(instead, text)
        return re.sub("\0(\\d+)\0", lambda found: kept[int(found.group(1))],
                      text)

    def clean(self, value):
        """The same for all values in lists and dictionaries; keys are
        ours."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.clean(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.clean(item) for item in value]
        return value


def make(cleaner, left, ended_by, steps, **parts):
    """The report. Without a cleaner, names stay in it."""
    failed = [step["name"] for step in steps if step["verdict"] == "failed"]
    status = ("interrupted" if ended_by else
              "failed" if failed or left else "passed")
    made = {"status": status, "failed": failed, **parts, "steps": steps,
            "left behind": left}
    return {"format": "nprdma hwcheck 2",
            "about": [*ABOUT, WITHOUT_NAMES if cleaner else WITH_NAMES],
            **(cleaner.clean(made) if cleaner else made)}


def as_lines(value, name=None, indent=""):
    """Lines of a nested object."""
    head = "" if name is None else f"{name}: "
    if isinstance(value, dict) and "contestants" in value:
        size = with_size(value["what"], value["size"], value["scale"])
        yield f"{indent}{value['line']}, {size}:"
        yield indent + bench_report.sentence(value)
    elif isinstance(value, (dict, list, tuple)) and value:
        if name is not None:
            yield f"{indent}{name}:"
            indent += "  "
        for key, item in (value.items() if isinstance(value, dict) else
                          ((None, item) for item in value)):
            yield from as_lines(item, key, indent)
    else:
        words = {None: "unknown", True: "yes", False: "no"}
        text = words[value] if value is None or isinstance(value, bool) else \
            str(value or ("none" if isinstance(value, (dict, list)) else value))
        for line in text.splitlines() or [""]:
            yield f"{indent}{head}{line}"
