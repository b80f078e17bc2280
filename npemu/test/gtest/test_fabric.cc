/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The shared memory: how a fabric is made, by one of many that start at once,
 * some of which are stopped or killed just then; which processes see it, what
 * is refused, what remains; and another user, whose segments look like
 * ours. What other contents do is for test/fuzz.
 */

#include "internals.h"
#include "npemu_test.h"

extern "C" {
#include "fabric/npemu_segment.h"
}

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <random>

#include <sched.h>
#include <sys/ipc.h>
#include <sys/syscall.h>
#include <unistd.h>

using namespace npt;

/* --- the calls of this process ---------------------------------------------*/

/* What becomes of them; they take the place of the C library's functions. */
static struct {
    int named;        /* segments that were asked for by a key */
    int made;
    int searches;     /* walks over the table */
    int stop_at_made; /* SIGSTOP just before the nth */
    int stop_at_search;
} calls;

extern "C" int shmget(key_t key, size_t size, int flags) noexcept
{
    calls.named += (key != IPC_PRIVATE);
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

/* --- life ------------------------------------------------------------------*/

using Children = std::vector<std::unique_ptr<Child>>;

class test_fabric : public testing::Test {
protected:
    void SetUp() override
    {
        SKIP_UNLESS(has_own_fabric(), "no IPC namespace of our own");
        ASSERT_TRUE(segments().empty());
    }

    void TearDown() override
    {
        /* A killed process is reaped before its memory is gone. */
        EXPECT_TRUE(!has_own_fabric() ||
                    wait_until([] { return segments().empty(); }))
                << segments().size() << " segments are left";
    }

    /* Another process can open the device. */
    static void expect_device()
    {
        in_child([] { Device device; });
    }

    /* The device is refused, with one line that has @a text in it. */
    static void expect_refused(int error, const char *text)
    {
        expect_line(text, [=] {
            struct ibv_device **list = npemu_get_device_list(nullptr);
            ASSERT_NE(nullptr, list);
            errno = 0;
            EXPECT_EQ(nullptr, npemu_open_device(list[0]));
            EXPECT_TRUE((error == 0) ? (errno != 0) : (errno == error));
            npemu_free_device_list(list);
        });
    }

    /* A child that is stopped at a point of the making of a fabric. */
    static std::unique_ptr<Child> stopped(int made, int search)
    {
        auto child = std::make_unique<Child>([=](Pipe &pipe) {
            calls                = {};
            calls.stop_at_made   = made;
            calls.stop_at_search = search;
            hold_device(pipe);
        });
        child->expect_stopped();
        return child;
    }

    /* Segments of processes that live: one that is killed before it has marked
     * its own for destruction leaves it to the next that looks. */
    static size_t marked()
    {
        auto all = segments();

        return std::count_if(all.begin(), all.end(), [](const Segment &it) {
            return it.ds.shm_perm.mode & SHM_DEST;
        });
    }

    /* All of them are in one fabric: there are no more segments than it, and an
     * arena for each. Then they go. */
    static void finish(Children &children)
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

/* Any user can compute a key, and take it first: there is none. */
TEST_F(test_fabric, memory_is_private_and_vanishes_by_itself)
{
    Child child([](Pipe &pipe) {
        calls = {};
        hold_device(pipe);
        EXPECT_EQ(0, calls.named);
        EXPECT_EQ(2, calls.made) << "not what this test watches";
    });

    ASSERT_TRUE(child.pipe().await());
    EXPECT_EQ(2u, segments().size());
    for (auto &it : segments()) {
        EXPECT_EQ(0600u, it.ds.shm_perm.mode & 0777u);
        EXPECT_EQ(geteuid(), it.ds.shm_perm.uid);
        EXPECT_TRUE(it.ds.shm_perm.mode & SHM_DEST) << "would stay";
    }
    child.release();
    EXPECT_TRUE(segments().empty());
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
        in_child([] { expect_refused(0, "shared memory"); });
        EXPECT_TRUE(wait_until([] { return segments().empty(); })) << limit;
    }
    std::ofstream(path) << before << std::flush;
    expect_device();
}

/* --- half made ones --------------------------------------------------------*/

/* A segment of a process that is killed between making and marking it. */
static int leave_segment(size_t size)
{
    Child child([=](Pipe &pipe) {
        int id = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600);

        EXPECT_NE((void*)-1, shmat(id, nullptr, 0));
        pipe.send(id);
        pipe.await();
    });
    int id = child.pipe().recv<int>();
    shmid_ds ds;

    child.kill();
    EXPECT_TRUE(wait_until([&] {
        return (shmctl(id, IPC_STAT, &ds) == 0) && (ds.shm_nattch == 0);
    }));
    return id;
}

TEST_F(test_fabric, leftovers_are_removed)
{
    shmid_ds ds;

    for (int kind : {NPEMU_SEGMENT_FABRIC, NPEMU_SEGMENT_ARENA}) {
        int id = leave_segment((1 << 20) + kind);
        expect_device();
        EXPECT_NE(0, shmctl(id, IPC_STAT, &ds));
    }
}

/* Programs may keep data in segments that no process has attached. */
TEST_F(test_fabric, data_of_other_programs_is_kept)
{
    std::vector<int> ids;

    for (size_t size : {(size_t)4096, (size_t)8 << 20, (size_t)8 << 30}) {
        ids.push_back(leave_segment(size));
    }
    /* Of our size, but another process has had it attached since. */
    ids.push_back(leave_segment((1 << 20) + NPEMU_SEGMENT_ARENA));
    in_child([=] { EXPECT_EQ(0, shmdt(shmat(ids.back(), nullptr, 0))); });
    expect_device();
    for (int id : ids) {
        EXPECT_EQ(0, shmctl(id, IPC_RMID, nullptr));
    }
}

/* --- many at once ----------------------------------------------------------*/

/* All have looked, all have found none, and all make one. */
TEST_F(test_fabric, many_processes_create_one)
{
    for (int round = 0; round < 5; ++round) {
        Children children;
        for (int i = 0; i < 8; ++i) {
            children.push_back(stopped(1, 0));
        }
        for (auto &child : children) {
            child->resume();
        }
        finish(children);
    }
}

/* What is offered by a process that then stops is not waited for. The point is
 * after the offer: the second search is the first that comes after it. */
TEST_F(test_fabric, offer_of_a_stopped_process_is_ignored)
{
    Children children;
    auto start = Clock::now();

    children.push_back(stopped(0, 2));
    children.push_back(std::make_unique<Child>(hold_device));
    EXPECT_TRUE(wait_until([] { return marked() == 3; }));
    EXPECT_GT(WAIT_MS / 4, ms_since(start));
    children.push_back(std::make_unique<Child>(hold_device));

    /* It finds out that its offer is off. */
    children[0]->resume();
    finish(children);
}

/* Starts, deaths and stops at random, and the rest meet in one fabric. */
TEST_F(test_fabric, survivors_meet_in_one)
{
    unsigned seed = std::random_device()();
    std::mt19937 random(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));

    for (int round = 0; round < 10; ++round) {
        Children children, rest;
        for (int i = 0; i < 24; ++i) {
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
                child->stop();
                child->resume();
            }
            rest.push_back(std::move(child));
        }
        finish(rest);
    }
}

/* --- other users -----------------------------------------------------------*/

constexpr unsigned VICTIM   = 54321;
constexpr unsigned ATTACKER = 54322;

/* As much of a segment as is ever written in these tests. */
constexpr size_t IMAGE = 256 << 10;

/* A copy of a segment. */
struct Image {
    size_t            size; /* as the kernel has it */
    std::vector<char> bytes;
};

/* What the attacker does with it. */
struct Plan {
    const char *name;
    bool       arena;  /* else the fabric */
    bool       given;  /* the victim becomes the owner */
    unsigned   mode;
    bool       marked; /* for destruction, as those of a fabric are */
};

static const Plan plans[] = {
        {"fabric, given away", false, true, 0600, true},
        {"fabric, given away, stays", false, true, 0600, false},
        {"fabric, for all users", false, false, 0666, true},
        {"fabric, given away to all users", false, true, 0666, true},
        {"arena, given away", true, true, 0600, true},
        {"arena, given away, stays", true, true, 0600, false}};

/* A segment of the attacker's, and whether it stayed as it was. */
class Plant {
public:
    Plant(const Plan &plan, const Image &image, unsigned owner) :
        m_plan(plan), m_bytes(image.bytes)
    {
        shmid_ds ds;

        id = shmget(IPC_PRIVATE, image.size, IPC_CREAT | 0600);
        EXPECT_LE(0, id) << strerror(errno);
        m_address = (char*)shmat(id, nullptr, 0);
        EXPECT_NE((char*)-1, m_address) << strerror(errno);
        std::copy(m_bytes.begin(), m_bytes.end(), m_address);

        EXPECT_EQ(0, shmctl(id, IPC_STAT, &ds));
        ds.shm_perm.mode = plan.mode;
        if (plan.given) {
            ds.shm_perm.uid = owner;
        }
        EXPECT_EQ(0, shmctl(id, IPC_SET, &ds)) << strerror(errno);
        if (plan.marked) {
            EXPECT_EQ(0, shmctl(id, IPC_RMID, nullptr));
        }
    }

    ~Plant()
    {
        shmid_ds ds;

        EXPECT_TRUE(std::equal(m_bytes.begin(), m_bytes.end(), m_address))
                << m_plan.name << ": written";
        EXPECT_EQ(0, shmctl(id, IPC_STAT, &ds)) << m_plan.name << ": removed";
        EXPECT_EQ(getpid(), ds.shm_lpid) << m_plan.name << ": attached";
        EXPECT_EQ(1u, ds.shm_nattch) << m_plan.name;
        shmdt(m_address);
        shmctl(id, IPC_RMID, nullptr);
    }
    Plant(const Plant &) = delete;

    int id;

private:
    const Plan              &m_plan;
    char                    *m_address;
    const std::vector<char> m_bytes;
};

class test_fabric_users : public test_fabric {
protected:
    void SetUp() override
    {
        test_fabric::SetUp();
        SKIP_UNLESS(geteuid() == 0, "needs root to become other users");
    }

    static void be_victim(unsigned uid = VICTIM)
    {
        ASSERT_TRUE((uid == 0) || become_user(uid));
    }

    /* What a process of the victim shares, as root sees it: the fabric, and an
     * arena. */
    static std::vector<Image> images(unsigned uid)
    {
        std::vector<Image> result;

        Child child([=](Pipe &pipe) {
            be_victim(uid);
            hold_device(pipe);
        });
        EXPECT_TRUE(child.pipe().await());
        for (auto &it : segments()) {
            char *address = (char*)shmat(it.id, nullptr, SHM_RDONLY);
            EXPECT_NE((char*)-1, address) << strerror(errno);
            result.push_back({it.ds.shm_segsz, {address, address + IMAGE}});
            shmdt(address);
        }
        std::sort(result.begin(), result.end(),
                  [](const Image &a, const Image &b) {
                      return a.size < b.size;
                  });
        child.release();
        EXPECT_TRUE(wait_until([] { return segments().empty(); }));
        return result;
    }

    /* The attacker plants all that is planned @a count times; then @a body. */
    static void attack(unsigned victim, int count,
                       const std::function<void(int id)> &body)
    {
        auto copies = images(victim);
        ASSERT_EQ(2u, copies.size());
        Child attacker([&](Pipe &pipe) {
            std::vector<std::unique_ptr<Plant>> plants;
            ASSERT_TRUE(become_user(ATTACKER));
            for (int i = 0; i < count; ++i) {
                for (auto &plan : plans) {
                    plants.push_back(std::make_unique<Plant>(
                            plan, copies[plan.arena], victim));
                }
            }
            pipe.send(plants.back()->id);
            EXPECT_TRUE(pipe.await());
        });
        body(attacker.pipe().recv<int>());
        attacker.release();
    }

    static ibv_gid gid(Device &device)
    {
        ibv_gid result = {};

        EXPECT_EQ(0, npemu_query_gid(device.context, 1, 0, &result));
        return result;
    }
};

/* Two processes of the victim meet, and say nothing. Also those of root, which
 * may attach anything. */
TEST_F(test_fabric_users, segments_are_left_alone)
{
    for (unsigned victim : {VICTIM, 0u}) {
        attack(victim, 20, [=](int) {
            EXPECT_EQ("", stderr_of([=] {
                in_child([=] {
                    be_victim(victim);
                    Child other(be_idle);
                    Side side;
                    connect_over(other.pipe(), side.qp);
                    side.write(1, other.pipe().recv<Remote>());
                    EXPECT_TRUE(side.cq.expect(1));
                    other.release();
                });
            }));
        });
    }
}

/* Ids are used again. When the victim's process is gone, what it said its arena
 * was may be a segment of the attacker's. */
TEST_F(test_fabric_users, arena_of_another_user_is_not_mapped)
{
    attack(VICTIM, 1, [](int id) {
        Child target([=](Pipe &pipe) {
            be_victim();
            Side side;
            npt_set_arena(side.device.context, id);
            pipe.send(side.qp.address());
            pipe.await();
        });
        Address address = target.pipe().recv<Address>();
        expect_line("cannot map", [=] {
            in_child([=] {
                be_victim();
                QpOptions options;
                options.timeout   = 8;
                options.retry_cnt = 1;
                Side side(options);
                ASSERT_EQ(0, side.qp.to_init());
                if ((side.qp.to_rtr(address) == 0) &&
                    (side.qp.to_rts() == 0)) {
                    side.send(1);
                    EXPECT_NE(IBV_WC_SUCCESS, side.cq.wait().status);
                }
            });
        });
        target.release();
    });
}

/* By the prefix of the GID generic code sees that a peer is not reachable. */
TEST_F(test_fabric_users, do_not_see_each_other)
{
    auto show_gid = [](Pipe &pipe) {
        Device device;
        pipe.send(gid(device));
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
        child->release();
    }
}

/* A user that runs a setuid program of the victim can stop it at any moment. */
TEST_F(test_fabric_users, setuid_program_is_refused)
{
    const uid_t users[][3] = {{ATTACKER, VICTIM, VICTIM},
                              {VICTIM, VICTIM, ATTACKER},
                              {0, VICTIM, 0}};

    for (auto &it : users) {
        in_child([&] {
            ASSERT_EQ(0, setresuid(it[0], it[1], it[2]));
            expect_refused(ENODEV, "setuid");
        });
    }
}

/* A daemon that gives up its rights stays in the fabric that it is attached to,
 * and goes on to say which that is. Its child opens that of its new user. */
TEST_F(test_fabric_users, user_changes_after_opening)
{
    in_child([] {
        Device device;
        uint64_t before = gid(device).global.subnet_prefix;
        ASSERT_TRUE(become_user(VICTIM));
        EXPECT_EQ(before, gid(device).global.subnet_prefix);
        {
            Device second;
            EXPECT_EQ(before, gid(second).global.subnet_prefix);
        }
        if (NPT_FORK_WITH_THREADS) {
            in_child([&] {
                Device own;
                EXPECT_NE(before, gid(own).global.subnet_prefix);
            });
        }
    });
}

/* In a user namespace, all users without a number in it appear as user 65534:
 * so does the attacker, and so may the victim. */
TEST_F(test_fabric_users, overflow_user_id_is_refused)
{
    for (bool is_mapped : {false, true}) {
        in_child([=] {
            be_victim();
            if (unshare(CLONE_NEWUSER) != 0) {
                return; /* users may not make any here */
            }
            if (is_mapped) {
                std::ofstream("/proc/self/uid_map") << "65534 " << VICTIM
                                                    << " 1" << std::flush;
            }
            EXPECT_EQ(65534u, geteuid());
            expect_refused(ENODEV, "user namespace");
        });
    }
}
