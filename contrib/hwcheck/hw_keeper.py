# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""A process that cleans up behind this one, however it ends: normally, by a
signal, or killed. It waits for the end of a pipe whose other end only
this process has."""

import os
import shutil
import signal
import subprocess
import time

# In the environment of all programs that are started
MARK = "NPRDMA_HWCHECK"

SECONDS_KILL = 15
SECONDS_UNLOAD = 60
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE,
           signal.SIGALRM)


def marked(mark):
    """Processes that have the mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:
            pass
    return found


def kill_marked(mark, seconds=SECONDS_KILL):
    """Kills them until there are none; returns those that remain, because the
    kernel holds them."""
    end = time.monotonic() + seconds
    while True:
        left = marked(mark)
        if not left or time.monotonic() > end:
            return left
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)


def is_loaded(module):
    """Whether the kernel has it."""
    return os.path.exists(f"/sys/module/{module}")


def unload(module, mark, seconds=SECONDS_UNLOAD):
    """Removes a module; returns an error text, or None. The last descriptor
    of it may be closed some time after a process has ended."""
    end = time.monotonic() + seconds
    why = ""
    while is_loaded(module):
        if time.monotonic() > end:
            return why or "the kernel does not answer"
        try:
            done = subprocess.run(
                ["rmmod", module], stdin=subprocess.DEVNULL, check=False,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                timeout=seconds, env={**os.environ, MARK: mark})
            why = done.stderr.strip()
        except subprocess.TimeoutExpired:
            return "rmmod hangs"
        if is_loaded(module):
            time.sleep(0.2)
    return None


class Keeper:
    """Forks the process. What it has to clean up is told by modules() and
    folder(); finish() has it do so."""

    def __init__(self, mark):
        self.mark = mark
        listen, self.tell = os.pipe()
        self.listen, answer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self.tell)
                os.close(self.listen)
                self.keep(listen, answer)
            finally:
                os._exit(0)
        os.close(listen)
        os.close(answer)

    def keep(self, listen, answer):
        """The process: waits, cleans up, writes what is left behind."""
        os.setsid()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        os.chdir("/")
        with open(listen, encoding="utf-8") as file:
            things = [line.rstrip("\n").split(" ", 1) for line in file]
        left = [f"process {pid}, which the kernel does not let end"
                for pid in kill_marked(self.mark)]
        for kind, name in reversed(things):
            why = self.clean(kind, name)
            if why is not None:
                left.append(why)
        try:
            os.write(answer, "\n".join(left).encode())
        except OSError:
            pass  # the other process was killed

    def clean(self, kind, name):
        """One thing; returns what is left of it, or None."""
        if kind == "module":
            why = unload(name, self.mark)
            return why and f"module {name} ({why}): rmmod {name}"
        shutil.rmtree(name, ignore_errors=True)
        return f"directory {name}" if os.path.exists(name) else None

    def note(self, kind, name):
        """Tells the process."""
        os.write(self.tell, f"{kind} {name}\n".encode())

    def module(self, name):
        """To be called before it is loaded."""
        self.note("module", name)

    def folder(self, path):
        """To be called before it is made."""
        self.note("folder", path)

    def finish(self):
        """Cleans up; returns what is left behind, as a list of texts."""
        os.close(self.tell)
        with open(self.listen, encoding="utf-8") as file:
            left = file.read()
        os.waitpid(self.pid, 0)
        return left.splitlines()
