# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# Source packages of the distribution; to be sourced. Works on private lists and
# caches, and neither needs nor changes the system's.

# shellcheck shell=sh

# Prints, as deb-src, the package sources that match the pattern $1
deb_src_entries() {
    for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -r "$f" ] || continue
        sed -n 's/^deb\(-src\)\{0,1\}[[:space:]]/deb-src /p' "$f" |
            grep -e "$1" >>"$2/sources.list.d/extra.list" || :
    done
    for f in /etc/apt/sources.list.d/*.sources; do
        [ -r "$f" ] || continue
        awk -v uri="$1" 'BEGIN { RS = ""; ORS = "\n\n" } $0 ~ uri' "$f" |
            sed 's/^Types:.*/Types: deb-src/' \
            >"$2/sources.list.d/${f##*/}"
    done
}

# apt_source DIR PACKAGE VERSION BINARY: fetches, checks and unpacks a source
# package into DIR/src, from the archive that the binary package BINARY comes
# from, if apt still knows it. The log is DIR/log.
apt_source() {
    mkdir -p "$1/etc/sources.list.d" "$1/lists/partial" \
             "$1/cache/archives/partial" "$1/src"
    uri=$(apt-get --print-uris download "$4" 2>/dev/null |
          sed -n "s,^'\([^']*\)/pool/.*,\1,p" | head -n 1)
    deb_src_entries "${uri:-.}" "$1/etc"

    apt_dir=$1 apt_package=$2=$3
    set -- -q -y -o Dir::Etc::SourceList=/dev/null \
        -o Dir::Etc::SourceParts="$1/etc/sources.list.d" \
        -o Dir::State::Lists="$1/lists" -o Dir::Cache="$1/cache" \
        -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1
    apt-get "$@" update >"$apt_dir/log" 2>&1 || :
    (cd "$apt_dir/src" &&
     apt-get "$@" source "$apt_package" >>"$apt_dir/log" 2>&1)
}
