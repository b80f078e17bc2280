#!/bin/sh
# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# Makes ./configure from configure.ac; needed once after a git clone.

cd "$(dirname "$0")" || exit 1
for tool in autoreconf automake libtoolize pkg-config; do
    command -v $tool >/dev/null || {
        echo "autogen.sh: error: $tool not found: apt-get install autoconf" \
             "automake libtool pkgconf" >&2
        exit 1
    }
done
exec autoreconf --install --force "$@"
