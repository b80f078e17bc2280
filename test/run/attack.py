#!/usr/bin/env python3
# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""attack.py COMMAND...: inside of nprdma-run, sends records that are wrong,
occupies its connections, and then runs the command. That must not disturb the
run; the caller checks its verdict."""

import os
import socket
import subprocess
import sys

proof, token, _, name, _, _ = os.environ["NPRDMA_RUN"].split("/")


def connect(wait=True):
    """A connection; its greeting has the proof, never the token."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect("\0" + name)
    if wait:
        greeting = sock.recv(100).decode()
        if greeting != "nprdma-run 1 %s\n" % proof:
            sys.exit("attack: greeting: " + greeting)
    return sock


def is_taken(data):
    """Whether the data is acknowledged."""
    with connect() as sock:
        try:
            sock.sendall(data)
            return sock.recv(10) == b"ok\n"
        except OSError:
            return False


RECORD = ("token %s\nkind counted\nprocess 1.1.x.y\nrank 0\nsize 7\n"
          "bytes_sent 5\nend\n")
GOOD = "token " + token + "\n"
for bad in (RECORD % ("0" * 32), RECORD % "", RECORD % token[:-1],
            RECORD % (token + "0"), "x" * 5000 + "\nend\n",
            GOOD + "a\0b\nend\n"):
    if is_taken(bad.encode()):
        sys.exit("attack: this is taken: %.100r" % bad)

# With the token, but without sense: taken, and without effect
for odd in ("", "kind\n", "kind counted\n", "kind counted\nprocess \n" * 50,
            "kind started\nprocess p\nrank 99999999999999999999\nsize -3\n",
            "kind started\nprocess q\nrank 5\nsize 99999999999999\n",
            "kind \033[2J\nprocess r\n"):
    if not is_taken((GOOD + odd + "end\n").encode()):
        sys.exit("attack: the right token is refused: %r" % odd)

# More idle connections than nprdma-run has at a time
idle = [connect(wait=False) for _ in range(400)]
idle[-1].sendall(b"token ")  # the first ones have been closed
sys.exit(subprocess.call(sys.argv[1:]))
