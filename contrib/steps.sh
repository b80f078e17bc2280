# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# Shared by contrib/quickstart and contrib/check, which source it. They set top
# (source tree), work (build trees and logs), me (their own name), and source (the
# tree of UCX that was given, or nothing).

# Packages to build, install and use nprdma with Open MPI
PACKAGES_BUILD="gcc libc6-dev make autoconf automake libtool pkgconf dpkg-dev
    ca-certificates libucx-dev ucx-utils libibverbs-dev openmpi-bin
    libopenmpi-dev gnuplot-nox man-db python3 git
    systemtap-sdt-dev"

# Additional packages for the tests
PACKAGES_CHECK="g++ ccache cmake libgtest-dev libibverbs1 ibverbs-utils
    librdmacm-dev perftest clang clang-tidy cppcheck zsh dash gnupg
    environment-modules
    mpich libmpich-dev xz-utils numactl libnuma-dev procps groff shellcheck
    spin kmod cpio"

# If the archive does not have these, their tests are skipped, visibly
PACKAGES_OPTIONAL="libclang-rt-dev python3-mpi4py sparse bpftrace libjemalloc2
    libtcmalloc-minimal4 patchelf g++-aarch64-linux-gnu valgrind redis-server
    memcached python3-numpy sqlite3 nbdkit-plugin-dev python3-libnbd"

# Programs and libraries over nprdma, for contrib/check --full
PACKAGES_CONSUMERS="lammps libfabric-bin gfortran meson ninja-build libabsl-dev
    libasio-dev libgmock-dev pybind11-dev libtomlplusplus-dev"

# Roots of Debian, and an image of them, for the tests of packages
PACKAGES_ROOTS="mmdebstrap debian-archive-keyring util-linux buildah"

step_started=$(date +%s)

elapsed() {
    s=$(($(date +%s) - ${1:-$step_started}))
    printf '%d:%02d' $((s / 60)) $((s % 60))
}

say() { printf '%s: [%s] %s\n' "$me" "$(elapsed)" "$*"; }

# die MESSAGE HINT: one line with the failure, one with the remedy
die() {
    printf '%s: error: %s\n' "$me" "$1" >&2
    [ -z "${2:-}" ] || printf '%s: what to do: %s\n' "$me" "$2" >&2
    exit 1
}

# run_logged NAME COMMAND...: the output goes to $work/logs/NAME.log; a dot
# every ten seconds shows that it is running. Returns the command's exit code.
run_logged() {
    name=$1
    shift
    log=$work/logs/$name.log
    mkdir -p "$work/logs"
    began=$(date +%s)
    "$@" >"$log" 2>&1 </dev/null &
    pid=$!
    ticks=0
    while kill -0 $pid 2>/dev/null; do
        sleep 1
        ticks=$((ticks + 1))
        [ $((ticks % 10)) -ne 0 ] || printf '.'
    done
    [ $ticks -lt 10 ] || printf ' '
    wait $pid
}

# required NAME HINT COMMAND...: a step that the rest depends on
required() {
    name=$1 hint=$2
    shift 2
    if run_logged "$name" "$@"; then
        printf 'done (%s)\n' "$(elapsed "$began")"
    else
        printf 'FAILED (%s)\n' "$(elapsed "$began")"
        tail -n 25 "$log" | sed 's/^/    /' >&2
        die "$name failed; all of its output is in $log" "$hint"
    fi
}

announce() { printf '%s: [%s] %s ... ' "$me" "$(elapsed)" "$*"; }

# Those that are not installed, nor provided by one that is: Debian 13 has some
# libraries under another name
missing_packages() {
    installed=" $(dpkg-query -W \
        -f '${db:Status-Abbrev},${Package},${Provides}\n' | grep '^ii' |
        tr ',' '\n' | sed 's/^ *//; s/ .*//' | tr '\n' ' ')"
    for p in "$@"; do
        case $installed in
        *" $p "*) ;;
        *) printf '%s ' "$p" ;;
        esac
    done
}

# install_packages NAME...: installs missing ones
install_packages() {
    command -v dpkg-query >/dev/null ||
        die "this system has no dpkg: it is made for Debian and Ubuntu" \
            "install the equivalents of these packages: $*"
    announce "packages"
    missing=$(missing_packages "$@")
    if [ -z "$missing" ]; then
        echo "all there"
        return 0
    fi
    sudo=
    if [ "$(id -u)" != 0 ]; then
        sudo=sudo
        command -v sudo >/dev/null ||
            die "packages are missing and neither root nor sudo is at hand" \
                "as root: apt-get install $missing"
    fi
    echo "installing $missing"
    # sudo may ask for the password before the output goes to a file
    [ -z "$sudo" ] || sudo -v
    announce "package lists"
    required apt-update "check the network and /etc/apt" \
        $sudo apt-get -q -o DPkg::Lock::Timeout=120 update
    # Before what takes minutes. Without lists apt does not know which UCX it is.
    case " $missing" in *" libucx-dev "*)
        [ -n "$source" ] || "$top/contrib/ucx-headers" --in-reach || exit ;;
    esac
    announce "package installation"
    # shellcheck disable=SC2086
    required apt-install "as root: apt-get install $missing" \
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
        -o DPkg::Lock::Timeout=120 install --no-install-recommends $missing
}

# fetch_headers [--source DIR]
fetch_headers() {
    announce "UCX internal headers"
    required ucx-headers "see the message above" "$top/contrib/ucx-headers" "$@"
}

# Creates ./configure, if one of its sources is newer
generate() {
    if [ -x "$top/configure" ] && [ -z "$(find "$top/configure.ac" \
            "$top/config/m4" "$top/src" "$top/npemu" "$top/etc" "$top/doc" \
            "$top/Makefile.am" \( -name '*.ac' -o -name '*.m4' -o \
            -name Makefile.am \) -newer "$top/configure" -print |
            grep -v '/lib*tool*\|/lt[a-z~]*\.m4')" ]; then
        say "configure is up to date"
        return 0
    fi
    announce "autogen.sh"
    required autogen "see the message above" "$top/autogen.sh"
}

# build NAME PREFIX OPTION...: configures and builds in $work/NAME. Configures
# again only if the options or configure have changed.
build() {
    tree=$work/$1
    shift
    options="--prefix=$*"
    mkdir -p "$tree"
    if [ ! -f "$tree/config.status" ] ||
       [ "$top/configure" -nt "$tree/config.status" ] ||
       [ "$(cat "$tree/.options" 2>/dev/null)" != "$options" ]; then
        announce "configure (${tree##*/})"
        prefix_option=--prefix=$1
        shift
        required "configure-${tree##*/}" "see the message above" \
            sh -c 'cd "$1" && shift && "$@"' - "$tree" \
            "$top/configure" "$prefix_option" "$@"
        printf '%s' "$options" >"$tree/.options"
    fi
    announce "make (${tree##*/})"
    required "make-${tree##*/}" "see the message above" \
        make -C "$tree" -j "$(nproc)"
}

# The files of the source tree, without what was built there
tree_files() {
    (cd "$top" && { git ls-files -co --exclude-standard 2>/dev/null || find . \
        \( -path ./_build -o -path ./_install -o -path ./.git \) -prune -o \
        -type f -print; } | while read -r f; do
            [ ! -e "$f" ] || printf '%s\n' "$f"
        done | sort)
}

# Open MPI runs as root only with both variables
allow_root() {
    if [ "$(id -u)" = 0 ]; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
}
