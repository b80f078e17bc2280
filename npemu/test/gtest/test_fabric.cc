/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The shared memory: which processes see it, what is refused, what remains. The
 * tests need a fabric of their own, see main().
 */

#include "npemu_segments.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include <unistd.h>

using namespace npt;

/* The header every version of the fabric begins with. */
struct FabricHeader {
    uint64_t magic;
    uint32_t version;
    uint32_t size_check;
};

class test_fabric : public segment_test {
protected:
    /* The fabric is the smaller of the two segments of a lone process. */
    static FabricHeader *attach_header()
    {
        auto all = segments();
        if (all.size() != 2) {
            ADD_FAILURE() << all.size() << " segments";
            return nullptr;
        }
        auto it = std::min_element(all.begin(), all.end(),
                                   [](const Segment &a, const Segment &b) {
                                       return a.ds.shm_segsz < b.ds.shm_segsz;
                                   });
        void *address = shmat(it->id, nullptr, 0);
        EXPECT_NE((void*)-1, address) << strerror(errno);
        return (address == (void*)-1) ? nullptr : (FabricHeader*)address;
    }

    /* The error line of a process that must be refused. */
    static std::string refused()
    {
        return stderr_of([] {
            in_child([] {
                struct ibv_device **list = npemu_get_device_list(nullptr);
                ASSERT_NE(nullptr, list);
                errno            = 0;
                ibv_context *ctx = npemu_open_device(list[0]);
                EXPECT_EQ(ENODEV, errno);
                EXPECT_EQ(nullptr, ctx);
                npemu_free_device_list(list);
            });
        });
    }
};

TEST_F(test_fabric, memory_is_private_and_vanishes_by_itself)
{
    {
        Child child(hold_device);
        ASSERT_TRUE(child.pipe().await());
        auto all = segments();
        EXPECT_FALSE(all.empty());
        for (auto &it : all) {
            EXPECT_EQ(0600u, it.ds.shm_perm.mode & 0777u);
            EXPECT_EQ(geteuid(), it.ds.shm_perm.uid);
            EXPECT_TRUE(it.ds.shm_perm.mode & SHM_DEST) << "would stay";
        }
        child.pipe().signal();
        child.join();
    }
    EXPECT_TRUE(segments().empty());
}

TEST_F(test_fabric, other_version_is_refused)
{
    Child child(hold_device);
    ASSERT_TRUE(child.pipe().await());
    FabricHeader *header = attach_header();
    ASSERT_NE(nullptr, header);

    header->version++;
    std::string said = refused();
    header->version--;
    EXPECT_NE(std::string::npos, said.find("version")) << said;
    EXPECT_EQ(1, std::count(said.begin(), said.end(), '\n')) << said;

    header->size_check ^= 0x1234;
    said = refused();
    header->size_check ^= 0x1234;
    EXPECT_NE(std::string::npos, said.find("version")) << said;

    /* Put right, it works again. */
    in_child([] {
        Device device;
        EXPECT_TRUE(device.ok());
    });
    shmdt(header);
    child.pipe().signal();
    child.join();
}

TEST_F(test_fabric, damaged_segment_is_refused)
{
    Child child(hold_device);
    ASSERT_TRUE(child.pipe().await());
    FabricHeader *header = attach_header();
    ASSERT_NE(nullptr, header);

    uint64_t magic   = header->magic;
    header->magic    = 0x1122334455667788ull;
    std::string said = refused();
    header->magic    = magic;
    EXPECT_NE(std::string::npos, said.find("damaged")) << said;
    EXPECT_EQ(1, std::count(said.begin(), said.end(), '\n')) << said;
    shmdt(header);
    child.pipe().signal();
    child.join();
}

/* Killed while opening and closing, at any moment. */
TEST_F(test_fabric, killed_while_opening)
{
    unsigned seed = std::random_device()();
    std::mt19937 random(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));

    for (int round = 0; round < 60; ++round) {
        Child victim([](Pipe &pipe) {
            pipe.signal();
            for (;;) {
                Device device;
            }
        });
        ASSERT_TRUE(victim.pipe().await());
        std::this_thread::sleep_for(
                std::chrono::microseconds(random() % 4000));
        victim.kill();
        in_child([] {
            Device device;
            EXPECT_TRUE(device.ok());
        });
    }
}

/* There are 1024 process slots: those of the killed must come back. */
TEST_F(test_fabric, slots_of_killed_processes_are_released)
{
    Child keeper(hold_device);
    ASSERT_TRUE(keeper.pipe().await());
    for (int round = 0; round < 1100; ++round) {
        Child victim(hold_device);
        ASSERT_TRUE(victim.pipe().await()) << round;
        victim.kill();
    }
    keeper.pipe().signal();
    keeper.join();
}

/* A kernel that gives no segment, or only the first of two. */
TEST_F(test_fabric, open_fails_without_shared_memory)
{
    const char *path = "/proc/sys/kernel/shmmni"; /* of our own namespace */
    std::string before;
    std::ifstream(path) >> before;
    SKIP_UNLESS(access(path, W_OK) == 0, "shmmni cannot be changed");

    for (int limit = 0; limit < 2; ++limit) {
        std::ofstream(path) << limit << std::flush;
        std::string said = stderr_of([] {
            in_child([] {
                struct ibv_device **list = npemu_get_device_list(nullptr);
                ASSERT_NE(nullptr, list);
                errno = 0;
                EXPECT_EQ(nullptr, npemu_open_device(list[0]));
                EXPECT_NE(0, errno);
                npemu_free_device_list(list);
            });
        });
        EXPECT_EQ(1, std::count(said.begin(), said.end(), '\n')) << said;
        EXPECT_NE(std::string::npos, said.find("shared memory")) << said;
        EXPECT_TRUE(wait_until([] { return segments().empty(); })) << limit;
    }
    std::ofstream(path) << before << std::flush;
    in_child([] {
        Device device;
        EXPECT_TRUE(device.ok());
    });
}

/* --- two users ------------------------------------------------------------ */

struct Identity {
    ibv_gid gid;
    Address address;
};

TEST_F(test_fabric, users_do_not_see_each_other)
{
    SKIP_UNLESS(geteuid() == 0, "needs root to become another user");

    auto body = [](Pipe &pipe) {
        Device device;
        ASSERT_TRUE(device.ok());
        Cq cq(device);
        QpOptions options;
        options.timeout   = 8;
        options.retry_cnt = 1;
        Qp qp(device, cq, cq, options);
        Buffer buffer(device, 4096);
        Identity own = {};
        EXPECT_EQ(0, npemu_query_gid(device.context, 1, 0, &own.gid));
        own.address = qp.address();
        pipe.send(own);
        Identity other = pipe.recv<Identity>();
        /* By the prefix generic code sees that the peer is not reachable. */
        EXPECT_NE(own.gid.global.subnet_prefix,
                  other.gid.global.subnet_prefix);
        qp.connect(other.address);
        EXPECT_TRUE(pipe.signal());
        EXPECT_TRUE(pipe.await());
        Wr write(1, IBV_WR_SEND, {buffer.sge(0, 8)});
        EXPECT_EQ(0, qp.post(write));
        /* Connected to oneself if the numbers agree: not ready, then. */
        ibv_wc wc;
        int count = 0;
        wait_until([&] { return (count = ibv_poll_cq(cq, 1, &wc)) != 0; },
                   500);
        EXPECT_TRUE((count == 0) || (wc.status != IBV_WC_SUCCESS));
        EXPECT_TRUE(pipe.signal());
        EXPECT_TRUE(pipe.await());
    };
    Child root(body);
    Child nobody([&](Pipe &pipe) {
        ASSERT_TRUE(become_nobody());
        /* Not even by number. */
        for (auto &it : segments()) {
            EXPECT_EQ((void*)-1, shmat(it.id, nullptr, 0));
            EXPECT_EQ(EACCES, errno);
        }
        body(pipe);
    });
    Identity of_root   = root.pipe().recv<Identity>();
    Identity of_nobody = nobody.pipe().recv<Identity>();
    root.pipe().send(of_nobody);
    nobody.pipe().send(of_root);
    for (int step = 0; step < 2; ++step) {
        EXPECT_TRUE(root.pipe().await());
        EXPECT_TRUE(nobody.pipe().await());
        root.pipe().signal();
        nobody.pipe().signal();
    }
    root.join();
    nobody.join();
}
