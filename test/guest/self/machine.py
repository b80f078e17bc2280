#!/usr/bin/env python3
# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# Stands in for the loader of the machine's programs: a virtiofsd that only has
# its socket, and a QEMU whose kernel hangs in its boot for the first BOOT_HANGS
# starts (an environment variable), and then exits with status 7. It counts its
# starts in the file BOOT_COUNT.

import os
import signal
import socket
import sys

program, arguments = sys.argv[3], sys.argv[4:]


def value(prefix):
    return next(a[len(prefix):] for a in arguments if a.startswith(prefix))


if program.endswith("/virtiofsd"):
    root = socket.socket(socket.AF_UNIX)
    root.bind(value("--socket-path="))
    root.listen()
    signal.pause()

with open(os.environ["BOOT_COUNT"], "a") as count:
    count.write("x")
    tries = count.tell()
with open(value("file:"), "w") as log:
    log.write("Linux version\n")
    log.flush()
    if tries <= int(os.environ["BOOT_HANGS"]):
        signal.pause()
    log.write("nprdma-guest: begin\nnprdma-guest: status 7\n")
