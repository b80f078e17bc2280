# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Lines kernel.*: what the kernel module costs, in a guest. Ratios mean
something there, absolute figures do not.

run_guest() is on the host: it compiles the programs, because the guest has no
compiler, and starts `bench run --in-guest` there. All else runs in the guest as
root, whose Python has the modules of python3-minimal only (session.py). Each
result comes back as a line "result: {...}".
"""

import ast
import collections
import os
import re
import subprocess
import sys
import time

from measure import Row, all_values, one_turn, three_times
from probes import MIB, perftest, reg
from session import SKIPPED, TOP, BenchError, compile_program, field_of
from stats import Judge, median, ratio

TRACING = "/sys/kernel/tracing/"
TRACED = ("nprdma_kpopulate", "nprdma_invalidate")
FLUSH = "nprdma_kregion_flush"

# Users before what they use
RXE_MODULES = ("rdma_ucm", "rdma_cm", "iw_cm", "ib_cm", "rdma_rxe", "ib_uverbs",
               "ib_core")

# A group of lines that runs in a guest: the environment of its contestants,
# and the function (build, prefix, kernel, words, report) that runs `bench run
# --in-guest PROGRAMS WORDS...` there. Each result goes to report().
Guest = collections.namedtuple("Guest", "settings start")
RIG = TOP + "/test/guest/run"


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
    # Addresses for windows of 256 MiB
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
    """kernel_bench on one CPU, so that its trace is in one buffer."""
    words = [str(word) for word in words]
    return session.run(["taskset", "-c", session.other,
                        session.program("kernel_bench"), *words],
                       dict(os.environ), f"kernel_bench {' '.join(words)}",
                       1200)


def count_of(batch):
    """How often kernel_bench pages repeats a step."""
    return 2000 if batch == 1 else 400


def pages(session, contestant, batch):
    """Medians of the steps."""
    out = bench(session, "pages", contestant, batch, count_of(batch))
    return {f"{step} {contestant}": field_of(out, step)
            for step in ("touch", "populate", "take")}


def quotient(a, b, what):
    """Of medians."""
    return Judge("ratio of medians", a, b, show=(a, b), what=what)


PAGES = [quotient(f"populate {contestant}", "touch none",
                  f"populate, {contestant} : CPU's own faults")
         for contestant in ("region", "window")]
PAGES += [quotient(f"take {contestant}", "take none",
                   f"MADV_DONTNEED, {contestant} : without a region")
          for contestant in ("region", "window")]
PAGES += [quotient("take shifted", "take window",
                   "MADV_DONTNEED, window, a page behind a multiple : at one")]


def write_trace(name, text):
    """One of the tracer's files."""
    with open(TRACING + name, "w") as file:
        file.write(text + "\n")


def trace(run, *functions):
    """Calls run() under the function graph tracer; returns {outer function:
    [(microseconds, what traced functions inside of it took)]}."""
    write_trace("current_tracer", "nop")
    write_trace("set_ftrace_filter", " ".join(functions))
    write_trace("buffer_size_kb", "16384")
    write_trace("current_tracer", "function_graph")
    write_trace("trace", "")
    run()
    write_trace("tracing_on", "0")
    with open(TRACING + "trace") as file:
        calls = parse_trace(file)
    write_trace("current_tracer", "nop")
    write_trace("tracing_on", "1")
    write_trace("set_ftrace_filter", "")
    return calls


def traced(session, contestant, batch, *functions):
    """What the first function takes in kernel_bench pages: trace()."""
    calls = trace(lambda: bench(session, "pages", contestant, batch,
                                count_of(batch)), *functions)
    if len(calls.get(functions[0], ())) < count_of(batch):
        raise BenchError(f"{functions[0]} was not traced")
    return calls[functions[0]]


def parse_trace(lines):
    """The calls in a function graph that are not inside of another."""
    calls, outer, inside, taken = {}, None, 0, 0
    for line in lines:
        if line.startswith("#"):
            continue
        found = re.search(r"([0-9.]+) us", line)
        if found:
            taken = float(found.group(1))
        name = re.sub(r"[ (].*", "", re.sub(r".*\| *", "", line.rstrip()))
        if "{" in line:
            outer, inside = name, 0
        elif re.search(r"\| *}", line):
            calls.setdefault(outer, []).append((taken, inside))
            outer = None
        elif ";" in line and outer is not None:
            inside += taken
        elif ";" in line:
            calls.setdefault(name, []).append((taken, 0))
    return calls


def middle(calls, column):
    """Median of one column of what was traced."""
    return median([call[column] for call in calls])


def costs(session, _contestant, _size):
    """Time per page of two functions, and the share of the IOMMU's flush in
    it. Tracing the flush makes the rest longer: the share is at least this."""
    figures = {}
    for function in TRACED:
        for batch in (1, 64):
            whole = middle(traced(session, "window", batch, function), 0)
            with_flush = traced(session, "window", batch, function, FLUSH)
            head = f"{function}, {batch} page(s) at a time, "
            figures[head + "per page@us"] = whole / batch
            figures[head + "flush, at least@%"] = (
                100 * middle(with_flush, 1) / middle(with_flush, 0))
        name = function + ", {} page(s) at a time, per page@us"
        figures[f"{function}, per page, one at a time : 64 at a time@"] = (
            figures[name.format(1)] / figures[name.format(64)])
    # A range that does not begin at a multiple of its length needs two
    # invalidations of the IOTLB for each window: nprdma_pte_flush()
    shifted = traced(session, "shifted", 64, TRACED[1], FLUSH)
    head = f"{TRACED[1]}, a page behind a multiple : at one"
    figures[head + "@"] = middle(shifted, 0) / middle(with_flush, 0)
    figures[head + ", flush in it@"] = (middle(shifted, 1) /
                                        middle(with_flush, 1))
    return figures


def registration(session, contestant, size):
    """By nprdma, alone or with the windows of a device behind VT-d; or by
    ibv_reg_mr() on rxe0, which has no IOMMU."""
    if contestant == "nprdma":
        return reg("first")(session, contestant, size)
    if contestant == "windows":
        load_edu(session)
        return field_of(bench(session, "import", size), "us")
    load_rxe(session)
    return field_of(bench(session, "verbs", "rxe0", size), "us")


def cycle(session, contestant, batch):
    """Without the module, with it, with regions elsewhere in the process."""
    if contestant == "unloaded":
        unload()
    else:
        load(session)
    regions = "elsewhere" if contestant == "elsewhere" else "none"
    out = bench(session, "cycle", regions, batch,
                16000 if batch == 1 else 1600)
    return field_of(out, "us")


def revoke_row(what, command, unit):
    """Each UCX_NPRDMA_REVOKE where the kernel has the states."""
    return Row("kernel.revoke", what, command, ("never", "lazy", "strict"),
               [ratio("lazy", "never"), ratio("strict", "never")], unit,
               (65536, MIB), prepare=load)


KERNEL = [
    Row("kernel.pages", "region imported by a device behind VT-d", pages,
        ("none", "region", "window", "shifted"), PAGES, sizes=(1, 64),
        scale="pages", prepare=load_edu),
    Row("kernel.pages", "traced", costs, ("trace",), all_values,
        turns=one_turn, prepare=load_edu),
    Row("kernel.registration", "first registration, untouched", registration,
        ("nprdma", "ibv_reg_mr"), [ratio("ibv_reg_mr", "nprdma", ">=", 20)],
        sizes=(256 * MIB,), prepare=load_rxe),
    Row("kernel.windows", "first registration and import, untouched",
        registration, ("windows", "ibv_reg_mr"),
        [ratio("ibv_reg_mr", "windows", ">=", 20)],
        sizes=(256 * MIB,), prepare=load),
    # The limit is close
    Row("kernel.cycle", "map, touch and unmap", cycle,
        ("unloaded", "loaded", "elsewhere"),
        [ratio("loaded", "unloaded", "<=", 1.05),
         ratio("elsewhere", "unloaded", "<=", 1.05)],
        sizes=(1, 64), scale="pages", turns=three_times),
    revoke_row("mem_reg, mkey_pack and mem_dereg", reg("message"), "us"),
    revoke_row("tag bandwidth",
               perftest(6, "-t tag_bw -s {size} -n 400 -w 20"), "MB/s"),
    revoke_row("tag latency",
               perftest(2, "-t tag_lat -s {size} -n 200 -w 20"), "us"),
]


def run_guest(group, rig, env, build, prefix, kernel, words, report,
              programs=("reg_bench", "kernel_bench"), modules=True,
              seconds=1800):
    """Guest.start() of a group of lines; `rig` begins the command, and `env`
    is for it. The guest needs these programs of this directory, and the kernel
    module or not. It may take this long. If its kernel hangs while it boots, a
    third of that passes before it is booted again."""
    path = os.path.join(build, "guest/bench", group)
    if not os.path.isdir(build):
        raise BenchError(f"nothing is built in {build}: run contrib/check")
    os.makedirs(path, exist_ok=True)
    for name in programs:
        compile_program(name, os.path.join(path, name), build)
    if modules:
        build_modules(build, kernel)
    run = subprocess.Popen(
        [*rig, "--kernel", kernel, "--time", str(seconds), "--build", build,
         "--prefix", prefix, TOP + "/contrib/bench/bench", "run", "--in-guest",
         path, *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **env})
    with run:
        for line in run.stdout:
            if line.startswith("result: "):
                report(ast.literal_eval(line[len("result: "):].strip()))
            else:
                print(line.rstrip(), flush=True)
    if run.returncode == SKIPPED:
        sys.exit(SKIPPED)  # the reason was printed
    if run.returncode != 0:
        raise BenchError(f"{rig[0]} ended with status {run.returncode}")


def build_modules(build, kernel):
    """Where the guest looks for them."""
    modules = subprocess.run(
        [TOP + "/test/guest/modules", kernel, f"{build}/guest/kmod-{kernel}"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False)
    if modules.returncode != 0:
        tail = "\n".join(modules.stdout.splitlines()[-20:])
        raise BenchError(f"{tail}\nno modules for kernel {kernel}")


def start(build, prefix, kernel, words, report):
    """Of this group."""
    run_guest("kernel", [RIG, "--iommu", "legacy"], {}, build, prefix, kernel,
              words, report)


GUEST = Guest({"UCX_NPRDMA_MONITOR": "kernel", "UCX_MODULES": "^ib"}, start)
