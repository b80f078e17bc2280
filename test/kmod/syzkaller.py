#!/usr/bin/env python3
# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""syzkaller.py HEADER DESCRIPTION: checks that a description of the interface
for syzkaller has exactly what the header has: calls with their structures, the
members of these in order and with directions, and flags."""

import re
import sys


def members(body, pattern):
    """[(member, is_out)] of a structure."""
    return [(name, out.strip().startswith(("out", "(out)")))
            for name, out in re.findall(pattern, body, re.M | re.S)]


def main():
    header = open(sys.argv[1], encoding="ascii").read()
    text = open(sys.argv[2], encoding="ascii").read()
    calls = re.findall(r"#define (NPRDMA_IOC_\w+)\s+_IO\(", header)
    flags = " ".join(re.findall(r"^nprdma_\w+_flags = (.*)$", text, re.M))
    wanted = {
        "calls": {(call, call.lower()) for call in calls},
        "flags": set(re.findall(r"#define (NPRDMA_IOC_\w+)\s+\(1u <<", header)),
        "structures": {
            name: members(body, r"^\s+\w+\s+(\w+)(?:\[\w+\])?;"
                                r"(?:\s*/\*(.*?)\*/)?")
            for name, body in re.findall(
                r"struct (nprdma_ioc_\w+) \{(.*?)\n\};", header, re.S)}}
    found = {
        "calls": set(re.findall(
            r"^ioctl\$\w+\(fd \w+, cmd const\[(\w+)\].*, (\w+)\]\)$", text,
            re.M)),
        "flags": set(re.findall(r"NPRDMA_IOC_\w+", flags)),
        "structures": {
            name: members(body, r"^\t(\w+)\t+[^\t\n]*(\t\(out\))?$")
            for name, body in re.findall(
                r"^(nprdma_ioc_\w+) \{\n(.*?)^\}", text, re.M | re.S)}}
    bad = 0
    for what, value in wanted.items():
        print(f"{len(value)} {what}")
        if not value or value != found[what]:
            print(f"are\n  {value}\nbut described as\n  {found[what]}")
            bad += 1
    return bad > 0


sys.exit(main())
