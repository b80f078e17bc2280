# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=sh
#
# suite.sh: what the runs of consumers share. It is read by *-run, whose first
# argument is the PREFIX of nprdma. A suite of another project runs over UCX's
# TCP transport, over nprdma, and over nprdma with pages that are absent at
# random ("evicted"). Each test that passes over TCP must pass over the others:
#
#     . "$(dirname "$0")/suite.sh"
#     suite_source MPICH v4.0.2
#     suite_build make_it
#     for over in tcp nprdma evicted; do
#         suite_run $over COMMAND...
#         suite_carried RANKS BYTES
#         awk '...' "$dir/out.$over" >"$dir/tests.$over"
#     done
#     suite_compare 200
#
# NPRDMA_<NAME>: the suite's sources, a directory or a repository of git
# limit: seconds of one run

set -u
me=$(basename "$0")
prefix=$1
limit=1000
PATH=$PATH:/usr/sbin:/sbin

dir=$(mktemp -d "${TMPDIR:-/tmp}/nprdma-consumer.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT

fail() {
    echo "$me: FAILED: $*"
    exit 1
}

skip() {
    echo "SKIPPED: $*"
    exit 77
}

# need PROGRAM-OR-FILE PACKAGE
need() {
    command -v "$1" >/dev/null || [ -e "$1" ] ||
        skip "$1 is not installed ($2)"
}

[ -r "$prefix/bin/nprdma-run" ] || fail "nothing installed in $prefix"

# suite_source NAME COMMIT-OR-TAG: copies the sources in $NPRDMA_NAME to
# $source, once; $built is for what is built of them. A directory that is no
# repository is taken as it is.
suite_source() {
    eval "from=\${NPRDMA_$1:-}"
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/nprdma/consumers/$1
    mkdir -p "$cache" || exit 1
    # Until the end of the run: of two runs one builds
    exec 9>"$cache/lock"
    flock 9
    GIT_DIR=$cache/git
    export GIT_DIR
    if [ -z "$from" ]; then
        skip "NPRDMA_$1 names no source tree or repository of $1"
    elif git init -q && timeout 600 git fetch -q --depth 1 -- "$from" "$2" \
            >"$dir/fetch" 2>&1; then
        key=$(git rev-parse FETCH_HEAD)
        copy="git --work-tree=$cache/new checkout -q -f FETCH_HEAD -- ."
    elif [ -d "$from" ] && [ ! -e "$from/HEAD" ] && [ ! -e "$from/.git" ]; then
        key=$(cd "$from" && find . -type f -printf '%P %s %T@\n' | sort |
            sha256sum | cut -c 1-40)
        copy="cp -a $from/. $cache/new"
    else
        cat "$dir/fetch"
        skip "NPRDMA_$1=$from has no $2, or is out of reach"
    fi
    source=$cache/$key/source built=$cache/$key/build
    if [ ! -d "$source" ]; then
        rm -rf "$cache/new"
        mkdir -p "$cache/new" "$cache/$key"
        $copy || fail "$copy"
        mv "$cache/new" "$source" || exit 1
    fi
    unset GIT_DIR
    echo "$me: $1 $2 ($key)"
}

# suite_build FUNCTION: builds in $built, once; FUNCTION runs there, with set -e
suite_build() {
    [ ! -e "$built/.complete" ] || return 0
    rm -rf "$built"
    mkdir -p "$built"
    # As a program of its own: set -e is without effect in a condition
    (set -e; cd "$built"; "$1") >"$built.log" 2>&1
    # shellcheck disable=SC2181
    [ $? = 0 ] || {
        tail -n 40 "$built.log"
        fail "cannot build $source, see $built.log"
    }
    touch "$built/.complete"
}

# suite_run OVER COMMAND...: with its output in $dir/out.$OVER and
# $dir/err.$OVER; returns its status. What nprdma-run finds wrong with a job is
# an end, whatever the command says of its tests.
suite_run() {
    over=$1
    shift
    began=$(date +%s)
    rm -f "$dir"/stats.*
    (
        . "$prefix/etc/nprdma.env"
        export OMPI_MCA_rmaps_base_oversubscribe=1
        export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        # What UCX says of a transport is no result
        export UCX_WARN_UNUSED_ENV_VARS=n UCX_LOG_FILE=stderr
        export UCX_NPRDMA_STATS="file:$dir/stats.%p"
        export OMP_NUM_THREADS=1
        unset LD_PRELOAD
        case $over in
        tcp)
            unset UCX_PLUGIN_PATH UCX_SOCKADDR_TLS_PRIORITY
            export UCX_TLS=tcp,self
            exec timeout -k 10 "$limit" "$@"
            ;;
        evicted)
            export UCX_NPRDMA_INJECT=fault_rate:0.02,fault_seed:20260
            ;;
        esac
        export UCX_TLS=nprdma UCX_NPRDMA_EMULATION=yes
        exec timeout -k 10 "$limit" "$prefix/bin/nprdma-run" --require "$@"
    ) >"$dir/out.$over" 2>"$dir/err.$over"
    status=$?
    echo "$me: $(basename "$1") took $(($(date +%s) - began)) s over $over"
    ! grep '^nprdma-run: error:' "$dir/err.$over" || fail "not over nprdma"
    return $status
}

# suite_carried RANKS BYTES: RANKS processes of the last run used nprdma,
# which carried as much at least, and repaired pages if they are absent at
# random. Over TCP none did.
suite_carried() {
    if [ "$over" = tcp ]; then
        [ -z "$(ls "$dir"/stats.* 2>/dev/null)" ] ||
            fail "the run over tcp used nprdma"
        return 0
    fi
    cat "$dir"/stats.* 2>/dev/null | awk -v me="$me" -v over="$over" \
        -v ranks="$1" -v least="$2" '
        /^# nprdma/ { process = $NF }
        $1 == "am_rx" && $2 > 0 { used[process] }
        $1 ~ /^(am_bytes_tx|put_bytes|get_bytes)$/ { bytes += $2 }
        $1 ~ /^(nic_put|nic_get)$/ { zcopy += $2 }
        $1 ~ /^suspect_(lines|states|local)$/ { absent += $2 }
        END {
            count = 0
            for (process in used) { count++ }
            printf "%s: %s carried %.0f bytes of %d processes, %d zero-copy " \
                   "operations, %d pages or lines were absent\n", me, over,
                   bytes, count, zcopy, absent
            exit !(count >= ranks && bytes >= least &&
                   (absent > 0 || over != "evicted"))
        }' || fail "expected $2 bytes of $1 ranks over $over"
}

# suite_compare LEAST: compares $dir/tests.{tcp,nprdma,evicted}, which have
# lines "pass TEST" and "fail TEST"; at least so many tests must pass over each
suite_compare() {
    awk -v me="$me" -v least="$1" '
        FNR == 1 { over = FILENAME; sub(/.*\./, "", over) }
        $1 == "pass" || $1 == "fail" {
            test = substr($0, 6)
            all[test]
            if (($1 == "fail") || !((over, test) in result)) {
                result[over, test] = $1
            }
        }
        END {
            split("tcp nprdma evicted", runs)
            for (test in all) {
                if (result["tcp", test] != "pass") {
                    printf "%s: fails over tcp as well: %s\n", me, test
                }
                for (i = 1; i <= 3; i++) {
                    if (result[runs[i], test] == "pass") {
                        passed[i]++
                    } else if (result["tcp", test] == "pass") {
                        printf "%s: passes over tcp, not over %s: %s\n", me,
                               runs[i], test
                        lost++
                    }
                }
            }
            for (i = 1; i <= 3; i++) {
                few += (passed[i] < least)
                printf "%s: %s: %d tests of %d pass\n", me, runs[i],
                       passed[i], length(all)
            }
            exit (lost > 0 || few > 0)
        }' "$dir/tests.tcp" "$dir/tests.nprdma" "$dir/tests.evicted" || {
        trap - EXIT
        fail "a test is lost, or fewer than $1 pass; what they print is in $dir"
    }
}
