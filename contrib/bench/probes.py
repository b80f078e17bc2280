# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Commands of the table: each function here returns a function (session,
contestant, size) that runs a program once and returns its value."""

import glob
import os
import re
import subprocess
import sys
import time

from session import TOP, BenchError, Skip, field_of

MIB = 1 << 20
GIB = 1 << 30

# NPEMU_LINK: its rate in MB/s, and in words. A turn in which the link was busy
# for less of the time is discarded: the CPU copied what the link carries, and
# took longer. The last of LINK_TRIES counts in any case.
LINK_MB = 1000
LINK = "1GB/s"
LINK_BUSY = 0.9
LINK_TRIES = 3

# Four ranks share two CPUs, which have to keep up with the link. A bucket takes
# as long on the link as its computation does: there overlap matters most. The
# link is idle until the first bucket is ready.
TRAIN_MB = 100
TRAIN_LINK = "100MB/s"
TRAIN_COMPUTE_US = 60000
TRAIN_BUSY = 0.8

# Fields of ucx_perftest's CSV line
LATENCY = 2
BANDWIDTH = 6


def fill(words, size, count, warm):
    """The words of a command; {size}, {count} and {warm} are filled in."""
    number = count(size) if callable(count) else count
    return words.format(size=size, count=number,
                        warm=warm(number) if callable(warm) else warm).split()


def volume(amount, most=None):
    """A count of messages that carry `amount` bytes, `most` at most."""
    return lambda size: min(amount // size, most or amount)


def perftest(field, words, count=0, warm=50):
    """ucx_perftest over UCP."""
    def command(session, contestant, size):
        return session.perftest(contestant, field,
                                fill(words, size, count, warm))
    return command


def uct(words, count=0, warm=50):
    """Latency of ucx_perftest over UCT."""
    def command(session, contestant, size):
        transport = "rc_verbs" if contestant == "verbs" else "nprdma"
        return session.perftest(contestant, LATENCY, [
            "-d", "npemu0:1", "-x", transport,
            *fill(words, size, count, warm)])
    return command


def ucx(name, field, words):
    """A field of a program on UCX."""
    def command(session, contestant, size):
        out = session.ucx(contestant, name, words.format(size=size).split())
        return field_of(out, field)
    return command


def ucx_fields(name, words, **fields):
    """Several fields of one run of it: name = field."""
    def command(session, contestant, size):
        out = session.ucx(contestant, name, words.format(size=size).split())
        return {key: field_of(out, field) for key, field in fields.items()}
    return command


def reg(kind):
    """Registration, by nprdma on npemu0."""
    return ucx("reg_bench", "us", "nprdma npemu0 " + kind + " {size}")


def reg_both(kind, more=None):
    """The same, and by UCX's verbs memory domain with `more` settings."""
    def command(session, contestant, size):
        domain = "ib" if contestant == "verbs" else "nprdma"
        out = session.ucx(contestant, "reg_bench",
                          [domain, "npemu0", kind, str(size)],
                          more if contestant == "verbs" else None)
        return field_of(out, "us")
    return command


def mpi(ranks, name, words):
    """The first value of an MPI program that prints lines "SIZE VALUE"."""
    def command(session, contestant, size):
        out = session.mpi(contestant, ranks, name,
                          words.format(size=size).split())
        return float(out.split()[1])
    return command


def mpi_fields(ranks, name, words, *fields):
    """Fields of an MPI program."""
    def command(session, contestant, size):
        out = session.mpi(contestant, ranks, name,
                          words.format(size=size).split())
        return {field: field_of(out, field) for field in fields}
    return command


def heap(ranks):
    """MPI_Allreduce whose buffers are of malloc(), with page faults; in "same"
    always the same buffers."""
    def command(session, contestant, size):
        kind = "heap-warm" if contestant == "same" else "heap"
        out = session.mpi(contestant, ranks, "fresh_bench", [kind, str(size)])
        values = {contestant: float(out.split()[1])}
        if kind == "heap":
            values[f"{contestant} faults"] = field_of(out, "faults")
        if values.get("nprdma faults", size) < size / 4096:
            raise BenchError("glibc keeps the buffers without being told")
        return values
    return command


def mapped(ranks):
    """MPI_Allreduce whose buffers are mapped and unmapped; in "same" and
    "zeroed" always the same buffers."""
    def command(session, contestant, size):
        kind = contestant if contestant in ("same", "zeroed") else "mapped"
        return mpi(ranks, "fresh_bench", kind + " {size}")(
            session, contestant, size)
    return command


def startup(session, contestant, size):
    """Start of two ranks; resident memory is reported for nprdma."""
    out = session.mpi(contestant, 2, "fresh_bench", ["startup", str(size)])
    values = {contestant: field_of(out, "us")}
    if contestant == "nprdma":
        values["rss_percent"] = field_of(out, "rss_percent")
    return values


def line_ns(session):
    """How long a cache line takes to the other CPU and back."""
    out = session.run([session.program("line_bench")], session.environment(
        "nprdma"), "line_bench")
    return field_of(out, "line_ns")


def put_pair(session, _contestant, size):
    """A put and flush and a message there and back between the same two
    processes, their ratio, and the time of a cache line."""
    out = session.ucx("nprdma", "ucp_bench", ["put-pair", str(size)])
    return {"nprdma": field_of(out, "put_us"), "am": field_of(out, "am_us"),
            "am ratio": field_of(out, "ratio"), "line_ns": line_ns(session)}


def put_reference(session, contestant, size):
    """A put of others, or ucx_perftest's message there and back: ucp_am with
    UCP, uct_am without."""
    if contestant in ("verbs", "tcp"):
        out = session.ucx(contestant, "ucp_bench", ["put-polling", str(size)])
        return field_of(out, "median_us")
    words = ["-t", "ucp_am_lat"]
    if contestant == "uct_am":
        how = "short" if size == 8 else "bcopy"
        words = ["-d", "npemu0:1", "-x", "nprdma", "-t", "am_lat", "-D", how]
    return 2 * session.perftest("nprdma", LATENCY, [
        *words, "-s", str(size), "-n", "20000", "-w", "1000"])


def prio(probe, bulk):
    """A small operation beside large ones: values of each contestant."""
    def command(session, contestant, _size):
        out = session.ucx(contestant, "prio_bench", [probe, bulk])
        return {f"{contestant} p50": field_of(out, "p50_us"),
                f"{contestant} p99": field_of(out, "p99_us"),
                f"{contestant} mb": field_of(out, "mb_per_s")}
    return command


def busy_link(run, rate=LINK_MB, least=LINK_BUSY):
    """The output of run() and the share of the time in which the link was
    busy, in a turn in which the CPU did not delay it."""
    for left in reversed(range(LINK_TRIES)):
        out = run()
        share = field_of(out, "mb_per_s") / rate
        if share >= least:
            break
        print(f"  the link was busy for {share:.2f} of the time: "
              + ("discarded" if left else "kept after as many tries"),
              file=sys.stderr, flush=True)
    return out, share


def linked(probe, bulk, arb="fair"):
    """The same as prio() on a link; the contestant "alone" has nothing large
    beside. bulk "port" is another process on the port, which is there for
    "alone", too, and idle."""
    link = {"NPEMU_LINK": f"{LINK},port=1,arb={arb}" if bulk == "port"
            else f"{LINK},arb={arb}"}
    idle = "port-idle" if bulk == "port" else "none"

    def command(session, contestant, _size):
        def run():
            return session.ucx(contestant, "prio_bench", [
                probe, idle if contestant == "alone" else bulk], link)

        if contestant == "alone":
            median = field_of(run(), "p50_us")
            return {"alone": median, "twice alone": 2 * median}
        out, share = busy_link(run)
        return {contestant: field_of(out, "p50_us"),
                f"{contestant} p99": field_of(out, "p99_us"),
                f"{contestant} busy": share}
    return command


def batch(bulk):
    """16 operations of 1 MiB beside one of 64 MiB, on a link."""
    def command(session, contestant, _size):
        out, share = busy_link(lambda: session.ucx(
            contestant, "prio_bench", ["batch", bulk], {"NPEMU_LINK": LINK}))
        return {f"{contestant} busy": share,
                **{f"{contestant} {name}": field_of(out, f"{name}_ms")
                   for name in ("alone", "apart", "same")}}
    return command


def train(arb):
    """A training loop of 4 ranks, on a link. That is idle while accelerators
    wait, so the loop without rows shows that the CPU keeps up."""
    def command(session, contestant, _size):
        def run(*more):
            return session.ucx(contestant, "train_bench", [
                "3", str(TRAIN_COMPUTE_US), *more], {
                    "NPEMU_LINK": f"{TRAIN_LINK},arb={arb}"})

        values = {}
        if contestant == "unscheduled":
            other, share = busy_link(lambda: run("no-rows"), TRAIN_MB,
                                     TRAIN_BUSY)
            values = {"no rows": field_of(other, "step_ms"),
                      "no rows busy": share}
        out = run()
        return {contestant: field_of(out, "step_ms"), **values,
                f"{contestant} rows": field_of(out, "rows_us"),
                f"{contestant} busy": field_of(out, "mb_per_s") / TRAIN_MB}
    return command


def absent(kind):
    """A get from absent pages, the CPU's own fault, and a cache line."""
    def command(session, contestant, _size):
        out = session.ucx(contestant, "fault_bench", [kind], seconds=120)
        if kind.endswith("-sleeping"):
            return {"get": field_of(out, "us")}
        return {"get": field_of(out, "us"), "own": field_of(out, "own_us"),
                "line_ns": line_ns(session)}
    return command


def cold(kind, is_swap=False):
    """Gets of pages that are not in memory, of a file or in swap, and O_DIRECT
    reads of a file."""
    def run_in_group(session, contestant):
        if not has_swap():
            raise Skip("no swap, and no right to make a swap file")
        if session.swap_group is None:
            raise Skip("no control group from which the kernel takes memory")
        path, reclaim = session.swap_group
        return session.run(
            ["sh", "-c", 'echo $$ >"$1" && shift && exec "$@"', "sh",
             os.path.join(path, "cgroup.procs"), session.program("cold_bench"),
             kind, os.path.join(path, reclaim)],
            session.environment(contestant), f"cold_bench {kind} swap", 120)

    def command(session, contestant, _size):
        out = (run_in_group(session, contestant) if is_swap else
               session.ucx(contestant, "cold_bench", [kind], seconds=120))
        if field_of(out, "present") > 0:
            raise BenchError("pages were in memory before they were got")
        return {name: field_of(out, f"{name}_us")
                for name in ("get1", "direct1", "get16", "direct16", "atomic",
                             "beside", "warm", "plain")}
    return command


def absent_rate(session, contestant, size):
    """A get of which `size` % of the pages are absent. The kernel alone knows
    which (fault_bench.c), so the count of assists shows that absent pages were
    met: without assists this would be the speed of page faults inside
    process_vm_readv()."""
    stats = os.path.join(session.work, "stats")
    for path in glob.glob(stats + ".*"):
        os.remove(path)
    out = session.ucx(contestant, "fault_bench", ["rate", str(size)],
                      {"UCX_NPRDMA_STATS": f"file:{stats}.%p"})
    if contestant == "nprdma":
        assists = 0
        for path in glob.glob(stats + ".*"):
            with open(path) as file:
                assists += sum(int(line.split()[1]) for line in file
                               if line.startswith("assist_"))
        if (assists > 0) != (size > 0):
            raise BenchError(f"{assists} assists with {size} % absent pages")
    return field_of(out, "us")


def has_swap():
    """Whether the kernel has any; the first line is a head."""
    with open("/proc/swaps") as file:
        return len(file.readlines()) > 1


def swap_file(session):
    """A swap file of 64 MiB for this run, if there is no swap. Without it,
    and without the right to make it, lines that need swap are skipped."""
    if has_swap():
        return
    path = os.path.join(TOP, f"_build/bench-swap.{os.getpid()}")
    os.makedirs(os.path.dirname(path), exist_ok=True)

    def remove():
        subprocess.run(["swapoff", path], stderr=subprocess.DEVNULL,
                       check=False)
        os.remove(path)

    done = subprocess.run(
        ["sh", "-c", 'fallocate -l 64M "$1" && chmod 600 "$1" && '
         'mkswap -q "$1" && swapon "$1"', "sh", path],
        stderr=subprocess.DEVNULL, check=False).returncode == 0
    if done:
        session.cleanups.append(remove)
    elif os.path.exists(path):
        os.remove(path)


def huge(command):
    """The command, meanwhile with transparent huge pages for all memory."""
    path = "/sys/kernel/mm/transparent_hugepage/enabled"

    def write(word):
        with open(path, "w") as file:
            file.write(word)

    def run(session, contestant, size):
        try:
            with open(path) as file:
                before = re.search(r"\[(\w+)\]", file.read()).group(1)
            write("always")
        except OSError as error:
            raise Skip(f"no right to set {path} to always") from error
        try:
            return command(session, contestant, size)
        finally:
            write(before)
    return run


class LimitedGroup:
    """A control group whose memory has a limit; None: it has none yet. Raises
    Skip where there is no memory controller, or no right to use it."""

    # Folder, then names of files: limit, largest usage
    VERSIONS = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                 "memory.max_usage_in_bytes"),
                ("/sys/fs/cgroup", "memory.max", "memory.peak"))

    def __init__(self, limit=None):
        for base, name, peak in self.VERSIONS:
            self.path = os.path.join(base, f"nprdma-limit.{os.getpid()}")
            self.peak_name = peak
            try:
                os.mkdir(self.path)
            except OSError:
                continue
            if os.path.exists(os.path.join(self.path, peak)):
                if limit is not None:
                    self.write(name, limit)
                return
            os.rmdir(self.path)
        raise Skip("no control group that may limit memory")

    def write(self, name, number):
        """Sets a limit."""
        with open(os.path.join(self.path, name), "w") as file:
            file.write(str(number))

    def below(self):
        """The command below which another one runs in the group."""
        return ("sh", "-c", 'echo $$ >"$1" && shift && exec "$@"', "sh",
                os.path.join(self.path, "cgroup.procs"))

    def peak(self):
        """The most memory that was used, in bytes."""
        with open(os.path.join(self.path, self.peak_name)) as file:
            return int(file.read())

    def remove(self):
        """Processes that have ended leave it a moment later."""
        for _ in range(100):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.05)
        raise BenchError(f"cannot remove {self.path}")


def in_group(session, contestant, kind, size, limit):
    """Time of limit_bench in a group with that limit, and the most memory."""
    group = LimitedGroup(limit)
    try:
        out = session.mpi(contestant, 2, "limit_bench", [kind, str(size)],
                          below=group.below())
        return field_of(out, "us"), group.peak()
    finally:
        group.remove()


def working_set(session, kind, size):
    """The most memory of limit_bench without limit, with nothing kept."""
    key = ("working set", kind, size)
    if key not in session.seen:
        session.seen[key] = in_group(session, "nprdma", kind, size, None)[1]
    return session.seen[key]


def limited(kind):
    """Buffers that are kept, where memory is limited to 1.2 times the working
    set. A process that the kernel kills is an error."""
    def command(session, contestant, size):
        needed = working_set(session, kind, size)
        us, peak = in_group(session, contestant, kind, size,
                            needed * 6 // 5 // 4096 * 4096)
        return {contestant: us, f"{contestant} peak": peak / needed}
    return command


def swap_group(session):
    """A swap file, and a control group from which the kernel takes memory."""
    swap_file(session)
    for base, reclaim in (("/sys/fs/cgroup/memory", "memory.force_empty"),
                          ("/sys/fs/cgroup", "memory.reclaim")):
        path = os.path.join(base, f"nprdma-bench.{os.getpid()}")
        if session.swap_group is not None:
            return
        try:
            os.mkdir(path)
        except OSError:
            continue
        session.cleanups.append(lambda path=path: os.rmdir(path))
        if os.path.exists(os.path.join(path, reclaim)):
            session.swap_group = path, reclaim


def unlimited_memlock(session):
    """The contestant that pins must be able to; root is not limited."""
    import resource  # not in python3-minimal
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK,
                           (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError) as error:
        if os.getuid() != 0:
            raise BenchError("the contestant that pins needs an unlimited "
                             "memlock limit: run this as root") from error


def known_variables(session):
    """The variables that UCX and the installed component know."""
    if "variables" not in session.seen:
        out = session.run(["ucx_info", "-c"], session.environment("nprdma"),
                          "ucx_info -c")
        session.seen["variables"] = set(re.findall(r"^(UCX_\w+)=", out, re.M))
    return session.seen["variables"]


def need_variable(session, name):
    """Skips the row if the installed component does not have it."""
    if name not in known_variables(session):
        raise Skip(f"the installed nprdma has no {name}")


def attempt(session, contestant, name, words, seconds=60, **more):
    """(what an MPI program prints, whether it ends well). It may end with an
    error, or not at all: rc_verbs tries again for ever. The first error is
    printed, and what the program has printed before is returned."""
    session.program(name)  # What cannot be compiled is no result
    try:
        return session.mpi(contestant, 2, name, words, seconds=seconds,
                           shows=False, **more), True
    except BenchError:
        # UCX logs to its standard output
        lines = [line for log in ("out.errors", "out")
                 for line in session.text(log).splitlines()
                 if re.search("error|fail|cannot", line, re.I)]
        lines.sort(key=lambda line: not re.search("error", line, re.I))
        print(f"  {contestant} did not run: "
              f"{(lines or ['no message'])[0].strip()}", flush=True)
        return session.text("out"), False
