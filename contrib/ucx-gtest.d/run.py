#!/usr/bin/env python3
# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Run UCX's gtest for one transport and judge it by what tcp does.

The verdict of a test is not gtest's alone: gtest prints OK for a test that
skipped itself, one crash takes the rest of the process along, and one hang
stops everything.  So tests run in small batches; a batch that dies or passes
its time limit is charged to the test that was running, and the tests after it
go on in a new process.

Called by contrib/ucx-gtest, which builds the gtest program.
"""

import argparse
import concurrent.futures
import fnmatch
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time

BATCH_TESTS = 40

PASS = 'pass'
FAIL = 'fail'
SKIP = 'skip'
CRASH = 'crash'
TIMEOUT = 'timeout'

RUN_LINE = re.compile(r'^\[ RUN      \] (\S+)')
OK_LINE = re.compile(r'^\[       OK \] (\S+)(?: \((\d+) ms\))?')
FAILED_LINE = re.compile(r'^\[  FAILED  \] ([^\s,]+).*\((\d+) ms\)')
SKIP_LINE = re.compile(r'^\[     SKIP \] ?(.*)')


class Test:
    """One gtest instance; the key is what two transports have in common."""

    def __init__(self, suite, name, param):
        self.full = suite + name
        self.transport, self.suite = suite.rstrip('.').split('/', 1)
        self.test, _, index = name.partition('/')
        if self.suite.startswith('test_ucp') or not param:
            # The index of a UCP test counts the variants of the test.
            variant = index
        else:
            # The index of a UCT test counts devices times variants; the
            # parameter reads transport/device[/variant].
            variant = '/'.join(param.split('/')[2:])
        self.key = self.suite + '.' + self.test
        if variant:
            self.key += '/' + variant


class Result:
    def __init__(self, status, seconds=0.0, detail='', output=''):
        self.status = status
        self.seconds = seconds
        self.detail = detail
        self.output = output


def die(message):
    print('ucx-gtest: error: ' + message, file=sys.stderr)
    sys.exit(2)


def read_table(path, fields):
    """Lines of `field... rest`, '#' comments; returns tuples."""
    rows = []
    if not os.path.exists(path):
        return rows
    with open(path) as table:
        for number, line in enumerate(table, 1):
            line = line.split('#', 1)[0].strip()
            if not line:
                continue
            row = line.split(None, fields - 1)
            if len(row) < fields:
                die('%s:%d: expected %d fields' % (path, number, fields))
            rows.append(tuple(row))
    return rows


class Gtest:
    """The program under test, with the environment of one transport."""

    def __init__(self, args, transport):
        self.program = args.gtest
        self.transport = transport
        self.limit = args.timeout
        self.log_dir = args.logs
        self.env = dict(os.environ)
        for name in list(self.env):
            if name.startswith('UCX_') and name not in args.keep_env:
                del self.env[name]
        # A crash must end the process at once, with a backtrace.
        self.env['UCX_HANDLE_ERRORS'] = 'bt'
        self.env['UCX_LOG_LEVEL'] = 'warn'
        if transport == args.transport and args.component:
            self.env['LD_PRELOAD'] = args.component
        self.settings = []
        if transport == args.transport:
            self.settings = read_table(os.path.join(args.data, 'settings'), 2)
        self.given = dict(pair.partition('=')[::2] for pair in args.env)
        self.env.update(self.given)

    def env_of(self, suite):
        """The environment of a suite: what is given goes before settings."""
        env = dict(self.env)
        for pattern, pairs in self.settings:
            if fnmatch.fnmatchcase(suite, pattern):
                env.update(pair.partition('=')[::2] for pair in pairs.split())
        env.update(self.given)
        return env

    def list_tests(self):
        done = subprocess.run(
            [self.program, '--gtest_list_tests',
             '--gtest_filter=%s/*' % self.transport],
            env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=120, universal_newlines=True)
        if done.returncode != 0:
            die('listing the tests of %s failed:\n%s' %
                (self.transport, done.stdout))
        tests = []
        suite = None
        for line in done.stdout.splitlines():
            if re.match(r'^\S+/\S+\.(\s|$)', line):
                suite = line.split()[0]
            elif suite and re.match(r'^  \S', line):
                param = re.search(r'# GetParam\(\) = (.*)$', line)
                tests.append(Test(suite, line.split()[0],
                                  param.group(1).strip() if param else ''))
        return tests

    def run_batch(self, tests, report):
        """Run tests, restarting behind each one that ends its process."""
        left = list(tests)
        while left:
            done = self.run_process(left, report)
            if done == 0:
                # Nothing ran: mark the first test as failed, because otherwise
                # this never ends.
                report(left[0], Result(CRASH, 0, 'gtest did not start it'))
                done = 1
            left = left[done:]

    def run_process(self, tests, report):
        """One process; returns how many of the tests were accounted for."""
        names = [t.full for t in tests]
        process = subprocess.Popen(
            [self.program, '--gtest_filter=' + ':'.join(names)],
            env=self.env_of(tests[0].suite), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, cwd=self.log_dir)
        state = BatchState(tests, report)
        buffer = b''
        killed = False
        fd = process.stdout.fileno()
        while True:
            wait = state.deadline(self.limit) - time.monotonic()
            if wait <= 0:
                killed = True
                self.kill(process)
                break
            if not select.select([fd], [], [], wait)[0]:
                continue
            data = os.read(fd, 65536)
            if not data:
                break
            *lines, buffer = (buffer + data).split(b'\n')
            for line in lines:
                state.feed(line.decode(errors='replace'))
        process.stdout.close()
        # The end of the output is not the end of the process.
        try:
            code = process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill(process)
            code = process.wait()
        state.finish(code, killed, self.limit)
        return state.done

    @staticmethod
    def kill(process):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class BatchState:
    """Follows gtest's output and keeps the account of one process."""

    def __init__(self, tests, report):
        self.tests = {t.full: t for t in tests}
        self.report = report
        self.current = None
        self.started = time.monotonic()
        self.skipped = None
        self.output = []
        self.done = 0

    def deadline(self, limit):
        return self.started + limit

    def feed(self, line):
        run = RUN_LINE.match(line)
        if run and run.group(1) in self.tests:
            self.current = self.tests[run.group(1)]
            self.started = time.monotonic()
            self.skipped = None
            self.output = []
            return
        if self.current is None:
            return
        self.output.append(line)
        skip = SKIP_LINE.match(line)
        if skip:
            self.skipped = skip.group(1)
            return
        for pattern, status in ((OK_LINE, PASS), (FAILED_LINE, FAIL)):
            end = pattern.match(line)
            if end and end.group(1) == self.current.full:
                detail = ''
                if status == PASS and self.skipped is not None:
                    status, detail = SKIP, self.skipped
                self.end(status, detail)
                return

    def end(self, status, detail):
        self.report(self.current,
                    Result(status, time.monotonic() - self.started, detail,
                           '\n'.join(self.output)))
        self.done += 1
        self.current = None
        # The time between tests has the limit of one test, too.
        self.started = time.monotonic()

    def finish(self, code, killed, limit):
        if self.current is None:
            return
        if killed:
            self.end(TIMEOUT, 'no end within %d s' % limit)
        elif code < 0:
            self.end(CRASH, 'killed by signal %d' % -code)
        else:
            self.end(CRASH, 'exit code %d' % code)


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


def run_tests(gtest, tests, args):
    """Runs args.jobs processes at a time, then those tests that need the
    machine for themselves."""
    alone = [row[0] for row in read_table(os.path.join(args.data, 'alone'), 1)]
    results = {}
    lock = threading.Lock()
    begin = time.monotonic()
    last = [begin]

    def report(test, result):
        with lock:
            results[test.full] = result
            now = time.monotonic()
            bad = result.status not in (PASS, SKIP)
            if args.verbose or bad:
                print('%-7s %s (%.1f s) %s' %
                      (result.status.upper(), test.full, result.seconds,
                       result.detail), flush=True)
            elif now - last[0] > 20:
                print('  %d of %d tests, %d s' %
                      (len(results), len(tests), now - begin), flush=True)
                last[0] = now

    shared = [t for t in tests if not matches(t, alone)]
    apart = [t for t in tests if matches(t, alone)]
    for group, jobs in ((shared, args.jobs), (apart, 1)):
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            pending = [pool.submit(gtest.run_batch, b, report)
                       for b in batches(group)]
            for future in pending:
                future.result()
    return results


def write_log(path, tests, results):
    with open(path, 'w') as log:
        for test in tests:
            result = results.get(test.full)
            if result:
                log.write('%-7s %8.2f %s %s\n' %
                          (result.status, result.seconds, test.full,
                           result.detail))
                if result.status not in (PASS, SKIP):
                    log.write(result.output + '\n')


class Rules:
    """The allow-list: which test may deviate, and for what reason."""

    def __init__(self, path):
        self.rows = read_table(path, 3)
        self.used = {}
        for kind, pattern, _ in self.rows:
            if kind not in ('exclude', 'skip', 'fail', 'retry'):
                die('%s: unknown kind "%s" for %s' % (path, kind, pattern))

    def find(self, kind, key):
        for row in self.rows:
            if row[0] == kind and fnmatch.fnmatchcase(key, row[1]):
                self.used.setdefault(row, []).append(key)
                return row
        return None


class Baseline:
    """What tcp does: every test it lists passes but for the recorded ones. A
    line has all variants of a test that do the same."""

    def __init__(self, path, tests):
        self.status = {t.key: PASS for t in tests}
        self.found = os.path.exists(path)
        for status, key, _ in read_table(path, 3):
            name, slash, variants = key.partition('/')
            for variant in variants.split(','):
                self.status[name + slash + variant] = status

    @staticmethod
    def record(path, tests, results):
        """Several devices give one key: the best of them counts."""
        order = [PASS, SKIP, FAIL, TIMEOUT, CRASH]
        best = {}
        for test in tests:
            result = results[test.full]
            old = best.get(test.key)
            if old is None or order.index(result.status) < \
               order.index(old.status):
                best[test.key] = result
        lines = {}
        for key in sorted(best):
            name, slash, variant = key.partition('/')
            lines.setdefault((best[key].status, name + slash,
                              best[key].detail or '-'), []).append(variant)
        with open(path + '.new', 'w') as out:
            out.write('# What the tcp tests of this gtest did other than '
                      'pass: status, test, detail.\n'
                      '# Written by contrib/ucx-gtest --baseline.\n')
            for (status, name, detail), variants in lines.items():
                if status != PASS:
                    out.write('%s %s%s %s\n' % (status, name,
                                                ','.join(variants), detail))
        os.rename(path + '.new', path)


def judge(tests, results, baseline, rules):
    """Returns lists of (test, text) by verdict."""
    passed, failed, skipped, known = [], [], [], []
    for test in tests:
        result = results[test.full]
        expected = baseline.status.get(test.key)
        if result.status == PASS:
            passed.append((test, ''))
        elif result.status == SKIP:
            row = rules.find('skip', test.key)
            if expected == PASS and row is None:
                failed.append((test, 'skipped, but tcp runs it: ' +
                               result.detail))
            else:
                skipped.append((test, row[2] if row else
                                'as tcp: ' + result.detail))
        else:
            text = '%s %s' % (result.status, result.detail)
            row = rules.find('fail', test.key)
            if row:
                known.append((test, text + ': ' + row[2]))
            elif expected in (FAIL, TIMEOUT, CRASH):
                known.append((test, text + ': as tcp'))
            else:
                failed.append((test, text))
    return passed, failed, skipped, known


def retry(gtest, tests, results, rules):
    """Tests known to depend on timing get a second run, alone."""
    again = [t for t in tests
             if results[t.full].status not in (PASS, SKIP) and
             rules.find('retry', t.key)]
    for test in again:
        print('retry   ' + test.full, flush=True)
        gtest.run_batch([test], lambda t, r: results.__setitem__(t.full, r))
    return again


def matches(test, patterns):
    return any(fnmatch.fnmatchcase(test.key, p) or
               fnmatch.fnmatchcase(test.full, p) for p in patterns)


def select_tests(tests, args, rules):
    """Returns what to run, and what of the selection the rules exclude."""
    without = []
    if args.filter:
        chosen = [t for t in tests if matches(t, args.filter.split(':'))]
    else:
        chosen = list(tests)
    if args.mode == 'short':
        without = [row[0] for row in
                   read_table(os.path.join(args.data, 'not-in-short'), 1)]
    chosen = [t for t in chosen if not matches(t, without)]
    excluded = [t for t in chosen if rules.find('exclude', t.key)]
    out = set(excluded)
    return [t for t in chosen if t not in out], excluded


def print_group(title, items, limit=None):
    if not items:
        return
    print('\n%s (%d):' % (title, len(items)))
    for test, text in items[:limit]:
        print('  %s  %s' % (test.full, text))
    if limit and len(items) > limit:
        print('  ... and %d more, see the log' % (len(items) - limit))


def summarise_skips(skipped):
    """Skips by reason: the reason is what has to be judged."""
    reasons = {}
    for test, text in skipped:
        reasons.setdefault(text, []).append(test.key)
    if reasons:
        print('\nskipped (%d):' % len(skipped))
    for text, keys in sorted(reasons.items(), key=lambda i: -len(i[1])):
        print('  %4d  %s  e.g. %s' % (len(keys), text, keys[0]))


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument('--gtest', required=True)
    parser.add_argument('--component', default='')
    parser.add_argument('--transport', default='nprdma')
    parser.add_argument('--data', required=True)
    parser.add_argument('--baseline-file', required=True)
    parser.add_argument('--logs', required=True)
    parser.add_argument('--mode', default='short',
                        choices=['short', 'full', 'baseline'])
    parser.add_argument('--filter', default='')
    parser.add_argument('--timeout', type=float, default=300)
    parser.add_argument('--jobs', type=int, default=1)
    parser.add_argument('--repeat', type=int, default=1)
    parser.add_argument('--env', action='append', default=[])
    parser.add_argument('--keep-env', action='append', default=[])
    parser.add_argument('--verbose', action='store_true')
    return parser.parse_args()


def run_baseline(args, tcp, tests):
    rules = Rules(os.path.join(args.data, 'allow'))
    chosen, _ = select_tests(tests, args, rules)
    print('recording %d tests of tcp' % len(chosen), flush=True)
    results = run_tests(tcp, chosen, args)
    write_log(os.path.join(args.logs, 'tcp.log'), chosen, results)
    Baseline.record(args.baseline_file, chosen, results)
    count = {s: sum(r.status == s for r in results.values())
             for s in (PASS, SKIP)}
    bad = len(results) - count[PASS] - count[SKIP]
    print('%d passed, %d failed, %d skipped' %
          (count[PASS], bad, count[SKIP]))


def main():
    args = parse_args()
    os.makedirs(args.logs, exist_ok=True)
    tcp = Gtest(args, 'tcp')
    tcp_tests = tcp.list_tests()
    if not tcp_tests:
        die('gtest lists no tests of tcp')
    if args.mode == 'baseline':
        run_baseline(args, tcp, tcp_tests)
        return 0
    baseline = Baseline(args.baseline_file, tcp_tests)
    if not baseline.found:
        die('%s is missing' % args.baseline_file)
    rules = Rules(os.path.join(args.data, 'allow'))
    gtest = Gtest(args, args.transport)
    tests, excluded = select_tests(gtest.list_tests(), args, rules)
    wanted, _ = select_tests(tcp_tests, args, rules)
    have = {t.key for t in tests}
    missing = sorted({t.key for t in wanted} - have)
    if not tests:
        die('gtest lists no tests of %s: is the component loaded?' %
            args.transport)

    worst = 0
    for turn in range(args.repeat):
        worst = max(worst, run_once(args, gtest, tests, baseline, rules,
                                    excluded, missing))
    return worst


def run_once(args, gtest, tests, baseline, rules, excluded, missing):
    print('%d tests of %s, %d excluded' %
          (len(tests), args.transport, len(excluded)), flush=True)
    results = run_tests(gtest, tests, args)
    again = retry(gtest, tests, results, rules)
    write_log(os.path.join(args.logs, args.transport + '.log'), tests,
              results)
    passed, failed, skipped, known = judge(tests, results, baseline, rules)

    for test, text in failed:
        output = results[test.full].output.splitlines()[-25:]
        print('\n--- %s: %s' % (test.full, text))
        print('\n'.join('    ' + line for line in output))
    for row in rules.rows:
        if row[0] == 'exclude' and row in rules.used:
            print('excluded %-40s %s' % (row[1], row[2]))
    summarise_skips(skipped)
    print_group('passed when run again alone', [(t, '') for t in again
                                                if results[t.full].status
                                                == PASS])
    print_group('known deviations', known)
    print_group('failed', failed)
    if missing:
        print('\nnot offered by %s, but by tcp (%d):' %
              (args.transport, len(missing)))
        for key in missing:
            print('  ' + key)
    if args.mode == 'full' and not args.filter:
        for row in rules.rows:
            if row not in rules.used and row[0] != 'retry':
                print('note: unused rule: %s %s' % row[:2])
    print('log: ' + os.path.join(args.logs, args.transport + '.log'))
    print('%d passed, %d failed, %d skipped' %
          (len(passed), len(failed) + len(missing),
           len(skipped) + len(known)))
    return 1 if failed or missing else 0


if __name__ == '__main__':
    sys.exit(main())
