# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Paired benchmarks by verbs, with rows and figures of contrib/bench."""

from hw_run import last_line, say
from measure import Row, measure_row, ratio, value
from report import sentence

KIB, MIB = 1 << 10, 1 << 20
DEPTH = 16


class Bench:
    """Measures on two ports. `steps` runs programs."""

    def __init__(self, steps, program, ports, args):
        self.steps, self.program, self.ports = steps, program, ports
        self.args, self.kinds, self.results = args, (), []

    def rows(self, kinds):
        """(title, function, word...) of each step. `kinds` are the
        registrations that work."""
        self.kinds = kinds
        yield "first registration", self.register
        for operation in ("get", "put"):
            for depth in (1, DEPTH):
                yield (f"{operation} by verbs, {depth} in flight", self.access,
                       operation, depth)

    def measure(self, line, what, command, names, **more):
        """A row whose first contestant the others are compared with."""
        judges = [value(names[0])] + [ratio(name, names[0])
                                      for name in names[1:]]
        row = Row(line, what, command, names, judges)._replace(**more)

        def report(result):
            if result["kind"] == "begin":
                say(f"    {result['head']}")
                return
            self.results.append(result)
            say(f"  {sentence(result)}")

        measure_row(self, row, self.args.turns, None, report)

    def number_of(self, size):
        """How many accesses of a size: fewer if they are large."""
        count = self.args.count
        return max(count * 4 * KIB // max(size, 4 * KIB), count // 50, 4)

    def views(self, *words):
        """Microseconds that hw_views prints."""
        text = self.steps.command([self.program, *map(str, words)])
        return float(last_line(text, "us: "))

    def register(self):
        """First registration of untouched memory."""
        self.measure("verbs", "first registration", lambda _s, kind, size:
                     self.views("register", kind, self.ports[1], size),
                     self.kinds, sizes=(self.args.region * MIB,))

    def access(self, operation, depth):
        """Latency, or time per access with several in flight. Views are
        used as the transport does: a get of a few words is verified by its
        data, all else by a READ of the states behind it."""
        def command(_session, kind, size):
            if kind == "views" and (operation == "put" or size > 64):
                kind = "verified"
            return self.views("access", kind, operation, *self.ports, size,
                                self.number_of(size), depth)

        what = f"{operation}, {depth} in flight" if depth > 1 else operation
        self.measure("verbs", what, command, self.kinds,
                     sizes=(8, 4 * KIB, 64 * KIB, MIB))
