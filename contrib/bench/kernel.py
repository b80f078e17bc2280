# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Lines kernel.*: what the kernel module costs, in a guest. Ratios mean
something there, absolute figures do not.

start() is on the host: it compiles the programs, because the guest has no
compiler, and starts `bench run --in-guest` there. All else runs in the guest as
root, whose Python has the modules of python3-minimal only (session.py). Each
result comes back as a line "result: {...}".
"""

import ast
import os
import subprocess
import sys
import time

from measure import Row, ratio
from probes import MIB, reg
from session import SKIPPED, TOP, BenchError, compile_program, field_of

# Of contestants in the guest
SETTINGS = {"UCX_NPRDMA_MONITOR": "kernel", "UCX_MODULES": "^ib"}
SECONDS = 1800

# Users before what they use
RXE_MODULES = ("rdma_ucm", "rdma_cm", "iw_cm", "ib_cm", "rdma_rxe", "ib_uverbs",
               "ib_core")


def must(*argv):
    """Runs a command that has to succeed."""
    if subprocess.run(argv, check=False).returncode != 0:
        raise BenchError(f"{' '.join(argv)} failed")


def is_loaded(module):
    """Whether the kernel has a module."""
    return os.path.isdir(f"/sys/module/{module}/holders")


def load_module(module, *options):
    """Loads it and waits for its device."""
    if not is_loaded(module):
        # The rig's VT-d is in caching mode
        must("insmod", os.path.join(os.environ["NPRDMA_KMOD"], module + ".ko"),
             "allow_caching_mode=1", *options)
    end = time.monotonic() + 10
    while not os.path.exists("/dev/" + module):
        if time.monotonic() > end:
            raise BenchError(f"no /dev/{module}")
        time.sleep(0.1)


def load(_session):
    """The module."""
    load_module("nprdma")


def load_edu(_session):
    """And the driver of QEMU's edu, a device behind VT-d that imports. It has
    a class "infiniband" of its own, so it excludes ib_core."""
    load_module("nprdma")
    if is_loaded("ib_core"):
        must("rdma", "link", "delete", "rxe0")
        must("ip", "link", "delete", "rxenet")
        for module in RXE_MODULES:
            if is_loaded(module):
                must("rmmod", module)
    # Addresses for views of 256 MiB
    load_module("nprdma_edu", "dma_bits=40")


def load_rxe(session):
    """And soft-RoCE's rxe0, without edu."""
    load(session)
    if is_loaded("nprdma_edu"):
        must("rmmod", "nprdma_edu")
    if not os.path.exists("/sys/class/infiniband/rxe0"):
        must("sh", "-c", '. "$NPRDMA_SRC/test/guest/lib.sh"; rxe_up')


def unload():
    """Both modules."""
    for module in ("nprdma_edu", "nprdma"):
        if is_loaded(module):
            must("rmmod", module)


def bench(session, *words):
    """What kernel_bench prints."""
    words = [str(word) for word in words]
    return session.run([session.program("kernel_bench"), *words],
                       dict(os.environ), f"kernel_bench {' '.join(words)}",
                       1200)


def pages(session, contestant, batch):
    """Medians of the steps."""
    out = bench(session, "pages", contestant, batch,
                2000 if batch == 1 else 400)
    return {f"{step} {contestant}": field_of(out, step)
            for step in ("touch", "populate", "take")}


PAGES = [ratio(f"populate {contestant}", "touch none",
               what=f"populate, {contestant} : CPU's own faults")
         for contestant in ("region", "view")]
PAGES += [ratio(f"take {contestant}", "take none",
                what=f"MADV_DONTNEED, {contestant} : without a region")
          for contestant in ("region", "view")]


def registration(session, contestant, size):
    """By nprdma, alone or with the views of a device behind VT-d; or by
    ibv_reg_mr() on rxe0, which has no IOMMU, without UCX's cache."""
    if contestant == "nprdma":
        return reg("first")(session, contestant, size)
    if contestant == "views":
        load_edu(session)
        return field_of(bench(session, "import", size), "us")
    load_rxe(session)
    return field_of(session.run(
        [session.program("reg_bench"), "ib", "rxe0", "first", str(size)],
        {**os.environ, "UCX_IB_REG_METHODS": "direct"}, "reg_bench"), "us")


def cycle(session, contestant, batch):
    """Without the module, or with it."""
    if contestant == "unloaded":
        unload()
    else:
        load(session)
    return field_of(bench(session, "cycle", batch,
                          16000 if batch == 1 else 1600), "us")


KERNEL = [
    Row("kernel.pages", "region imported by a device behind VT-d", pages,
        ("none", "region", "view"), PAGES, sizes=(1, 64), scale="pages",
        prepare=load_edu),
    Row("kernel.registration", "first registration, untouched", registration,
        ("nprdma", "ibv_reg_mr"), [ratio("ibv_reg_mr", "nprdma", ">=", 20)],
        sizes=(256 * MIB,), prepare=load_rxe),
    Row("kernel.views", "first registration and import, untouched",
        registration, ("views", "ibv_reg_mr"),
        [ratio("ibv_reg_mr", "views", ">=", 20)],
        sizes=(256 * MIB,), prepare=load),
    # The limit is close
    Row("kernel.cycle", "map, touch and unmap", cycle,
        ("unloaded", "loaded"), [ratio("loaded", "unloaded", "<=", 1.05)],
        sizes=(1, 64), scale="pages", turns=lambda turns: 3 * turns),
]


def start(build, prefix, kernel, words, report):
    """Runs `bench run --in-guest PROGRAMS WORDS...` in a guest. Each result
    goes to report(). If the guest's kernel hangs while it boots, a third of
    the time passes before it is booted again."""
    path = os.path.join(build, "guest/bench")
    os.makedirs(path, exist_ok=True)
    for name in ("reg_bench", "kernel_bench"):
        compile_program(name, os.path.join(path, name))
    must(TOP + "/test/guest/modules", kernel, f"{build}/guest/kmod-{kernel}")
    run = subprocess.Popen(
        [TOP + "/test/guest/run", "--iommu", "legacy", "--kernel", kernel,
         "--time", str(SECONDS), "--build", build, "--prefix", prefix,
         TOP + "/contrib/bench/bench", "run", "--in-guest", path, *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    with run:
        for line in run.stdout:
            if line.startswith("result: "):
                report(ast.literal_eval(line[len("result: "):].strip()))
            else:
                print(line.rstrip(), flush=True)
    if run.returncode == SKIPPED:
        sys.exit(SKIPPED)  # the reason was printed
    if run.returncode != 0:
        raise BenchError(f"the guest ended with status {run.returncode}")
