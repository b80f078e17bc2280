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

    /* A process is refused, with one line that has @a text in it. */
    static void expect_refused(int error, const char *text)
    {
        expect_line(text, [=] {
            in_child([=] {
                struct ibv_device **list = npemu_get_device_list(nullptr);
                ASSERT_NE(nullptr, list);
                errno = 0;
                EXPECT_EQ(nullptr, npemu_open_device(list[0]));
                EXPECT_TRUE((error == 0) ? (errno != 0) : (errno == error));
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

/* Of another version, or damaged; put right, it works again. */
TEST_F(test_fabric, other_contents_are_refused)
{
    Child child(hold_device);
    ASSERT_TRUE(child.pipe().await());
    FabricHeader *header = attach_header();
    ASSERT_NE(nullptr, header);
    FabricHeader before = *header;

    header->version++;
    expect_refused(ENODEV, "version");
    *header = before;
    header->size_check ^= 0x1234;
    expect_refused(ENODEV, "version");
    *header = before;
    header->magic = 0x1122334455667788ull;
    expect_refused(ENODEV, "damaged");
    *header = before;
    expect_device();
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
        expect_device();
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
        expect_refused(0, "shared memory");
        EXPECT_TRUE(wait_until([] { return segments().empty(); })) << limit;
    }
    std::ofstream(path) << before << std::flush;
    expect_device();
}

/* --- two users ------------------------------------------------------------ */

/* By the prefix of the GID generic code sees that a peer is not reachable. */
TEST_F(test_fabric, users_do_not_see_each_other)
{
    SKIP_UNLESS(geteuid() == 0, "needs root to become another user");

    auto show_gid = [](Pipe &pipe) {
        Device device;
        ibv_gid gid = {};
        EXPECT_EQ(0, npemu_query_gid(device.context, 1, 0, &gid));
        pipe.send(gid);
        EXPECT_TRUE(pipe.await());
    };
    Child root(show_gid), other(show_gid);
    uint64_t prefix = root.pipe().recv<ibv_gid>().global.subnet_prefix;
    EXPECT_EQ(prefix, other.pipe().recv<ibv_gid>().global.subnet_prefix);
    Child nobody([&](Pipe &pipe) {
        ASSERT_TRUE(become_nobody());
        /* Not even by number. */
        for (auto &it : segments()) {
            EXPECT_EQ((void*)-1, shmat(it.id, nullptr, 0));
            EXPECT_EQ(EACCES, errno);
        }
        show_gid(pipe);
    });
    EXPECT_NE(prefix, nobody.pipe().recv<ibv_gid>().global.subnet_prefix);
    for (Child *child : {&root, &other, &nobody}) {
        child->pipe().signal();
        child->join();
    }
}
