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

# both NAME COMMAND...: a server on mlx5_0 and its client on mlx5_1, where the
# program's option for the device is -d
both() {
    echo "$*"
    "$@" -d mlx5_0 >/tmp/server.log 2>&1 &
    server=$!
    await 30 listens || fail "no server: $(cat /tmp/server.log)"
    timeout 60 "$@" -d mlx5_1 127.0.0.1 >/tmp/client.log 2>&1 ||
        fail "client of $*: $(cat /tmp/client.log /tmp/server.log)"
    wait $server || fail "server of $*: $(cat /tmp/server.log)"
}

listens() { ss -ltn | grep -q ':18515 '; }
