# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""What the machine is: chosen facts of /sys, /proc and of other programs. All
paths are below Tree.root, so that tests can give another one."""

import glob
import os
import re
import resource
import subprocess

import hw_parse

IDENTITY = ("vendor", "device", "subsystem_vendor", "subsystem_device",
            "revision")
LINK = ("current_link_speed", "current_link_width", "max_link_speed",
        "max_link_width", "numa_node")
PORT = ("state", "phys_state", "link_layer", "rate")
VM = ("swappiness", "overcommit_memory", "compaction_proactiveness")


class Tree:
    """A file system, and programs. `run` is a function of words that returns
    what a program prints, or None if it is not there or fails."""

    def __init__(self, root="/", run=None):
        self.root = root
        self.run = run or run_program

    def path(self, name):
        """The real path of a name that begins with "/"."""
        return os.path.join(self.root, name.lstrip("/"))

    def text(self, name):
        """The text of a file without blanks around it, or None."""
        data = self.data(name)
        return None if data is None else data.decode(errors="replace").strip()

    def data(self, name):
        """The bytes of a file, or None."""
        try:
            with open(self.path(name), "rb") as file:
                return file.read()
        except OSError:
            return None

    def texts(self, folder, names):
        """{name: text} of files that are there."""
        found = {name: self.text(f"{folder}/{name}") for name in names}
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
    """What a program prints within 20 s, or None."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, text=True, timeout=20,
                              stderr=subprocess.DEVNULL, errors="replace",
                              check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def pci_address(tree, device):
    """Of an RDMA device, or None: "0000:03:00.0"."""
    address = tree.link(f"/sys/class/infiniband/{device}/device")
    if address and re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]",
                                address):
        return address
    return None


def device_facts(tree, device):
    """Of an RDMA device."""
    base = f"/sys/class/infiniband/{device}"
    address = pci_address(tree, device)
    pci = f"/sys/bus/pci/devices/{address}"
    facts = {"name": device, "PCI address": address,
             "driver": tree.link(f"{base}/device/driver"),
             **tree.texts(base, ("fw_ver", "hw_rev", "hca_type", "board_id")),
             "ports": {number: tree.texts(f"{base}/ports/{number}", PORT)
                       for number in tree.names(f"{base}/ports")}}
    if address is None:
        return facts
    facts["PCI"] = {**tree.texts(pci, IDENTITY), **tree.texts(pci, LINK),
                    **hw_parse.pci_settings(tree.data(f"{pci}/config") or b"")}
    facts["model"] = model(tree, address)
    facts["virtual function"] = tree.exists(f"{pci}/physfn")
    facts["IOMMU"] = iommu_of(tree, pci)
    facts["Ethernet"] = [ethernet(tree, net)
                         for net in tree.names(f"{pci}/net")]
    return facts


def model(tree, address):
    """What the list of PCI ids calls it."""
    found = hw_parse.fields(tree.run("lspci", "-D", "-vmm", "-s", address) or
                            "")
    return {name: found[name] for name in ("Vendor", "Device", "SVendor",
                                           "SDevice") if name in found}


def ethernet(tree, net):
    """Of the network device: driver and firmware, no names, no addresses."""
    found = hw_parse.fields(tree.run("ethtool", "-i", net) or "")
    facts = {name: found[name] for name in ("driver", "version",
                                            "firmware-version")
             if name in found}
    return {**facts, **tree.texts(f"/sys/class/net/{net}", ("mtu", "speed"))}


def iommu_of(tree, pci):
    """Of a PCI function: its group and unit."""
    group = tree.link(f"{pci}/iommu_group")
    if group is None:
        return {"group": None}
    unit = tree.link(f"{pci}/iommu")
    base = f"/sys/kernel/iommu_groups/{group}"
    return {"group": group, "domain": tree.text(f"{base}/type"),
            "functions in the group": len(tree.names(f"{base}/devices")),
            "unit": unit,
            **{name: hw_parse.grouped(text) for name, text in tree.texts(
                f"/sys/class/iommu/{unit}/intel-iommu",
                ("version", "cap", "ecap")).items()}}


def kernel_facts(tree):
    """The kernel and its settings."""
    release = tree.text("/proc/sys/kernel/osrelease") or ""
    config = tree.text(f"/boot/config-{release}")
    return {"release": release,
            "version": tree.text("/proc/sys/kernel/version"),
            "tainted": tree.text("/proc/sys/kernel/tainted"),
            "command line": hw_parse.kernel_words(
                tree.text("/proc/cmdline") or ""),
            "configuration": hw_parse.kernel_options(config or ""),
            "lockdown": tree.text("/sys/kernel/security/lockdown"),
            "huge pages": tree.text(
                "/sys/kernel/mm/transparent_hugepage/enabled"),
            "KSM": tree.text("/sys/kernel/mm/ksm/run"),
            "NUMA balancing": tree.text("/proc/sys/kernel/numa_balancing"),
            "vm": tree.texts("/proc/sys/vm", VM)}


def machine_facts(tree):
    """CPUs, memory, model of the computer."""
    cpu = re.search(r"^model name[^:]*: *(.*)",
                    tree.text("/proc/cpuinfo") or "", re.M)
    memory = hw_parse.fields(tree.text("/proc/meminfo") or "")
    system = hw_parse.fields(tree.text("/etc/os-release") or "", "=")
    return {"CPU": cpu.group(1) if cpu else None,
            "CPUs": os.sysconf("SC_NPROCESSORS_ONLN"),
            "NUMA nodes": len([name for name in
                               tree.names("/sys/devices/system/node")
                               if re.fullmatch(r"node\d+", name)]),
            "memory": {name: memory.get(name) for name in (
                "MemTotal", "MemAvailable", "SwapTotal", "SwapFree")},
            "computer": tree.texts("/sys/class/dmi/id", (
                "sys_vendor", "product_name", "board_name", "bios_version",
                "bios_date")),
            "system": system.get("PRETTY_NAME", "").strip('"')}


def software_facts(tree):
    """Versions of the libraries and programs that take part."""
    verbs = [os.path.realpath(path) for pattern in (
        "usr/lib*/libibverbs.so.1", "usr/lib/*/libibverbs.so.1")
        for path in glob.glob(os.path.join(tree.root, pattern))]
    ucx = (tree.run("ucx_info", "-v") or "").splitlines()
    ofed = (tree.run("ofed_info", "-s") or "").strip()
    compiler = (tree.run("cc", "--version") or "").splitlines()
    return {"rdma-core": hw_parse.library_version(verbs[0]) if verbs else None,
            "UCX": re.sub(r"^# *", "", ucx[0]) if ucx else None,
            "OFED": ofed or None, "compiler": compiler[0] if compiler else None}


def limits():
    """ulimit of this process; -1: none."""
    names = {"locked memory": resource.RLIMIT_MEMLOCK,
             "open files": resource.RLIMIT_NOFILE,
             "address space": resource.RLIMIT_AS}
    return {name: resource.getrlimit(number)
            for name, number in names.items()}


def collect(tree, devices):
    """All facts; a part that cannot be read is an error text."""
    parts = {"machine": lambda: machine_facts(tree),
             "kernel": lambda: kernel_facts(tree),
             "software": lambda: software_facts(tree), "ulimit": limits,
             "devices": lambda: [device_facts(tree, name) for name in devices]}
    facts = {}
    for name, part in parts.items():
        try:
            facts[name] = part()
        except (OSError, ValueError, LookupError, TypeError) as error:
            facts[name] = f"cannot be read: {error!r}"
    return facts
