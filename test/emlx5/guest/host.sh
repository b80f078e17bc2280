# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# For scripts on the host that start guests with emulated mlx5 functions: sourced.

here=$(cd "$(dirname "$0")" && pwd)
rig=$(cd "$here/../../guest" && pwd)

# model_begins DIRECTORY COUNT OPTION...: starts the program EMLX5 with COUNT
# sockets DIRECTORY/port1 and so on. Sets "model" to its PID. Skips if QEMU has no
# vfio-user-pci.
model_begins() {
    local work=$1 count=$2 sockets=() i machine libraries
    shift 2
    [ -x "${EMLX5:-}" ] || { echo "EMLX5='${EMLX5:-}' is no program"; exit 125; }
    machine=$("$rig/machine") || {
        i=$?
        echo "$machine"
        exit $i
    }
    libraries=$machine/usr/lib/x86_64-linux-gnu
    QEMU_MODULE_DIR=$libraries/qemu "$machine/lib64/ld-linux-x86-64.so.2" \
        --library-path "$libraries" "$machine/usr/bin/qemu-system-x86_64" \
        -device help >"$work/devices" 2>&1
    grep -q '"vfio-user-pci"' "$work/devices" || {
        echo "SKIPPED: QEMU in $machine has no vfio-user-pci (10.1 has it)"
        exit 77
    }
    for i in $(seq "$count"); do
        sockets+=("$work/port$i")
    done
    "$EMLX5" "$@" "${sockets[@]}" >"$work/log" 2>&1 &
    model=$!
    for _ in $(seq 100); do
        [ ! -S "$work/port$count" ] || return 0
        sleep 0.1
    done
    cat "$work/log"
    exit 125
}
