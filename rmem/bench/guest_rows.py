# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Line rmem.guest: what a program has elsewhere when its memory is short: swap,
or a file. In a guest, because this machine's memory cgroup, swap and disk are
not the benchmark's. Software emulates the CPU there, so faults of all kinds are
slow, and only ratios mean something. The disk of the guest is a file on the
disk of the build tree, without its cache."""

import os
import re
import subprocess

from measure import Row, one_turn, ratio
from session import COMPILE, HERE, SKIPPED, TOP, BenchError, Skip

DIR = os.path.join(TOP, "rmem/bench")
KERNEL, SECONDS = "6.12", 1200


def all_of_them(session, _contestant, _size):
    """Microseconds of each, by pattern, part and contestant."""
    image = os.path.join(TOP, f"_build/bench-guest.{os.getpid()}")
    commands = [
        ["cc", *COMPILE, f"-I{HERE}", "-o", session.work + "/guest_bench",
         DIR + "/guest_bench.c", "-lm"],
        ["truncate", "-s", "256M", image], ["mke2fs", "-q", "-t", "ext4", image]]
    session.cleanups.append(lambda: os.remove(image))
    for command in commands:
        if subprocess.run(command, check=False).returncode != 0:
            raise BenchError(f"{' '.join(command)} failed")
    done = subprocess.run(
        [TOP + "/test/guest/run", "--kernel", KERNEL, "--time", str(SECONDS),
         "--prefix", session.prefix, "--tests", session.work, "--qemu",
         "-drive", "--qemu", f"file={image},if=none,id=disk,format=raw,"
         "cache.direct=on", "--qemu", "-device", "--qemu",
         "virtio-blk-pci,drive=disk", DIR + "/guest_side"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        check=False)
    if done.returncode == SKIPPED:
        raise Skip(done.stdout.strip())
    if done.returncode != 0:
        raise BenchError(f"the guest ended with status {done.returncode}: "
                         + done.stdout)
    return {name: float(number) for name, number in
            re.findall(r"^(\w+ [\w ]+) us (\d+)", done.stdout, re.M)}


def judges(pattern):
    """Next to no lack of memory, and to what mends it today."""
    return [ratio(f"{pattern} {part} rmem", other)
            for part in ("half", "quarter")
            for other in (f"{pattern} plain", f"{pattern} {part} swap",
                          f"{pattern} {part} file")]


GUEST = [
    Row("rmem.guest", "in a guest, a half or a quarter of the memory: rmem-run "
        ": enough memory, swap on a RAM disk, a file", all_of_them, ("guest",),
        judges("stream") + judges("zipf"), turns=one_turn),
]
