/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include <sys/resource.h>
#include <unistd.h>

/*
 * The service of a process that is busy, flooded, stopped or killed. The
 * requests come from another process.
 */

namespace {

constexpr size_t target_size = 1 << 20;

enum command : int {
    COMPUTE,    /* Make no UCX calls until the next command */
    PROGRESS,   /* Call progress until the next command */
    FLOOD,      /* Put and get as the parent does, then answer */
    QUIT
};

/* Exchanged by the two processes at the beginning */
struct hello {
    std::vector<char> address, key;
    uint64_t          base;

    hello() = default;

    hello(const entity &e, const buffer &b) :
        address(e.address()), key(b.packed_key()), base(b.address())
    {
    }

    void send(peer &to) const
    {
        to.put_bytes(address);
        to.put_bytes(key);
        to.put(base);
    }

    static hello receive(peer &from)
    {
        hello h;
        h.address = from.get_bytes();
        h.key     = from.get_bytes();
        h.base    = from.get<uint64_t>();
        return h;
    }
};

void unpack(void *arg, const void *data, size_t length)
{
    memcpy(arg, data, length);
}

size_t pack_4000(void *dest, void *arg)
{
    memset(dest, *static_cast<char*>(arg), 4000);
    return 4000;
}

/* Many outstanding operations in both directions */
void flood(entity &e, uct_ep_h ep, const hello &other)
{
    static const int count = 3000;
    static char results[count][2048];
    static const uint64_t constant = 65536 + 4096; /* Source of gets */
    uct_rkey_t rkey = e.unpack(other.key);
    completion comp(2 * count);
    uint64_t sum;
    char fill = 'c';

    EXPECT_EQ(UCS_OK, e.retry([&]() {
        ssize_t packed = uct_ep_put_bcopy(ep, pack_4000, &fill,
                                          other.base + constant, rkey);
        return (packed < 0) ? (ucs_status_t)packed : UCS_OK;
    }));
    EXPECT_EQ(UCS_OK, uct_ep_fence(ep, 0));
    for (int i = 0; i < count; ++i) {
        fill = i;
        EXPECT_EQ(UCS_OK, e.retry([&]() {
            ssize_t packed = uct_ep_put_bcopy(ep, pack_4000, &fill,
                                              other.base + 65536, rkey);
            return (packed < 0) ? (ucs_status_t)packed : UCS_OK;
        }));
        EXPECT_EQ(UCS_INPROGRESS, e.retry([&]() {
            return uct_ep_get_bcopy(ep, unpack, results[i], 2048,
                                    other.base + constant, rkey, &comp);
        }));
        EXPECT_EQ(UCS_INPROGRESS, e.retry([&]() {
            return uct_ep_atomic64_fetch(ep, UCT_ATOMIC_OP_ADD, 1, &sum,
                                         other.base, rkey, &comp);
        }));
    }
    e.flush(ep);
    EXPECT_EQ(0, comp.count);
    EXPECT_EQ(UCS_OK, comp.status);
    EXPECT_EQ((uint64_t)count - 1, sum);

    for (int i = 0; i < count; ++i) {
        EXPECT_EQ(2048, std::count(results[i], results[i] + 2048, 'c'));
    }
}

ucs_status_t count_am(void *arg, void *, size_t, unsigned)
{
    ++*static_cast<long*>(arg);
    return UCS_OK;
}

PEER_FUNCTION(target)
{
    entity e;
    buffer memory(e.md(), target_size);
    long num_am = 0;

    uct_iface_set_am_handler(e.iface(), 1, count_am, &num_am, 0);
    hello(e, memory).send(parent);
    hello other = hello::receive(parent);
    uct_ep_h ep = e.connect(other.address);
    for (;;) {
        switch (parent.get<command>()) {
        case COMPUTE:
            parent.put(0);
            while (!parent.ready()) {
                for (volatile int i = 0; i < 10000; ++i) {
                }
            }
            break;
        case PROGRESS:
            parent.put(0);
            while (!parent.ready()) {
                for (int i = 0; i < 1000; ++i) {
                    e.progress();
                }
            }
            break;
        case FLOOD:
            flood(e, ep, other);
            parent.put(0);
            break;
        case QUIT:
            parent.put(num_am);
            return 0;
        }
    }
}

/* Puts into the parent's memory once, and then stays idle */
PEER_FUNCTION(idle_requester)
{
    entity e;
    hello other    = hello::receive(parent);
    uct_ep_h ep    = e.connect(other.address);
    uint64_t value = 17;

    EXPECT_EQ(UCS_OK, e.retry([&]() {
        return uct_ep_put_short(ep, &value, sizeof(value), other.base,
                                e.unpack(other.key));
    }));
    e.flush(ep);
    parent.put(0);
    parent.get<command>();
    return 0;
}

/* All kinds of operations in one process, for a user with few rights */
PEER_FUNCTION(limited)
{
    entity e;
    buffer memory(e.md(), target_size);
    uct_ep_h ep     = e.connect(e.address());
    uct_rkey_t rkey = e.unpack(memory.packed_key());
    std::vector<char> result(target_size / 2);
    completion put, get;

    memory.fill(5);
    uct_iov_t iov = {memory.ptr(), target_size / 2, memory.memh(), 0, 1};
    EXPECT_EQ(UCS_INPROGRESS, e.retry([&]() {
        return uct_ep_put_zcopy(ep, &iov, 1, memory.address(target_size / 2),
                                rkey, &put);
    }));
    e.wait([&]() { return put.done; });
    iov.buffer = result.data();
    EXPECT_EQ(UCS_INPROGRESS, e.retry([&]() {
        return uct_ep_get_zcopy(ep, &iov, 1, memory.address(target_size / 2),
                                rkey, &get);
    }));
    e.wait([&]() { return get.done; });
    EXPECT_EQ(0, memcmp(result.data(), memory.ptr(), result.size()));
    parent.put(proc_status_kb(getpid(), "VmLck:"));
    return 0;
}

/* Registrations that come and go, and the mappings behind them */
PEER_FUNCTION(deregister)
{
    entity e;

    hello(e, buffer(e.md(), 4096)).send(parent);
    for (unsigned round = 0;; ++round) {
        /* buffer must not unmap it again, because another mapping may be there
         * then */
        void *ptr = mmap(nullptr, 65536, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        buffer memory(e.md(), 65536, ptr);
        parent.put_bytes(memory.packed_key());
        parent.put(memory.address());
        while (!parent.ready()) { /* Until requests arrive */
            e.progress();
        }
        if (parent.get<command>() == QUIT) {
            return 0;
        }
        if ((round % 3) == 0) {
            /* Only the service's thread serves: the parent adds to the counter
             * until this round is over */
            auto *counter = memory.ptr<std::atomic<uint64_t>>(8192);
            uint64_t seen = *counter;
            await([&]() { return *counter != seen; });
        }
        for (unsigned i = 0; i < (round % 50); ++i) {
            e.progress();
        }
        if ((round % 2) == 0) {
            /* No remote write may arrive after this */
            memory.deregister();
            memset(memory.ptr(), 'm', memory.length());
            for (int i = 0; i < 200; ++i) {
                e.progress();
            }
            EXPECT_EQ((long)memory.length(),
                      std::count(memory.ptr(), memory.ptr(memory.length()),
                                 'm'));
        }
        /* In the other rounds it is unmapped while it is registered */
        EXPECT_EQ(0, munmap(ptr, memory.length()));
    }
}

} // namespace

class test_service : public ::testing::Test {
protected:
    void SetUp() override
    {
        m_entity.reset(new entity());
        m_memory.reset(new buffer(m_entity->md(), target_size));
    }

    void TearDown() override
    {
        m_peer.reset();
        m_memory.reset();
        m_entity.reset();
    }

    void start(const std::string &function = "target")
    {
        m_peer.reset(new peer(function));
        m_other = hello::receive(*m_peer);
        hello(*m_entity, *m_memory).send(*m_peer);
        m_ep   = m_entity->connect(m_other.address);
        m_rkey = m_entity->unpack(m_other.key);
    }

    void tell(command c)
    {
        m_peer->put(c);
        if ((c != FLOOD) && (c != QUIT)) {
            m_peer->get<int>();
        }
    }

    void put(uint64_t value, size_t offset = 0)
    {
        ASSERT_EQ(UCS_OK, m_entity->retry([&]() {
            return uct_ep_put_short(m_ep, &value, sizeof(value),
                                    m_other.base + offset, m_rkey);
        }));
    }

    uint64_t get(size_t offset = 0)
    {
        uint64_t value = 0;
        completion comp;
        /* The NIC reads, and might pass a put that the target's software
         * executes */
        EXPECT_EQ(UCS_OK, uct_ep_fence(m_ep, 0));
        EXPECT_EQ(UCS_INPROGRESS, m_entity->retry([&]() {
            return uct_ep_get_bcopy(m_ep, unpack, &value, sizeof(value),
                                    m_other.base + offset, m_rkey, &comp);
        }));
        m_entity->wait([&]() { return comp.done; });
        EXPECT_EQ(UCS_OK, comp.status);
        return value;
    }

    void quit(long num_am = 0)
    {
        tell(QUIT);
        EXPECT_EQ(num_am, m_peer->get<long>());
        EXPECT_EQ(0, m_peer->join());
    }

    /* A put and an atomic. Returns the status of their flush. */
    ucs_status_t put_and_add(uint64_t address, uct_rkey_t rkey)
    {
        char fill = 'p';
        completion comp;

        EXPECT_EQ(UCS_OK, m_entity->retry([&]() {
            ssize_t packed = uct_ep_put_bcopy(m_ep, pack_4000, &fill, address,
                                              rkey);
            return (packed < 0) ? (ucs_status_t)packed : UCS_OK;
        }));
        EXPECT_EQ(UCS_OK, m_entity->retry([&]() {
            return uct_ep_atomic64_post(m_ep, UCT_ATOMIC_OP_ADD, 1,
                                        address + 8192, rkey);
        }));
        ucs_status_t status = m_entity->retry([&]() {
            return uct_ep_flush(m_ep, 0, &comp);
        });
        if (status == UCS_INPROGRESS) {
            m_entity->wait([&]() { return comp.done; });
            status = comp.status;
        }
        return status;
    }

    /* Median time of put and flush, in seconds */
    double put_flush_time(int count)
    {
        std::vector<double> times;
        for (int i = 0; i < count; ++i) {
            double start = now();
            put(i);
            m_entity->flush(m_ep);
            times.push_back(now() - start);
        }
        std::sort(times.begin(), times.end());
        return times[count / 2];
    }

    hello                   m_other;
    std::unique_ptr<entity> m_entity;
    std::unique_ptr<buffer> m_memory;
    std::unique_ptr<peer>   m_peer;
    uct_ep_h                m_ep;
    uct_rkey_t              m_rkey;
};

TEST_F(test_service, target_progresses)
{
    start();
    tell(PROGRESS);
    put(17);
    EXPECT_EQ(17u, get());
    RecordProperty("put_flush_us", std::to_string(put_flush_time(1000) * 1e6));
    quit();
}

TEST_F(test_service, target_computes)
{
    start();
    tell(PROGRESS); /* Connects, and lets the service's thread go idle */
    put_flush_time(100);
    tell(COMPUTE);
    /* The service's thread executes all of them. The median shows its
     * latency. */
    double median = put_flush_time(50);
    EXPECT_EQ(49u, get());
    RecordProperty("put_flush_us", std::to_string(median * 1e6));
    quit();
}

/* UCP enables an interface's progress only when it has receives or an endpoint.
 * A worker that is only a target must serve nevertheless. */
TEST_F(test_service, target_progress_not_enabled)
{
    entity target;
    buffer memory(target.md(), target_size);
    unsigned served = 0;

    uct_iface_progress_disable(target.iface(),
                               UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    m_ep         = m_entity->connect(target.address());
    m_rkey       = m_entity->unpack(memory.packed_key());
    m_other.base = memory.address();
    for (uint64_t i = 1; served < 100; ++i) {
        ASSERT_LT(i, 20000u) << "only the thread executes";
        completion comp;
        put(i);
        ucs_status_t status = uct_ep_flush(m_ep, 0, &comp);
        m_entity->wait([&]() {
            served += target.progress();
            if (status == UCS_ERR_NO_RESOURCE) {
                status = uct_ep_flush(m_ep, 0, &comp);
            }
            return (status == UCS_OK) || comp.done;
        });
        EXPECT_EQ(i, *memory.ptr<uint64_t>());
    }
    m_entity->disconnect(m_ep);
}

TEST_F(test_service, active_messages_are_stuck)
{
    char payload[100] = {};
    int refused       = 0;
    long sent         = 0;

    start();
    tell(PROGRESS);
    put(1);
    EXPECT_EQ(1u, get());
    tell(COMPUTE);
    /* Until no message is accepted: the target makes no progress */
    while (refused < 10000) {
        ucs_status_t status = uct_ep_am_short(m_ep, 1, 0, payload,
                                              sizeof(payload));
        if (status == UCS_OK) {
            refused = 0;
            ++sent;
        } else {
            ASSERT_EQ(UCS_ERR_NO_RESOURCE, status);
            ++refused;
            m_entity->progress();
        }
    }
    EXPECT_GT(sent, 10);
    for (uint64_t i = 0; i < 100; ++i) {
        put(i, 8);
        EXPECT_EQ(i, get(8));
    }
    /* None is lost, either */
    tell(PROGRESS);
    m_entity->flush(m_ep);
    quit(sent);
}

TEST_F(test_service, mutual_flood)
{
    start();
    tell(FLOOD);
    flood(*m_entity, m_ep, m_other);
    m_entity->wait([&]() { return m_peer->ready(); });
    m_peer->get<int>();
    quit();
}

TEST_F(test_service, flood_of_a_busy_target)
{
    start();
    tell(COMPUTE);
    flood(*m_entity, m_ep, m_other);
    quit();
}

TEST_F(test_service, idle_thread_uses_no_cpu)
{
    start();
    tell(PROGRESS);
    put_flush_time(100);
    tell(COMPUTE);
    put_flush_time(10);

    /* The thread may poll once more when it has found nothing to do */
    double before = 0, start = 0;
    await([&]() {
        double now  = thread_cpu_time(m_peer->pid(), "nprdma-service");
        bool steady = (now == before) &&
                      (process_cpu_time(m_peer->pid()) > (start + 0.05));
        if (now != before) {
            before = now;
            start  = process_cpu_time(m_peer->pid());
        }
        return steady && thread_sleeps(m_peer->pid(), "nprdma-service");
    });
    start = process_cpu_time(m_peer->pid());
    EXPECT_GT(before, 0);
    await([&]() {
        return process_cpu_time(m_peer->pid()) > (start + 0.3);
    });
    EXPECT_EQ(before, thread_cpu_time(m_peer->pid(), "nprdma-service"));
    put_flush_time(1);
    EXPECT_GT(thread_cpu_time(m_peer->pid(), "nprdma-service"), before);
    quit();
}

TEST_F(test_service, deregister_while_requests_arrive)
{
    int rounds = 0, refused = 0;
    double end = now() + 2;

    m_peer.reset(new peer("deregister"));
    m_other = hello::receive(*m_peer);
    m_ep    = m_entity->connect(m_other.address);
    for (;;) {
        uct_rkey_t rkey  = m_entity->unpack(m_peer->get_bytes());
        uint64_t address = m_peer->get<uint64_t>();
        EXPECT_EQ(UCS_OK, put_and_add(address, rkey));
        ++rounds;
        /* A fixed time, on a busy machine until it has happened */
        if ((now() > end) && (((rounds > 10) && (refused > 0)) ||
                              (now() > end + patience.count()))) {
            m_peer->put(QUIT);
            break;
        }
        m_peer->put(PROGRESS);
        do {
            ucs_status_t status = put_and_add(address, rkey);
            ASSERT_TRUE((status == UCS_OK) || (status == UCS_ERR_REJECTED) ||
                        (status == UCS_ERR_INVALID_ADDR));
            refused += (status != UCS_OK);
        } while (!m_peer->ready());
    }
    EXPECT_GT(rounds, 10);
    EXPECT_GT(refused, 0);
    EXPECT_EQ(0, m_peer->join());
}

TEST_F(test_service, killed_with_operations_outstanding)
{
    static const int count = 50;
    completion comps[count];
    uint64_t results[count];
    completion flush;
    int posted = 0;

    start();
    tell(PROGRESS);
    put(1);
    EXPECT_EQ(1u, get());

    m_peer->stop();
    std::fill(results, results + count, 7);
    for (int i = 0; i < count; ++i) {
        /* Requests for the target's software; its NIC still acknowledges */
        ucs_status_t status = uct_ep_atomic64_fetch(m_ep, UCT_ATOMIC_OP_ADD, 1,
                                                    &results[i], m_other.base,
                                                    m_rkey, &comps[i]);
        if (status != UCS_INPROGRESS) {
            ASSERT_EQ(UCS_ERR_NO_RESOURCE, status);
            break;
        }
        ++posted;
        m_entity->progress();
    }
    ASSERT_GT(posted, 0);
    ucs_status_t status = uct_ep_flush(m_ep, 0, &flush);
    EXPECT_TRUE((status == UCS_INPROGRESS) ||
                (status == UCS_ERR_NO_RESOURCE));
    m_peer->kill();

    /* A fetch that has arrived is never answered: a check detects the death */
    m_entity->wait([&]() {
        uct_ep_check(m_ep, 0, nullptr);
        return m_entity->failed.count(m_ep) > 0;
    });
    EXPECT_NE(UCS_OK, m_entity->failed[m_ep]);
    for (int i = 0; i < posted; ++i) {
        EXPECT_TRUE(comps[i].done) << i;
        EXPECT_NE(UCS_OK, comps[i].status) << i;
        EXPECT_EQ(7u, results[i]) << i;
    }
    EXPECT_TRUE((status != UCS_INPROGRESS) ||
                (flush.done && (flush.status != UCS_OK)));
}

/* No outstanding reply can fail, so a probe has to detect the death */
TEST_F(test_service, requester_killed_while_idle)
{
    config_t config = {{"CM_PROBE_INTERVAL", "20ms"}};

    m_memory.reset();
    m_entity.reset(new entity(config));
    m_memory.reset(new buffer(m_entity->md(), target_size));
    for (bool kill : {true, false}) {
        m_peer.reset(new peer("idle_requester"));
        hello(*m_entity, *m_memory).send(*m_peer);
        m_entity->wait([&]() { return m_peer->ready(); });
        m_peer->get<int>();
        EXPECT_EQ(17u, *m_memory->ptr<std::atomic<uint64_t>>());

        /* Live peers stay connected */
        uint64_t probes = m_entity->counter("cm_probes");
        m_entity->wait([&]() {
            return m_entity->counter("cm_probes") > probes + 5;
        });
        EXPECT_EQ(2u, m_entity->counter("cm_responders")); /* AM and SVC */

        if (kill) {
            m_peer->kill();
        } else {
            m_peer->put(QUIT);
            EXPECT_EQ(0, m_peer->join());
        }
        m_entity->wait([&]() {
            return m_entity->counter("cm_responders") == 0;
        });
    }
}

TEST_F(test_service, cancel)
{
    static const size_t length = 300000;
    std::vector<char> result(length, 'r');
    completion comp, flush;

    start();
    tell(PROGRESS);
    put(1);
    EXPECT_EQ(1u, get());

    m_peer->stop();
    uct_iov_t iov = {result.data(), length, nullptr, 0, 1};
    ASSERT_EQ(UCS_INPROGRESS, m_entity->retry([&]() {
        return uct_ep_get_zcopy(m_ep, &iov, 1, m_other.base, m_rkey, &comp);
    }));
    ucs_status_t status = uct_ep_flush(m_ep, UCT_FLUSH_FLAG_CANCEL, &flush);
    if (status == UCS_INPROGRESS) {
        m_entity->wait([&]() { return flush.done; });
    } else {
        EXPECT_EQ(UCS_OK, status);
    }
    EXPECT_TRUE(comp.done);
    EXPECT_EQ(UCS_ERR_CANCELED, comp.status);

    /* What the target executes now does not reach the buffer */
    memset(result.data(), 's', length);
    m_peer->go_on();
    double start_time = now();
    m_entity->wait([&]() { return now() > start_time + 0.05; });
    EXPECT_EQ((long)length, std::count(result.begin(), result.end(), 's'));

    /* And a new endpoint works */
    m_entity->disconnect(m_ep);
    m_ep = m_entity->connect(m_other.address);
    put(2);
    EXPECT_EQ(2u, get());
    quit();
}

TEST_F(test_service, works_without_privileges)
{
    /* 8 MiB of locked memory, the limit of an ordinary user */
    uid_t uid = (getuid() == 0) ? 65534 : 0;
    component_copy copy; /* That user may not be able to read the build tree */
    peer other("limited", uid, 8 << 20);

    long locked = other.get<long>();
    EXPECT_LE(locked, 4096);
    /* Under sanitizers mlock() has no effect */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_GT(locked, 0);
#endif
    EXPECT_EQ(0, other.join());
}
