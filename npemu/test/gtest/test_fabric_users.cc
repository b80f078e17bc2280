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
#include <sys/wait.h>
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

static void PrintTo(const Plan &plan, std::ostream *out)
{
    *out << plan.name;
}

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
            auto body = [=](Pipe &pipe) {
                be_victim(uid);
                Device device;
                ASSERT_TRUE(device.ok());
                Cq cq(device);
                Qp qp(device, cq, cq);
                Buffer buffer(device, 4096);
                connect_over(pipe, qp);
                ASSERT_EQ(0, qp.post_recv(1, {buffer.sge()}));
                pipe.signal();
                pipe.await();
                Wr send(2, IBV_WR_SEND, {buffer.sge(0, 8)});
                ASSERT_EQ(0, qp.post(send));
                EXPECT_NE(NO_COMPLETION, cq.wait().status);
                EXPECT_NE(NO_COMPLETION, cq.wait().status);
                pipe.signal();
                pipe.await();
            };
            Child one(body), other(body);
            Address address = one.pipe().recv<Address>();
            one.pipe().send(other.pipe().recv<Address>());
            other.pipe().send(address);
            for (int step = 0; step < 3; ++step) {
                EXPECT_TRUE(one.pipe().await());
                EXPECT_TRUE(other.pipe().await());
                if (step < 2) {
                    one.pipe().signal();
                    other.pipe().signal();
                }
            }
            one.pipe().signal();
            one.join();
            other.pipe().signal();
            other.join();
        });
        EXPECT_EQ("", said);
    }

    /* The attacker plants what is planned, the victim opens the device. */
    static void attack(unsigned victim, const std::vector<const Plan*> &list)
    {
        auto copies = images(victim);
        ASSERT_EQ(2u, copies.size());
        Child attacker([&](Pipe &pipe) {
            std::vector<Plant> plants;
            ASSERT_TRUE(become_user(ATTACKER));
            for (auto plan : list) {
                plants.emplace_back(*plan, copies[plan->arena], victim);
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

class test_fabric_users_plans : public test_fabric_users,
                                public testing::WithParamInterface<Plan> {};

TEST_P(test_fabric_users_plans, segment_is_left_alone)
{
    attack(VICTIM, {&GetParam()});
}

/* Root may attach anything. */
TEST_P(test_fabric_users_plans, segment_is_left_alone_by_root)
{
    attack(0, {&GetParam()});
}

INSTANTIATE_TEST_SUITE_P(
        all, test_fabric_users_plans, testing::ValuesIn(plans),
        [](const testing::TestParamInfo<Plan> &info) {
            std::string name = info.param.name;
            name.erase(std::remove(name.begin(), name.end(), ','), name.end());
            std::replace(name.begin(), name.end(), ' ', '_');
            return name;
        });

TEST_F(test_fabric_users, many_segments_are_left_alone)
{
    std::vector<const Plan*> list;

    for (int round = 0; round < 20; ++round) {
        for (auto &plan : plans) {
            list.push_back(&plan);
        }
    }
    attack(VICTIM, list);
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
        Device device;
        ASSERT_TRUE(device.ok());
        Cq cq(device);
        Qp qp(device, cq, cq);
        npt_set_arena(device.context, id);
        pipe.send(qp.address());
        pipe.await();
    });
    Address address  = target.pipe().recv<Address>();
    std::string said = stderr_of([=] {
        in_child([=] {
            be_victim(VICTIM);
            Device device;
            ASSERT_TRUE(device.ok());
            Cq cq(device);
            QpOptions options;
            options.timeout   = 8;
            options.retry_cnt = 1;
            Qp qp(device, cq, cq, options);
            Buffer buffer(device, 4096);
            ASSERT_EQ(0, qp.to_init());
            if ((qp.to_rtr(address) != 0) || (qp.to_rts() != 0)) {
                return;
            }
            Wr send(1, IBV_WR_SEND, {buffer.sge(0, 8)});
            ASSERT_EQ(0, qp.post(send));
            EXPECT_NE(IBV_WC_SUCCESS, cq.wait().status);
        });
    });
    EXPECT_NE(std::string::npos, said.find("cannot map")) << said;
    target.pipe().signal();
    target.join();
    attacker.pipe().signal();
    attacker.join();
}

/* --- whose rights a process has --------------------------------------------*/

/* In a child: the device is refused, with a line that has @a reason in it. */
static void expect_refused(const char *reason)
{
    std::string said = stderr_of([] {
        struct ibv_device **list = npemu_get_device_list(nullptr);
        ASSERT_NE(nullptr, list);
        errno = 0;
        EXPECT_EQ(nullptr, npemu_open_device(list[0]));
        EXPECT_EQ(ENODEV, errno);
        npemu_free_device_list(list);
    });
    EXPECT_NE(std::string::npos, said.find(reason)) << said;
    EXPECT_EQ(1, std::count(said.begin(), said.end(), '\n')) << said;
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
        ASSERT_TRUE(device.ok());
        ASSERT_EQ(0, npemu_query_gid(device.context, 1, 0, &before));
        ASSERT_TRUE(become_user(VICTIM));
        ASSERT_EQ(0, npemu_query_gid(device.context, 1, 0, &after));
        EXPECT_EQ(0, memcmp(&before, &after, sizeof(before)));
        {
            Device second;
            ASSERT_TRUE(second.ok());
            ASSERT_EQ(0, npemu_query_gid(second.context, 1, 0, &other));
            EXPECT_EQ(0, memcmp(&before, &other, sizeof(before)));
        }
        if (!NPT_FORK_WITH_THREADS) {
            return;
        }
        /* A child opens it as the user it has become. */
        in_child([&] {
            Device own;
            ASSERT_TRUE(own.ok());
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

/* The kernel denies access to memory across user namespaces, so there is no
 * point in a fabric that spans two. */
TEST_F(test_fabric_users, each_user_namespace_has_a_fabric)
{
    auto gid_of = [](Pipe &pipe) {
        ibv_gid gid;
        Device device;
        ASSERT_TRUE(device.ok());
        ASSERT_EQ(0, npemu_query_gid(device.context, 1, 0, &gid));
        pipe.send(gid);
        pipe.await();
    };
    Child outside([=](Pipe &pipe) {
        be_victim(VICTIM);
        gid_of(pipe);
    });
    ibv_gid first = outside.pipe().recv<ibv_gid>();

    for (const char *inside : {"0", "54321"}) {
        Child victim([=](Pipe &pipe) {
            bool possible = enter_namespace(inside);
            pipe.send(possible);
            if (possible) {
                EXPECT_EQ((unsigned)atoi(inside), geteuid());
                gid_of(pipe);
            }
        });
        if (!victim.pipe().recv<bool>()) {
            victim.join();
            outside.kill();
            GTEST_SKIP() << "users may not make user namespaces";
        }
        ibv_gid second = victim.pipe().recv<ibv_gid>();
        EXPECT_NE(0, memcmp(&first, &second, sizeof(first)));
        EXPECT_EQ(4u, segments().size());
        victim.pipe().signal();
        victim.join();
        EXPECT_TRUE(wait_until([] { return segments().size() == 2; }));
    }
    outside.pipe().signal();
    outside.join();
}
