# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Reasons not to begin, each as a sentence. A machine with jobs is one of
them: the check takes I/O page tables of a device in hand."""

import os
import re

import hw_facts

CAP_SYS_MODULE = 16

# Parts of the kernel that own queue pairs on every machine with RDMA. Others
# are file systems and storage in use.
KERNEL_OWNERS = {"[ib_core]", "[mlx5_ib]", "[mlx4_ib]", "[bnxt_re]", "[irdma]",
                 "[ib_ipoib]", "[ib_umad]", "[ib_cm]", "[rdma_cm]"}

# A process of this name belongs to a job; one of the second kind starts jobs
JOBS = {"slurmstepd": "Slurm", "pbs_demux": "PBS", "sge_shepherd":
        "Grid Engine", "condor_starter": "HTCondor", "lsbatch": "LSF"}
MANAGERS = {"slurmd": "Slurm", "pbs_mom": "PBS", "sge_execd": "Grid Engine",
            "condor_startd": "HTCondor", "sbatchd": "LSF", "flux-broker":
            "Flux"}


def privileges(tree, uid):
    """Root, with the right to load modules."""
    if uid != 0:
        return ["hwcheck must be run as root, because it loads the kernel "
                "module."]
    status = hw_facts.fields(tree.text("/proc/self/status"))
    if "CapEff" in status and not int(status["CapEff"], 16) >> \
            CAP_SYS_MODULE & 1:
        return ["This root may not load kernel modules (no CAP_SYS_MODULE): "
                "run hwcheck outside of the container."]
    return []


def devices(tree, wanted):
    """RDMA devices on PCI, with an active port. `wanted` are (name, port)."""
    there = tree.names("/sys/class/infiniband")
    if not there:
        return ["There is no RDMA device: /sys/class/infiniband is empty. Is "
                "the NIC's driver loaded (mlx5_ib, bnxt_re, irdma)?"]
    if not wanted:
        return ["No RDMA device on PCI has an active port: "
                f"{', '.join(there)}. Is a cable in it, and, with InfiniBand, "
                "does a subnet manager run?"]
    found = []
    for name, port in dict.fromkeys(wanted):
        if name not in there:
            found.append(f"There is no RDMA device {name}, but "
                         f"{', '.join(there)}.")
        elif hw_facts.pci_address(tree, name) is None:
            found.append(f"{name} is not a PCI device, so there is no I/O "
                         "page table for it.")
        elif not is_active(tree, name, port):
            state = tree.text(f"/sys/class/infiniband/{name}/ports/{port}/"
                              "state")
            found.append(f"Port {port} of {name} is not active "
                         f"({state or 'there is no such port'}).")
    if not tree.names("/dev/infiniband"):
        found.append("There is no /dev/infiniband: load ib_uverbs (modprobe "
                     "ib_uverbs).")
    return found


def is_active(tree, name, port):
    """Whether a port is up."""
    state = tree.text(f"/sys/class/infiniband/{name}/ports/{port}/state")
    return (state or "").endswith("ACTIVE")


def default_ports(tree):
    """The first active port of a device on PCI: [(name, port)]."""
    return [(name, port) for name in tree.names("/sys/class/infiniband")
            for port in tree.names(f"/sys/class/infiniband/{name}/ports")
            if is_active(tree, name, port) and
            hw_facts.pci_address(tree, name)][:1]


def users(tree, drained, own):
    """Jobs of batch systems, and processes that have an RDMA device open, but
    for the pids `own`. A daemon may start a job at any time, unless the person
    says that it does not."""
    found = []
    for pid in filter(str.isdigit, tree.names("/proc")):
        name = tree.text(f"/proc/{pid}/comm")
        if name in JOBS:
            found.append(f"A job of {JOBS[name]} is running ({name}, process "
                         f"{pid}): run hwcheck on a machine without jobs.")
        elif name in MANAGERS and not drained:
            found.append(f"{MANAGERS[name]} may start a job at any time "
                         f"({name}, process {pid}): drain the node, then say "
                         "--drained.")
        for descriptor in tree.names(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(tree.path(f"/proc/{pid}/fd/{descriptor}"))
            except OSError:
                continue
            if int(pid) not in own and \
                    re.match(r"/dev/infiniband/uverbs\d+$", target):
                found.append(f"{name} (process {pid}) has {target} open: end "
                             "it first.")
                break
    return found


def owners(tree, own):
    """Others with queue pairs or memory regions, also parts of the kernel,
    whose names are in brackets."""
    found = set()
    for line in (tree.run("rdma", "res", "show", "qp") +
                 tree.run("rdma", "res", "show", "mr")).splitlines():
        name = re.search(r"\bcomm (\S+)", line)
        pid = re.search(r"\bpid (\d+)", line)
        if name and pid is None and name.group(1) not in KERNEL_OWNERS:
            found.add(f"The kernel's {name.group(1).strip('[]')} uses an RDMA "
                      "device: unmount or stop what needs it.")
        elif name and pid and int(pid.group(1)) not in own and \
                not tree.exists(f"/proc/{pid.group(1)}/fd"):
            # Processes of this name space are found by users()
            found.add(f"{name.group(1)} (process {pid.group(1)}, in another "
                      "container) uses an RDMA device: end it first.")
    return sorted(found)


def modules(tree):
    """Whether an unsigned module can be loaded, and is not there yet."""
    mode = re.search(r"\[(\w+)\]",
                     tree.text("/sys/kernel/security/lockdown") or "")
    boot = [tree.data(f"/sys/firmware/efi/efivars/{name}") or b"" for name in
            tree.names("/sys/firmware/efi/efivars")
            if name.startswith("SecureBoot-")]
    hint = "; Secure Boot is on" if boot and boot[0][4:5] == b"\1" else ""
    found = []
    if mode and mode.group(1) != "none":
        found.append("The kernel refuses modules without a known signature "
                     f"(lockdown: {mode.group(1)}{hint}).")
    elif tree.text("/sys/module/module/parameters/sig_enforce") == "Y":
        found.append("The kernel refuses modules without a known signature "
                     f"(module.sig_enforce{hint}).")
    if tree.text("/proc/sys/kernel/modules_disabled") == "1":
        found.append("The kernel loads no more modules until it is booted "
                     "again (kernel.modules_disabled).")
    if tree.exists("/sys/module/nprdma"):
        found.append("nprdma.ko is loaded already: unload it (rmmod nprdma).")
    return found


def build_tools(tree, release, headers):
    """What compiling needs. `headers`: a directory, or None for the running
    kernel's."""
    folder = headers or f"/lib/modules/{release}/build"
    found = []
    if not tree.exists(f"{folder}/Makefile"):
        found.append(f"The headers of kernel {release} are missing ({folder}):"
                     " install linux-headers or kernel-devel of this version.")
    for name in ("make", "cc"):
        if not any(tree.exists(f"{path}/{name}") for path in
                   ("/usr/bin", "/usr/local/bin", "/bin")):
            found.append(f"There is no {name} in /usr/bin: install make and "
                         "gcc.")
    if not tree.exists("/usr/include/infiniband/verbs.h"):
        found.append("The header infiniband/verbs.h is missing: install "
                     "libibverbs-dev or rdma-core-devel.")
    return found


def reasons(tree, uid, ports, drained, own):
    """All sentences for a run; none if it may begin. Without root, /proc does
    not tell, so that is the only one then."""
    return (privileges(tree, uid) or
            devices(tree, ports) + modules(tree) +
            users(tree, drained, own) + owners(tree, own))
