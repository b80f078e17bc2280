# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# What the benchmarks share, for `.`: contestants that take turns in one run
# (A B B A ...), so that a busy machine is unfair to all of them alike; each
# figure is the median of the turns, each ratio that of the turns' ratios.
#
# The caller sets me, here, top, prefix, turns and limits, then calls
# bench_begin; bench_end LINE... says how to repeat it and fails if a limit was
# missed.

# shellcheck shell=sh disable=SC2154

die() { echo "$me: error: $*" >&2; exit 1; }

bench_begin() {
    [ -r "$prefix/etc/nprdma.env" ] ||
        die "nothing is installed in $prefix: run contrib/quickstart"
    libdir=$(cd "$prefix"/lib*/nprdma 2>/dev/null && pwd) ||
        die "no lib/nprdma in $prefix"
    door=$libdir/libnpemu-verbs.so

    work=$(mktemp -d "${TMPDIR:-/tmp}/nprdma-bench.XXXXXX")
    trap bench_cleanup EXIT

    . "$prefix/etc/nprdma.env"
    export UCX_NPRDMA_EMULATION=yes UCX_WARN_UNUSED_ENV_VARS=n
    export OMPI_MCA_rmaps_base_oversubscribe=1
    if [ "$(id -u)" = 0 ]; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi

    cpus=$(getconf _NPROCESSORS_ONLN)
    other=$((cpus > 1 ? 1 : 0))
    port=$((20000 + $$ % 20000))
    failed=0
}

# The caller may have more to tidy up: it redefines this
bench_more_cleanup() { :; }

bench_cleanup() {
    bench_more_cleanup
    rm -rf "$work"
}

# compile_ucx NAME, compile_mpi NAME: NAME.c here to NAME in the work directory
compile_ucx() {
    # shellcheck disable=SC2046
    cc -std=gnu11 -D_GNU_SOURCE -O2 -o "$work/$1" "$here/$1.c" \
        $(pkg-config --cflags --libs ucx) || die "cannot compile $1.c"
}

compile_mpi() {
    mpicc.openmpi -std=gnu11 -D_GNU_SOURCE -O2 -o "$work/$1" "$here/$1.c" ||
        die "cannot compile $1.c"
}

# with CONTESTANT COMMAND...: its environment. verbs is UCX's own rc_verbs on
# the emulated RNIC, through the preloaded door; prereg is nprdma that registers
# what is mapped ahead of its use; never, lazy and strict are nprdma with that
# UCX_NPRDMA_REVOKE.
with() {
    who=$1
    shift
    case $who in
    nprdma) UCX_TLS=nprdma "$@" ;;
    prereg) UCX_TLS=nprdma UCX_NPRDMA_PREREG=y "$@" ;;
    never|lazy|strict) UCX_TLS=nprdma UCX_NPRDMA_REVOKE=$who "$@" ;;
    tcp) UCX_TLS=tcp "$@" ;;
    verbs) LD_PRELOAD=$door UCX_TLS=rc_verbs,ud_verbs "$@" ;;
    esac
}

# with_written CONTESTANT COMMAND...: as with(), and the C library writes the
# buffers that it gives to UCX. For most of its tests ucx_perftest does not. Pages
# that nobody has written are all one page of zeroes, which is always in the
# cache, but for who pins them: his are real.
with_written() {
    who=$1
    shift
    with "$who" env UCX_ALLOC_PRIO=heap UCX_NPRDMA_ALLOC=heap \
        UCX_RC_VERBS_ALLOC=heap UCX_TCP_ALLOC=heap MALLOC_PERTURB_=85 "$@"
}

# perftest CONTESTANT FIELD ARG...: one ucx_perftest run between two processes
# on two CPUs; prints one field of its CSV line
perftest() {
    who=$1 field=$2
    shift 2
    port=$((port + 1))
    with_written "$who" timeout 120 ucx_perftest -c $other -p $port \
        >"$work/server" 2>&1 &
    server=$!
    tries=0
    until with_written "$who" timeout 120 ucx_perftest -c 0 -p $port \
            -f -v "$@" 127.0.0.1 >"$work/client" 2>"$work/errors"; do
        tries=$((tries + 1))
        if [ $tries -ge 50 ] || ! kill -0 $server 2>/dev/null; then
            cat "$work/server" "$work/errors" >&2
            die "ucx_perftest $* over $who failed"
        fi
        sleep 0.1
    done
    wait $server || :
    awk -F, -v f="$field" '/^ *[0-9]/ { print $f }' "$work/client" | tail -n 1
}

# ucx_program CONTESTANT NAME FIELD ARG...: a program that compile_ucx made
ucx_program() {
    who=$1 name=$2 field=$3
    shift 3
    with "$who" timeout 300 "$work/$name" "$@" 2>"$work/errors" \
        >"$work/out" || {
        cat "$work/errors" >&2
        die "$name $* over $who failed"
    }
    out_value "$field"
}

# out_value FIELD: of the last run, from a line "FIELD VALUE FIELD VALUE ..."
out_value() { sed -n "s/.*\b$1 \([0-9.]*\).*/\1/p" "$work/out"; }

# mpi_program CONTESTANT RANKS NAME ARG...: one that compile_mpi made. If there
# are more ranks than CPUs, each CPU has its share of them from the beginning:
# they never sleep, and then the kernel may leave three of four, or all, on one
# of two for a whole run, whichever contestant's it is.
mpi_program() {
    who=$1 ranks=$2 name=$3 bind=
    shift 3
    [ "$ranks" -le "$cpus" ] ||
        bind='--bind-to core:if-supported,overload-allowed'
    # shellcheck disable=SC2086
    with "$who" timeout 300 mpirun.openmpi -np "$ranks" $bind "$work/$name" \
        "$@" 2>"$work/errors" || {
        cat "$work/errors" >&2
        die "$name $* over $who failed"
    }
}

median() {
    sort -g "$1" | awk '{ v[NR] = $1 } END {
        if (NR % 2) print v[(NR + 1) / 2]
        else print (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

# turns COMMAND CONTESTANT...: COMMAND CONTESTANT, in turns; the values of each
# go to a file of its name. Each second time the last one begins.
take_turns() {
    command=$1
    shift
    forth=$* back=
    for who in "$@"; do
        : >"$work/values.$who"
        back="$who $back"
    done
    turn=0
    while [ $turn -lt "$turns" ]; do
        [ $((turn % 2)) -eq 0 ] && order=$forth || order=$back
        for contestant in $order; do
            $command "$contestant" >>"$work/values.$contestant"
        done
        turn=$((turn + 1))
    done
}

# take_more_turns: as take_turns, of what is close to its limit: how sure a
# median is depends on how many there are
take_more_turns() {
    asked=$turns turns=$((4 * turns + 1))
    take_turns "$@"
    turns=$asked
}

# paired A B: the ratio A : B of each turn, into $work/values.ratio
paired() {
    paste "$work/values.$1" "$work/values.$2" |
        awk '{ printf "%.3f\n", $1 / $2 }' >"$work/values.ratio"
}

# spread FILE: between which values half of them are, and how many there are
spread() {
    sort -g "$1" | awk '{ v[NR] = $1 } END {
        q = int((NR + 3) / 4)
        printf "half of %d turns in %s to %s", NR, v[q], v[NR + 1 - q] }'
}

# verdict NAME VALUE RELATION LIMIT [REMARK]
verdict() {
    word=ok
    awk -v v="$2" -v l="$4" -v r="$3" \
        'BEGIN { exit !(r == "<=" ? v + 0 <= l + 0 : v + 0 >= l + 0) }' || {
        word=MISSED
        [ $limits = no ] || failed=$((failed + 1))
    }
    printf '  %-52s %10s   (%s %s) %s\n' "$1" "$2" "$3" "$4" \
        "$word${5:+; $5}"
}

note() { printf '  %-52s %10s\n' "$1" "$2"; }

# ratio A B RELATION LIMIT UNIT: medians of both, and of the turns' ratios
ratio() {
    a=$(median "$work/values.$1") b=$(median "$work/values.$2")
    paired "$1" "$2"
    verdict "$1 : $2  ($a : $b $5)" "$(median "$work/values.ratio")" \
        "$3" "$4" "$(spread "$work/values.ratio")"
}

# bench_end LINE...
bench_end() {
    cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
    echo
    echo "$turns turns each on $cpus CPUs (${cpu:-unknown}), $(uname -sr)."
    echo "Again: contrib/$me --prefix $prefix --turns $turns $*"
    [ $failed -eq 0 ] || { echo "$me: $failed limits MISSED"; exit 1; }
}
