/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Another user makes segments that look like those of a fabric, gives them away
 * with IPC_SET, and keeps them attached. The victim must have a working device
 * all the same, and must not touch them.
 */

#include "internals.h"
#include "npemu_segments.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>

#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

using namespace npt;

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
    bool       arena;   /* else the fabric */
    bool       given;   /* the victim becomes the owner */
    unsigned   mode;
    bool       marked;  /* for destruction, as those of a fabric are */
    ssize_t    grow;    /* bytes added to the size */
    bool       garbage;
};

static const Plan plans[] = {
    {"fabric, given away",              false, true,  0600, true,  0, false},
    {"fabric, given away, stays",       false, true,  0600, false, 0, false},
    {"fabric, for all users",           false, false, 0666, true,  0, false},
    {"fabric, given away to all users", false, true,  0666, true,  0, false},
    {"fabric, garbage",                 false, true,  0600, true,  0, true},
    {"fabric, one page more",           false, true,  0600, true, 4096, false},
    {"fabric, one byte more",           false, true,  0600, true,  1, false},
    {"fabric, one page less",           false, true,  0600, true, -4096, false},
    {"arena, given away",               true,  true,  0600, true,  0, false},
    {"arena, given away, stays",        true,  true,  0600, false, 0, false},
    {"arena, garbage",                  true,  true,  0600, true,  0, true}
};

/* A segment of the attacker's, and whether it stayed as it was. */
class Plant {
public:
    Plant(const Plan &plan, const Image &image, unsigned owner) : m_plan(plan)
    {
        shmid_ds ds;

        id = shmget(IPC_PRIVATE, image.size + plan.grow, IPC_CREAT | 0600);
        EXPECT_LE(0, id) << strerror(errno);
        m_address = (char*)shmat(id, nullptr, 0);
        EXPECT_NE((char*)-1, m_address) << strerror(errno);
        m_bytes = image.bytes;
        if (plan.garbage) {
            pattern_fill(m_bytes.data(), m_bytes.size(), 66);
        }
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

    Plant(Plant &&other) :
        id(other.id), m_plan(other.m_plan), m_address(other.m_address),
        m_bytes(std::move(other.m_bytes))
    {
        other.m_address = nullptr;
    }

    ~Plant()
    {
        if (m_address != nullptr) {
            shmdt(m_address);
            shmctl(id, IPC_RMID, nullptr);
        }
    }

    void expect_untouched() const
    {
        shmid_ds ds;

        EXPECT_TRUE(std::equal(m_bytes.begin(), m_bytes.end(), m_address))
                << m_plan.name << ": written";
        ASSERT_EQ(0, shmctl(id, IPC_STAT, &ds)) << m_plan.name << ": removed";
        EXPECT_EQ(getpid(), ds.shm_lpid) << m_plan.name << ": attached";
        EXPECT_EQ(1u, ds.shm_nattch) << m_plan.name;
    }

    int id;

private:
    const Plan        &m_plan;
    char              *m_address;
    std::vector<char> m_bytes;
};

static void be_victim(unsigned uid)
{
    ASSERT_TRUE((uid == 0) || become_user(uid));
    /* A change of user clears it; a normal program has it set. */
    ASSERT_EQ(0, prctl(PR_SET_DUMPABLE, 1, 0, 0, 0));
}

class test_fabric_users : public segment_test {
protected:
    void SetUp() override
    {
        segment_test::SetUp();
        SKIP_UNLESS(geteuid() == 0, "needs root to become other users");
    }

    /* What two processes of the victim share, as root sees it: the fabric, the
     * arena of slot 1, and that of slot 2. */
    static std::vector<Image> images(unsigned uid)
    {
        std::vector<Image> result;
        auto body = [=](Pipe &pipe) {
            be_victim(uid);
            hold_device(pipe);
        };

        Child first(body);
        EXPECT_TRUE(first.pipe().await());
        for (auto &it : segments()) {
            char *address = (char*)shmat(it.id, nullptr, SHM_RDONLY);
            if (address == (char*)-1) {
                ADD_FAILURE() << strerror(errno);
                continue;
            }
            result.push_back({it.ds.shm_segsz, {address, address + IMAGE}});
            shmdt(address);
        }
        std::sort(result.begin(), result.end(),
                  [](const Image &a, const Image &b) {
                      return a.size < b.size;
                  });
        first.pipe().signal();
        first.join();
        EXPECT_EQ(2u, result.size());
        EXPECT_TRUE(wait_until([] { return segments().empty(); }));
        return result;
    }

    /* Two processes of the victim meet, and say nothing. */
    static void expect_device(unsigned uid)
    {
        std::string said = stderr_of([=] {
            in_child([=] {
                be_victim(uid);
                Child other(be_idle);
                Side side;
                connect_over(other.pipe(), side.qp);
                side.write(1, other.pipe().recv<Remote>());
                EXPECT_TRUE(side.cq.expect(1));
                other.pipe().signal();
                other.join();
            });
        });
        EXPECT_EQ("", said);
    }

    /* The attacker plants all that is planned, several times. The victim opens
     * the device. */
    static void attack(unsigned victim, int count)
    {
        auto copies = images(victim);
        ASSERT_EQ(2u, copies.size());
        Child attacker([&](Pipe &pipe) {
            std::vector<Plant> plants;
            ASSERT_TRUE(become_user(ATTACKER));
            for (int i = 0; i < count; ++i) {
                for (auto &plan : plans) {
                    plants.emplace_back(plan, copies[plan.arena], victim);
                }
            }
            pipe.signal();
            EXPECT_TRUE(pipe.await());
            for (auto &plant : plants) {
                plant.expect_untouched();
            }
        });
        ASSERT_TRUE(attacker.pipe().await());
        expect_device(victim);
        attacker.pipe().signal();
        attacker.join();
    }
};

/* Also by root, which may attach anything. */
TEST_F(test_fabric_users, segments_are_left_alone)
{
    for (unsigned victim : {VICTIM, 0u}) {
        attack(victim, 1);
        attack(victim, 20);
    }
}

/* Ids are used again. When the victim's process is gone, what it said its arena
 * was may be a segment of the attacker's. */
TEST_F(test_fabric_users, arena_of_another_user_is_not_mapped)
{
    auto copies = images(VICTIM);
    ASSERT_EQ(2u, copies.size());
    Child attacker([&](Pipe &pipe) {
        ASSERT_TRUE(become_user(ATTACKER));
        Plant plant({"arena", true, true, 0600, true, 0, false}, copies[1],
                    VICTIM);
        pipe.send(plant.id);
        EXPECT_TRUE(pipe.await());
        plant.expect_untouched();
    });
    int id = attacker.pipe().recv<int>();

    Child target([=](Pipe &pipe) {
        be_victim(VICTIM);
        Side side;
        npt_set_arena(side.device.context, id);
        pipe.send(side.qp.address());
        pipe.await();
    });
    Address address = target.pipe().recv<Address>();
    expect_line("cannot map", [=] {
        in_child([=] {
            be_victim(VICTIM);
            QpOptions options;
            options.timeout   = 8;
            options.retry_cnt = 1;
            Side side(options);
            ASSERT_EQ(0, side.qp.to_init());
            if ((side.qp.to_rtr(address) != 0) || (side.qp.to_rts() != 0)) {
                return;
            }
            side.send(1);
            EXPECT_NE(IBV_WC_SUCCESS, side.cq.wait().status);
        });
    });
    target.pipe().signal();
    target.join();
    attacker.pipe().signal();
    attacker.join();
}

/* --- whose rights a process has --------------------------------------------*/

/* In a child: the device is refused, with a line that has @a reason in it. */
static void expect_refused(const char *reason)
{
    expect_line(reason, [] {
        struct ibv_device **list = npemu_get_device_list(nullptr);
        ASSERT_NE(nullptr, list);
        errno = 0;
        EXPECT_EQ(nullptr, npemu_open_device(list[0]));
        EXPECT_EQ(ENODEV, errno);
        npemu_free_device_list(list);
    });
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
            expect_refused("setuid");
        });
    }
}

/* A daemon that gives up its rights stays in the fabric that it is attached to,
 * and goes on to say which that is. */
TEST_F(test_fabric_users, user_changes_after_opening)
{
    in_child([] {
        ibv_gid before, after, other;
        Device device;
        ASSERT_EQ(0, npemu_query_gid(device.context, 1, 0, &before));
        ASSERT_TRUE(become_user(VICTIM));
        ASSERT_EQ(0, npemu_query_gid(device.context, 1, 0, &after));
        EXPECT_EQ(0, memcmp(&before, &after, sizeof(before)));
        {
            Device second;
            ASSERT_EQ(0, npemu_query_gid(second.context, 1, 0, &other));
            EXPECT_EQ(0, memcmp(&before, &other, sizeof(before)));
        }
        if (!NPT_FORK_WITH_THREADS) {
            return;
        }
        /* A child opens it as the user it has become. */
        in_child([&] {
            Device own;
            ASSERT_EQ(0, npemu_query_gid(own.context, 1, 0, &other));
            EXPECT_NE(0, memcmp(&before, &other, sizeof(before)));
        });
    });
}

/* --- user namespaces -------------------------------------------------------*/

/* Becomes the victim in a user namespace in which it has the number @a inside,
 * and no other user has one. False if that is not possible here. */
static bool enter_namespace(const char *inside)
{
    be_victim(VICTIM);
    if (unshare(CLONE_NEWUSER) != 0) {
        return false;
    }
    if (inside != nullptr) {
        std::ofstream map("/proc/self/uid_map");
        map << inside << " " << VICTIM << " 1" << std::flush;
        EXPECT_TRUE(map.good());
    }
    return true;
}

/* All users without a number appear as user 65534: so does the attacker, which
 * is the creator, and so may the victim. */
TEST_F(test_fabric_users, overflow_user_id_is_refused)
{
    auto copies = images(VICTIM);
    ASSERT_EQ(2u, copies.size());
    Child attacker([&](Pipe &pipe) {
        ASSERT_TRUE(become_user(ATTACKER));
        Plant plant(plans[0], copies[0], VICTIM);
        pipe.signal();
        EXPECT_TRUE(pipe.await());
        plant.expect_untouched();
    });
    ASSERT_TRUE(attacker.pipe().await());

    for (const char *inside : {(const char*)nullptr, "65534"}) {
        Child victim([=](Pipe &pipe) {
            bool possible = enter_namespace(inside);
            pipe.send(possible);
            if (possible) {
                EXPECT_EQ(65534u, geteuid());
                expect_refused("user namespace");
            }
        });
        bool possible = victim.pipe().recv<bool>();
        victim.join();
        if (!possible) {
            attacker.kill();
            GTEST_SKIP() << "users may not make user namespaces";
        }
    }
    attacker.pipe().signal();
    attacker.join();
}
