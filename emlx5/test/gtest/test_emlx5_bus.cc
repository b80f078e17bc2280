/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The bus side: messages of vfio-user and PCI configuration space. */

#include "test_emlx5.h"

extern "C" {
#include "bus/emlx5_conn.h"
#include "bus/emlx5_irq.h"
}

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

class test_emlx5_bus_conn : public ::testing::Test {
protected:
    test_emlx5_bus_conn()
    {
        int fds[2];

        EXPECT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
        EXPECT_EQ(0, emlx5_conn_init(&m_conn));
        emlx5_conn_open(&m_conn, fds[0]);
        m_peer = fds[1];
    }

    ~test_emlx5_bus_conn()
    {
        emlx5_conn_cleanup(&m_conn);
        close(m_peer);
    }

    static std::vector<uint8_t> message(uint16_t id, uint32_t body)
    {
        emlx5_header_t header = {};
        std::vector<uint8_t> bytes(EMLX5_MESSAGE_HEADER + body, id);

        header.id   = id;
        header.size = bytes.size();
        emlx5_header_write(&header, bytes.data());
        return bytes;
    }

    void put(const std::vector<uint8_t> &bytes, int fd = -1)
    {
        char control[CMSG_SPACE(sizeof(int))] = {};
        struct iovec iov = {(void*)bytes.data(), bytes.size()};
        struct msghdr m  = {};

        m.msg_iov    = &iov;
        m.msg_iovlen = 1;
        if (fd >= 0) {
            m.msg_control    = control;
            m.msg_controllen = sizeof(control);
            struct cmsghdr *c = CMSG_FIRSTHDR(&m);
            c->cmsg_level     = SOL_SOCKET;
            c->cmsg_type      = SCM_RIGHTS;
            c->cmsg_len       = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(c), &fd, sizeof(fd));
        }
        ASSERT_EQ((ssize_t)bytes.size(), sendmsg(m_peer, &m, 0));
    }

    emlx5_conn_t m_conn;
    int          m_peer;
};

/* Two messages lie in the socket; the descriptor belongs to the second. */
TEST_F(test_emlx5_bus_conn, descriptor_of_the_second)
{
    int fd = eventfd(0, 0);

    put(message(1, 8));
    put(message(2, 8), fd);
    ASSERT_EQ(1, emlx5_conn_receive(&m_conn));
    EXPECT_EQ(1, m_conn.header.id);
    EXPECT_EQ(0u, m_conn.num_fds);
    emlx5_conn_discard(&m_conn);
    ASSERT_EQ(1, emlx5_conn_receive(&m_conn));
    EXPECT_EQ(2, m_conn.header.id);
    EXPECT_EQ(1u, m_conn.num_fds);
    close(fd);
}

/* An interrupt while QEMU has taken the descriptors away */
TEST(test_emlx5_bus_irq, pending)
{
    int fd = eventfd(0, EFD_NONBLOCK), copy = dup(fd);
    emlx5_irq_t irq;
    uint64_t value;

    emlx5_irq_init(&irq);
    emlx5_irq_raise(&irq, 3);
    emlx5_irq_set(&irq, 3, fd);
    ASSERT_EQ(8, read(copy, &value, 8));
    EXPECT_EQ(1u, value);
    emlx5_irq_raise(&irq, 3);
    ASSERT_EQ(8, read(copy, &value, 8));
    emlx5_irq_clear(&irq);
    emlx5_irq_raise(&irq, 3);
    EXPECT_EQ(-1, read(copy, &value, 8));
    close(copy);
}
