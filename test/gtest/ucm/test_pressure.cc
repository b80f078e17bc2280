/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What the kernel says about memory that is short, from files that the test
 * writes, and the thread that tells its clients */

#include "fake_cgroup.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

class test_pressure : public ::testing::Test, protected fake_cgroup {
protected:
    bool sample()
    {
        nprdma_psi_t psi;

        nprdma_psi_open(&psi, &m_params.psi);
        int is_short = nprdma_psi_sample(&psi);
        nprdma_psi_close(&psi);
        return is_short != 0;
    }

    static void write_pages(const std::string &path, size_t size)
    {
        const std::string page(1000000, 'x');
        std::ofstream file(path);

        for (size_t done = 0; done < size; done += page.size()) {
            file << page;
        }
    }
};

/* A client that counts its calls */
struct pressure_client : nprdma_pressure_client_t {
    explicit pressure_client(double seconds = 0) : nprdma_pressure_client_t{}
    {
        give_back    = [](void *arg) { ++((pressure_client*)arg)->m_told; };
        tick         = [](void *arg) { ++((pressure_client*)arg)->m_ticks; };
        tick         = (seconds > 0) ? tick : nullptr;
        tick_seconds = seconds;
        arg          = this;
    }

    std::atomic<unsigned> m_told{0}, m_ticks{0};
};

/* Whether the thread sleeps until it is woken */
static bool sleeps()
{
    std::istringstream text(thread_file("syscall"));
    std::string number, fds, count, timeout;

    text >> number >> fds >> count >> timeout;
#ifdef __x86_64__
    return (number == "7") && (timeout.find("ffffffff") != std::string::npos);
#else
    return (number == "73") && (timeout == "0x0");
#endif
}

static unsigned num_fds()
{
    DIR *fds       = opendir("/proc/self/fd");
    unsigned count = 0;

    while (readdir(fds) != nullptr) {
        ++count;
    }
    closedir(fds);
    return count;
}


/* ---- samples ---- */

TEST_F(test_pressure, nothing_there)
{
    EXPECT_FALSE(sample());
    put(m_proc + "/self/cgroup", "0::/job/step\n");
    EXPECT_FALSE(sample());
    put(m_cgroup + "/cgroup.controllers", "memory\n");
    EXPECT_FALSE(sample());
}

TEST_F(test_pressure, machine)
{
    put(m_proc + "/meminfo", "MemTotal: 1000000 kB\nMemFree: 10 kB\n"
                             "MemAvailable:   50000 kB\n");
    EXPECT_FALSE(sample());
    put(m_proc + "/meminfo", "MemTotal: 1000000 kB\nMemFree: 900000 kB\n"
                             "MemAvailable:   49999 kB\n");
    EXPECT_TRUE(sample());
}

TEST_F(test_pressure, limits_of_v2)
{
    make_v2();
    EXPECT_FALSE(sample());
    put_step("memory.high", "1001\n");
    EXPECT_FALSE(sample());
    put_step("memory.high", "1000\n");
    EXPECT_TRUE(sample());
    put_step("memory.high", "max\n");
    put_step("memory.max", "1060\n");
    EXPECT_FALSE(sample());
    put_step("memory.max", "1050\n");
    EXPECT_TRUE(sample());
}

TEST_F(test_pressure, limits_of_v1)
{
    make_v1();
    EXPECT_FALSE(sample());
    put(m_cgroup + "/memory/job/step/memory.soft_limit_in_bytes", "900\n");
    EXPECT_TRUE(sample());
    put(m_cgroup + "/memory/job/step/memory.soft_limit_in_bytes", "2000\n");
    EXPECT_FALSE(sample());
    put(m_cgroup + "/memory/job/memory.limit_in_bytes", "1010\n");
    EXPECT_TRUE(sample());
}

/* Beside v1, as systemd mounts it */
TEST_F(test_pressure, limits_of_hybrid)
{
    make_v1();
    put(m_proc + "/self/cgroup", "5:memory:/job/step\n0::/user\n");
    folder(m_cgroup + "/unified");
    folder(m_cgroup + "/unified/user");
    put(m_cgroup + "/unified/user/memory.current", "1000\n");
    EXPECT_FALSE(sample());
    put(m_cgroup + "/unified/user/memory.high", "1000\n");
    EXPECT_TRUE(sample());
}

TEST_F(test_pressure, limit_above)
{
    make_v2();
    put(m_cgroup + "/job/memory.max", "1000\n");
    EXPECT_TRUE(sample());
    put(m_cgroup + "/job/memory.current", "10\n");
    EXPECT_FALSE(sample());
    /* The root of the hierarchy counts, what is above it does not */
    put(m_root + "/memory.current", "1000\n");
    put(m_root + "/memory.max", "1000\n");
    EXPECT_FALSE(sample());
    put(m_cgroup + "/memory.current", "1000\n");
    put(m_cgroup + "/memory.max", "1000\n");
    EXPECT_TRUE(sample());
}

TEST_F(test_pressure, pages_of_files_do_not_count)
{
    make_v2();
    put_step("memory.high", "1000\n");
    for (const char *fields : {"inactive_file 690\nactive_file 10\n",
                               "inactive_file 10\nactive_file 690\n",
                               "active_file 690\n", "inactive_file 690\n"}) {
        put_step("memory.stat", std::string("anon 300\nfile 700\n") + fields +
                                "workingset 1\n");
        EXPECT_FALSE(sample()) << fields;
    }
    put_step("memory.stat", "anon 300\nfile 700\nnot_inactive_file 690\n");
    EXPECT_TRUE(sample());
}

/* In a container without a cgroup namespace, the cgroup itself is mounted */
TEST_F(test_pressure, path_of_the_host)
{
    make_v2("/docker/0123456789");
    put(m_cgroup + "/memory.current", "1000\n");
    EXPECT_FALSE(sample());
    put(m_cgroup + "/memory.max", "1000\n");
    EXPECT_TRUE(sample());
}

TEST_F(test_pressure, nonsense)
{
    const std::string huge(100000, '7');

    make_v2();
    for (const std::string &text : {std::string(""), std::string("\n"),
                                    std::string("-1\n"), std::string("x"),
                                    std::string("99999999999999999999999\n"),
                                    std::string(4096, '\0'), huge}) {
        put_step("memory.high", text);
        EXPECT_FALSE(sample()) << text.substr(0, 30);
        put_step("memory.stat", text);
        put_step("memory.events", text);
        put(m_proc + "/meminfo", "MemTotal: 1000\nMemAvailable:" + text);
        EXPECT_FALSE(sample()) << text.substr(0, 30);
    }
    for (const std::string &text : {std::string(""), std::string("0"),
                                    std::string("0:"), std::string("0::"),
                                    std::string("::::\n\n:\n"), huge,
                                    "0::/" + std::string(8000, 'a'),
                                    std::string("\n0::/job/step")}) {
        put(m_proc + "/self/cgroup", text);
        EXPECT_FALSE(sample()) << text.substr(0, 30);
    }
}

/* The cgroup's before the machine's. An ordinary file accepts it and never
 * reports anything. */
TEST_F(test_pressure, trigger_is_written)
{
    nprdma_psi_t psi;

    make_v2();
    folder(m_proc + "/pressure");
    put(m_proc + "/pressure/memory", "");
    nprdma_psi_open(&psi, &m_params.psi);
    EXPECT_FALSE(nprdma_psi_needs_samples(&psi));
    nprdma_psi_close(&psi);
    EXPECT_TRUE(nprdma_psi_needs_samples(&psi));
    EXPECT_STREQ(trigger, get(m_proc + "/pressure/memory").c_str());

    put(m_proc + "/pressure/memory", "");
    put_step("memory.pressure", "");
    nprdma_psi_open(&psi, &m_params.psi);
    EXPECT_FALSE(nprdma_psi_needs_samples(&psi));
    nprdma_psi_close(&psi);
    EXPECT_EQ("", get(m_proc + "/pressure/memory"));
    EXPECT_STREQ(trigger, get(m_cgroup + "/job/step/memory.pressure").c_str());
}

/* The kernel's own trigger fires while a cgroup stalls at its limit */
TEST_F(test_pressure, trigger_fires)
{
    const std::string group = "/sys/fs/cgroup/memory" +
                              m_root.substr(m_root.rfind('/'));
    pressure_client client;
    nprdma_psi_t psi;

    m_params.psi = {"/proc", m_cgroup.c_str(), "some 1 2000000"};
    nprdma_psi_open(&psi, &m_params.psi);
    bool is_refused = nprdma_psi_needs_samples(&psi);
    nprdma_psi_close(&psi);
    if (is_refused || (mkdir(group.c_str(), 0700) != 0)) {
        GTEST_SKIP() << "needs PSI, and the right to make a cgroup (v1)";
    }

    put(group + "/memory.limit_in_bytes", "8000000");
    nprdma_pressure_set_params(&m_params);
    ASSERT_EQ(UCS_OK, nprdma_pressure_add(&client));
    nprdma_pressure_arm(&client);
    wait_for(sleeps);
    for (unsigned turn = 0; (turn < 100) && (client.m_told == 0); ++turn) {
        pid_t pid = fork();
        if (pid == 0) {
            put(group + "/cgroup.procs", "0");
            write_pages(m_root + "/pages", 64 * 1000 * 1000);
            _exit(0);
        }
        waitpid(pid, nullptr, 0);
    }
    EXPECT_GT(client.m_told, 0u);
    nprdma_pressure_remove(&client);
    EXPECT_EQ(0, rmdir(group.c_str()));
}


/* ---- clients ---- */

TEST_F(test_pressure, timer_tells)
{
    pressure_client client;

    make_v2();
    ASSERT_EQ(UCS_OK, nprdma_pressure_add(&client));
    nprdma_pressure_arm(&client);
    put_step("memory.high", "999\n");
    wait_for([&]() { return client.m_told >= 3; });
    EXPECT_EQ(0u, client.m_ticks);
    nprdma_pressure_remove(&client);
}

/* Only events that are more than one of `low`, and only armed clients */
TEST_F(test_pressure, event_tells)
{
    pressure_client armed, other, ticker(0.001);

    make_v2();
    put_step("memory.pressure", "");
    put_events(0, 7, 1);
    ASSERT_EQ(UCS_OK, nprdma_pressure_add(&other));
    ASSERT_EQ(UCS_OK, nprdma_pressure_add(&armed));
    ASSERT_EQ(UCS_OK, nprdma_pressure_add(&ticker));
    nprdma_pressure_arm(&armed);
    nprdma_pressure_arm(&ticker);
    /* Before the second tick, poll() has returned what happened before */
    auto wait_for_poll = [&]() {
        unsigned ticks = ticker.m_ticks;
        wait_for([&]() { return ticker.m_ticks >= ticks + 2; });
    };
    wait_for_poll();
    for (unsigned i = 1; i < 5; ++i) {
        put_events(i, 7 + i - 1, 1);
        wait_for_poll();
        EXPECT_EQ(i - 1, armed.m_told);
        put_events(i, 7 + i, 1);
        wait_for([&]() { return armed.m_told >= i; });
        wait_for_poll();
        EXPECT_EQ(i, armed.m_told);
    }
    put_events(5, 11, 2);
    wait_for([&]() { return armed.m_told >= 5; });
    EXPECT_EQ(0u, other.m_told);
    nprdma_pressure_remove(&armed);
    nprdma_pressure_remove(&ticker);
    nprdma_pressure_remove(&other);
}

/* Many events are one call, and the last of them is not lost. Repeated until
 * all of them were within the time of the first call, whatever the CPU does. */
TEST_F(test_pressure, holdoff)
{
    typedef std::chrono::steady_clock clock;
    const std::chrono::milliseconds holdoff(300);
    pressure_client client;
    unsigned event = 0, told = 0;
    bool is_late   = true;

    m_params.holdoff_seconds = holdoff.count() * 1e-3;
    nprdma_pressure_set_params(&m_params);
    make_v2();
    put_step("memory.pressure", "");
    put_events(0, event, 0);
    ASSERT_EQ(UCS_OK, nprdma_pressure_add(&client));
    nprdma_pressure_arm(&client);
    while (is_late) {
        wait_for(sleeps);
        auto begin = clock::now();
        told       = client.m_told;
        put_events(0, ++event, 0);
        wait_for([&]() { return client.m_told > told; });
        for (unsigned i = 2; i < 100; ++i) {
            put_events(0, ++event, 0);
        }
        is_late = clock::now() - begin >= holdoff;
        wait_for([&]() { return client.m_told > told + 1; });
        EXPECT_GE(clock::now() - begin, holdoff);
    }
    wait_for(sleeps);
    EXPECT_EQ(told + 2, client.m_told);
    nprdma_pressure_remove(&client);
}

/* No timer is left while nothing is kept, and no descriptor but those by which
 * the thread is woken and hooks ask for room */
TEST_F(test_pressure, sleeps_unless_armed)
{
    pressure_client client(0.001);
    unsigned before, idle;

    make_v2(); /* No trigger: there are samples */
    put_events(0, 0, 0);
    before = num_fds();
    idle   = before + 1 + 2 * 3; /* Of two cgroups: folder, usage, limit */
    ASSERT_EQ(UCS_OK, nprdma_pressure_add(&client));
    for (unsigned i = 0; i < 3; ++i) {
        wait_for(sleeps);
        EXPECT_EQ(idle, num_fds());
        nprdma_pressure_arm(&client);
        unsigned ticks = client.m_ticks;
        wait_for([&]() { return client.m_ticks > ticks + 3; });
        EXPECT_EQ(idle + 1, num_fds());
        nprdma_pressure_disarm(&client);
    }
    wait_for(sleeps);
    EXPECT_EQ(0u, client.m_told);
    nprdma_pressure_remove(&client);
    EXPECT_EQ(before, num_fds());
    EXPECT_EQ("", thread_file("comm"));
}

/* Neither ticks nor samples, if the kernel reports and no client wants them */
TEST_F(test_pressure, armed_without_wakeups)
{
    pressure_client client;

    make_v2();
    put_step("memory.pressure", "");
    ASSERT_EQ(UCS_OK, nprdma_pressure_add(&client));
    nprdma_pressure_arm(&client);
    wait_for([&]() { return !get(m_cgroup + "/job/step/memory.pressure")
                                     .empty(); });
    wait_for(sleeps);
    nprdma_pressure_remove(&client);
}

TEST_F(test_pressure, ticks_differ)
{
    pressure_client fast(0.001), slow(0.05);

    make_v2();
    put_step("memory.pressure", "");
    ASSERT_EQ(UCS_OK, nprdma_pressure_add(&fast));
    ASSERT_EQ(UCS_OK, nprdma_pressure_add(&slow));
    nprdma_pressure_arm(&fast);
    nprdma_pressure_arm(&slow);
    wait_for([&]() { return slow.m_ticks == 4; });
    EXPECT_GT(fast.m_ticks, 8u);
    nprdma_pressure_disarm(&fast);
    wait_for([&]() { return slow.m_ticks >= 6; });
    unsigned ticks = fast.m_ticks;
    wait_for([&]() { return slow.m_ticks >= 8; });
    EXPECT_EQ(ticks, fast.m_ticks);
    nprdma_pressure_remove(&fast);
    nprdma_pressure_remove(&slow);
}

/* Removing waits for a function that runs, and another client can disarm */
TEST_F(test_pressure, remove_waits)
{
    struct slow_client : pressure_client {
        slow_client()
        {
            give_back = [](void *arg) {
                slow_client *self = (slow_client*)(pressure_client*)arg;
                self->m_is_running = true;
                wait_for([=]() { return self->m_is_removing.load(); });
                usleep(50000); /* Long enough for a removal that returns */
                self->m_is_done = true;
            };
        }

        std::atomic<bool> m_is_running{false}, m_is_removing{false};
        std::atomic<bool> m_is_done{false};
    } slow;
    pressure_client other;

    make_v2();
    put_step("memory.high", "999\n");
    ASSERT_EQ(UCS_OK, nprdma_pressure_add(&other));
    ASSERT_EQ(UCS_OK, nprdma_pressure_add(&slow));
    nprdma_pressure_arm(&slow);
    wait_for([&]() { return slow.m_is_running.load(); });
    nprdma_pressure_arm(&other); /* Does not wait */
    slow.m_is_removing = true;
    nprdma_pressure_remove(&slow);
    EXPECT_TRUE(slow.m_is_done);
    wait_for([&]() { return other.m_told >= 1; });
    nprdma_pressure_remove(&other);
    nprdma_pressure_remove(&other); /* Ignored */
}

TEST_F(test_pressure, arm_keeps_errno)
{
    pressure_client client;

    make_v2();
    errno = 12345;
    nprdma_pressure_arm(&client); /* Without a thread */
    EXPECT_EQ(12345, errno);
    nprdma_pressure_disarm(&client);
}

/* Clients that come, go, arm and disarm on four threads, under pressure */
TEST_F(test_pressure, stress)
{
    std::vector<std::thread> threads;
    std::atomic<unsigned> told{0};

    m_params.holdoff_seconds = 0;
    m_params.sample_seconds  = 0.0001;
    nprdma_pressure_set_params(&m_params);
    make_v2();
    put_step("memory.high", "999\n");
    for (unsigned i = 0; i < 4; ++i) {
        threads.emplace_back([&, i]() {
            for (unsigned turn = 0; turn < 200; ++turn) {
                pressure_client client((i & 1) ? 0.0001 : 0);
                EXPECT_EQ(UCS_OK, nprdma_pressure_add(&client));
                nprdma_pressure_arm(&client);
                if ((turn % 8) == 0) {
                    wait_for([&]() { return client.m_told > 0; });
                }
                if (turn & 1) {
                    nprdma_pressure_disarm(&client);
                }
                nprdma_pressure_remove(&client);
                told += client.m_told;
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    EXPECT_GE(told, 4 * 25u);
    EXPECT_EQ("", thread_file("comm"));
}


/* ---- fork ---- */

class test_pressure_fork : public test_pressure {
};

/* The child has no thread, and none of the parent's clients or descriptors. It
 * gets a thread with its first client. */
TEST_F(test_pressure_fork, child_begins_anew)
{
    pressure_client client, other;
    unsigned before = num_fds();

    make_v2();
    put_step("memory.high", "999\n");
    ASSERT_EQ(UCS_OK, nprdma_pressure_add(&client));
    nprdma_pressure_arm(&client);
    wait_for([&]() { return client.m_told >= 1; });
    EXPECT_EQ(0, in_child([&]() {
        if ((num_fds() != before) || (thread_file("comm") != "")) {
            return 1;
        }
        nprdma_pressure_remove(&client);
        nprdma_pressure_disarm(&client);
        nprdma_pressure_arm(&client);
        if (nprdma_pressure_add(&other) != UCS_OK) {
            return 2;
        }
        unsigned told = client.m_told;
        nprdma_pressure_arm(&other);
        wait_for([&]() { return other.m_told >= 2; });
        nprdma_pressure_remove(&other);
        return ((client.m_told == told) && (num_fds() == before)) ? 0 : 3;
    }));

    unsigned told = client.m_told;
    wait_for([&]() { return client.m_told >= told + 2; });
    nprdma_pressure_remove(&client);
    EXPECT_EQ(before, num_fds());
}

/* No lock is left locked in a child, at whatever moment it was made */
TEST_F(test_pressure_fork, while_clients_come_and_go)
{
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "AddressSanitizer's own locks stay locked in a child";
#endif
    std::atomic<bool> stop{false};

    m_params.holdoff_seconds = 0;
    nprdma_pressure_set_params(&m_params);
    make_v2();
    put_step("memory.high", "999\n");
    std::thread thread([&]() {
        while (!stop) {
            pressure_client client(0.0001);
            nprdma_pressure_add(&client);
            nprdma_pressure_arm(&client);
            nprdma_pressure_remove(&client);
        }
    });
    for (unsigned i = 0; (i < 100) && !HasFailure(); ++i) {
        EXPECT_EQ(0, in_child([]() {
            pressure_client client;
            if (nprdma_pressure_add(&client) != UCS_OK) {
                return 1;
            }
            nprdma_pressure_arm(&client);
            wait_for([&]() { return client.m_told >= 1; });
            nprdma_pressure_remove(&client);
            return 0;
        }));
    }
    stop = true;
    thread.join();
}

/* One line says that no memory is kept */
TEST_F(test_pressure_fork, without_a_thread)
{
    int out = open((m_root + "/log").c_str(), O_WRONLY | O_CREAT, 0600);
    EXPECT_EQ(0, in_child([&]() {
        const struct rlimit limit = {};
        pressure_client client;

        dup2(out, 1);
        dup2(out, 2);
        /* The limit is not for root */
        if (((geteuid() == 0) && (setuid(65534) != 0)) ||
            (setrlimit(RLIMIT_NPROC, &limit) != 0)) {
            return 1;
        }
        if (nprdma_pressure_add(&client) != UCS_ERR_NO_RESOURCE) {
            return 2;
        }
        nprdma_pressure_arm(&client);
        nprdma_pressure_remove(&client);
        return fflush(nullptr);
    }));
    close(out);
    EXPECT_NE(std::string::npos, get(m_root + "/log").find("no memory is kept"))
            << get(m_root + "/log");
}
