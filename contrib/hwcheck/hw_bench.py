# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Paired benchmarks: rows, statistics and sentences of contrib/bench."""

import os
import re
import subprocess
import time

from hw_parse import fields
from hw_steps import StepFailed, StepSkipped, last_line, output, say
from measure import Row, all_values, measure_row
from report import sentence
from session import PERFTEST, WRITTEN, BenchError, Skip, read_settings
from stats import ratio, value

KIB, MIB = 1 << 10, 1 << 20

# What each contestant has in its environment. The transport runs on the device
# itself; a tier that is asked for by name is an error if it is not there.
NPRDMA = {"UCX_TLS": "nprdma", "UCX_NPRDMA_EMULATION": "no"}
UCX = {
    "copy": {**NPRDMA, "UCX_NPRDMA_MONITOR": "copy"},
    "odp": {**NPRDMA, "UCX_NPRDMA_MONITOR": "odp"},
    "windows": {**NPRDMA, "UCX_NPRDMA_MONITOR": "kernel"},
    "rc_verbs": {"UCX_TLS": "rc_verbs,ud_verbs"},
    "rc_mlx5": {"UCX_TLS": "rc_mlx5,ud_mlx5"},
}
PINNED = ("rc_mlx5", "rc_verbs")

# Test of ucx_perftest, size, field of its CSV line, what, and unit. Field 2 is
# the median latency, field 6 the mean bandwidth.
UCX_ROWS = (("ucp_get", 8, 2, "get, latency", "us"),
            ("ucp_get", MIB, 6, "get, bandwidth", "MB/s"),
            ("ucp_put_lat", 8, 2, "put, latency", "us"),
            ("ucp_put_bw", MIB, 6, "put, bandwidth", "MB/s"),
            ("tag_lat", 8, 2, "tag, latency", "us"),
            ("tag_bw", MIB, 6, "tag, bandwidth", "MB/s"))

VERBS_SIZES = (8, 4 * KIB, 64 * KIB, MIB)
DEPTH = 16


def number_of(count, size):
    """How many accesses of a size: fewer if they are large."""
    return max(count * 4 * KIB // max(size, 4 * KIB), count // 50, 4)


class Bench:
    """Measures on two ports. `steps` runs programs, `kinds` are the
    registrations that the device has."""

    def __init__(self, steps, program, ports, kinds, gid_index):
        self.steps, self.program, self.kinds = steps, program, kinds
        self.ports, self.gid_index = ports, gid_index
        self.seen = {}     # for measure_row()
        self.results = []
        self.port = 20000 + os.getpid() % 20000
        self.settings = {}

    def report(self, result):
        """Takes and prints a result of measure_row()."""
        if result["kind"] == "begin":
            say(f"    {result['head']}")
            return
        self.results.append(result)
        say(f"  {sentence(result)}")

    def measure(self, row, turns):
        """A row; returns its figures for the step."""
        before = len(self.results)
        try:
            measure_row(self, row, turns, None, self.report)
        except Skip as reason:
            raise StepSkipped(str(reason)) from reason
        except BenchError as error:
            raise StepFailed(str(error)) from error
        skipped = [r for r in self.results[before:]
                   if r["verdict"] == "skipped"]
        if skipped:
            raise StepSkipped(skipped[0]["reason"])
        return {"results": len(self.results) - before}

    # -- verbs ---------------------------------------------------------------

    def windows(self, *words):
        """Microseconds that hw_windows prints."""
        text = self.steps.command([self.program, *map(str, words)])
        return float(last_line(text, "us: ") or "nan")

    def register(self, turns, size):
        """First registration of untouched memory."""
        def command(_session, kind, length):
            return self.windows("register", kind, self.ports[1], length)

        return self.measure(Row("verbs", "first registration", command,
                                tuple(self.kinds), self.judges(),
                                sizes=(size,)), turns)

    def judges(self):
        """Pinned memory is what the others are compared with."""
        return [value("pinned")] + [ratio(kind, "pinned")
                                    for kind in self.kinds if kind != "pinned"]

    def access(self, turns, is_put, depth, count):
        """Latency, or time per access with several in flight. Windows are
        used as the transport does: a get of a few words is verified by its
        data, all else by a READ of the states behind it."""
        operation = "put" if is_put else "get"

        def command(_session, kind, size):
            if kind == "windows" and (is_put or size > 64):
                kind = "verified"
            return self.windows("access", kind, operation, *self.ports, size,
                                number_of(count, size), depth)

        what = f"{operation}, {depth} in flight" if depth > 1 else operation
        return self.measure(Row("verbs", what, command, tuple(self.kinds),
                                self.judges(), sizes=VERBS_SIZES), turns)

    def module(self, turns, count):
        """What pages cost in the module, and programs that map memory."""
        def turn(_session, _contestant, pages):
            text = self.steps.command([self.program, "turn", self.ports[1],
                                       str(pages), str(count)])
            return {f"{name}, per page@us": float(figure)
                    for name, figure in fields(text).items()}

        def cycle(_session, contestant, pages):
            return self.windows("cycle", contestant, self.ports[1], pages,
                                count)

        for row in (Row("module", "pages of windows", turn, ("windows",),
                        all_values, sizes=(1, 64), scale="pages"),
                    Row("module", "map, touch and unmap", cycle,
                        ("windows", "none"), [ratio("windows", "none")],
                        sizes=(1, 64), scale="pages")):
            figures = self.measure(row, turns)
        return figures

    # -- UCX -----------------------------------------------------------------

    def environment(self, contestant, port):
        """Of ucx_perftest."""
        return {**self.settings, **UCX[contestant], **WRITTEN,
                "UCX_NET_DEVICES": port.replace("/", ":"),
                "UCX_NPRDMA_GID_INDEX": str(self.gid_index),
                "UCX_WARN_UNUSED_ENV_VARS": "n"}

    def client(self, server, contestant, words, seconds):
        """Tries until the server listens; returns the ended client."""
        for _ in range(100):
            client = self.steps.start(
                [*PERFTEST, *words, "127.0.0.1"],
                self.environment(contestant, self.ports[0]))
            try:
                client.wait(seconds)
            except subprocess.TimeoutExpired as error:
                client.kill()
                raise StepFailed(f"{contestant}: no end within {seconds} s: " +
                                 why_not(output(client))) from error
            if server.poll() is not None or \
                    "onnection refused" not in output(client):
                break
            time.sleep(0.1)
        return client

    def perftest(self, contestant, words, seconds=300):
        """The last CSV line of ucx_perftest between two processes."""
        self.port += 1
        address = ["-p", str(self.port)]
        server = self.steps.start(
            [*PERFTEST, *address],
            self.environment(contestant, self.ports[1]))
        try:
            client = self.client(server, contestant,
                                 [*address, "-f", "-v", *words], seconds)
            if client.returncode != 0:
                raise StepFailed(f"{contestant}: " + why_not(
                    output(server) + output(client)))
            server.wait()
        finally:
            server.kill()
            server.wait()
        rows = re.findall(r"^ *[0-9].*,.*", output(client), re.M)
        if not rows:
            raise StepFailed(f"{contestant}: ucx_perftest printed no figures")
        return rows[-1].split(",")

    def ucx_contestants(self, prefix):
        """Tries each; returns ([those that work], {name: reason})."""
        works, reasons = [], {}
        if not os.path.exists(os.path.join(prefix, "etc/nprdma.env")):
            for name in ("copy", "odp", "windows"):
                reasons[name] = f"nprdma is not installed in {prefix}"
        else:
            self.settings = read_settings(prefix, dict(os.environ))
        for name in UCX:
            if name in reasons:
                continue
            try:
                self.perftest(name, ["-t", "tag_lat", "-n", "10",
                                             "-w", "1", "-s", "8"], 60)
                works.append(name)
            except StepFailed as reason:
                reasons[name] = str(reason).partition(": ")[2]
        return works, reasons

    def ucx(self, turns, contestants, count):
        """All rows between those that work. The first pinned one is what the
        others are compared with."""
        pinned = [name for name in PINNED if name in contestants]
        if not pinned:
            raise StepSkipped("neither rc_mlx5 nor rc_verbs works")
        figures = {}
        for test, size, field, what, unit in UCX_ROWS:
            number = number_of(count, size)

            def command(_session, contestant, length, test=test, field=field,
                        number=number):
                return float(self.perftest(contestant, [
                    "-t", test, "-s", str(length), "-n", str(number), "-w",
                    str(max(number // 10, 1))])[field - 1])

            judges = [value(pinned[0])] + [ratio(name, pinned[0]) for name
                                           in contestants if name != pinned[0]]
            figures = self.measure(Row("UCX", what, command,
                                       tuple(contestants), judges, unit,
                                       (size,)), turns)
        return {**figures, "rows": len(UCX_ROWS)}


def why_not(text):
    """The first error in UCX's output, without time and place."""
    for line in text.splitlines():
        found = re.search(r"\b(?:ERROR|FATAL)\b +(.*)", line)
        if found:
            return found.group(1)
    return (text.strip().splitlines() or ["no output"])[-1]
