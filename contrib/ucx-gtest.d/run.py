#!/usr/bin/env python3
# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Runs UCX's gtest for nprdma, and for tcp what does not pass: nprdma may skip
what tcp skips, and fail where tcp fails.

gtest alone is not enough: it prints OK for a test that skipped itself, one
crash takes the rest of the process along, and one hang stops everything. So
tests run in small batches. A batch that dies or passes its time limit is
charged to the test that was running, and the tests after it go on in a new
process.

Called by contrib/ucx-gtest, which builds the gtest program. Patterns match
suite.test/variant, without the transport.
"""

import argparse
import collections
import concurrent.futures
import fnmatch
import os
import re
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BATCH_TESTS = 40
PASS, SKIP, FAIL = "pass", "skip", "fail"

# Neither run nor asked of tcp, with the reason
EXCLUDED = {
    "test_uct_tcp*": "internals of the tcp transport",
    "test_ucp_wireup_fallback*": "selection among named built-in transports",
    "test_ucp_tag_offload*": "hardware tag matching",
    "test_md.invalidate":
        "has 8 bytes for a packed key, whatever the memory domain says its "
        "size is; and expects the completion of an invalidation only when all "
        "registrations of the same memory are gone, as with a registration "
        "cache below the handles, while ours are independent. tcp has no "
        "registrations",
}

# What --short leaves out: variants of long tests that differ little from those
# that stay, and measurements
NOT_IN_SHORT = [
    "test_uct_perf.*", "test_ucp_perf.*", "test_ucp_tag_xfer.*/[1345]",
    "test_ucp_tag_xfer.[cgi]*unexp*/2",
    "test_ucp_wireup_1sided.*stress*/[1-9]",
    "test_ucp_tag_match_rndv.exp_huge_mix/[1-9]",
    "test_ucp_am_nbx_dts.*/[13579]", "test_zcopy_comp.*",
    "uct_p2p_rma_test.put_zcopy*", "uct_p2p_rma_test.get_zcopy*",
]

# Skip themselves if the messages came before the endpoint was closed
MAY_SKIP = ["test_ucp_am_nbx_closed_ep.rx_long_am_on_closed_ep/*"]

# Measure time, or keep two CPUs busy: after the others, one at a time
ALONE = ["*perf*", "*keepalive*", "test_uct_loopback.*"]

Result = collections.namedtuple("Result", "status seconds detail output")


class Test:
    """One gtest instance; the key is what two transports have in common."""

    def __init__(self, suite, name, param):
        self.full = suite + name
        self.suite = suite.rstrip(".").split("/", 1)[1]
        test, _, variant = name.partition("/")
        if param and not self.suite.startswith("test_ucp"):
            # The index of a UCT test counts devices times variants; the
            # parameter reads transport/device[/variant]
            variant = "/".join(param.split("/")[2:])
        self.key = f"{self.suite}.{test}" + (f"/{variant}" if variant else "")

    def matches(self, patterns):
        """The first pattern that fits, or None."""
        return next((p for p in patterns if fnmatch.fnmatchcase(self.key, p) or
                     fnmatch.fnmatchcase(self.full, p)), None)


def die(message):
    """Ends the program with an error."""
    print(f"ucx-gtest: error: {message}", file=sys.stderr)
    sys.exit(2)


class Gtest:
    """The program under test, with the environment of one transport."""

    def __init__(self, args, transport):
        self.args, self.transport, self.settings = args, transport, []
        self.env = {name: value for name, value in os.environ.items()
                    if not name.startswith("UCX_")}
        # A crash must end the process at once, with a backtrace
        self.env.update(UCX_HANDLE_ERRORS="bt", UCX_LOG_LEVEL="warn")
        if transport == "nprdma":
            self.env["LD_PRELOAD"] = args.component
            with open(os.path.join(HERE, "settings")) as file:
                self.settings = [line.split() for line in file
                                 if not re.match(r"#|\s*$", line)]

    def env_of(self, suite):
        """The environment of a suite: what is given goes before settings."""
        env = dict(self.env)
        for pattern, *pairs in [*self.settings, ["*", *self.args.env]]:
            if fnmatch.fnmatchcase(suite, pattern):
                env.update(pair.split("=", 1) for pair in pairs)
        return env

    def list_tests(self):
        """All of this transport."""
        done = subprocess.run(
            [self.args.gtest, "--gtest_list_tests",
             f"--gtest_filter={self.transport}/*"], env=self.env_of(""),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=120, text=True, check=False)
        tests, suite = [], None
        for line in done.stdout.splitlines():
            if re.match(r"\S+/\S+\.(\s|$)", line):
                suite = line.split()[0]
            elif suite and re.match(r"  \S", line):
                param = re.search(r"# GetParam\(\) = (.*)$", line)
                tests.append(Test(suite, line.split()[0],
                                  param[1].strip() if param else ""))
        if done.returncode != 0 or not tests:
            die(f"gtest lists no tests of {self.transport}: is the component "
                f"loaded?\n{done.stdout}")
        return tests

    def run_batch(self, tests, report):
        """Runs tests, and restarts behind each one that ends its process."""
        while tests:
            done = self.run_process(tests, report)
            if done == 0:  # Otherwise this would never end
                report(tests[0], Result("crash", 0, "gtest did not start it",
                                        []))
                done = 1
            tests = tests[done:]

    def run_process(self, tests, report):
        """One process; returns how many of the tests it accounts for."""
        process = subprocess.Popen(
            [self.args.gtest,
             "--gtest_filter=" + ":".join(t.full for t in tests)],
            env=self.env_of(tests[0].suite), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True, cwd=self.args.logs)
        watch = Watch(process, self.args.timeout)
        by_name = {t.full: t for t in tests}
        current, output, done = None, [], 0

        def end(status, detail=""):
            report(current, Result(status, watch.restart(), detail, output))

        for line in map(str.rstrip, process.stdout):
            event = re.match(r"\[ *(RUN|OK|FAILED) *\] ([^\s,]+)", line)
            name = event[2] if event else None
            if event and event[1] == "RUN" and name in by_name:
                current, output = by_name[name], []
                watch.restart()
                continue
            output.append(line)
            # The last lines of gtest repeat what has failed
            if event and current and name == current.full:
                skip = [o for o in output if o.startswith("[     SKIP ]")]
                if event[1] == "FAILED":
                    end(FAIL)
                elif skip:
                    end(SKIP, skip[-1][len("[     SKIP ] "):])
                else:
                    end(PASS)
                done, current = done + 1, None
        status = process.wait()
        watch.stop()
        if current:
            end("timeout" if watch.expired else "crash",
                f"ended with status {status}")
        return done + bool(current)


class Watch:
    """Kills a process when a test, or the time between two, takes too long."""

    def __init__(self, process, limit):
        self.process, self.limit = process, limit
        self.expired, self.timer = False, None
        self.restart()

    def restart(self):
        """The seconds since the last one."""
        now = time.monotonic()
        seconds = now - (self.began if self.timer else now)
        self.stop()
        self.began = now
        self.timer = threading.Timer(self.limit, self.kill)
        self.timer.start()
        return seconds

    def kill(self):
        """The process and its children."""
        self.expired = True
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def stop(self):
        """Nothing is killed any more."""
        if self.timer:
            self.timer.cancel()


def batches(tests):
    """Split by suite, then by number; a suite's fixtures stay together."""
    out = []
    for test in tests:
        if out and out[-1][0].suite == test.suite and \
           len(out[-1]) < BATCH_TESTS:
            out[-1].append(test)
        else:
            out.append([test])
    return out


def run_tests(gtest, tests):
    """Runs --jobs processes at a time, then those tests that need the machine
    for themselves; {name: result}, which the log has as well."""
    results, lock = {}, threading.Lock()
    begin = last = time.monotonic()

    def report(test, result):
        nonlocal last
        with lock:
            results[test.full] = result
            now = time.monotonic()
            if gtest.args.verbose or result.status not in (PASS, SKIP):
                print(f"{result.status.upper():<7} {test.full} "
                      f"({result.seconds:.1f} s) {result.detail}", flush=True)
            elif now - last > 20:
                print(f"  {len(results)} of {len(tests)} tests, "
                      f"{now - begin:.0f} s", flush=True)
                last = now

    for alone, jobs in ((False, gtest.args.jobs), (True, 1)):
        group = [t for t in tests if bool(t.matches(ALONE)) == alone]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda batch: gtest.run_batch(batch, report),
                          batches(group)))
    with open(os.path.join(gtest.args.logs, gtest.transport + ".log"),
              "w") as log:
        for test in tests:
            result = results[test.full]
            log.write(f"{result.status:<7} {result.seconds:8.2f} {test.full} "
                      f"{result.detail}\n")
            if result.status not in (PASS, SKIP):
                log.write("\n".join(result.output) + "\n")
    return results


def judge(tests, results, tcp, tcp_tests):
    """Lists of (test, text): failed, and skipped or failed as tcp. tcp is asked
    now, so it has the same machine. Several devices give one key: the best of
    them counts."""
    bad = {t.key for t in tests if results[t.full].status != PASS}
    asked = [t for t in tcp_tests if t.key in bad]
    print(f"{len(bad)} did not pass: {len(asked)} tests of tcp for comparison",
          flush=True)
    answers = run_tests(tcp, asked)
    best = {}
    for test in asked:
        status = answers[test.full].status
        if status == PASS or best.get(test.key) not in (PASS, SKIP):
            best[test.key] = status
    failed, same = [], []
    for test in tests:
        status, _, detail, _ = results[test.full]
        other = best.get(test.key)
        if status == SKIP and (other != PASS or test.matches(MAY_SKIP)):
            same.append((test, f"skipped as by tcp: {detail}"))
        elif status == SKIP:
            failed.append((test, f"skipped, but tcp runs it: {detail}"))
        elif status != PASS and other not in (None, PASS, SKIP):
            same.append((test, f"{status} {detail}: tcp {other}"))
        elif status != PASS:
            failed.append((test, f"{status} {detail}"))
    return failed, same


def select(tests, args):
    """What to run, and what of the selection is excluded."""
    chosen = [t for t in tests if
              (not args.filter or t.matches(args.filter.split(":"))) and
              not (args.mode == "short" and t.matches(NOT_IN_SHORT))]
    return ([t for t in chosen if not t.matches(EXCLUDED)],
            [t for t in chosen if t.matches(EXCLUDED)])


def run_and_judge(nprdma, tests, tcp, tcp_tests):
    """Whether all is well."""
    results = run_tests(nprdma, tests)
    failed, same = judge(tests, results, tcp, tcp_tests)
    missing = sorted({t.key for t in select(tcp_tests, tcp.args)[0]} -
                     {t.key for t in tests})
    reasons = collections.defaultdict(list)
    for test, text in same:
        reasons[text].append(test.key)
    for text, keys in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"  {len(keys):4}  {text}  e.g. {keys[0]}")
    for test, text in failed:
        print(f"\n--- {test.full}: {text}")
        print("\n".join("    " + o for o in results[test.full].output[-25:]))
    for test, text in failed:
        print(f"failed: {test.full}  {text}")
    for key in missing:
        print(f"failed: {key}  not offered by nprdma, but by tcp")
    print(f"logs: {nprdma.args.logs}\n"
          f"{len(tests) - len(failed) - len(same)} passed, "
          f"{len(failed) + len(missing)} failed, {len(same)} skipped",
          flush=True)
    return not failed and not missing


def main():
    """Fails if a test does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--gtest", required=True)
    add("--component", required=True)
    add("--logs", required=True)
    add("--mode", choices=["short", "full"])
    add("--filter")
    add("--timeout", type=float, default=300)
    add("--jobs", type=int, default=1)
    add("--env", action="append", default=[])
    add("--verbose", action="store_true")
    args = parser.parse_args()
    os.makedirs(args.logs, exist_ok=True)
    nprdma, tcp = Gtest(args, "nprdma"), Gtest(args, "tcp")
    tests, excluded = select(nprdma.list_tests(), args)
    print(f"{len(tests)} tests of nprdma, {len(excluded)} excluded")
    for pattern in dict.fromkeys(t.matches(EXCLUDED) for t in excluded):
        print(f"excluded {pattern}: {EXCLUDED[pattern]}")
    return 0 if run_and_judge(nprdma, tests, tcp, tcp.list_tests()) else 1


if __name__ == "__main__":
    sys.exit(main())
