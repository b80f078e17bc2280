/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

extern "C" {
#include <uct/ib/nprdma/wire/nprdma_key.h>
}

#include <ucs/async/async_fwd.h>

#include <algorithm>
#include <atomic>

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Values that UCX parses but that make no sense, and limits of the system. The
 * reason is logged, nothing crashes or hangs, and nothing leaks.
 */

namespace {

struct wrong {
    config_t   config;
    const char *told;  /* Text that the only line of error contains */
};

const wrong wrong_values[] = {
    {{{"MAX_PINNED", "0"}}, "UCX_NPRDMA_MAX_PINNED"},
    {{{"MAX_PINNED", "63k"}}, "UCX_NPRDMA_MAX_PINNED"},
    {{{"LAZY_UNMAP", "255k"}}, "LAZY_UNMAP"},
    {{{"LAZY_UNMAP", "64m,zeroed"}}, "LAZY_UNMAP"},
    {{{"SVC_SLOTS", "0"}}, "UCX_NPRDMA_INJECT: svc_slots"},
    {{{"GID_INDEX", "256"}}, "UCX_NPRDMA_GID_INDEX"},
    {{{"SL", "16"}}, "UCX_NPRDMA_SL"},
    {{{"TRAFFIC_CLASS", "256"}}, "UCX_NPRDMA_TRAFFIC_CLASS"},
    {{{"SL", "0,16"}}, "UCX_NPRDMA_SL: 16"},
    {{{"SL", "0,1,2"}}, "UCX_NPRDMA_SL: 3 numbers"},
    {{{"INJECT", "no_such_item:1"}}, "UCX_NPRDMA_INJECT: 'no_such_item'"},
    {{{"INJECT", "slice"}}, "UCX_NPRDMA_INJECT: 'slice' is not NAME:VALUE"},
    {{{"INJECT", "slice:4k,"}}, "UCX_NPRDMA_INJECT: '' is not NAME:VALUE"},
    {{{"INJECT", "reclaim:maybe"}}, "'maybe' is not valid for reclaim"},
    {{{"TIMEOUT", "0"}}, "UCX_NPRDMA_TIMEOUT"},
    {{{"TIMEOUT", "nan"}}, "UCX_NPRDMA_TIMEOUT"},
    {{{"RETRY_COUNT", "8"}}, "UCX_NPRDMA_RETRY_COUNT"},
    {{{"RNR_TIMEOUT", "0"}}, "UCX_NPRDMA_RNR_TIMEOUT"},
    {{{"RNR_TIMEOUT", "1s"}}, "UCX_NPRDMA_RNR_TIMEOUT"},
    {{{"REGION_SIZE", "3m"}}, "UCX_NPRDMA_INJECT: region_size"},
    {{{"SEG_SIZE", "0"}}, "UCX_NPRDMA_SEG_SIZE"},
    {{{"TX_MAX_BUFS", "0"}}, "UCX_NPRDMA_TX_MAX_BUFS"},
    {{{"RX_MAX_BUFS", "1"}}, "UCX_NPRDMA_RX_MAX_BUFS"},
    {{{"TX_QUEUE_LEN", "1"}}, "UCX_NPRDMA_TX_QUEUE_LEN"},
    {{{"TX_CQ_LEN", "0"}}, "UCX_NPRDMA_TX_CQ_LEN"},
    {{{"CM_RETRY_INTERVAL", "2s"}}, "cm_retry_max"},
    {{{"CM_RETRY_INTERVAL", "1s"}, {"CM_TIMEOUT", "0.9s"}},
     "UCX_NPRDMA_CM_TIMEOUT"},
    {{{"CM_RETRY_MAX", "1ms"}}, "cm_retry_max"},
    {{{"CM_TIMEOUT", "0"}}, "UCX_NPRDMA_CM_TIMEOUT"},
    {{{"CM_TIMEOUT", "1e9s"}}, "UCX_NPRDMA_CM_TIMEOUT"},
    {{{"CM_PROBE_INTERVAL", "0"}}, "UCX_NPRDMA_CM_PROBE_INTERVAL"},
    {{{"FAULT_RATE", "2"}}, "UCX_NPRDMA_INJECT: fault_rate"},
    {{{"FAULT_RATE", "nan"}}, "UCX_NPRDMA_INJECT: fault_rate"},
    {{{"FAULT_SEED", "x"}}, "'x' is not valid for fault_seed"},
    {{{"RECLAIM_RATE", "2e9"}}, "UCX_NPRDMA_INJECT: reclaim_rate"},
    {{{"PERF", "overhead"}}, "UCX_NPRDMA_PERF"},
    {{{"PERF", "speed:1ns"}}, "UCX_NPRDMA_PERF"},
    {{{"PERF", "overhead:1ns,,latency:1ns"}}, "UCX_NPRDMA_PERF"},
    {{{"PERF", "overhead:12000MBs"}}, "UCX_NPRDMA_PERF"},
    {{{"PERF", "bandwidth:0MBs"}}, "UCX_NPRDMA_PERF"},
    {{{"STATS", "stdlog"}}, "UCX_NPRDMA_STATS"},
    {{{"STATS", "file:"}}, "UCX_NPRDMA_STATS"},
    /* Valid with and without the kernel module */
    {{{"MONITOR", "kernel"}, {"FAULT_RATE", "0.1"}},
     "UCX_NPRDMA_MONITOR=kernel"},
    /* Each value is valid, but one buffer exceeds the limit of pinned memory */
    {{{"SEG_SIZE", "1m"}, {"MAX_PINNED", "768k"}}, "UCX_NPRDMA_MAX_PINNED"},
};

/* Whether a process can communicate with itself: wire-up, active message,
 * put */
bool works(const config_t &config = {})
{
    try {
        entity e(config);
        buffer memory(e.md(), 4096);
        uct_ep_h ep     = e.connect(e.address());
        uct_rkey_t rkey = e.unpack(memory.packed_key());
        uint64_t value  = 7;
        ucs_status_t status;

        status = e.retry([&]() {
            return (e.failed.count(ep) > 0) ? UCS_ERR_ENDPOINT_TIMEOUT :
                   uct_ep_put_short(ep, &value, sizeof(value),
                                    memory.address(), rkey);
        });
        if (status != UCS_OK) {
            return false;
        }
        e.wait([&]() {
            return (*memory.ptr<std::atomic<uint64_t>>() == value) ||
                   (e.failed.count(ep) > 0);
        });
        return e.failed.empty();
    } catch (const std::runtime_error &error) {
        return false;
    }
}

/* Keeps UCX's own thread running. UCX 1.13 asserts if it cannot start that
 * thread (ucs_async_thread_start), whatever the transport. */
class async_thread {
public:
    async_thread() : m_fd(eventfd(0, EFD_CLOEXEC))
    {
        EXPECT_EQ(UCS_OK,
                  ucs_async_set_event_handler(UCS_ASYNC_MODE_THREAD_SPINLOCK,
                                              m_fd, UCS_EVENT_SET_EVREAD,
                                              nothing, nullptr, nullptr));
    }

    ~async_thread()
    {
        EXPECT_EQ(UCS_OK, ucs_async_remove_handler(m_fd, 1));
        close(m_fd);
    }

private:
    static void nothing(int, ucs_event_set_types_t, void *) {}
    int m_fd;
};

/* Whether it works, and what is logged. Descriptors that a process keeps
 * after its first use of the emulated RNIC are no leak, because it keeps
 * them once. */
PEER_FUNCTION(with_limit)
{
    int resource = parent.get<int>();
    rlim_t limit = parent.get<rlim_t>();
    struct rlimit old;
    bool good;

    find_component(); /* Loading by UCX is not under test */
    async_thread thread;
    getrlimit(resource, &old);
    struct rlimit low = {std::min(limit, old.rlim_max), old.rlim_max};
    {
        complaints told;
        EXPECT_EQ(0, setrlimit(resource, &low));
        /* Time after which peers give up while the target has no service */
        good = works({{"CM_TIMEOUT", "1s"}});
        EXPECT_EQ(0, setrlimit(resource, &old));
        EXPECT_TRUE(good || !told.lines().empty());
        if (resource == RLIMIT_MEMLOCK) {
            EXPECT_EQ(limit < 768 * 1024, !told.lines().empty() &&
                      (told.lines().front().find("nprdma is slow: the limit of "
                                                 "locked memory leaves it") !=
                       std::string::npos));
            EXPECT_TRUE(good ||
                        (told.lines().at(1).find("limit of locked memory is") !=
                         std::string::npos));
        }
        for (auto &line : told.lines()) {
            EXPECT_EQ(std::string::npos, line.find("Assertion")) << line;
        }
    }
    parent.put(good);

    /* Afterwards everything works as if there had been no limit */
    EXPECT_TRUE(works());
    unsigned before = num_descriptors();
    EXPECT_TRUE(works());
    EXPECT_EQ(before, num_descriptors());
    return 0;
}

} // namespace

/* "auto" is silent if there is no module; an explicit request is not */
TEST(test_config, kernel_module)
{
    complaints told;

    { entity automatic(config_t{{"MONITOR", "auto"}}); }
    { entity emulated(config_t{{"MONITOR", "emulated"}}); }
    EXPECT_TRUE(told.lines().empty());
    if (access("/dev/nprdma", R_OK | W_OK) == 0) {
        entity kernel(config_t{{"MONITOR", "kernel"}});
        EXPECT_TRUE(told.lines().empty());
        return;
    }

    EXPECT_THROW(entity(config_t{{"MONITOR", "kernel"}}), std::runtime_error);
    for (auto word : {"UCX_NPRDMA_MONITOR=kernel", "/dev/nprdma"}) {
        expect_line(told, word);
    }
}

TEST(test_config, wrong_values)
{
    { entity good; } /* Allocates what a process allocates once */
    unsigned before = num_descriptors();

    for (auto &w : wrong_values) {
        complaints told;
        EXPECT_THROW(entity e(w.config), std::runtime_error) << w.told;
        expect_line(told, w.told);
        EXPECT_EQ(before, num_descriptors()) << w.told;
        EXPECT_EQ(0, proc_status_kb(getpid(), "VmLck:")) << w.told;
    }
    entity good;
}

/* In /tmp any user can create a link with our file's name first */
TEST(test_config, counters_of_another_user)
{
    char path[]      = "/tmp/counters.nprdma.XXXXXX";
    int fd           = mkstemp(path);
    std::string link = std::string(path) + ".link";
    struct stat st;

    ASSERT_GE(fd, 0);
    if (geteuid() != 0) {
        close(fd);
        unlink(path);
        GTEST_SKIP() << "needs root to make a link of another user";
    }

    ASSERT_EQ(0, symlink(path, link.c_str()));
    ASSERT_EQ(0, lchown(link.c_str(), 65534, 65534));
    complaints told;
    { entity e(config_t{{"STATS", "file:" + link}}); }
    expect_line(told, "another user");
    EXPECT_EQ(0, fstat(fd, &st));
    EXPECT_EQ(0, st.st_size);
    close(fd);
    unlink(link.c_str());
    unlink(path);
}

/* The smallest and the largest accepted values work */
TEST(test_config, limits)
{
    const config_t limits[] = {
        {{"CM_RETRY_INTERVAL", "1ms"}, {"CM_RETRY_MAX", "1000us"},
         {"CM_TIMEOUT", "86400"}, {"CM_PROBE_INTERVAL", "0.001"}},
        {{"CM_RETRY_INTERVAL", "86400"}, {"CM_RETRY_MAX", "86400"},
         {"CM_TIMEOUT", "86400"}, {"CM_PROBE_INTERVAL", "86400"}},
        {{"TIMEOUT", "1us"}, {"RNR_TIMEOUT", "1us"}, {"SLICE", "4k"},
         {"SCAN_MAX", "0"}, {"STATE_CACHE", "0"}, {"REGION_CACHE", "0"},
         {"REGION_SIZE", "2m"}, {"MAX_TRIES", "1"}, {"MAX_PINNED", "64k"},
         {"SCHED", "n"}, {"SL", "0"}, {"TRAFFIC_CLASS", "0"}},
        {{"TIMEOUT", "8796"}, {"RNR_TIMEOUT", "655ms"}, {"SLICE", "1m"},
         {"SCAN_MAX", "1m"}, {"MAX_TRIES", "1000"}, {"MAX_PINNED", "inf"},
         {"SCHED", "y"}, {"SL", "15,15"}, {"TRAFFIC_CLASS", "255,255"}},
    };

    for (auto &limit : limits) {
        complaints told;
        EXPECT_TRUE(works(limit)) << limit.begin()->first;
        EXPECT_TRUE(told.lines().empty()) << told.lines().front();
    }
}

TEST(test_config, few_descriptors)
{
    [[maybe_unused]] unsigned refused = 0;

    for (rlim_t limit = 4;; ++limit) {
        peer p("with_limit");
        p.put((int)RLIMIT_NOFILE);
        p.put(limit);
        bool good = p.get<bool>();
        EXPECT_EQ(0, p.join()) << limit << " descriptors";
        if (good) {
            break;
        }
        ++refused;
        ASSERT_LT(limit, 256u);
    }
    /* Queues, wire-up and service all need descriptors */
    EXPECT_GT(refused, 10u);
}

TEST(test_config, little_locked_memory)
{
    component_copy everybody_may;

    for (rlim_t limit = 0; limit <= 8 * 1024 * 1024;
         limit = (limit == 0) ? 4096 : limit * 4) {
        peer p("with_limit", 65534, 8 * 1024 * 1024);
        p.put((int)RLIMIT_MEMLOCK);
        p.put(limit);
        /* Under sanitizers mlock() has no effect */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        EXPECT_TRUE(p.get<bool>());
#else
        EXPECT_EQ(limit >= 64 * 1024, p.get<bool>()) << limit << " bytes";
#endif
        EXPECT_EQ(0, p.join()) << limit << " bytes";
    }
}

/* Each context puts into memory of the next one, while all of them exist */
PEER_FUNCTION(ring_of_contexts)
{
    auto bytes         = parent.get<rlim_t>();
    auto number        = parent.get<size_t>();
    const rlimit limit = {bytes, bytes};
    bool good          = true;
    complaints told;
    std::vector<std::unique_ptr<entity>> ring;

    EXPECT_EQ(0, setrlimit(RLIMIT_MEMLOCK, &limit));
    while (ring.size() < number) {
        ring.push_back(std::make_unique<entity>());
    }
    for (size_t i = 0; good && (i < number); ++i) {
        entity &one = *ring[i], &next = *ring[(i + 1) % number];
        std::vector<char> data(300000, i + 1);
        buffer memory(next.md(), data.size());
        uct_ep_h ep     = one.connect(next.address());
        uct_rkey_t rkey = one.unpack(memory.packed_key());

        one.add_progress(&next);
        for (size_t size : {(size_t)8, data.size()}) {
            good = good && (one.put(ep, data.data(), size, memory.address(),
                                    rkey) == UCS_OK) &&
                   (memcmp(data.data(), memory.ptr(), size) == 0);
        }
    }
    if (!good) {
        auto line = told.lines().back();
        EXPECT_NE(line.npos, line.find("no pinned memory left")) << line;
        EXPECT_NE(line.npos, line.find("one more UCX context")) << line;
    }
    parent.put(good);
    return 0;
}

/* Ten where the limit is as systemd sets it, and two with the least */
TEST(test_config, contexts_share_locked_memory)
{
    component_copy everybody_may;

    for (auto [kib, number, works] : {std::tuple{8192, 10, true},
                                      {64, 2, true}, {64, 3, false}}) {
        peer p("ring_of_contexts", 65534, 8 * 1024 * 1024);
        p.put((rlim_t)kib * 1024);
        p.put((size_t)number);
        /* Under sanitizers mlock() has no effect */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        EXPECT_EQ(works, p.get<bool>()) << number << " with " << kib << " KiB";
#endif
        EXPECT_EQ(0, p.join()) << number << " with " << kib << " KiB";
    }
}

/* A variable of an earlier version is named, with what to use instead */
PEER_FUNCTION(old_names)
{
    setenv("UCX_NPRDMA_ZCOPY", "no", 1);
    setenv("UCX_NPRDMA_ATOMIC_ORDER", "y", 1);
    complaints told;
    { entity first; }
    { entity second; }
    parent.put(told.lines().size());
    for (auto text : {"UCX_NPRDMA_ATOMIC_ORDER is no longer a variable, use "
                      "UCX_NPRDMA_ORDER",
                      "UCX_NPRDMA_ZCOPY is no longer a variable, use "
                      "UCX_NPRDMA_MONITOR=copy"}) {
        auto lines = told.lines();
        parent.put(std::any_of(lines.begin(), lines.end(), [&](auto &line) {
            return line.find(text) != std::string::npos;
        }));
    }
    return 0;
}

TEST(test_config, old_names_are_told)
{
    peer p("old_names");

    EXPECT_EQ(2u, p.get<size_t>());
    EXPECT_TRUE(p.get<bool>());
    EXPECT_TRUE(p.get<bool>());
    EXPECT_EQ(0, p.join());
}
