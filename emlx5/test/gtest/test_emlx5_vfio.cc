/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* A function behind a socket, with a QEMU that the test plays: answers in any
 * order, errors, nonsense, silence. */

#include "test_emlx5.h"

extern "C" {
#include "bus/emlx5_loop.h"
}

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>

class test_emlx5_vfio : public ::testing::Test {
protected:
    enum { MEMORY = 64 << 10 };

    struct message {
        emlx5_header_t       header;
        std::vector<uint8_t> body;
    };

    test_emlx5_vfio() : m_loop(), m_memory(MEMORY)
    {
        emlx5_dma_config_t config = {};
        int fds[2];

        config.min_tlp       = 64;
        config.max_tlp       = 256;
        config.reorder_reads = 1;
        m_path = ::testing::TempDir() + "/emlx5." + std::to_string(getpid());
        EXPECT_EQ(0, emlx5_vfio_init(&m_vfio, &m_loop, m_path.c_str(), &config,
                                     1));
        emlx5_loop_add(&m_loop, &m_vfio);
        EXPECT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
        emlx5_vfio_plug(&m_vfio, fds[0]);
        m_peer = fds[1];
    }

    ~test_emlx5_vfio()
    {
        struct stat st;

        emlx5_vfio_cleanup(&m_vfio);
        EXPECT_NE(0, stat(m_path.c_str(), &st));
        if (m_peer >= 0) {
            close(m_peer);
        }
    }

    void send(uint16_t type, const std::vector<uint8_t> &body,
              uint32_t flags = 0, uint16_t id = 1, uint32_t error = 0)
    {
        std::vector<uint8_t> bytes(EMLX5_MESSAGE_HEADER);
        emlx5_header_t header = {};

        header.id    = id;
        header.type  = type;
        header.size  = EMLX5_MESSAGE_HEADER + body.size();
        header.flags = flags;
        header.error = error;
        emlx5_header_write(&header, bytes.data());
        bytes.insert(bytes.end(), body.begin(), body.end());
        ASSERT_EQ((ssize_t)bytes.size(),
                  ::send(m_peer, bytes.data(), bytes.size(), MSG_NOSIGNAL));
    }

    /* The next message of the function; its size is 0 if it has closed */
    message receive()
    {
        uint8_t bytes[EMLX5_MESSAGE_HEADER];
        message m = {};

        if (recv(m_peer, bytes, sizeof(bytes), MSG_WAITALL) !=
            (ssize_t)sizeof(bytes)) {
            return m;
        }
        EXPECT_EQ(0, emlx5_header_read(&m.header, bytes));
        m.body.resize(m.header.size - EMLX5_MESSAGE_HEADER);
        if (!m.body.empty()) {
            EXPECT_EQ((ssize_t)m.body.size(),
                      recv(m_peer, m.body.data(), m.body.size(), MSG_WAITALL));
        }
        return m;
    }

    /* Sends a command and lets the function answer. */
    message ask(uint16_t type, const std::vector<uint8_t> &body)
    {
        send(type, body);
        emlx5_loop_wait(&m_loop, UINT64_MAX);
        emlx5_conn_flush(&m_vfio.conn);
        return receive();
    }

    static std::vector<uint8_t> access(uint64_t offset, uint32_t region,
                                       uint32_t count,
                                       const std::vector<uint8_t> &data = {})
    {
        std::vector<uint8_t> body(16);

        emlx5_put_le64(&body[0], offset);
        emlx5_put_le32(&body[8], region);
        emlx5_put_le32(&body[12], count);
        body.insert(body.end(), data.begin(), data.end());
        return body;
    }

    void enable_dma()
    {
        message m = ask(EMLX5_MSG_REGION_WRITE, access(4, 7, 2, {6, 0}));

        EXPECT_EQ(0u, m.header.flags & EMLX5_MSG_ERROR);
        EXPECT_TRUE(m_vfio.hca.dma.enabled);
    }

    /* Carries out a DMA message; false for another one. */
    bool answer(const message &m, uint32_t flags = 0)
    {
        std::vector<uint8_t> body(m.body.begin(), m.body.begin() + 16);
        uint64_t at  = emlx5_le64(&m.body[0]);
        uint32_t len = emlx5_le64(&m.body[8]);

        EXPECT_LE(at + len, (uint64_t)MEMORY);
        if (m.header.type == EMLX5_MSG_DMA_WRITE) {
            std::copy(m.body.begin() + 16, m.body.end(), m_memory.begin() + at);
        } else {
            EXPECT_EQ(EMLX5_MSG_DMA_READ, m.header.type);
            body.insert(body.end(), m_memory.begin() + at,
                        m_memory.begin() + at + len);
        }
        send(m.header.type, body, EMLX5_MSG_REPLY | flags, m.header.id,
             (flags != 0) ? 22 : 0);
        return true;
    }

    emlx5_loop_t         m_loop;
    emlx5_vfio_t         m_vfio;
    std::vector<uint8_t> m_memory;
    std::string          m_path;
    int                  m_peer;
};

/* QEMU's thread answers the reads of one DMA backwards. */
TEST_F(test_emlx5_vfio, answers_in_any_order)
{
    std::vector<uint8_t> data(4096);
    std::vector<message> waiting;

    enable_dma();
    for (size_t i = 0; i < MEMORY; ++i) {
        m_memory[i] = i * 5 + (i >> 8);
    }
    std::thread qemu([this, &waiting]() {
        size_t bytes = 0;

        while (bytes < 4096) {
            waiting.push_back(receive());
            bytes += emlx5_le64(&waiting.back().body[8]);
        }
        while (!waiting.empty()) {
            answer(waiting.back());
            waiting.pop_back();
        }
    });
    EXPECT_EQ(0, emlx5_dma_read(&m_vfio.hca.dma, 0x100, data.data(), 4096));
    qemu.join();
    EXPECT_EQ(0, memcmp(data.data(), &m_memory[0x100], 4096));
}

/* A write is posted; what drains waits for it. A failure is counted. */
TEST_F(test_emlx5_vfio, posted_writes)
{
    std::vector<uint8_t> data(1000, 0x44);
    std::atomic<bool> answered(false);

    enable_dma();
    emlx5_dma_write(&m_vfio.hca.dma, 0x200, data.data(), data.size());
    EXPECT_GT(m_vfio.writes, 3u);
    std::thread qemu([this, &answered]() {
        size_t bytes = 0;

        while (bytes < 1000) {
            message m = receive();

            bytes += emlx5_le64(&m.body[8]);
            answered = (bytes == 1000);
            answer(m, answered ? EMLX5_MSG_ERROR : 0);
        }
    });
    emlx5_dma_drain(&m_vfio.hca.dma);
    EXPECT_TRUE(answered);
    EXPECT_EQ(0u, m_vfio.writes);
    EXPECT_EQ(1u, m_vfio.faults);
    qemu.join();
    EXPECT_EQ(0x44, m_memory[0x200 + 999]);
}

TEST_F(test_emlx5_vfio, reset)
{
    std::vector<uint8_t> body(16);

    enable_dma();
    m_vfio.hca.cmdq = 0x1000;
    message m = ask(EMLX5_MSG_RESET, {});
    EXPECT_EQ((uint32_t)EMLX5_MSG_REPLY, m.header.flags);
    EXPECT_FALSE(m_vfio.hca.dma.enabled);
    EXPECT_EQ(1, emlx5_queue_run(&m_vfio.hca.queue));
    EXPECT_EQ(0u, m_vfio.hca.cmdq);
    EXPECT_FALSE(m_vfio.hca.dma.enabled);
    /* And by the register for it */
    enable_dma();
    m = ask(EMLX5_MSG_REGION_WRITE, access(0x68, 7, 2, {0, 0x80}));
    EXPECT_EQ(1, m_vfio.hca.resetting);
    EXPECT_EQ(1, emlx5_queue_run(&m_vfio.hca.queue));
    EXPECT_EQ(0, m_vfio.hca.resetting);
    EXPECT_FALSE(m_vfio.hca.bus_master);
}
