# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Parsers of what the kernel and other programs print. No input, no output."""

import re
import struct

CAP_POINTER = 0x34
CAP_PCIE = 0x10
EXTENDED = 0x100
EXTENDED_ATS = 0x0f
CONFIG_SIZE = 4096


def fields(text, separator=":"):
    """{name: value} of lines "name: value"; later ones win. Also for ethtool
    -i and lspci -vmm."""
    found = {}
    for line in text.splitlines():
        name, colon, value = line.partition(separator)
        if colon and name.strip():
            found[name.strip()] = value.strip()
    return found


def figures(text):
    """The same, with numbers as numbers."""
    return {name: int(value) if re.fullmatch(r"\d+", value) else
            float(value) if re.fullmatch(r"\d+\.\d+", value) else value
            for name, value in fields(text).items()}


def word(data, offset, form):
    """A little-endian number; None behind the end."""
    if offset + struct.calcsize(form) > len(data):
        return None
    return struct.unpack_from(form, data, offset)[0]


def capability(data, wanted):
    """Where a PCI capability begins in the configuration space, or None. The
    list may be broken or a circle."""
    offset, seen = word(data, CAP_POINTER, "<B"), set()
    while offset and offset not in seen:
        seen.add(offset)
        if word(data, offset, "<B") == wanted:
            return offset
        offset = word(data, offset + 1, "<B")
    return None


def extended_capability(data, wanted):
    """The same for PCIe's extended capabilities."""
    offset, seen = EXTENDED, set()
    while offset and offset not in seen:
        seen.add(offset)
        head = word(data, offset, "<I")
        if not head or head == 0xffffffff:
            return None
        if head & 0xffff == wanted:
            return offset
        offset = head >> 20
    return None


def pci_settings(data):
    """What the configuration space of a PCI function says: a dictionary, with
    None for what is not in it."""
    settings = dict.fromkeys(
        ("relaxed ordering", "max payload", "max read request",
         "extended tags", "ATS capability", "ATS enabled"))
    pcie = capability(data, CAP_PCIE)
    control = word(data, pcie + 8, "<H") if pcie else None
    if control is not None:
        settings.update({
            "relaxed ordering": bool(control & 1 << 4),
            "extended tags": bool(control & 1 << 8),
            "max payload": 128 << (control >> 5 & 7),
            "max read request": 128 << (control >> 12 & 7)})
    if len(data) > EXTENDED:
        ats = extended_capability(data, EXTENDED_ATS)
        settings["ATS capability"] = ats is not None
        ats = word(data, ats + 6, "<H") if ats else 0
        settings["ATS enabled"] = None if ats is None else bool(ats & 1 << 15)
    return settings


def kernel_words(text):
    """Words of the kernel's command line that concern this; others may have
    names in them."""
    return [w for w in text.split() if re.match(
        r"(intel_iommu|amd_iommu|iommu(\.\w+)?|pci|pcie_\w+|mitigations|"
        r"transparent_hugepage|hugepages|default_hugepagesz|hugepagesz|"
        r"iomem|lockdown|module\.sig_enforce|numa_balancing)(=|$)", w)]


def kernel_options(text):
    """Options of the kernel's configuration that concern this."""
    return sorted(line for line in text.splitlines() if re.match(
        r"CONFIG_(\w*IOMMU\w*|MODULE_SIG_FORCE|DMABUF_MOVE_NOTIFY|HMM_MIRROR|"
        r"INFINIBAND_ON_DEMAND_PAGING|MMU_NOTIFIER|PREEMPT\w*|HZ|KSM|"
        r"SECURITY_LOCKDOWN_LSM\w*)=", line))


def rdma_users(text):
    """{(pid or None, name)} that own objects in the output of "rdma res show
    qp" or "mr". A name in brackets is part of the kernel."""
    users = set()
    for line in text.splitlines():
        found = re.search(r"\bcomm (\S+)", line)
        if found:
            pid = re.search(r"\bpid (\d+)", line)
            users.add((int(pid.group(1)) if pid else None, found.group(1)))
    return users


def log_findings(lines):
    """(harmful lines, other lines) of the kernel's log that concern this."""
    harmful = re.compile(
        r"DMAR: .*([Ff]ault|[Ff]ailed|already set)|BUG|WARNING|Oops|"
        r"general protection|[Uu]nable to handle|AER: .*error|"
        r"blocked for more than|soft lockup|Bad page|nobody cared")
    related = re.compile(r"nprdma|DMAR|IOMMU|iommu|mlx5|bnxt_re|irdma|"
                         r"infiniband|\bib_")
    bad = [line for line in lines if harmful.search(line)]
    return bad, [line for line in lines
                 if related.search(line) and line not in bad]


def library_version(path):
    """rdma-core's version at the end of a library's file name: "44.0" of
    libibverbs.so.1.14.44.0."""
    found = re.search(r"\.so\.\d+\.\d+\.(\d+\.\d+)$", path)
    return found.group(1) if found else None


def grouped(text):
    """A register's digits in groups, unlike those of a GUID."""
    return "_".join(re.findall(r".{1,8}", text[::-1]))[::-1]
