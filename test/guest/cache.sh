# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# What the rig keeps between runs, and the apt that fetches it; sourced.
#
#   $cache/root        the guest's file system: packages of Debian 12, unpacked,
#                      and the modules of every kernel in usr/lib/modules
#   $cache/machine     QEMU, virtiofsd and their libraries
#   $cache/kernel/K    version, vmlinuz
#   $cache/headers/K   headers for building modules
#   $cache/builder     Debian 13 with the headers of 7.2 and their compiler
#   $cache/apt         lists and settings of an apt for the rig alone
#
# Packages are unpacked and never configured. That needs no root, no chroot and
# no mounts, so it works in any container, and takes seconds. The host's own
# root would be faster, but a kernel under test must not be able to destroy it,
# and the host's programs may change during a test.
#
# Kernels of arm64 have a cache of their own, in which the guest's packages are
# of arm64, and those that run on the host are not.

suite=bookworm
cache=${XDG_CACHE_HOME:-$HOME/.cache}/nprdma/guest
me=guest/${0##*/}
arch=amd64

# cache_of KERNEL: sets $cache and $arch
cache_of() {
    case $1 in
    *-arm64) arch=arm64 cache=$cache-arm64 ;;
    esac
}

say() { printf '%s: %s\n' "$me" "$*" >&2; }

# die MESSAGE: an error of the rig itself
die() {
    say "error: $*"
    exit 125
}

# unavailable MESSAGE: the machine lacks something, which is a skip, not a
# failure
unavailable() {
    echo "SKIPPED: $*"
    exit 77
}

# Prints the mirror that this machine's apt uses for Debian 12, or nothing if it
# has none. apt's lists need not have been fetched.
mirror() {
    apt-get --print-uris update 2>/dev/null |
        sed -n "s,^'\(.*[^/]\)/*/dists/$suite/main/binary-.*,\1,p" | head -n 1
}

# All files that apt reads and writes are elsewhere. Only the settings (proxies)
# are the machine's.
apt_setup() {
    export APT_CONFIG="$cache/apt/apt.conf"
    [ ! -f "$APT_CONFIG" ] || return 0
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -f "$keyring" ] || unavailable "no $keyring (debian-archive-keyring)"
    url=${NPRDMA_MIRROR:-$(unset APT_CONFIG; mirror)}
    [ -n "$url" ] ||
        unavailable "apt has no mirror of Debian 12 ($suite) here: set" \
                    "NPRDMA_MIRROR to the address of one"
    mkdir -p "$cache/apt/lists/partial" "$cache/apt/archives/partial" \
        "$cache/apt/none"
    : >"$cache/apt/status"
    for s in $suite $suite-updates $suite-backports trixie trixie-backports; do
        echo "deb [arch=$arch,amd64 signed-by=$keyring] $url $s main"
    done >"$cache/apt/sources.list"
    for s in $suite:900 $suite-updates:900 '*:100'; do
        printf 'Package: *\nPin: release n=%s\nPin-Priority: %s\n\n' \
            "${s%:*}" "${s#*:}"
    done >"$cache/apt/preferences"
    cat >"$APT_CONFIG.new" <<CONF
Dir::State "$cache/apt";
Dir::State::lists "$cache/apt/lists";
Dir::State::status "$cache/apt/status";
Dir::Cache "$cache/apt";
Dir::Cache::archives "$cache/apt/archives";
Dir::Etc::sourcelist "$cache/apt/sources.list";
Dir::Etc::sourceparts "$cache/apt/none";
Dir::Etc::preferences "$cache/apt/preferences";
Dir::Etc::preferencesparts "$cache/apt/none";
APT::Sandbox::User "root";
APT::Architecture "$arch";
APT::Architectures "$arch,amd64";
APT::Install-Recommends "false";
APT::Get::Assume-Yes "true";
CONF
    mv "$APT_CONFIG.new" "$APT_CONFIG"
}

# Refreshes the lists, once per process
apt_lists() {
    [ -z "${lists_are_fresh:-}" ] || return 0
    say "package lists"
    apt-get -q update >"$cache/apt/log" 2>&1 ||
        unavailable "no package lists: $(grep -m1 '^[EW]:' "$cache/apt/log")"
    lists_are_fresh=yes
}

# unpack DIR PACKAGE...: fetches these packages and unpacks them into DIR
unpack() {
    into=$1
    shift
    for p in "$@"; do
        (cd "$cache/apt/archives" && apt-get -q download "$p") \
            >"$cache/apt/log" 2>&1 ||
            unavailable "$p: $(grep -m1 '^[EW]:' "$cache/apt/log")"
        for deb in "$cache/apt/archives/$(printf %s "${p%%[:=]*}")"_*.deb; do
            extract "$deb" "$into"
        done
    done
}

# archives_of ARGUMENT...: the archives that "apt-get install ARGUMENT..." would
# fetch on a machine without packages; nothing if that is impossible
archives_of() {
    apt-get -q install --print-uris "$@" 2>"$cache/apt/log" |
        sed -n "s/^'.*' \([^ ]*\.deb\) .*/\1/p"
}

# unpack_all DIR WHAT ARGUMENT...: creates a file system with the packages that
# "apt-get install ARGUMENT..." would install on a machine without packages
unpack_all() {
    into=$1 what=$2
    shift 2
    say "$what"
    names=$(archives_of "$@")
    { [ -n "$names" ] && apt-get -q install --download-only "$@" \
        >"$cache/apt/log" 2>&1; } ||
        unavailable "$what: $(grep -m1 '^E:' "$cache/apt/log")"
    rm -rf "$into"
    mkdir -p "$into/usr"
    for d in bin sbin lib lib64; do
        mkdir "$into/usr/$d"
        ln -s "usr/$d" "$into/$d"
    done
    for name in $names; do
        extract "$cache/apt/archives/$name" "$into"
    done
}

# extract DEB DIR: keeps directories that are symbolic links in DIR, and removes
# the package
extract() {
    dpkg-deb --fsys-tarfile "$1" |
        tar -C "$2" --keep-directory-symlink -xp --no-same-owner ||
        die "$1 could not be unpacked into $2"
    rm "$1"
}

# One process at a time creates it, however many tests start at once
lock_cache() {
    mkdir -p "$cache" || unavailable "$cache cannot be made"
    exec 9>"$cache/lock"
    flock 9
}
