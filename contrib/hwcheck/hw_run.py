# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Steps: each has a time limit, fails on its own, and leaves a result. And a
process that cleans up behind this one, however it ends."""

import os
import re
import signal
import subprocess
import time

# In the environment of all programs that are started
MARK = "NPRDMA_HWCHECK"
SKIPPED = 77
TAIL = 20  # lines of a program that failed
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def say(text):
    """Prints a line. The terminal may be gone, and that changes nothing."""
    try:
        print(text, flush=True)
    except OSError:
        pass


class StepFailed(Exception):
    """With the reason."""


class StepSkipped(Exception):
    """What is not there, with the reason."""


class Interrupted(BaseException):
    """A signal asks for the end."""


class OutOfTime(BaseException):
    """The step's time is over. No Exception, so that nothing catches it."""


def on_alarm(*_):
    """Handler of SIGALRM."""
    raise OutOfTime


def ignore_signals():
    """From now on."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def on_signal(number, _frame):
    """Handler of signals that end this program. The end is not interrupted."""
    ignore_signals()
    raise Interrupted(signal.Signals(number).name)


def handle_signals():
    """From now on."""
    signal.signal(signal.SIGALRM, on_alarm)
    for number in ENDING:
        signal.signal(number, on_signal)


def kill_marked(mark, seconds=15):
    """Kills the processes that have the mark in their environment until there
    are none; returns those that remain, because the kernel holds them."""
    wanted, end = f"{MARK}={mark}".encode(), time.monotonic() + seconds
    while True:
        left = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0"):
                        left.append(int(pid))
                        os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


# Told "module NAME" and "folder NAME", it cleans up when its input ends, and
# prints what is left behind. The last descriptor of a module may be closed some
# time after a process has ended.
KEEP = r"""
trap '' HUP INT TERM PIPE
cd /
while read -r kind name; do eval "$kind=\$name"; done
marked() { grep -lszx "$0" /proc/[0-9]*/environ | cut -d/ -f3; }
tries=300
while [ $tries -gt 0 ] && { pids=$(marked); [ -n "$pids" ] ||
                            [ -e "/sys/module/${module:-none}" ]; }; do
    [ -z "$pids" ] || kill -KILL $pids 2>/dev/null
    [ -z "$module" ] || why=$(timeout 60 rmmod "$module" 2>&1)
    tries=$((tries - 1))
    sleep 0.2
done
rm -rf "$folder"
for pid in $(marked); do echo "process $pid, which the kernel holds"; done
[ ! -e "/sys/module/${module:-none}" ] || echo "module $module ($why)"
[ ! -e "${folder:-/nowhere}" ] || echo "directory $folder"
"""


class Keeper:
    """A process that cleans up behind this one, however it ends."""

    def __init__(self, mark):
        self.process = subprocess.Popen(
            ["sh", "-c", KEEP, f"{MARK}={mark}"], start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def note(self, kind, name):
        """A "module" before it is loaded, or a "folder" before it is made."""
        self.process.stdin.write(f"{kind} {name}\n")
        self.process.stdin.flush()

    def finish(self):
        """Cleans up; returns what is left behind, as a list of texts."""
        return self.process.communicate()[0].splitlines()


class Steps:
    """Runs steps and programs. `work` is a directory for their output."""

    def __init__(self, work, mark):
        self.work, self.mark = work, mark
        self.results, self.started, self.count = [], [], 0

    def run(self, name, seconds, function):
        """One step; returns whether it passed. `function` returns a
        dictionary of figures, or None."""
        began, verdict, reason, figures = time.monotonic(), "failed", None, None
        say(f"{name} ...")
        try:
            signal.alarm(max(1, int(seconds)))
            try:
                figures = function()
                verdict = "passed"
            finally:
                signal.alarm(0)
        except StepSkipped as why:
            verdict, reason = "skipped", str(why)
        except StepFailed as why:
            reason = str(why)
        except OutOfTime:
            reason = f"not done within {int(seconds)} s"
        except Interrupted as number:
            reason = f"interrupted ({number})"
            raise
        except Exception as error:  # a mistake of ours ends one step only
            reason = f"internal: {error!r}"
        finally:
            left = kill_marked(self.mark)
            for process in self.started:
                if process.pid not in left:
                    process.wait()
            self.started = []
            if left:
                verdict = "failed"
                reason = f"{reason or 'done'}; processes cannot be ended"
            self.results.append({
                "name": name, "verdict": verdict, "reason": reason,
                "figures": figures,
                "seconds": round(time.monotonic() - began, 1)})
            say(f"    {verdict}" + (f": {reason}" if reason else ""))
        return verdict == "passed"

    def start(self, words, env=None):
        """Starts a program; its output goes to a file."""
        self.count += 1
        path = os.path.join(self.work, f"log{self.count}")
        with open(path, "wb") as file:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
                cwd=self.work, env={**os.environ, "LC_ALL": "C",
                                    **(env or {}), MARK: self.mark})
        process.path = path
        self.started.append(process)
        return process

    def command(self, words, env=None):
        """Runs a program until it ends, or the step's time does; returns what
        it printed."""
        try:
            process = self.start(words, env)
        except OSError as error:
            raise StepFailed(f"{words[0]}: {error.strerror}") from error
        status = process.wait()
        text = output(process)
        if status == SKIPPED:
            raise StepSkipped(last_line(text, "SKIPPED: ") or "not there")
        if status != 0:
            tail = "\n".join(text.splitlines()[-TAIL:])
            raise StepFailed(
                re.sub(r"^\S*/", "", last_line(text, "FAILED: ")) or
                f"{os.path.basename(words[0])} ended with status {status}: "
                f"{tail}".rstrip(": "))
        return text


def output(process):
    """What a program printed so far."""
    with open(process.path, errors="replace", encoding="utf-8") as file:
        return file.read()


def last_line(text, head):
    """The last line that begins with `head`, without it; or an empty text."""
    lines = [line[len(head):] for line in text.splitlines()
             if line.startswith(head)]
    return lines[-1] if lines else ""
