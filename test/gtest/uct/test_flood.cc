/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "page_table.h"
#include "serve.h"
#include "uct_test.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>

#include <sys/mman.h>

/*
 * More requests of all kinds, from many endpoints, than a target can serve at a
 * time. Neither side uses more memory than its configured limits, and nothing
 * is lost.
 */

namespace {

constexpr size_t kib = 1024;

/* The target's memory: a counter, the source of gets, and the destination of
 * puts, by requesters with zero copy and without. Each place always gets the
 * same data. */
constexpr size_t constant_at   = 64 * kib;
constexpr size_t constant_size = 8192 * kib;
constexpr size_t put_at        = constant_at + constant_size;
constexpr size_t small_put     = 4000;
constexpr size_t small_place   = 4 * kib;
constexpr size_t num_small     = 1024;
constexpr size_t large_at      = put_at + num_small * small_place;
constexpr size_t large_place   = 64 * kib;
constexpr size_t num_large     = 64;
constexpr size_t total         = large_at + num_large * large_place;

/* A buffer of its own. A thread of the pager populates all but the first 2
 * MiB, and stops at this page. */
constexpr size_t slow_size     = 4096 * kib;
constexpr size_t slow_page     = 3072 * kib;

constexpr size_t small_get     = 4 * kib;
constexpr size_t large_get     = 32 * kib;

enum command : int { PROGRESS, REPORT, HOLD, LET_GO, QUIT };

struct report {
    uint64_t counter, pinned, stores, fetches, atomics, populates, errors;
    uint64_t jobs, evicted;
};

/* The byte at an offset of the source of gets and of puts */
char pattern(size_t offset)
{
    return (char)(offset * 2654435761u >> 13);
}

bool matches(const char *data, size_t offset, size_t length)
{
    for (size_t i = 0; i < length; ++i) {
        if (data[i] != pattern(offset + i)) {
            return false;
        }
    }
    return true;
}

/*
 * Holds a thread of the pager, like a page that takes long to come from a
 * disk. A thread that seldom gets a CPU gives up if pages vanish faster than it
 * populates them, and has to be asked again.
 */
page_table_t *hold(const buffer &slow)
{
    page_table_t *table;
    int ret = ETIMEDOUT;

    /* The first key creates the region */
    slow.packed_key();
    table = page_table_find(slow.ptr());
    memset(slow.ptr(), 1, slow_size);
    page_table_gate_arm(table, GATE_MAP, slow.ptr(slow_page));
    for (int i = 0; (i < 60) && (ret == ETIMEDOUT); ++i) {
        slow.packed_key();
        ret = page_table_gate_wait(table, GATE_MAP, 1000);
    }
    EXPECT_EQ(0, ret);
    return table;
}

void let_go(page_table_t *table, const buffer &slow)
{
    const char *page = slow.ptr(slow_page);

    EXPECT_EQ(0u, page_table_word(table, page));
    page_table_gate_release(table, GATE_MAP);
    while (page_table_word(table, page) == 0) {
        slow.packed_key();
        sched_yield();
    }
    page_table_close(table);
}

PEER_FUNCTION(flooded)
{
    /* Pages are evicted while they are in use, so that requests to software go
     * on */
    entity e({{"RECLAIM", "logical"}, {"RECLAIM_RATE", "200000"}});
    buffer memory(e.md(), total), slow(e.md(), slow_size);
    page_table_t *table = nullptr;

    for (size_t i = constant_at; i < put_at; ++i) {
        *memory.ptr(i) = pattern(i);
    }
    publish(parent, e, memory);
    for (;;) {
        command c = parent.get<command>();
        if (c == QUIT) {
            return 0;
        } else if (c == REPORT) {
            parent.put(report{*memory.ptr<uint64_t>(),
                              e.counter("pinned_bytes"),
                              e.counter("served_stores"),
                              e.counter("served_fetches"),
                              e.counter("served_atomics"),
                              e.counter("served_populates"),
                              e.counter("served_errors"),
                              e.counter("prefetch_jobs"),
                              e.counter("pages_reclaimed")});
            parent.send(memory.ptr(put_at), total - put_at);
            continue;
        } else if (c == HOLD) {
            table = hold(slow);
            EXPECT_LT(0u, e.counter("prefetch_waiting"));
        } else if (c == LET_GO) {
            let_go(table, slow);
            e.finish_prefetch();
        }
        parent.put(0);
        while (!parent.ready()) {
            if (c == PROGRESS) {
                e.progress();
            }
        }
    }
}

/* An operation object that is started again after its completion */
struct slot : uct_completion_t {
    std::vector<char> data;
    uint64_t          sum;
    size_t            offset   = 0; /* Offset of a get; 0: no get */
    size_t            length   = 0;
    bool              is_busy  = false;
    unsigned          *num_bad = nullptr;
};

void slot_done(uct_completion_t *self)
{
    slot *s = static_cast<slot*>(self);

    *s->num_bad += (s->status != UCS_OK) ||
                   ((s->offset != 0) &&
                    !matches(s->data.data(), s->offset, s->length));
    s->is_busy   = false;
}

size_t pack_small(void *dest, void *arg)
{
    memcpy(dest, arg, small_put);
    return small_put;
}

void unpack(void *arg, const void *data, size_t length)
{
    memcpy(arg, data, length);
}

} // namespace

class test_flood : public ::testing::Test {
protected:
    static constexpr int num_entities = 3; /* The last one in copy mode */
    static constexpr int eps_each     = 8;
    static constexpr int num_eps      = num_entities * eps_each;
    static constexpr int slots_each   = 24;
    /* Per endpoint. All queues are full long before. Sanitizers look for errors
     * of the code, which these many attempts repeat; the limits of memory are
     * checked without them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    static constexpr int num_attempts = 600;
#else
    static constexpr int num_attempts = 3000;
#endif

    struct requester {
        entity            *owner;
        uct_ep_h          ep;
        uct_rkey_t        rkey;
        buffer            *source;
        std::vector<slot> slots;
        size_t            count = 0;
    };

    void SetUp() override
    {
        m_peer.reset(new peer("flooded"));
        auto address = m_peer->get_bytes();
        auto key     = m_peer->get_bytes();
        m_base       = m_peer->get<uint64_t>();
        for (int i = 0; i < num_entities; ++i) {
            bool copies = (i == num_entities - 1);
            m_entities.emplace_back(new entity(
                    copies ? config_t{{"MONITOR", "copy"}} : config_t{}));
            entity &e = *m_entities.back();
            m_sources.emplace_back(new buffer(e.md(), total - put_at));
            for (size_t j = 0; j < total - put_at; ++j) {
                *m_sources.back()->ptr(j) = pattern(put_at + j);
            }
            for (int j = 0; j < eps_each; ++j) {
                requester r = {&e, e.connect(address), e.unpack(key),
                               m_sources.back().get(), {}, 0};
                r.slots.resize(slots_each);
                for (auto &s : r.slots) {
                    s.func    = slot_done;
                    s.num_bad = &m_num_bad;
                    s.data.resize(large_get);
                }
                m_requesters.push_back(std::move(r));
            }
        }
        /* From here on, the objects of each kind's first use exist */
        tell(PROGRESS);
        flood(500);
        finish();
        m_report = get_report();
    }

    void TearDown() override
    {
        m_peer.reset();
        m_requesters.clear();
        m_sources.clear();
        m_entities.clear();
    }

    void tell(command c)
    {
        m_peer->put(c);
        m_peer->get<int>();
    }

    report get_report()
    {
        std::vector<char> data(total - put_at);

        m_peer->put(REPORT);
        report r = m_peer->get<report>();
        m_peer->receive(data.data(), data.size());
        m_mismatches = 0;
        for (size_t i = 0; i < num_small; ++i) {
            size_t at = i * small_place;
            m_mismatches += m_small_put[i] &&
                            !matches(&data[at], put_at + at, small_put);
        }
        for (size_t i = 0; i < num_large; ++i) {
            size_t at = large_at - put_at + i * large_place;
            m_mismatches += m_large_put[i] &&
                            !matches(&data[at], put_at + at, large_place);
        }
        return r;
    }

    static slot *free_slot(requester &r)
    {
        auto s = std::find_if(r.slots.begin(), r.slots.end(),
                              [](const slot &one) { return !one.is_busy; });
        return (s == r.slots.end()) ? nullptr : &*s;
    }

    ucs_status_t start_get(requester &r, slot &s)
    {
        bool copies = (m_count % 4 == 0);

        s.length = (copies || (m_count % 2)) ? small_get : large_get;
        s.offset = constant_at + (m_count * 7919 * small_get) %
                                 (constant_size - s.length);
        if (copies) {
            return uct_ep_get_bcopy(r.ep, unpack, s.data.data(), s.length,
                                    m_base + s.offset, r.rkey, &s);
        }
        uct_iov_t iov = {s.data.data(), s.length, nullptr, 0, 1};
        return uct_ep_get_zcopy(r.ep, &iov, 1, m_base + s.offset, r.rkey, &s);
    }

    ucs_status_t start_put_zcopy(requester &r, slot &s)
    {
        size_t place  = m_count % num_large;
        size_t at     = large_at - put_at + place * large_place;
        uct_iov_t iov = {r.source->ptr(at), large_place, r.source->memh(), 0,
                         1};
        ucs_status_t status = uct_ep_put_zcopy(r.ep, &iov, 1,
                                               m_base + put_at + at, r.rkey,
                                               &s);
        m_large_put[place] |= !UCS_STATUS_IS_ERR(status);
        return status;
    }

    /* Has no completion, so that only the transport limits it */
    ucs_status_t start_put_bcopy(requester &r)
    {
        size_t place = m_count % num_small;
        ssize_t packed = uct_ep_put_bcopy(r.ep, pack_small,
                                          r.source->ptr(place * small_place),
                                          m_base + put_at + place * small_place,
                                          r.rkey);
        if (packed < 0) {
            return (ucs_status_t)packed;
        }
        m_small_put[place] = true;
        ++m_num_puts;
        return UCS_OK;
    }

    ucs_status_t start_one(requester &r)
    {
        slot *s = free_slot(r);

        ++m_count;
        if ((s == nullptr) || (m_count % 3 == 0)) {
            return start_put_bcopy(r);
        }

        s->offset  = 0;
        s->length  = 0;
        s->count   = 1;
        s->status  = UCS_OK;
        s->is_busy = true;
        ucs_status_t status;
        bool adds = (m_count % 5 == 0);
        if (adds) {
            status = uct_ep_atomic64_fetch(r.ep, UCT_ATOMIC_OP_ADD, 1, &s->sum,
                                           m_base, r.rkey, s);
        } else {
            status = (m_count % 5 == 1) ? start_put_zcopy(r, *s) :
                                          start_get(r, *s);
        }
        if (status != UCS_INPROGRESS) {
            s->is_busy = false;
        }
        m_num_adds += adds && !UCS_STATUS_IS_ERR(status);
        return status;
    }

    /* Makes this many attempts per endpoint. Refused ones are not repeated. */
    unsigned flood(int attempts)
    {
        unsigned accepted = 0;

        for (int i = 0; i < attempts; ++i) {
            for (auto &r : m_requesters) {
                ucs_status_t status = start_one(r);
                if (status == UCS_ERR_NO_RESOURCE) {
                    r.owner->progress();
                    continue;
                }
                EXPECT_FALSE(UCS_STATUS_IS_ERR(status))
                        << ucs_status_string(status);
                ++accepted;
            }
            watch();
        }
        return accepted;
    }

    /* Everything that was accepted completes without an error */
    void finish()
    {
        for (auto &r : m_requesters) {
            r.owner->flush(r.ep);
            for (auto &s : r.slots) {
                r.owner->wait([&]() { return !s.is_busy; });
            }
        }
        EXPECT_EQ(0u, m_num_bad);
        for (auto &r : m_requesters) {
            EXPECT_TRUE(r.owner->failed.empty());
        }
    }

    /* The writable memory that the processes have mapped. The memory of the
     * test is always part of it, touched or not. */
    void watch()
    {
        m_target_most = std::max(m_target_most,
                                 proc_status_kb(m_peer->pid(), "VmData:"));
        m_our_most    = std::max(m_our_most,
                                 proc_status_kb(getpid(), "VmData:"));
        m_locked_most = std::max(m_locked_most,
                                 proc_status_kb(m_peer->pid(), "VmLck:"));
    }

    void begin_watch()
    {
        m_target_most = m_our_most = m_locked_most = 0;
        watch();
        m_target_first = m_target_most;
        m_our_first    = m_our_most;
    }

    void expect_bounded(long kb)
    {
        RecordProperty("target_kb", m_target_most - m_target_first);
        RecordProperty("our_kb", m_our_most - m_our_first);
        RecordProperty("locked_kb", m_locked_most);
        /* Sanitizers keep what is freed */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        EXPECT_LE(m_target_most - m_target_first, kb);
        EXPECT_LE(m_our_most - m_our_first, kb);
#endif
        EXPECT_LE(m_locked_most, 4096);
    }

    void expect_all_arrived()
    {
        report r = get_report();

        EXPECT_EQ(0u, m_mismatches);
        EXPECT_EQ(m_num_adds, r.counter);
        EXPECT_EQ(0u, r.errors);
        EXPECT_LE(r.pinned, 4096 * kib);
        /* All kinds of requests were served */
        EXPECT_GT(r.stores, m_report.stores);
        EXPECT_GT(r.fetches, 0u);
        EXPECT_GT(r.atomics, m_report.atomics);
        EXPECT_GT(r.populates, 0u);
        EXPECT_GT(r.evicted, 0u);
    }

    std::unique_ptr<peer>                m_peer;
    std::vector<std::unique_ptr<entity>> m_entities;
    std::vector<std::unique_ptr<buffer>> m_sources;
    std::vector<requester>               m_requesters;
    uint64_t m_base       = 0;
    size_t   m_count      = 0;
    uint64_t m_num_puts   = 0;
    uint64_t m_num_adds   = 0;
    unsigned m_num_bad    = 0;
    unsigned m_mismatches = 0;
    report   m_report     = {};
    bool     m_small_put[num_small] = {};
    bool     m_large_put[num_large] = {};
    long     m_target_first, m_target_most, m_our_first, m_our_most;
    long     m_locked_most;
};

/* The target's software does nothing. Its requests wait at the requesters,
 * which refuse new operations at their limits. */
TEST_F(test_flood, stopped_target_gets_bounded_messages)
{
    uint64_t puts = m_num_puts;

    m_peer->stop();
    begin_watch();
    flood(num_attempts);
    /* The queues of the connections, and the receives of the target */
    EXPECT_LE(m_num_puts - puts, num_eps * 64u + 32u);
    expect_bounded(1024);
    m_peer->go_on();
    finish();
    expect_all_arrived();
}

/* A thread of the pager makes no progress, and gets more and more work. All
 * other requests are served meanwhile. */
TEST_F(test_flood, target_that_waits_for_a_page)
{
    tell(HOLD);
    begin_watch();
    flood(num_attempts);
    finish();
    expect_bounded(1024);
    expect_all_arrived();
    tell(LET_GO);
    flood(100);
    finish();
    expect_all_arrived();
}

/*
 * One of two targets is stopped, and gets as many operations of one kind as the
 * requester accepts. The other target is served without delay.
 */

/* Serves until it is told to quit */
PEER_FUNCTION(other_target)
{
    entity e;
    buffer memory(e.md(), 4096 * kib);

    return serve(parent, e, memory);
}

enum class kind { AM, SHORT_PUT, PUT, LARGE_PUT, GET, LARGE_GET, ATOMIC };

class test_flood_others :
    public ::testing::TestWithParam<std::tuple<config_t, kind>> {
protected:
    static constexpr size_t at = 1024 * kib; /* Nothing of it is populated */

    struct target {
        std::unique_ptr<peer> process;
        uct_ep_h              ep   = nullptr;
        uct_rkey_t            rkey = UCT_INVALID_RKEY;
        uint64_t              base = 0;
    };

    struct request : uct_pending_req_t {
        std::function<ucs_status_t()> op;
        bool                          done = false;
    };

    void SetUp() override
    {
        m_entity.reset(new entity(std::get<0>(GetParam())));
        m_local.reset(new buffer(m_entity->md(), large_place));
        open(m_stopped);
        open(m_other);
        m_stopped.process->stop();
    }

    void TearDown() override
    {
        if (m_other.ep == nullptr) {
            return; /* SetUp() has not got this far */
        }
        m_stopped.process->go_on();
        m_entity->flush(m_stopped.ep);
        m_entity->flush(m_other.ep);
        for (auto &comp : m_comps) {
            m_entity->wait([&]() { return comp->done; });
            EXPECT_EQ(UCS_OK, comp->status);
        }
        EXPECT_TRUE(m_entity->failed.empty());
        m_stopped.process.reset();
        m_other.process.reset();
        m_local.reset();
        m_entity.reset();
    }

    void open(target &t)
    {
        t.process.reset(new peer("other_target"));
        auto address = t.process->get_bytes();
        t.ep         = m_entity->connect(address);
        t.rkey       = m_entity->unpack(t.process->get_bytes());
        t.base       = t.process->get<uint64_t>();
        m_entity->wire_up(t.ep, m_local->ptr(), t.base, t.rkey);
    }

    ucs_status_t start(target &t, kind k, completion *comp)
    {
        size_t length = ((k == kind::LARGE_PUT) || (k == kind::LARGE_GET)) ?
                        large_place : small_put;
        uct_iov_t iov = {m_local->ptr(), length, m_local->memh(), 0, 1};
        ssize_t packed;

        switch (k) {
        case kind::AM:
            packed = uct_ep_am_bcopy(t.ep, 1, pack_small, m_local->ptr(), 0);
            return (packed < 0) ? (ucs_status_t)packed : UCS_OK;
        case kind::SHORT_PUT:
            packed = uct_ep_put_bcopy(t.ep, pack_small, m_local->ptr(),
                                      t.base + at, t.rkey);
            return (packed < 0) ? (ucs_status_t)packed : UCS_OK;
        case kind::PUT:
        case kind::LARGE_PUT:
            return uct_ep_put_zcopy(t.ep, &iov, 1, t.base + at, t.rkey, comp);
        case kind::GET:
            return uct_ep_get_bcopy(t.ep, unpack, m_local->ptr(), length,
                                    t.base + at, t.rkey, comp);
        case kind::LARGE_GET:
            return uct_ep_get_zcopy(t.ep, &iov, 1, t.base + at, t.rkey, comp);
        default:
            return uct_ep_atomic64_fetch(t.ep, UCT_ATOMIC_OP_ADD, 0, &m_sum,
                                         t.base + at, t.rkey, comp);
        }
    }

    ucs_status_t start(target &t, kind k)
    {
        std::unique_ptr<completion> comp(new completion());
        ucs_status_t status = start(t, k, comp.get());

        if (status == UCS_INPROGRESS) {
            m_comps.push_back(std::move(comp));
        }
        return status;
    }

    /* Until the endpoint refuses further operations */
    void flood()
    {
        int accepted = 0;

        for (int refused = 0; refused < 500;) {
            ucs_status_t status = start(m_stopped, std::get<1>(GetParam()));
            if (status == UCS_ERR_NO_RESOURCE) {
                ++refused;
                m_entity->progress();
                continue;
            }
            ASSERT_FALSE(UCS_STATUS_IS_ERR(status));
            ASSERT_LT(++accepted, 10000);
            refused = 0;
        }
        EXPECT_GT(accepted, 1);
    }

    void expect_service(kind k)
    {
        for (int i = 0; i < 100; ++i) {
            ucs_status_t status = m_entity->retry([&]() {
                return start(m_other, k);
            });
            ASSERT_FALSE(UCS_STATUS_IS_ERR(status));
        }
        m_entity->flush(m_other.ep);
    }

    static ucs_status_t on_pending(uct_pending_req_t *self)
    {
        request *req        = static_cast<request*>(self);
        ucs_status_t status = req->op();

        req->done = (status != UCS_ERR_NO_RESOURCE);
        return req->done ? UCS_OK : status;
    }

    void add_pending(target &t, request &req, kind k)
    {
        req.func = on_pending;
        req.op   = [this, &t, k]() { return start(t, k); };
        ASSERT_EQ(UCS_OK, uct_ep_pending_add(t.ep, &req, 0));
    }

    std::unique_ptr<entity>                  m_entity;
    std::unique_ptr<buffer>                  m_local;
    std::vector<std::unique_ptr<completion>> m_comps;
    target   m_stopped, m_other;
    request  m_first, m_second;
    uint64_t m_sum = 0;
};

TEST_P(test_flood_others, other_target_is_served)
{
    flood();
    for (kind k : {kind::AM, kind::SHORT_PUT, kind::PUT, kind::LARGE_PUT,
                   kind::GET, kind::LARGE_GET, kind::ATOMIC}) {
        expect_service(k);
    }
}

/* The pending request for the stopped target is queued before the one for the
 * other target */
TEST_P(test_flood_others, other_target_is_served_behind_a_pending_request)
{
    flood();
    add_pending(m_stopped, m_first, std::get<1>(GetParam()));
    add_pending(m_other, m_second, std::get<1>(GetParam()));
    m_entity->wait([&]() { return m_second.done; });
    EXPECT_FALSE(m_first.done);
    m_stopped.process->go_on();
    m_entity->wait([&]() { return m_first.done; });
}

/* Such as copy_large_put */
static std::string
kind_name(const ::testing::TestParamInfo<test_flood_others::ParamType> &info)
{
    static const char *names[] = {"am",  "short_put", "put",   "large_put",
                                  "get", "large_get", "atomic"};

    return std::string(std::get<0>(info.param).empty() ? "zcopy_" : "copy_") +
           names[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(kinds, test_flood_others, ::testing::Combine(
        ::testing::Values(config_t{}, config_t{{"MONITOR", "copy"}}),
        ::testing::Values(kind::AM, kind::SHORT_PUT, kind::PUT,
                          kind::LARGE_PUT, kind::GET, kind::LARGE_GET,
                          kind::ATOMIC)),
        kind_name);
