# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# For the scripts beside it: third-party programs on npemu0. NPEMU_SHIM_PRELOAD
# must be set, see shim.cmake.

set -u
: "${NPEMU_SHIM_PRELOAD:?must name libnpemu-verbs.so}"

dir=$(mktemp -d "${TMPDIR:-/tmp}/npemu-verbs.XXXXXX") || exit 1
pids=

cleanup() {
    for pid in $pids; do
        kill "$pid" 2>/dev/null
    done
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

fail() {
    echo "FAIL: $*"
    for file in "$dir"/*; do
        if [ -f "$file" ]; then
            echo "--- ${file##*/}"
            tail -n 60 "$file"
        fi
    done
    exit 1
}

need() {
    if ! command -v "$1" > /dev/null; then
        echo "SKIPPED: $1 is not installed ($2)"
        exit 77
    fi
}

# need_ucx_verbs: UCX's own verbs transports, which are in a module of their own
need_ucx_verbs() {
    modules=$(pkg-config --variable=libdir ucx)/ucx
    if [ ! -e "$modules/libuct_ib.so.0" ]; then
        echo "SKIPPED: this UCX has no verbs transports (no $modules/libuct_ib.so.0)"
        exit 77
    fi
}

# on_shim PROGRAM ARG...: only the program gets the shim, not the shell
on_shim() {
    env LD_PRELOAD="$NPEMU_SHIM_PRELOAD" "$@"
}

# A free TCP port, because other tests may run at the same time
free_port() {
    # Not by $$, which tests in PID namespaces of their own have in common, and
    # below the ports of clients
    random=$(od -An -N2 -tu2 /dev/urandom | tr -d ' ')
    port=$((10000 + random % 22000))
    while port_is_open "$port"; do
        port=$((port + 1))
    done
    echo "$port"
}

port_is_open() {
    hex=$(printf '%04X' "$1")
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
        awk -v port=":$hex" '$4 == "0A" && substr($2, length($2) - 4) == port \
                             { found = 1 } END { exit !found }'
}

# wait_listening PID PORT: returns when the server PID listens
wait_listening() {
    tries=0
    until port_is_open "$2"; do
        kill -0 "$1" 2>/dev/null || fail "the server ended early"
        tries=$((tries + 1))
        [ "$tries" -lt 1000 ] || fail "the server does not listen"
        sleep 0.02
    done
}

# expect FILE REGEX: fails unless the file has such a line
expect() {
    grep -qE -- "$2" "$dir/$1" || fail "no '$2' in $1"
}
