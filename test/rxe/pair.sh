# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# For scripts beside it, after test/guest/lib.sh

# pair_up: creates devices rxe0 and rxe1 on net0 and net1, which a switch with
# the ports port0 and port1 connects. The kernel would deliver packets between
# its own addresses internally. They go through the switch because routes by
# device precede the table of local addresses.
pair_up() {
    modprobe rdma_rxe && modprobe rdma_ucm || fail "no rdma_rxe"
    ip link add switch type bridge && ip link set switch up || fail "no bridge"
    ip rule add pref 9 lookup local && ip rule del pref 0 lookup local
    sysctl -qw net.ipv4.conf.all.rp_filter=0
    for i in 0 1; do
        ip link add net$i mtu 4200 type veth peer name port$i mtu 4200 &&
            ip link set port$i master switch up || fail "no net$i"
        sysctl -qw net.ipv4.conf.net$i.accept_local=1 \
            net.ipv4.conf.net$i.rp_filter=0
        ip addr add 10.77.0.$((i + 1))/32 dev net$i
        ip rule add pref $i oif net$i lookup 10$i
        net_up $i
        rdma link add rxe$i type rxe netdev net$i || fail "no device rxe$i"
    done
    for i in 0 1; do
        await 10 gid $i || fail "no GID 1 of rxe$i"
    done
    ulimit -l unlimited
}

# net_up 0|1: a device that was down has lost its routes
net_up() {
    ip link set net"$1" up &&
        ip route replace 10.77.0.$((2 - $1)) dev net"$1" table 10"$1" ||
        fail "net$1 does not go up"
}

# gid 0|1: whether GID 1 of rxe0 or rxe1 exists, the one with the IP address
gid() {
    grep -q ffff:0a4d "/sys/class/infiniband/rxe$1/ports/1/gids/1"
}
