# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# For mpi-run and ucp-run, which run programs over nprdma like a user; to be
# sourced with the installation in $prefix. The counters of all processes are in
# $dir.

# shellcheck shell=sh
me=${0##*/}
fail() { echo "$me: FAILED: $*"; exit 1; }
[ -r "$prefix/etc/nprdma.env" ] || fail "nothing installed in $prefix"
dir=$(mktemp -d "${TMPDIR:-/tmp}/nprdma-job.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
. "$prefix/etc/nprdma.env"
export UCX_NPRDMA_EMULATION="${UCX_NPRDMA_EMULATION:-yes}"
export UCX_NPRDMA_STATS="file:$dir/stats.%p" UCX_WARN_UNUSED_ENV_VARS=n

# ended STATUS SECONDS: of timeout
ended() {
    [ "$1" -ne 124 ] || fail "no end within $2 s"
    [ "$1" -eq 0 ] || fail "status $1"
}

# sum_of COUNTER[+COUNTER...]: over all processes
sum_of() {
    cat "$dir"/stats.* 2>/dev/null | awk -v n="+$1+" '
        index(n, "+" $1 "+") { s += $2 } END { printf "%.0f", s }'
}

# positive COUNTER[+COUNTER...]...: each sum
positive() {
    for counter; do
        sum=$(sum_of "$counter")
        echo "$me: $counter $sum"
        [ "$sum" -gt 0 ] || fail "$counter stayed 0"
    done
}
