#!/usr/bin/env python3
# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""syzkaller.py HEADER DESCRIPTION: checks that a description of the interface
for syzkaller has exactly what the header has: calls, structures with their
members in order, sizes and directions, and flags."""

import re
import sys

SIZES = {"__u32": 4, "__s32": 4, "__aligned_u64": 8, "char": 1}


def header_structs(text):
    """{name: [(member, bytes, is_out)]} of what calls take."""
    structs = {}
    for name, body in re.findall(r"struct (nprdma_ioc_\w+) \{(.*?)\n\};", text,
                                 re.S):
        members = []
        for base, member, count, comment in re.findall(
                r"^\s+(\w+)\s+(\w+)(?:\[(\w+)\])?;(?:\s*/\*(.*?)\*/)?",
                body, re.M | re.S):
            number = int(re.search(rf"#define {count}\s+(\d+)", text).group(1)
                         if count and not count.isdigit() else count or 1)
            members.append((member, SIZES[base] * number,
                            comment.strip().startswith("out")))
        structs[name] = members
    return structs


def described_size(kind, resources, header):
    """Bytes of a type of the description."""
    array = re.match(r"array\[int8, (\w+)\]$", kind)
    if array:
        return int(re.search(rf"#define {array.group(1)}\s+(\d+)",
                             header).group(1))
    zeros = re.match(r"array\[const\[0, int(32|64)\], (\d+)\]$", kind)
    if zeros:
        return int(zeros.group(1)) // 8 * int(zeros.group(2))
    padded = re.match(r"string\[\w+, (\d+)\]$", kind)
    if padded:
        return int(padded.group(1))
    if kind == "vma64":
        return 8
    if kind in resources:
        return 4
    return int(re.search(r"\bint(32|64)\b", kind).group(1)) // 8


def described_structs(text, header):
    resources = re.findall(r"^resource (\w+)\[(?:fd|int32)\]", text, re.M)
    structs = {}
    for name, body in re.findall(r"^(nprdma_ioc_\w+) \{\n(.*?)^\}", text,
                                 re.M | re.S):
        members = []
        for line in body.splitlines():
            member, kind, out = re.match(
                r"\t(\w+)\t+(.*?)(\t\(out\))?$", line).groups()
            members.append((member, described_size(kind, resources, header),
                            out is not None))
        structs[name] = members
    return structs


def main():
    header = open(sys.argv[1], encoding="ascii").read()
    text = open(sys.argv[2], encoding="ascii").read()
    bad = 0

    calls = set(re.findall(r"#define (NPRDMA_IOC_\w+)\s+_IO\(", header))
    structs = header_structs(header)
    flags = set(re.findall(r"#define (NPRDMA_IOC_\w+)\s+\(1u << ", header))
    for what, wanted, found in (
            ("call", calls,
             set(re.findall(r"^ioctl\$\w+\(fd \w+, cmd const\[(\w+)\]", text,
                            re.M))),
            ("flag", flags,
             set(re.findall(r"NPRDMA_IOC_\w+", " ".join(
                 re.findall(r"^nprdma_\w+_flags = (.*)$", text, re.M))))),
            ("structure", set(structs), set(described_structs(text, header)))):
        if not wanted:
            print(f"{sys.argv[1]}: no {what} at all was found")
            bad += 1
        for name in sorted(wanted ^ found):
            where = sys.argv[2 if name in wanted else 1]
            print(f"{where}: {what} {name} is missing")
            bad += 1
    for name, members in described_structs(text, header).items():
        if name in structs and members != structs[name]:
            print(f"{name} is\n  {structs[name]}\nbut described as\n  "
                  f"{members}")
            bad += 1
    for call in calls:
        if not re.search(rf"^ioctl\${call}\(.*, {call.lower()}\]\)$", text,
                         re.M):
            print(f"{call} does not take struct {call.lower()}")
            bad += 1
    print(f"{len(calls)} calls, {len(structs)} structures, {len(flags)} flags: "
          f"{bad} differences")
    return bad > 0


sys.exit(main())
