# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Takes names out of a report: of hosts and users, addresses, GUIDs, serial
numbers. What is collected is a list of chosen facts; this is the second guard,
for texts of other programs. No input, no output."""

import re

HEX2, HEX4, HEXES = "[0-9a-fA-F]{2}", "[0-9a-fA-F]{4}", "[0-9a-fA-F]{1,4}"
START = "(?<![0-9a-zA-Z])"
END = "(?![0-9a-zA-Z]|:[0-9a-fA-F])"

# These stay: they say nothing about the owner
PCI = re.compile(rf"\b(?:{HEX4}:)?{HEX2}:{HEX2}\.[0-7]\b")

# Applied in this order
PATTERNS = [
    # 20 bytes: IPoIB. 8 bytes: a GUID. 6 bytes: Ethernet.
    ("<mac>", re.compile(rf"{START}{HEX2}(?:[:-]{HEX2}){{5,19}}{END}")),
    # GIDs and IPv6 addresses with all groups; GUIDs, which have 4 groups
    ("<ip>", re.compile(rf"{START}(?:{HEXES}:){{7}}{HEXES}{END}")),
    ("<guid>", re.compile(rf"{START}{HEX4}(?::{HEX4}){{3}}{END}")),
    # With groups left out. The end may be an IPv4 address.
    ("<ip>", re.compile(rf"{START}(?:{HEXES}(?::{HEXES}){{0,6}})?::"
                        rf"(?:(?:{HEXES}:){{0,6}}(?:\d+(?:\.\d+){{3}}|{HEXES})"
                        rf")?{END}")),
    ("<guid>", re.compile(r"(?<![0-9a-fA-Fx])(?:0x)?[0-9a-fA-F]{16}"
                          r"(?![0-9a-fA-F])")),
    ("<ip>", re.compile(r"(?<![\d.])[1-9]\d{0,2}(?:\.\d{1,3}){3}"
                        r"(?:/\d+)?(?![\d.])(?=\W|$)")),
    ("<serial>", re.compile(r"(?i)(?<=serial number)(\W+)\S+|"
                            r"\b(?:S/?N)[:=] *\S+")),
    ("<uuid>", re.compile(rf"\b{HEX4}{HEX4}(?:-{HEX4}){{3}}-{HEX4}{HEX4}"
                          rf"{HEX4}\b")),
    ("<mail>", re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")),
    ("<home>", re.compile(r"/(?:home|Users)/[^\s/:'\"]+|/root(?=[/\s:'\"]|$)")),
]

# Names of users that say nothing, and are words of reports
COMMON = {"root", "admin", "user", "test", "guest", "nobody"}


def words(hosts, users, folders):
    """{name: what to write instead}; `folders` is one already."""
    found = dict(folders)
    for host in hosts:
        short, _, domain = host.partition(".")
        found.update({host: "<host>", short: "<host>", domain: "<domain>"})
    found.update({user: "<user>" for user in users if user not in COMMON})
    return {name: instead for name, instead in found.items()
            if len(name) > 1 and name != "localhost"}


class Cleaner:
    """Replaces names in texts."""

    def __init__(self, replaced):
        self.words = []
        for word in sorted(replaced, key=len, reverse=True):
            before = "" if "/" in word else r"(?<![\w.-])"
            self.words.append((replaced[word], re.compile(
                before + re.escape(word) + r"(?![\w-])", re.IGNORECASE)))

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


class Keep:
    """Leaves everything as it is: --with-names."""

    def clean(self, value):
        """The value itself."""
        return value

