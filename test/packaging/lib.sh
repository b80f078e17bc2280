# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# For the tests of packages in roots of Debian; to be sourced by SCRIPT PACKAGES.
# PACKAGES is the directory that has them. The roots are kept: RELEASE-base as
# mmdebstrap makes it, and RELEASE-build, which has what packages are built with.

# shellcheck shell=sh
set -eu
me=${0##*/}
top=$(cd "$(dirname "$0")/../.." && pwd)
[ $# -eq 1 ] || { echo "Usage: $me PACKAGES" >&2; exit 2; }
packages=$1
work=$packages/work-$me

unavailable() { echo "SKIPPED: $*"; exit 77; }
fail() { echo "$me: FAILED: $*"; exit 1; }

[ "$(id -u)" = 0 ] || unavailable "a root file system is made by root only"
for tool in mmdebstrap unshare chroot flock; do
    command -v $tool >/dev/null || unavailable "no $tool here"
done
[ -f "$top/debian/control" ] || unavailable "this is a tarball, without debian/"

rm -rf "$work"
mkdir -p "$work/logs"
. "$top/contrib/steps.sh"
. "$top/contrib/distro-root.sh"
release=${NPRDMA_PACKAGING_RELEASE:-$(. /etc/os-release &&
    echo "${VERSION_CODENAME:-}")}
mkdir -p "$roots"
version=$(sed -n 's/^AC_INIT(\[nprdma\], \[\([0-9.]*\)\].*/\1/p' \
    "$top/configure.ac")

# Makes $root the root that is as mmdebstrap has made it. It is only copied.
base_root() {
    root=$roots/$release-base
    exec 8>"$root.lock"
    flock 8
    if [ ! -d "$root/etc" ]; then
        make_root
        copy_settings
    fi
    exec 8>&-
}

# Makes $root the root for builds, and waits for other tests that use it
lock_build_root() {
    root=$roots/$release-build
    exec 9>"$root.lock"
    flock 9
}

# Makes $root a copy of that, which the caller removes
fresh_root() {
    base_root
    cp -a "$root" "$work/root"
    root=$work/root
    copy_settings
    mkdir "$root/nprdma"
}

# in_root SCRIPT [ARGUMENT...]: a shell script in the root
in_root() { enter env DEBIAN_FRONTEND=noninteractive sh -euc "$@"; }

# as_user SCRIPT: the same as an ordinary user, with nothing set
as_user() {
    in_root 'id user >/dev/null 2>&1 || useradd -m -s /bin/sh user'
    enter runuser -l user -c "$1"
}

# Remote memory over npemu: a program gets pages back that have left
use_rmem() {
    as_user '
        set -e
        cd "$(mktemp -d)"
        export UCX_NPRDMA_EMULATION=yes
        head -c 32 /dev/urandom >token
        chmod 600 token
        nprdma-memd --size 64M --listen 127.0.0.1:0 --token token >memd &
        trap "kill $!" EXIT
        timeout 20 sh -c "until grep -q port memd; do sleep 0.1; done"
        port=$(sed -n "s/.* port \([0-9]*\).*/\1/p" memd)
        seq 300000 -1 1 >numbers
        timeout 60 rmem-run --server "127.0.0.1:$port" --token token --cache 4M \
            --stats sort -n --buffer-size=24M numbers 2>stats | tail -n 1 |
            grep -Fx 300000
        grep -E "fetched [1-9]" stats'
}

built() {
    [ -f "$packages/SHA256SUMS" ] ||
        fail "no packages in $packages: the test packaging.build makes them"
}
