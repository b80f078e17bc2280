# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Steps: each has a time limit, fails on its own, and leaves a result."""

import os
import re
import signal
import subprocess
import time

import hw_keeper

SKIPPED = 77
TAIL = 20  # lines of a program that failed


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


def on_signal(number, _frame):
    """Handler of signals that end this program. The end is not interrupted."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(signal.Signals(number).name)


def handle_signals():
    """From now on."""
    signal.signal(signal.SIGALRM, on_alarm)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)


class Steps:
    """Runs steps and programs. `work` is a directory for their output, `mark`
    that of hw_keeper."""

    def __init__(self, work, mark):
        self.work, self.mark = work, mark
        self.results = []
        self.started = []
        self.count = 0

    def run(self, name, seconds, function):
        """One step; returns whether it passed. `function` returns a
        dictionary of figures, or None."""
        began = time.monotonic()
        say(f"{name} ...")
        result = {"name": name, "verdict": "passed", "reason": None,
                  "figures": None}
        self.results.append(result)
        try:
            signal.alarm(max(1, int(seconds)))
            try:
                result["figures"] = function()
            finally:
                signal.alarm(0)
        except StepSkipped as reason:
            result.update(verdict="skipped", reason=str(reason))
        except StepFailed as reason:
            result.update(verdict="failed", reason=str(reason))
        except OutOfTime:
            result.update(verdict="failed",
                          reason=f"not done within {int(seconds)} s")
        except Interrupted as number:
            result.update(verdict="failed", reason=f"interrupted ({number})")
            raise
        except Exception as error:  # a mistake of ours ends one step only
            result.update(verdict="failed", reason=f"internal: {error!r}")
        finally:
            left = self.end_programs()
            result["seconds"] = round(time.monotonic() - began, 1)
            if left:
                result["reason"] = (f"{result['reason'] or 'done'}; "
                                    f"{len(left)} processes cannot be ended")
                result["verdict"] = "failed"
            say(f"    {result['verdict']}" + (
                f": {result['reason']}" if result["reason"] else ""))
        return result["verdict"] == "passed"

    def end_programs(self):
        """Of a step; returns the processes that do not end."""
        left = hw_keeper.kill_marked(self.mark)
        for process in self.started:
            if process.pid not in left:
                process.wait()
        self.started = []
        return left

    def start(self, words, env=None):
        """Starts a program; its output goes to a file."""
        self.count += 1
        path = os.path.join(self.work, f"log{self.count}")
        with open(path, "wb") as file:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
                cwd=self.work,
                env={**os.environ, "LC_ALL": "C", **(env or {}),
                     hw_keeper.MARK: self.mark})
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
            raise StepFailed(explain(words, status, text))
        return text


def output(process):
    """What a program printed so far."""
    with open(process.path, errors="replace", encoding="utf-8") as file:
        return file.read()


def last_line(text, head=""):
    """The last line that begins with `head`, without it; or an empty text."""
    lines = [line[len(head):] for line in text.splitlines()
             if line.startswith(head) and line.strip()]
    return lines[-1] if lines else ""


def explain(words, status, text):
    """Why a program failed, in a line, and in more lines if it does not say
    so itself."""
    said = last_line(text, "FAILED: ")
    if said:
        return re.sub(r"^\S*/", "", said)
    how = (f"was ended by signal {-status}" if status < 0 else
           f"failed with status {status}")
    tail = "\n".join(text.splitlines()[-TAIL:])
    return f"{os.path.basename(words[0])} {how}: {tail}".rstrip(": ")
