# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# For scripts in a guest with emulated mlx5 functions: . setup.sh

. "$NPRDMA_SRC/test/guest/lib.sh"

# mlx5_up N: loads the drivers and waits until N ports are active
mlx5_up() {
    modprobe mlx5_ib && modprobe ib_uverbs || fail "no drivers"
    await 60 mlx5_are_active "$1" || {
        dmesg | grep -i mlx5 | tail -n 20
        fail "not $1 active ports"
    }
    ulimit -l unlimited
}

mlx5_are_active() {
    [ "$(ibv_devinfo 2>/dev/null | grep -c PORT_ACTIVE)" = "$1" ]
}

# module_needed: skips without nprdma.ko, and sets what the transport needs here.
# A view costs QEMU a mapping for each page, and it has 65535 of them.
module_needed() {
    [ -f "$NPRDMA_KMOD/nprdma.ko" ] || skip "no $NPRDMA_KMOD/nprdma.ko"
    export UCX_NPRDMA_EMULATION=no UCX_NPRDMA_TIMEOUT=2s
    export UCX_NPRDMA_INJECT=region_size:4m
}

# The module takes the caching mode of QEMU's IOMMUs as a test only
module_up() {
    insmod "$NPRDMA_KMOD/nprdma.ko" allow_caching_mode=1 allow_amd=1 ||
        fail "nprdma.ko cannot be loaded"
    await 10 test -c /dev/nprdma || fail "no /dev/nprdma"
}

# It has no objects left, else it stays
module_down() {
    rmmod nprdma || fail "nprdma.ko cannot be unloaded"
}

# both COMMAND...: a server on mlx5_0 and its client on mlx5_1, where the
# program's option for the device is -d
both() {
    echo "$*"
    "$@" -d mlx5_0 >/tmp/server.log 2>&1 &
    server=$!
    await 30 listens || fail "no server: $(cat /tmp/server.log)"
    timeout 60 "$@" -d mlx5_1 127.0.0.1 >/tmp/client.log 2>&1 || {
        kill $server 2>/dev/null
        fail "client of $*: $(cat /tmp/client.log /tmp/server.log)"
    }
    wait $server || fail "server of $*: $(cat /tmp/server.log)"
}

listens() { ss -ltn | grep -q ':18515 '; }
