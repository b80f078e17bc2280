/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * How a fabric is made: under no name that others could take, by one of many
 * that start at once, some of which are stopped or killed just then.
 */

#include "npemu_segments.h"

extern "C" {
#include "fabric/npemu_segment.h"
}

#include <cerrno>
#include <csignal>
#include <random>
#include <thread>

#include <sys/syscall.h>
#include <unistd.h>

using namespace npt;

/* --- the calls of this process ---------------------------------------------*/

/* What becomes of them; they take the place of the C library's functions. */
static struct {
    bool keys_taken;   /* by another process, earlier */
    int  named;        /* segments that were asked for by a key */
    int  made;
    int  searches;     /* walks over the table */
    int  stop_at_made; /* SIGSTOP just before the nth */
    int  stop_at_search;
} calls;

extern "C" int shmget(key_t key, size_t size, int flags) noexcept
{
    calls.named += (key != IPC_PRIVATE);
    if (calls.keys_taken && (key != IPC_PRIVATE)) {
        errno = (flags & IPC_CREAT) ? EEXIST : EACCES;
        return -1;
    }
    if ((flags & IPC_CREAT) && (++calls.made == calls.stop_at_made)) {
        raise(SIGSTOP);
    }
    return syscall(SYS_shmget, key, size, flags);
}

extern "C" int shmctl(int id, int command, struct shmid_ds *ds) noexcept
{
    if ((command == SHM_INFO) && (++calls.searches == calls.stop_at_search)) {
        raise(SIGSTOP);
    }
    return syscall(SYS_shmctl, id, command, ds);
}

static void forget_calls()
{
    calls = {};
}

class test_fabric_made : public segment_test {
protected:
    /* A child that is stopped at a point of the making of a fabric. */
    static std::unique_ptr<Child> stopped(int made, int search)
    {
        auto child = std::make_unique<Child>([=](Pipe &pipe) {
            forget_calls();
            calls.stop_at_made   = made;
            calls.stop_at_search = search;
            hold_device(pipe);
        });
        expect_stopped(child->pid());
        return child;
    }

    /* Segments of processes that live: one that is killed before it has marked
     * its own for destruction leaves it to the next that looks. */
    static size_t marked()
    {
        size_t count = 0;

        for (auto &it : segments()) {
            count += !!(it.ds.shm_perm.mode & SHM_DEST);
        }
        return count;
    }

    /* All of them are in one fabric: there are no more segments than it, and an
     * arena for each. Then they go. */
    static void finish(std::vector<std::unique_ptr<Child>> &children)
    {
        for (auto &child : children) {
            EXPECT_TRUE(child->pipe().await());
        }
        EXPECT_TRUE(wait_until([&] {
            return marked() == children.size() + 1;
        })) << marked() << " segments for " << children.size();
        for (auto &child : children) {
            child->pipe().signal();
        }
        for (auto &child : children) {
            child->join();
        }
        EXPECT_TRUE(wait_until([] { return marked() == 0; }));
        expect_device();
        EXPECT_TRUE(wait_until([] { return segments().empty(); }));
    }
};

/* --- names -----------------------------------------------------------------*/

/* Any user can compute a key, and take it first. */
TEST_F(test_fabric_made, creates_no_named_segment)
{
    for (bool taken : {false, true}) {
        in_child([=] {
            forget_calls();
            calls.keys_taken = taken;
            Device device;
            EXPECT_EQ(0, calls.named);
            EXPECT_EQ(2, calls.made) << "not what this test watches";
        });
    }
}

/* --- half made ones --------------------------------------------------------*/

/* A segment of a process that is killed between making and marking it. */
static int leave_segment(size_t size)
{
    int id = -1;
    Child child([=](Pipe &pipe) {
        int made      = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600);
        void *address = shmat(made, nullptr, 0);
        EXPECT_NE((void*)-1, address);
        pipe.send(made);
        pipe.await();
    });

    id = child.pipe().recv<int>();
    child.kill();
    return id;
}

static bool exists(int id)
{
    shmid_ds ds;

    return shmctl(id, IPC_STAT, &ds) == 0;
}

TEST_F(test_fabric_made, leftovers_are_removed)
{
    for (int kind : {NPEMU_SEGMENT_FABRIC, NPEMU_SEGMENT_ARENA}) {
        int id = leave_segment((1 << 20) + kind);
        EXPECT_TRUE(wait_until([=] {
            shmid_ds ds;
            return (shmctl(id, IPC_STAT, &ds) == 0) && (ds.shm_nattch == 0);
        }));
        expect_device();
        EXPECT_FALSE(exists(id));
    }
}

/* Programs may keep data in segments that no process has attached. */
TEST_F(test_fabric_made, data_of_other_programs_is_kept)
{
    std::vector<int> ids;

    for (size_t size : {(size_t)4096, (size_t)8 << 20, (size_t)8 << 30}) {
        ids.push_back(leave_segment(size));
    }
    /* Of our size, but another process has had it attached since. */
    ids.push_back(leave_segment((1 << 20) + NPEMU_SEGMENT_ARENA));
    in_child([=] {
        void *address = shmat(ids.back(), nullptr, 0);
        ASSERT_NE((void*)-1, address);
        shmdt(address);
    });
    expect_device();
    for (int id : ids) {
        EXPECT_TRUE(exists(id));
        shmctl(id, IPC_RMID, nullptr);
    }
}

/* --- many at once ----------------------------------------------------------*/

/* All have looked, all have found none, and all make one. */
TEST_F(test_fabric_made, many_processes_create_one_fabric)
{
    for (int round = 0; round < 5; ++round) {
        std::vector<std::unique_ptr<Child>> children;
        for (int i = 0; i < 8; ++i) {
            children.push_back(stopped(1, 0));
        }
        for (auto &child : children) {
            ASSERT_EQ(0, ::kill(child->pid(), SIGCONT));
        }
        finish(children);
    }
}

/* What is offered by a process that then stops is not waited for. The point is
 * after the offer: the second search is the first that comes after it. */
TEST_F(test_fabric_made, offer_of_a_stopped_process_is_ignored)
{
    std::vector<std::unique_ptr<Child>> children;
    auto start = Clock::now();

    children.push_back(stopped(0, 2));
    children.push_back(std::make_unique<Child>(hold_device));
    ASSERT_TRUE(children[1]->pipe().await());
    EXPECT_GT(WAIT_MS / 4, ms_since(start));
    children.push_back(std::make_unique<Child>(hold_device));
    ASSERT_TRUE(children[2]->pipe().await());

    /* It finds out that its offer is off. */
    ASSERT_EQ(0, ::kill(children[0]->pid(), SIGCONT));
    ASSERT_TRUE(children[0]->pipe().await());
    EXPECT_EQ(1 + children.size(), segments().size());
    for (auto &child : children) {
        child->pipe().signal();
        child->join();
    }
}

/* Starts, deaths and stops at random, and the rest meet in one fabric. */
TEST_F(test_fabric_made, survivors_meet_in_one_fabric)
{
    constexpr int COUNT = 24;
    unsigned seed       = std::random_device()();
    std::mt19937 random(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));

    for (int round = 0; round < 10; ++round) {
        std::vector<std::unique_ptr<Child>> children, rest;
        for (int i = 0; i < COUNT; ++i) {
            children.push_back(std::make_unique<Child>([](Pipe &pipe) {
                EXPECT_TRUE(pipe.await());
                hold_device(pipe);
            }));
        }
        for (auto &child : children) {
            child->pipe().signal();
        }
        for (auto &child : children) {
            unsigned fate = random() % 4;
            if (fate == 0) {
                child->kill();
                continue;
            } else if (fate == 1) {
                ASSERT_EQ(0, ::kill(child->pid(), SIGSTOP));
                std::this_thread::yield();
                ASSERT_EQ(0, ::kill(child->pid(), SIGCONT));
            }
            rest.push_back(std::move(child));
        }
        finish(rest);
    }
}
