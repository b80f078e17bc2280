# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# For scripts that run in the guest: . "$NPRDMA_SRC/test/guest/lib.sh"

fail() {
    echo "FAILED: $*"
    exit 1
}

skip() {
    echo "SKIPPED: $*"
    exit 77
}

# await SECONDS COMMAND...: repeats it until it succeeds; fails after that time
await() {
    patience=$(($(date +%s) + $1))
    shift
    until "$@"; do
        [ "$(date +%s)" -lt $patience ] || return 1
        sleep 0.1
    done
}

# as_user COMMAND...: runs it without any capability
as_user() {
    setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all \
        --inh-caps=-all env HOME=/tmp "$@"
}

# amd_waits: whether this Linux 6.12 waits for flushes of AMD's IOMMU; others do
amd_waits() {
    case $(uname -r) in
    6.12.7[5-9]* | 6.12.[89][0-9]* | 6.12.100*) return 1 ;;
    esac
}

# swap_on_zram MIB: swapped pages are compressed in memory at once. Once is enough.
swap_on_zram() {
    ! grep -q zram /proc/swaps || return 0
    modprobe zram num_devices=1 || fail "no zram"
    echo "$1M" >/sys/block/zram0/disksize
    mkswap /dev/zram0 >/dev/null && swapon -p 10 /dev/zram0 ||
        fail "no swap on zram"
}

# in_memcg MIB COMMAND...: runs it with this much memory; the rest goes to swap
in_memcg() {
    group=/sys/fs/cgroup/limit.$$
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control &&
        mkdir -p $group && echo "${1}M" >$group/memory.max ||
        fail "no memory limit of $1 MiB"
    shift
    (
        echo 0 >$group/cgroup.procs
        exec "$@"
    )
}

# take_memory: from now on repeatedly tells the kernel to take 4 MiB of memory
# from the processes in control group $taken_from, anonymous rather than mapped
# file pages. They go to swap, in the middle of operations. $taker is the
# process that does it.
taken_from=/sys/fs/cgroup/taken_from
take_memory() {
    sysctl -qw vm.swappiness=200
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control &&
        mkdir $taken_from || fail "no control group"
    while sleep 0.02; do
        # The write fails if less can be taken
        echo 4M 2>/dev/null >$taken_from/memory.reclaim
    done &
    taker=$!
}

# rxe_up: creates device rxe0 on a network device of its own. GID 1 is the one
# with the IP address. The network device's MTU gives rxe0 an MTU of 4096.
rxe_up() {
    modprobe rdma_rxe && modprobe rdma_ucm && modprobe dummy numdummies=0 ||
        fail "no rdma_rxe"
    ip link add rxenet type dummy && ip link set rxenet mtu 4200 up &&
        ip addr add 10.77.0.1/24 dev rxenet &&
        rdma link add rxe0 type rxe netdev rxenet || fail "no device rxe0"
    await 10 test -c /dev/infiniband/uverbs0 || fail "no /dev/infiniband/uverbs0"
    await 10 grep -q ffff:0a4d /sys/class/infiniband/rxe0/ports/1/gids/1 ||
        fail "no GID 1 of rxe0"
    ulimit -l unlimited
}
