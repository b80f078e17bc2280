# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# Roots of Debian releases, made and entered; to be sourced after steps.sh. The
# caller sets release (its name) and root (its directory, in $roots).

# shellcheck shell=sh
roots=${NPRDMA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nprdma}/distro

# A source tree of UCX on this machine, which the root has as /mnt/DISTRO_SOURCE
export NPRDMA_DISTRO_SOURCE=

# The mirror of Debian that this machine's apt uses
mirror() {
    suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    apt-get --print-uris update 2>/dev/null |
        sed -n "s,^'\(.*[^/]\)/*/dists/$suite/main/binary-.*,\1,p" | head -n 1
}

# What of this machine's apt reaches its mirror: proxies, and whether the mirror
# may be older than Debian lets one be
apt_settings() {
    apt-config dump |
        grep -iE '^Acquire::([a-z]*::.*Proxy|Check-Valid-Until) ' || :
}

make_root() {
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -f $keyring ] ||
        die "no $keyring" "apt-get install debian-archive-keyring"
    url=${NPRDMA_MIRROR:-$(mirror)}
    [ -n "$url" ] || die "apt has no mirror of Debian here" \
        "set NPRDMA_MIRROR to the address of one"
    rm -rf "$root" "$root.new"
    apt_settings >"$work/apt.conf"
    announce "root of $release (once, about 1 minute)"
    required mmdebstrap "is there a release $release? See $work/logs" \
        mmdebstrap --mode=root --variant=minbase --format=directory \
        --aptopt="$work/apt.conf" \
        --include=ca-certificates "$release" "$root.new" \
        "deb [signed-by=$keyring] $url $release main"
    mv "$root.new" "$root"
}

# The settings that reach the network from here
copy_settings() {
    rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap"
    apt_settings >"$root/etc/apt/apt.conf.d/90machine"
    for f in resolv.conf hosts; do
        [ ! -e /etc/$f ] || cp -L /etc/$f "$root/etc/$f"
    done
}

# The sources, without what was built from them here. Files keep their times, so
# that what was built in the root stays up to date.
copy_tree() {
    mkdir -p "$root/nprdma"
    tree_files >"$root/files.new"
    [ ! -f "$root/files" ] ||
        comm -23 "$root/files" "$root/files.new" |
            (cd "$root/nprdma" && xargs -r -d '\n' rm -f --)
    tar -C "$top" -T "$root/files.new" -cf - | tar -C "$root/nprdma" -xpf - \
        --no-same-owner
    mv "$root/files.new" "$root/files"
}

# enter COMMAND...: in the root, with processes, shared memory and devices of its
# own, so that the emulated NIC of other processes is not met
enter() {
    unshare --mount --pid --ipc --fork --kill-child \
        sh "$top/contrib/distro-enter" "$root" "$@" 9>&-
}
