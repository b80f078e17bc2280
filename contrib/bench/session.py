# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""The programs that are measured, and the environment of each contestant.

The guest of test/guest has only the modules of python3-minimal, so this file
and what it imports use no others, unless the function never runs there.
"""

import glob
import os
import re
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
SKIPPED = 77

# Large and small operations alike
UNSCHEDULED = {"UCX_TLS": "nprdma", "UCX_NPRDMA_SCHED": "n"}

# What a contestant has in its environment. verbs is UCX's rc_verbs on the
# emulated RNIC, through the preloaded shim; it pins.
CONTESTANTS = {
    "nprdma": {"UCX_TLS": "nprdma"},
    "never": {"UCX_TLS": "nprdma", "UCX_NPRDMA_REVOKE": "never"},
    "lazy": {"UCX_TLS": "nprdma", "UCX_NPRDMA_REVOKE": "lazy"},
    "strict": {"UCX_TLS": "nprdma", "UCX_NPRDMA_REVOKE": "strict"},
    "kept": {"UCX_TLS": "nprdma", "UCX_NPRDMA_LAZY_UNMAP": "256m",
             "UCX_NPRDMA_REVOKE": "strict"},
    # Nothing large beside; messages and small puts, or atomics as well, pass
    # puts elsewhere; large operations have no scheduler
    "alone": {"UCX_TLS": "nprdma"},
    "atomic": {"UCX_TLS": "nprdma", "UCX_NPRDMA_ORDER": "atomic"},
    "relaxed": {"UCX_TLS": "nprdma", "UCX_NPRDMA_ORDER": "ucp"},
    "unscheduled": UNSCHEDULED,
    "unscheduled-atomic": {**UNSCHEDULED, "UCX_NPRDMA_ORDER": "atomic"},
    "unscheduled-relaxed": {**UNSCHEDULED, "UCX_NPRDMA_ORDER": "ucp"},
    "tcp": {"UCX_TLS": "tcp"},
    "shm": {"UCX_TLS": "shm,self"},
    "verbs": {"UCX_TLS": "rc_verbs,ud_verbs"},
    # On a device that need not be the emulated one
    "copy": {"UCX_TLS": "nprdma", "UCX_NPRDMA_MONITOR": "copy"},
    "odp": {"UCX_TLS": "nprdma", "UCX_NPRDMA_MONITOR": "odp",
            "NPEMU_ODP": "explicit"},
    "pinned": {"UCX_TLS": "rc"},
}

# The C library writes the buffers that it gives to UCX, because for most tests
# ucx_perftest does not. An unwritten buffer maps the zero page, which is always
# in the cache; this flatters transports that do not pin it.
WRITTEN = {"UCX_ALLOC_PRIO": "heap", "UCX_NPRDMA_ALLOC": "heap",
           "UCX_RC_VERBS_ALLOC": "heap", "UCX_TCP_ALLOC": "heap",
           "MALLOC_PERTURB_": "85"}

EMULATED = "npemu0:1"

# With MPI in it, as Debian 13's, it wants two ranks unless its input is a
# terminal
PERFTEST = ["sh", "-c", 'exec ucx_perftest "$@" </dev/ptmx', "ucx_perftest"]

COMPILE = ["-std=gnu11", "-D_GNU_SOURCE", "-O2"]


class BenchError(Exception):
    """Ends the program with this message."""


class Skip(Exception):
    """What cannot be measured here, with the reason."""


def read_settings(prefix, env):
    """The environment `env` with the settings of an installation."""
    path = os.path.join(prefix, "etc/nprdma.env")
    if not os.access(path, os.R_OK):
        raise BenchError(f"nothing is installed in {prefix}: "
                         "run contrib/quickstart")
    out = subprocess.run(["sh", "-c", '. "$1" && env -0', "sh", path],
                         env=env, check=True, stdout=subprocess.PIPE).stdout
    return dict(item.split("=", 1) for item in
                out.decode(errors="surrogateescape").split("\0") if item)


def find_shim(prefix):
    """The library through which verbs programs see the emulated RNIC."""
    found = glob.glob(os.path.join(prefix, "lib*/nprdma/libnpemu-verbs.so"))
    if not found:
        raise BenchError(f"no lib/nprdma/libnpemu-verbs.so in {prefix}")
    return found[0]


def field_of(text, field):
    """The value of a field in lines "FIELD VALUE FIELD VALUE ..."."""
    found = re.findall(rf"\b{re.escape(field)} ([0-9.]+)", text)
    if not found:
        raise BenchError(f"no field {field} in the output: {text.strip()}")
    return float(found[-1])


class Session:
    """One run: directory `work` for what is compiled and printed, `prefix`
    where nprdma is installed. `programs` is a directory with compiled programs;
    None: this compiles them into `work`. `more` is added to each environment.
    `device` is as for UCX_NET_DEVICES. `old` is None, or the session of another
    installation that this one is compared with."""

    def __init__(self, work, prefix, programs=None, more=None,
                 device=EMULATED):
        self.work, self.prefix, self.old = work, prefix, None
        self.programs, self.more, self.device = programs, more or {}, device
        self.cpus = os.sysconf("SC_NPROCESSORS_ONLN")
        self.other = str(1 if self.cpus > 1 else 0)
        self.half_of_memory = available_memory() // 2
        self.cleanups = []
        self.settings = {}  # UCX_TLS -> environment of this installation
        self.compiled = {}

    def compare_with(self, prefix):
        """Makes self.old, which shares what is compiled and cleaned up."""
        import copy  # not in python3-minimal
        self.old = copy.copy(self)
        self.old.prefix, self.old.settings = prefix, {}

    def at_most(self, size):
        """Half of the free memory is the most that a test may take."""
        return min(size, self.half_of_memory)

    def environment(self, contestant, more=None):
        """The environment of a contestant's programs."""
        transports = CONTESTANTS[contestant]["UCX_TLS"]
        if transports not in self.settings:
            self.settings[transports] = self.read(transports)
        env = {**self.settings[transports], **CONTESTANTS[contestant],
               **self.more}
        if contestant in ("verbs", "pinned") and self.device == EMULATED:
            env["LD_PRELOAD"] = find_shim(self.prefix)
        env.update(more or {})
        return env

    def read(self, transports):
        """Programs see this installation, and no other that the caller's shell
        may know. Some settings depend on the transports."""
        env = {name: value for name, value in os.environ.items()
               if name not in ("LD_PRELOAD", "UCX_PLUGIN_PATH")}
        env["UCX_TLS"] = transports
        env = read_settings(self.prefix, env)
        # Pinned memory of all contestants is really locked, as by a NIC
        env.update({"UCX_NPRDMA_EMULATION": "yes", "NPEMU_PIN": "mlock"}
                   if self.device == EMULATED else
                   {"UCX_NPRDMA_EMULATION": "no",
                    "UCX_NET_DEVICES": self.device})
        env.update(UCX_WARN_UNUSED_ENV_VARS="n",
                   OMPI_MCA_rmaps_base_oversubscribe="1",
                   # The same for Open MPI 5
                   PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe")
        if os.getuid() == 0:
            env.update(OMPI_ALLOW_RUN_AS_ROOT="1",
                       OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        return env

    def program(self, name, where=HERE, more=()):
        """The path of a program of a directory, compiled if need be."""
        if self.programs is not None:
            return os.path.join(self.programs, name)
        if name not in self.compiled:
            self.compiled[name] = os.path.join(self.work, name)
            compile_program(name, self.compiled[name], where, more)
        return self.compiled[name]

    def start(self, argv, env, seconds, log):
        """Starts a program with a time limit; the caller stops it."""
        with open(os.path.join(self.work, log), "wb") as out, \
                open(os.path.join(self.work, log + ".errors"), "wb") as err:
            return subprocess.Popen(["timeout", str(seconds), *argv], env=env,
                                    stdin=subprocess.DEVNULL, stdout=out,
                                    stderr=err)

    def text(self, log):
        """What a program has printed."""
        with open(os.path.join(self.work, log), errors="replace") as file:
            return file.read()

    def run(self, argv, env, what, seconds=300):
        """Runs a program and returns what it prints. Raises Skip if it exits
        with 77; shows its errors and raises BenchError if it fails or does not
        end in time."""
        process = self.start(argv, env, seconds, "out")
        try:
            status = process.wait()
        finally:
            stop(process)
        if status == SKIPPED:
            raise Skip((self.text("out.errors").splitlines() or [what])[-1])
        if status != 0:
            sys.stderr.write(self.text("out.errors"))
            raise BenchError(f"{what} failed with status {status}")
        return self.text("out")

    def ucx(self, contestant, name, words, more=None, seconds=300):
        """Runs a program on UCX; returns its output."""
        return self.run([self.program(name), *words],
                        self.environment(contestant, more),
                        f"{name} {' '.join(words)} over {contestant}", seconds)

    def mpi(self, contestant, ranks, words, name="mpi_bench", more=None):
        """Runs mpi_bench, or another program; returns its output. With more
        ranks than CPUs each CPU gets its share of them from the start: polling
        ranks never sleep, and the kernel may leave three of four on one of two
        CPUs."""
        bind = [] if ranks <= self.cpus else [
            "--bind-to", "core:if-supported,overload-allowed"]
        return self.run(["mpirun.openmpi", "-np", str(ranks), *bind,
                         self.program(name), *words],
                        self.environment(contestant, more),
                        f"{name} {' '.join(words)} over {contestant}")

    def perftest(self, contestant, field, words):
        """One ucx_perftest run between two processes on two CPUs; returns one
        field (from 1) of its CSV line."""
        env = self.environment(contestant, WRITTEN)
        address = ["-p", str(free_port())]
        server = self.start([*PERFTEST, "-c", self.other, *address], env,
                            120, "server")
        try:
            self.client(server, env, contestant,
                        ["-c", "0", *address, "-f", "-v", *words, "127.0.0.1"])
            server.wait()
        finally:
            stop(server)
        rows = re.findall(r"^ *[0-9].*", self.text("client"), re.M)
        if not rows:
            raise BenchError(f"ucx_perftest {' '.join(words)} over "
                             f"{contestant} printed no figures")
        return float(rows[-1].split(",")[field - 1])

    def client(self, server, env, contestant, words):
        """Tries until the server listens."""
        for _ in range(50):
            client = self.start([*PERFTEST, *words], env, 120, "client")
            try:
                if client.wait() == 0:
                    return
            finally:
                stop(client)
            if server.poll() is not None:
                break
            time.sleep(0.1)
        said = "".join(map(self.text, ("server", "client", "server.errors",
                                       "client.errors")))
        errors = re.findall(r"\b(?:ERROR|FATAL) +(.*)", said)
        raise BenchError(errors[0] if errors else
                         f"ucx_perftest {' '.join(words)} over {contestant} "
                         f"failed: {said}")

    def cleanup(self):
        """What rows asked for, the last one first."""
        while self.cleanups:
            self.cleanups.pop()()


def free_port():
    """A TCP port that is free. A process number would not do: another run may
    have the same one in another namespace of processes."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def stop(process):
    """Ends a program that still runs; timeout(1) passes the signal on."""
    process.terminate()
    process.wait()


def available_memory():
    """MemAvailable in bytes."""
    with open("/proc/meminfo") as file:
        return int(re.search(r"^MemAvailable: *(\d+)", file.read(),
                             re.M).group(1)) * 1024


def compile_program(name, path, where=HERE, more=()):
    """Compiles NAME.c of a directory to `path`."""
    argv = ["cc", *COMPILE, "-o", path, os.path.join(where, name + ".c"), *more]
    if name in ("mpi_bench", "shmem_bench"):
        argv[0] = "mpicc.openmpi" if name == "mpi_bench" else "oshcc"
    elif name == "kernel_bench":
        argv += [f"-I{TOP}/include", f"{TOP}/test/edu/edu.c",
                 f"{TOP}/test/kmod/kmod_test.c"]
    else:
        argv += ["-lpthread", *subprocess.run(
            ["pkg-config", "--cflags", "--libs", "ucx"], check=True, text=True,
            stdout=subprocess.PIPE).stdout.split()]
    if subprocess.run(argv, check=False).returncode != 0:
        raise BenchError(f"cannot compile {name}.c")
