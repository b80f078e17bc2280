# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""What the machine is: chosen facts of /sys, /proc and of other programs. All
paths are below Tree.root, so that tests can give another one."""

import os
import re
import resource
import struct
import subprocess


class Tree:
    """A file system, and programs. `run` is a function of words that returns
    what a program prints, or an empty text."""

    def __init__(self, root="/", run=None):
        self.root, self.run = root, run or run_program

    def path(self, name):
        """The real path of a name that begins with "/"."""
        return os.path.join(self.root, name.lstrip("/"))

    def data(self, name):
        """The bytes of a file, or None."""
        try:
            with open(self.path(name), "rb") as file:
                return file.read()
        except OSError:
            return None

    def text(self, name):
        """The text of a file without blanks around it, or None."""
        data = self.data(name)
        return None if data is None else data.decode(errors="replace").strip()

    def texts(self, folder, names):
        """{name: text} of the files in a folder, whose names are words."""
        found = {name: self.text(f"{folder}/{name}") for name in names.split()}
        return {name: text for name, text in found.items() if text is not None}

    def link(self, name):
        """The last part of what a symbolic link points at, or None."""
        try:
            return os.path.basename(os.readlink(self.path(name)))
        except OSError:
            return None

    def names(self, folder):
        """The sorted names in a folder; none if it is not there."""
        try:
            return sorted(os.listdir(self.path(folder)))
        except OSError:
            return []

    def exists(self, name):
        """Whether there is such a file."""
        return os.path.exists(self.path(name))


def run_program(*words):
    """What a program prints within 20 s, or an empty text."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, text=True, timeout=20,
                              stderr=subprocess.DEVNULL, errors="replace",
                              check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


# ---- parsers ----

def fields(text, separator=":"):
    """{name: value} of lines "name: value"; later ones win. Also for ethtool
    -i and lspci -vmm."""
    found = {}
    for line in (text or "").splitlines():
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


def capability(data, offset, wanted, form, id_bits, next_at):
    """Where one of the capabilities in a list begins in the configuration
    space of a PCI function, or None. The list may be broken or a circle."""
    seen = set()
    while offset and offset not in seen:
        seen.add(offset)
        head = word(data, offset, form)
        if not head or head == 0xffffffff:
            return None
        if head & id_bits == wanted:
            return offset
        offset = head >> next_at
    return None


def pci_settings(data):
    """What a configuration space says; None for what is not in it."""
    settings = dict.fromkeys(
        ("relaxed ordering", "max payload", "max read request",
         "extended tags", "ATS capability", "ATS enabled"))
    pcie = capability(data, word(data, 0x34, "<B"), 0x10, "<H", 0xff, 8)
    control = word(data, pcie + 8, "<H") if pcie else None
    if control is not None:
        settings.update({
            "relaxed ordering": bool(control & 1 << 4),
            "extended tags": bool(control & 1 << 8),
            "max payload": 128 << (control >> 5 & 7),
            "max read request": 128 << (control >> 12 & 7)})
    if len(data) > 0x100:
        ats = capability(data, 0x100, 0x0f, "<I", 0xffff, 20)
        settings["ATS capability"] = ats is not None
        control = word(data, ats + 6, "<H") if ats else 0
        settings["ATS enabled"] = None if control is None else \
            bool(control & 1 << 15)
    return settings


def chosen(words, pattern):
    """Those that concern this; others may have names in them."""
    return [each for each in words if re.match(pattern, each)]


def log_findings(lines):
    """(harmful lines, other lines) of the kernel's log that concern this."""
    bad = [line for line in lines if re.search(
        r"DMAR: .*([Ff]ault|[Ff]ailed|already set)|BUG|WARNING|Oops|"
        r"general protection|[Uu]nable to handle|AER: .*error|"
        r"blocked for more than|soft lockup|Bad page|nobody cared", line)]
    return bad, [line for line in lines if line not in bad and re.search(
        r"nprdma|DMAR|IOMMU|iommu|mlx5|bnxt_re|irdma|infiniband|\bib_", line)]


# ---- facts ----

# Of the whole machine: name, folder, files
FILES = (
    ("kernel", "/proc/sys/kernel", "osrelease version tainted numa_balancing"),
    ("lockdown", "/sys/kernel/security", "lockdown"),
    ("huge pages", "/sys/kernel/mm/transparent_hugepage", "enabled"),
    ("computer", "/sys/class/dmi/id", "sys_vendor product_name board_name "
     "bios_version bios_date"))


def pci_address(tree, device):
    """Of an RDMA device, or None: "0000:03:00.0"."""
    address = tree.link(f"/sys/class/infiniband/{device}/device") or ""
    return address if re.fullmatch(
        r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", address) else None


def device_facts(tree, device):
    """Of an RDMA device. Digits of the IOMMU's registers are in groups, unlike
    those of a GUID."""
    base = f"/sys/class/infiniband/{device}"
    address = pci_address(tree, device)
    pci = f"/sys/bus/pci/devices/{address}"
    group, unit = tree.link(f"{pci}/iommu_group"), tree.link(f"{pci}/iommu")
    groups = f"/sys/kernel/iommu_groups/{group}"
    model = fields(tree.run("lspci", "-D", "-vmm", "-s", address or "none"))
    return {
        "name": device, "PCI address": address,
        "driver": tree.link(f"{base}/device/driver"),
        **tree.texts(base, "fw_ver hw_rev hca_type board_id"),
        "ports": {number: tree.texts(f"{base}/ports/{number}",
                                     "state phys_state link_layer rate")
                  for number in tree.names(f"{base}/ports")},
        "PCI": {**tree.texts(pci, "vendor device subsystem_vendor "
                             "subsystem_device revision current_link_speed "
                             "current_link_width max_link_speed "
                             "max_link_width numa_node"),
                **pci_settings(tree.data(f"{pci}/config") or b"")},
        "model": {name: model[name] for name in ("Vendor", "Device", "SDevice")
                  if name in model},
        "virtual function": tree.exists(f"{pci}/physfn"),
        "IOMMU": {
            "group": group, "domain": tree.text(f"{groups}/type"),
            "functions in the group": len(tree.names(f"{groups}/devices")),
            "unit": unit,
            **{name: "_".join(re.findall(r".{1,8}", text[::-1]))[::-1]
               for name, text in tree.texts(
                   f"/sys/class/iommu/{unit}/intel-iommu",
                   "version cap ecap").items()}}}


def machine_facts(tree):
    """CPUs, memory, kernel, libraries."""
    memory = fields(tree.text("/proc/meminfo"))
    release = tree.text("/proc/sys/kernel/osrelease")
    rdma_core = [name for folder in ("/usr/lib64", *(
        f"/usr/lib/{name}" for name in tree.names("/usr/lib")))
        for name in tree.names(folder) if name.startswith("libibverbs.so.1.")]
    return {
        "CPU": fields(tree.text("/proc/cpuinfo")).get("model name"),
        "CPUs": os.sysconf("SC_NPROCESSORS_ONLN"),
        "memory": {name: memory.get(name) for name in (
            "MemTotal", "MemAvailable", "SwapTotal", "SwapFree")},
        **{name: tree.texts(folder, names) for name, folder, names in FILES},
        "system": fields(tree.text("/etc/os-release"), "=").get("PRETTY_NAME"),
        "command line": chosen(
            (tree.text("/proc/cmdline") or "").split(),
            r"(intel_iommu|amd_iommu|iommu(\.\w+)?|pci|pcie_\w+|mitigations|"
            r"transparent_hugepage|hugepages|default_hugepagesz|hugepagesz|"
            r"iomem|lockdown|module\.sig_enforce|numa_balancing)(=|$)"),
        "configuration": chosen(
            (tree.text(f"/boot/config-{release}") or "").splitlines(),
            r"CONFIG_(\w*IOMMU\w*|MODULE_SIG_FORCE|DMABUF_MOVE_NOTIFY|"
            r"INFINIBAND_ON_DEMAND_PAGING|MMU_NOTIFIER|PREEMPT\w*|HZ|KSM)="),
        "ulimit -l": resource.getrlimit(resource.RLIMIT_MEMLOCK),
        "rdma-core": rdma_core,
        **{words[0]: (tree.run(*words).splitlines() or [None])[0]
           for words in (("ofed_info", "-s"), ("cc", "--version"))}}


def collect(tree, names):
    """All facts, of the machine and of these devices."""
    return {"machine": machine_facts(tree),
            "devices": [device_facts(tree, name) for name in names]}
