# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Lines device.*: windows of the kernel module on two emulated mlx5 functions
(test/emlx5), in a guest. Ratios mean something there, absolute figures do not.
kernel.py has how a guest is run.

Each DMA of these functions is a message between two processes. QEMU sends one
more for each page that the guest's IOMMU maps or unmaps, which hardware does
not have, and it has 65535 mappings at most. So a window of 256 MiB does not
exist here; device.counts has the messages of a smaller one. The line
kernel.windows has 256 MiB without messages.
"""

import os
import subprocess

import kernel
from measure import Row, all_values, one_turn, three_times
from probes import LATENCY, MIB
from session import TOP, BenchError, field_of
from stats import ratio

TO = "mlx5_0"  # the target, and with UCX also the initiator

# Of the model, by emlx5_counts
COUNTS = ("commands", "umrs", "dma reads", "dma read bytes", "dma writes",
          "maps")

# What the calls of hw_windows turn come down to
TRACED = ("nprdma_kpopulate", "nprdma_kregion_revoke")


def prepare(_session):
    """Drivers, both ports, and the module."""
    kernel.must("sh", "-c", '. "$NPRDMA_SRC/test/emlx5/guest/setup.sh"; '
                'mlx5_up 2')
    kernel.load_module("nprdma")


def run(session, name, *words):
    """What a program of the tests prints."""
    words = [str(word) for word in words]
    path = os.path.join(os.environ["NPRDMA_TESTS"], "emlx5", name)
    # On one CPU, so that a trace is in one buffer
    return session.run(["sh", "-c", 'ulimit -l unlimited; exec "$@"', "sh",
                        "taskset", "-c", session.other, path, *words],
                       dict(os.environ), f"{name} {' '.join(words)}", 1200)


def windows(session, *words):
    """The microseconds that hw_windows prints."""
    return field_of(run(session, "hw_windows", *words), "us:")


def register(session, kind, size):
    """First registration."""
    return windows(session, "register", kind, TO, size)


def counts(session):
    """Of the target's function."""
    out = run(session, "emlx5_counts", TO)
    return {name: field_of("\n" + out, name + ":") for name in COUNTS}


def spent(session, kind, size):
    """What the model counts for a registration and its end: without what a
    registration of one page takes."""
    marks = [counts(session)]
    for length in (4096, size):
        register(session, kind, length)
        marks.append(counts(session))
    return {name: (marks[2][name] - marks[1][name]) -
                  (marks[1][name] - marks[0][name]) for name in COUNTS}


def counted(session, kind, size):
    """Counts of the model."""
    return {f"{kind}: {name} of the model@": value
            for name, value in spent(session, kind, size).items()}


def uct(test, pinned_way):
    """Latency of ucx_perftest between two processes on one function;
    `pinned_way` and the size select how the data goes."""
    def command(session, contestant, size):
        transport = "nprdma" if contestant == "windows" else "rc_verbs"
        count = 400 if size <= 8192 else max(8, 4 * MIB // size)
        return session.perftest(contestant, LATENCY, [
            "-d", TO + ":1", "-x", transport, "-t", test, "-D",
            pinned_way(size), "-s", str(size), "-n", str(count), "-w",
            str(count // 8)])
    return command


def way_of_get(size):
    """As nprdma has it."""
    return "bcopy" if size <= 4096 else "zcopy"


def way_of_put(size):
    """Likewise."""
    return "short" if size <= 64 else way_of_get(size)


def turn_count(pages):
    """How often pages come and go."""
    return 400 if pages == 1 else 100


def turn(session, _contestant, pages):
    """Time per page that comes and goes, by the caller's clock."""
    out = run(session, "hw_windows", "turn", TO, pages, turn_count(pages))
    return {f"{name}, per page@us": field_of(out, name + ":")
            for name in ("populate", "invalidate")}


def flush(session, _contestant, pages):
    """The share of the IOMMU's flush."""
    figures = {}
    for function in TRACED:
        calls = kernel.trace(lambda: turn(session, None, pages), function,
                             kernel.FLUSH).get(function, ())
        # The first and the last calls are of other ranges
        if len(calls) < turn_count(pages):
            raise BenchError(f"{function} was not traced")
        figures[f"{function}, flush, at least@%"] = (
            100 * kernel.middle(calls, 1) / kernel.middle(calls, 0))
    return figures


def cycle(session, contestant, pages):
    """Map, touch and unmap, next to windows or without any."""
    return windows(session, "cycle", contestant, TO, pages,
                   4000 if pages == 1 else 400)


SIZES = (8, 4096, 65536, MIB)
REGISTERED = (64 * MIB,)
PAIR = ("pinned", "windows")

DEVICE = [
    Row("device.registration", "first registration, untouched", register,
        PAIR, [ratio("pinned", "windows")], sizes=REGISTERED, prepare=prepare),
    Row("device.counts", "first registration, untouched", counted, PAIR,
        all_values, sizes=REGISTERED, turns=one_turn, prepare=prepare),
    Row("device.get", "get, nothing absent", uct("get", way_of_get), PAIR,
        [ratio("windows", "pinned")], sizes=SIZES, prepare=prepare),
    Row("device.put", "put, nothing absent", uct("put_lat", way_of_put), PAIR,
        [ratio("windows", "pinned")], sizes=SIZES, prepare=prepare),
    Row("device.pages", "pages of windows", turn, ("windows",), all_values,
        sizes=(1, 64), scale="pages", prepare=prepare),
    Row("device.pages", "traced", flush, ("windows",), all_values,
        sizes=(1, 64), scale="pages", turns=one_turn, prepare=prepare),
    Row("device.cycle", "map, touch and unmap", cycle, ("none", "windows"),
        [ratio("windows", "none", "<=", 1.05)], sizes=(1, 64), scale="pages",
        turns=three_times, prepare=prepare),
]


def rig(build, *options):
    """The command that begins a guest with two functions of a model with these
    options."""
    tests = os.path.join(build, "test")
    if subprocess.run(["cmake", "--build", tests, "--target", "emlx5",
                       "emlx5_counts", "hw_windows"],
                      stdout=subprocess.DEVNULL, check=False).returncode != 0:
        raise BenchError(f"the tests in {tests} cannot be built: run "
                         "contrib/check")
    words = [TOP + "/test/emlx5/guest/run"]
    for option in options:
        words += ["--model", option]
    return [*words, "--", "--iommu", "legacy", "--append", "iomem=relaxed"]


def rig_environment(build):
    """Where the model is."""
    return {"EMLX5": os.path.join(build, "test/emlx5/emlx5")}


def start(build, prefix, version, words, report):
    """kernel.Guest.start() of this group."""
    kernel.run_guest("device", rig(build, "--whole", "--chunk", "65536"),
                     rig_environment(build), build, prefix, version, words,
                     report)


# A window costs QEMU a mapping for each page
GUEST = kernel.Guest(
    {"UCX_NPRDMA_EMULATION": "no", "UCX_NPRDMA_MONITOR": "kernel",
     "UCX_NPRDMA_TIMEOUT": "2s", "UCX_NPRDMA_INJECT": "region_size:4m"}, start)
