# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Lines rmem.* of contrib/bench: what remote memory costs. The server runs on
the second CPU, programs on the first, where the clients of redis-server and
memcached take turns with these: to wake the other CPU takes a virtual machine
many times as long as an operation.

A contestant "all", "half" or "quarter" is a program under rmem-run with local
memory for so much of what it needs; "plain" is the same program without it, and
"half file" one whose arrays are a file on the disk, in a memory cgroup of the
size of the cache, for 30 s at most: what takes longer counts as that.
Ratios to the disk are to reads by O_DIRECT of the same run.
"""

import contextlib
import glob
import os
import socket
import time

from guest_rows import GUEST
from measure import Row, notes, one_turn, ratio, value
from session import HERE, SKIPPED, TOP, BenchError, Skip, field_of, stop

MIB = 1 << 20
PYTHON = "/usr/bin/python3"  # Which Debian's numpy is for
DIR = os.path.join(TOP, "rmem/bench")

# How much of what a program needs is local. Twins and buffers are in it.
LOCAL = {"all": 1.5, "half": 0.5, "quarter": 0.25}

POOL = 512 * MIB


# ---- the server ----

def program(session, name):
    """The path of a program of this directory."""
    library, = glob.glob(session.prefix + "/lib*/librmem.so")
    return session.program(name, DIR, [
        f"-I{HERE}", f"-I{session.prefix}/include", library, "-lm",
        "-Wl,-rpath," + os.path.dirname(library)])


def on_cpu(session, cpu, *argv):
    """A command on one of the CPUs, which first says its process."""
    return ["sh", "-c", 'echo "pid $$"; exec "$@"', "sh", "taskset", "-c",
            session.other if cpu else "0", *argv]


@contextlib.contextmanager
def serving(session, argv, log, is_ready):
    """Runs a program, from when it serves on."""
    process = session.start(argv, session.environment("nprdma"), 600, log)
    try:
        limit = time.monotonic() + 20
        while not is_ready():
            if process.poll() is not None or time.monotonic() > limit:
                raise BenchError(f"{log} does not start: "
                                 + session.text(log + ".errors"))
            time.sleep(0.02)
        yield
    finally:
        stop(process)


@contextlib.contextmanager
def server(session, size, *options, group=()):
    """Runs nprdma-memd; gives the words that name it."""
    token = os.path.join(session.work, "token")
    with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        file.write(os.urandom(32))
    with serving(session, [*group, *on_cpu(
            session, 1, session.prefix + "/bin/nprdma-memd", "--size",
            str(size), "--listen", "127.0.0.1:0", "--token", token, *options)],
                 "memd", lambda: "port" in session.text("memd")):
        port = int(field_of(session.text("memd"), "port"))
        yield f"127.0.0.1:{port}", token


@contextlib.contextmanager
def run_here(session, need, contestant, *options):
    """Gives the beginning of a command that has local memory for a part of what
    it needs."""
    if contestant == "plain":
        yield []
        return
    with server(session, 8 * need) as (where, token):
        yield [session.prefix + "/bin/rmem-run", "--server", where, "--token",
               token, "--cache",
               str(max(8 * MIB, int(need * LOCAL[contestant]))), "--size",
               str(4 * need), *options]


# ---- the disk ----

def disk_file(session):
    """An empty file on the disk of the build tree, removed at the end."""
    path = os.path.join(TOP, f"_build/bench-rmem.{os.getpid()}")
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        session.cleanups.append(lambda: os.remove(path))
    with open(path, "w"):
        return path


def memory_group(session, limit):
    """The beginning of a command that runs in a memory cgroup."""
    path, name = "/sys/fs/cgroup", "memory.max"
    if os.path.isdir(path + "/memory"):
        path, name = path + "/memory", "memory.limit_in_bytes"
    path = f"{path}/nprdma-bench.{os.getpid()}"
    try:
        if not os.path.isdir(path):
            os.mkdir(path)
            session.cleanups.append(lambda: os.rmdir(path))
        with open(f"{path}/{name}", "w") as file:
            file.write(str(int(limit)))
    except OSError as error:
        raise Skip(f"not measured here: no memory cgroup: {error}") from error
    return ["sh", "-c", 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"',
            "sh", path]


# ---- calls of librmem ----

def bench(session, kind, where, *words):
    """What rmem_bench prints, as {field: value}."""
    argv = [program(session, "rmem_bench"), kind, *where, *map(str, words)]
    return fields(session.run(on_cpu(session, 0, *argv),
                              session.environment("nprdma"),
                              f"rmem_bench {kind}"))


def fields(out):
    """{field: value} of a program's last line."""
    words = out.splitlines()[-1].split()
    return dict(zip(words[::2], map(float, words[1::2])))


def calls(kind):
    """Kinds of rmem_bench that need nothing else."""
    def command(session, _contestant, _size):
        with server(session, 256 * MIB) as where:
            return bench(session, kind, where)
    return command


def amplify(lines, share):
    """Bytes sent as lines, and as pages."""
    def command(session, contestant, _size):
        pages = ("pages",) if contestant == "pages" else ()
        with server(session, 256 * MIB) as where:
            got = bench(session, "amplify", where, lines, share, *pages)
        return {f"{contestant} {name}": got[name] for name in got}
    return command


@contextlib.contextmanager
def cold_server(session):
    """Its file is five times its memory."""
    path = disk_file(session)
    with server(session, POOL, "--pool", path,
                group=memory_group(session, POOL / 5)) as where:
        yield where, path


def pool(session, contestant, _size):
    """Of a server with such a file, or whose pool is in memory."""
    if contestant == "memory":
        with server(session, POOL) as where:
            got = bench(session, "pool", where, POOL)
        return {"memory hit": got["hit"], "memory mean": got["mean"]}
    with cold_server(session) as (where, path):
        got = bench(session, "pool", where, POOL, path)
    hit, miss = got["hit_mean"], got["miss_mean"]
    return {**got, "model": got["hits"] * got["hit"] + (1 - got["hits"]) *
            got["direct_mean"],
            "needed": 100 * (1 - 0.1 * hit / (miss - hit)),
            "hits": 100 * got["hits"]}


def beside(session, _contestant, _size):
    """An ACK, alone and beside stores to cold pages; the disk's read is taken
    off, because one may be in the way."""
    with cold_server(session) as (where, path):
        got = bench(session, "beside", where, POOL // 2, path)
    return {**got, "less": max(0, got["beside"] - got["direct"])}


def idle(session, _contestant, _size):
    """Milliseconds of CPU time of a server."""
    with server(session, 64 * MIB) as where:
        pid = int(field_of(session.text("memd"), "pid"))
        return bench(session, "idle", where, pid)["ms"]


# ---- programs that know nothing of it ----

# name: (command, bytes of its arrays, bytes that it needs else)
BATCH = {
    "stream": ([PYTHON, DIR + "/rmem_stream.py", str(8 * MIB)], 192 * MIB, 16 * MIB),
    "pr": (["rmem_graph", "pr", str(MIB // 2)], 44 * MIB, MIB),
    "bfs": (["rmem_graph", "bfs", str(MIB // 2)], 44 * MIB, MIB),
}
sums = {}


def batch(name):
    """Time and CPU time of a program, whose result is the same for all."""
    def command(session, contestant, _size):
        words, need, more = BATCH[name]
        if name == "stream":
            has_numpy(session)
        else:
            words = [program(session, words[0]), *words[1:]]
        local, _, on_disk = contestant.partition(" ")
        env = session.environment("nprdma")
        if on_disk:
            words = [*memory_group(session, need * LOCAL[local] + more), "sh",
                     "-c", 'timeout 30 "$@" || { [ $? = 124 ] && echo '
                     f'us 30000000 cpu_us 0 sum {sums[name]}; }}',
                     "sh", *words, disk_file(session)]
            local = "plain"
        with run_here(session, need, local) as before:
            out = session.run(on_cpu(session, 0, *before, *words), env,
                              f"{name}, {contestant}", 600)
        if sums.setdefault(name, field_of(out, "sum")) != field_of(out, "sum"):
            raise BenchError(f"{name}, {contestant}: another result: {out}")
        return {f"{contestant} us": field_of(out, "us"),
                f"{contestant} cpu": field_of(out, "cpu_us")}
    return command


def has_numpy(session):
    """Skips without it."""
    session.run(["sh", "-c", f"{PYTHON} -c 'import numpy' 2>/dev/null || "
                 f"{{ echo 'not measured here: no numpy' >&2; "
                 f"exit {SKIPPED}; }}"], dict(os.environ), "numpy")


KEYS, OPERATIONS = 60000, 30000

# name: (command, option of its socket, bytes of its values, of rmem-run)
SERVERS = {
    "redis": (["redis-server", "--port", "0", "--save", "", "--activedefrag",
               "no", "--unixsocket"], 60 * MIB, ["--min", "512"]),
    "memcached": (["memcached", "-u", "root", "-m", "200", "-t", "1", "-U",
                   "0", "-s"], 70 * MIB, []),
}


def keys(name):
    """Answers and CPU time of a server of keys."""
    def command(session, contestant, _size):
        words, need, options = SERVERS[name]
        import shutil  # not in python3-minimal
        if shutil.which(words[0]) is None:
            raise Skip(f"not measured here: no {words[0]}")
        path = os.path.join(session.work, name + ".socket")
        if os.path.exists(path):
            os.remove(path)
        with run_here(session, need, contestant, *options) as before, serving(
                session, on_cpu(session, 0, *before, *words, path), name,
                lambda: not socket.socket(socket.AF_UNIX).connect_ex(path)):
            out = session.run(
                on_cpu(session, 0, program(session, "rmem_kv"), path, name,
                       str(int(field_of(session.text(name), "pid"))),
                       str(KEYS), str(OPERATIONS)),
                dict(os.environ), f"{name}, {contestant}")
        return {f"{contestant} {field}": figure for field, figure in
                fields(out).items()}
    return command


def fits_row(name, command, limit):
    """What fits into the cache."""
    return Row("rmem.fits", f"{name}, CPU time, all local : plain", command,
               ("plain", "all"), [ratio("all cpu", "plain cpu", "<=", limit)])


def keys_row(name, mean_half, mean_quarter):
    """Servers of keys with less memory than their values need."""
    judges = []
    for local, p50, average in (("half", 1.3, mean_half),
                                ("quarter", 2, mean_quarter)):
        judges += [ratio(f"{local} p50", "plain p50", "<=", p50),
                   ratio(f"{local} mean", "plain mean", "<=", average),
                   ratio(f"{local} cpu", "plain cpu"),
                   ratio(f"{local} p99", "plain p99")]
    return Row("rmem." + name, f"{name}, zipf, 10 % sets", keys(name),
               ("plain", "half", "quarter"), judges)


def batch_rows(line, name, what):
    """Scans of more than the cache. Where no cgroup can be made, the second row
    is skipped."""
    locals_ = ("half", "quarter")
    return [
        Row(line, f"{what} : plain", batch(name), ("plain", *locals_),
            [ratio(f"{local} {unit}", f"plain {unit}")
             for local in locals_ for unit in ("us", "cpu")]),
        Row(line, f"{what} : file in a cgroup", batch(name),
            tuple(f"{local}{disk}" for local in locals_
                  for disk in ("", " file")),
            [ratio(f"{local} us", f"{local} file us", "<=", 0.7)
             for local in locals_])]


def amplify_row(lines, share, what, *judges):
    """Bytes that travel."""
    return Row("rmem.amplify", f"bytes sent, {lines} line(s) of {what} changed",
               amplify(lines, share), ("lines", "pages"), list(judges), "B",
               turns=one_turn)


SENT = ("lines sent", "lines changed")
PAGES = ("pages sent", "lines sent")
ONE_OF = "one page in 8"

RMEM = [
    Row("rmem.gather", "puts : a message of 4 lines, answered and streamed, "
        "p10", calls("gather"), ("librmem",),
        [ratio("put", "message", ">=", 3), ratio("puts", "message", ">=", 2),
         ratio("put_many", "message_many", ">=", 1.5),
         ratio("puts_many", "message_many", ">=", 1.2)]),
    amplify_row(1, 8, ONE_OF, ratio(*SENT, "<=", 1.35)),
    amplify_row(2, 8, ONE_OF, ratio(*SENT, "<=", 1.15),
                ratio(*PAGES, ">=", 15)),
    amplify_row(8, 8, ONE_OF, ratio(*SENT, "<=", 1.15),
                ratio(*PAGES, ">=", 5)),
    amplify_row(1, 1, "each page", ratio(*SENT), ratio(*PAGES)),
    fits_row("pr", batch("pr"), 1.1),
    fits_row("redis", keys("redis"), 1.1),
    fits_row("memcached", keys("memcached"), 1.25),
    keys_row("redis", 2, 3),
    keys_row("memcached", 2.5, 5),
    *batch_rows("rmem.stream", "stream", "numpy, three arrays"),
    *batch_rows("rmem.graph", "pr", "PageRank"),
    *batch_rows("rmem.graph", "bfs", "search in breadth"),
    Row("rmem.explicit", "8 bytes at random, a quarter local: window : "
        "rmem_read()", calls("explicit"), ("librmem",),
        [ratio("window", "call", ">=", 2.5)]),
    Row("rmem.first", "get of a page that the server stored: first : second",
        calls("first"), ("librmem",), [ratio("first", "second", "<=", 1.2),
                                       ratio("first_mean", "second_mean")]),
    Row("rmem.pool", "4 KiB, zipf, file of five times the server's memory",
        pool, ("file", "memory"),
        [ratio("hit", "memory hit", "<=", 1.5),
         ratio("miss", "direct", "<=", 1.4),
         ratio("mean", "model", "<=", 2.2),
         ratio("mean", "memory mean"), *notes("hits", "needed", unit="%")]),
    Row("rmem.beside", "line stored while another session stores to cold pages,"
        " less one read of the disk : alone", beside, ("librmem",),
        [ratio("less", "alone", "<=", 2),
         *notes("beside", "beside_p99", "direct")]),
    Row("rmem.idle", "CPU time of a server with 8 idle clients in 10 s", idle,
        ("librmem",), [value("librmem", "<=", 10)], "ms", turns=one_turn),
    *GUEST
]
