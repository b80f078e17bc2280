/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "hook.h"
#include "svc_requester.h"
#include "test_mem.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <set>
#include <thread>

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * Requests to pages that are absent. A userfaultfd holds the page faults, so a
 * test knows which page-ins have begun, and none ends before the test provides
 * the page. Hand-made requesters send the requests. The target is this process.
 */

namespace {

constexpr unsigned num_pages = 16;

/* The data of a page, by its number */
uint64_t content(size_t index) { return UINT64_C(0xabcd000000000000) + index; }

/* Memory whose page faults wait until a test provides the page */
class held_pages {
public:
    held_pages()
    {
        uffdio_api api      = {};
        uffdio_register reg = {};

        m_ptr  = (char*)mmap(nullptr, length(), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        m_uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
        api.api         = UFFD_API;
        reg.range.start = (uintptr_t)m_ptr;
        reg.range.len   = length();
        reg.mode        = UFFDIO_REGISTER_MODE_MISSING;
        m_works = (m_uffd >= 0) && (ioctl(m_uffd, UFFDIO_API, &api) == 0) &&
                  (ioctl(m_uffd, UFFDIO_REGISTER, &reg) == 0);
    }

    ~held_pages()
    {
        release();
        munmap(m_ptr, length());
    }

    held_pages(const held_pages&) = delete;

    bool works() const { return m_works; }
    static size_t length() { return num_pages * page; }
    char *ptr(size_t index = 0) const { return m_ptr + (index * page); }

    /* Ends all faults; untouched pages become pages of zeros */
    void release()
    {
        if (m_uffd >= 0) {
            close(m_uffd);
            m_uffd = -1;
        }
    }

    /* Reads the faults that wait now. Returns the pages of all that have been
     * read. */
    const std::set<size_t> &faults()
    {
        uffd_msg msg;

        while (read(m_uffd, &msg, sizeof(msg)) == sizeof(msg)) {
            m_faults.insert((msg.arg.pagefault.address - (uintptr_t)m_ptr) /
                            page);
        }
        return m_faults;
    }

    void provide(size_t index)
    {
        std::vector<uint64_t> data(page / sizeof(uint64_t), content(index));
        uffdio_copy copy = {};

        copy.dst = (uintptr_t)ptr(index);
        copy.src = (uintptr_t)data.data();
        copy.len = page;
        EXPECT_EQ(0, ioctl(m_uffd, UFFDIO_COPY, &copy)) << errno;
        m_faults.erase(index);
    }

private:
    char             *m_ptr;
    int              m_uffd;
    bool             m_works;
    std::set<size_t> m_faults;
};

/* What a get sends after the NIC has met an absent page */
uct_nprdma_svc_request_t fetch(const buffer &memory, size_t index)
{
    auto request  = svc_request(UCT_NPRDMA_SVC_FETCH, memory, index * page,
                                4096);
    request.op    = UCT_NPRDMA_SVC_FETCH_POPULATE;
    request.flags = UCT_NPRDMA_SVC_FLAG_REPLY;
    return request;
}

uct_nprdma_svc_request_t store(const buffer &memory, size_t offset,
                               size_t length)
{
    return svc_request(UCT_NPRDMA_SVC_STORE, memory, offset, length);
}

const uct_nprdma_svc_reply_t *header(const svc_requester::bytes &reply)
{
    return (const uct_nprdma_svc_reply_t*)reply.data();
}

uint64_t word(const svc_requester::bytes &reply)
{
    uint64_t value = 0;
    if (reply.size() >= sizeof(uct_nprdma_svc_reply_t) + sizeof(value)) {
        memcpy(&value, header(reply) + 1, sizeof(value));
    }
    return value;
}

svc_requester::bytes bytes_of(uint64_t value)
{
    return svc_requester::bytes((char*)&value, (char*)(&value + 1));
}

} // namespace

class test_absent : public ::testing::Test {
protected:
    void SetUp() override
    {
        if (!m_held.works()) {
            GTEST_SKIP() << "SKIPPED: no userfaultfd for faults of the kernel";
        }
        open({{"NPRDMA_SVC_THREADS", "16"}});
    }

    void TearDown() override
    {
        hook_probe_arm(nullptr, nullptr);
        m_held.release();
        close();
    }

    void close()
    {
        m_next.reset();
        m_other.reset();
        m_requester.reset();
        m_present.reset();
        m_absent.reset();
        m_entity.reset();
    }

    void open(const config_t &config)
    {
        close();
        m_entity.reset(new entity(config));
        hook_start(m_entity->md(), m_entity->iface());
        m_absent.reset(new buffer(m_entity->md(), m_held.length(),
                                  m_held.ptr()));
        m_present.reset(new buffer(m_entity->md(), 4 * page));
        m_present->fill(1);
        m_requester.reset(new svc_requester(*m_entity));
        m_other.reset(new svc_requester(*m_entity));
    }

    /* Without progress: the service's own threads do everything */
    void await_faults(size_t count)
    {
        await([&]() { return m_held.faults().size() >= count; });
        EXPECT_EQ(count, m_held.faults().size());
    }

    /* A put, an atomic and a get of another peer are executed */
    void expect_other_is_served(int round = 0)
    {
        uint64_t value = 1000 + round;
        auto atomic    = svc_request(UCT_NPRDMA_SVC_ATOMIC, *m_present, 8, 8);
        uct_nprdma_svc_operands_t operands = {1, 0};
        auto get = svc_request(UCT_NPRDMA_SVC_FETCH, *m_present, 0, 8);

        *m_present->ptr<uint64_t>(8) = round;
        EXPECT_EQ(UCT_NPRDMA_SVC_OK,
                  m_other->status(store(*m_present, 0, 8), bytes_of(value)));
        EXPECT_EQ((uint64_t)round,
                  word(m_other->call(atomic, {(char*)&operands,
                                              (char*)(&operands + 1)})));
        EXPECT_EQ(value, word(m_other->call(get)));
    }

    void expect_data(size_t index)
    {
        auto reply = m_requester->receive();
        EXPECT_EQ(UCT_NPRDMA_SVC_OK, header(reply)->status);
        EXPECT_EQ(content(index), word(reply)) << "page " << index;
    }

    /* Lets the next probe call m_probed */
    void arm_probed()
    {
        hook_probe_arm([](void *arg) { ((test_absent*)arg)->m_probed(); },
                       this);
    }

    /*
     * A request waits for a page. Its requester answers a probe and leaves, and
     * then the page comes. The target sees the page before the answer.
     *
     * @param is_store  Whether the request is a store, to which no reply is due
     *                  that would tell the target that the requester has left.
     * @param last      What the requester also does after the probe.
     */
    void expect_leaver_stores_nothing(bool is_store, std::function<void()> last)
    {
        open({{"NPRDMA_CM_PROBE_INTERVAL", "20ms"}});
        /* The hook must not meet a probe of another peer */
        m_other.reset();
        m_entity->wait([&]() {
            return m_entity->counter("cm_responders") == 1;
        });
        /* Stores to this memory wait from now on, as it is slow */
        m_requester->post(fetch(*m_absent, 0));
        await_faults(1);
        m_held.provide(0);
        expect_data(0);
        if (is_store) {
            m_requester->post(store(*m_absent, page, 8), bytes_of(99));
        } else {
            m_requester->post(fetch(*m_absent, 1));
        }
        await_faults(1);
        m_probed = [this, last]() {
            last();
            m_requester->leave();
            m_held.provide(1);
            /* A thread tells the service that the page is there. Without this
             * time the test would prove less, but not fail. */
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            m_is_done = true;
        };
        arm_probed();
        m_entity->wait([&]() { return m_is_done.load(); });
        m_entity->wait([&]() {
            return m_entity->counter("cm_responders") == 0;
        });
        EXPECT_EQ(is_store ? 1u : 2u, m_entity->counter("served_fetches"));
        EXPECT_EQ(0u, m_entity->counter("served_stores"));
        EXPECT_EQ(content(1), *m_absent->ptr<uint64_t>(page));
        EXPECT_NE(99u, *m_present->ptr<uint64_t>(page));
    }

    held_pages                     m_held;
    std::function<void()>          m_probed;  /* May run after a failure */
    std::atomic<bool>              m_is_done{false};
    std::unique_ptr<entity>        m_entity;
    std::unique_ptr<buffer>        m_absent, m_present;
    std::unique_ptr<svc_requester> m_requester, m_other, m_next;
};

/* Advice is for what can come soon: no thread waits for a page that the program
 * itself has to provide */
TEST_F(test_absent, advice_waits_for_no_page)
{
    auto advise = [&](buffer &memory) {
        memory.packed_key();
        return uct_md_mem_advise(m_entity->md(), memory.memh(), memory.ptr(),
                                 memory.length(), UCT_MADV_WILLNEED);
    };
    buffer control(m_entity->md(), num_pages * page);

    EXPECT_EQ(UCS_OK, advise(*m_absent));
    EXPECT_EQ(UCS_OK, advise(control));
    /* One thread does both, in this order */
    await([&]() {
        return m_entity->counter("pages_populated") == num_pages;
    });
    EXPECT_TRUE(m_held.faults().empty());
    expect_other_is_served();
}

TEST_F(test_absent, faults_of_one_peer_overlap)
{
    constexpr int rounds = 100;

    for (unsigned i = 0; i < num_pages; ++i) {
        m_requester->post(fetch(*m_absent, i));
    }
    await_faults(num_pages);
    EXPECT_EQ(0u, m_entity->counter("served_fetches"));
    for (int round = 0; round < rounds; ++round) {
        expect_other_is_served(round); /* Other peers do not wait */
    }
    EXPECT_EQ(num_pages, m_entity->counter("pagein_peak"));

    /* The pages come in the wrong order, the replies in the right one */
    for (unsigned i = num_pages; i-- > 0;) {
        m_held.provide(i);
    }
    for (unsigned i = 0; i < num_pages; ++i) {
        expect_data(i);
    }
    EXPECT_EQ(rounds + num_pages, m_entity->counter("served_fetches"));
    EXPECT_EQ(num_pages, m_entity->counter("pagein_jobs"));
    EXPECT_EQ(num_pages, m_entity->counter("pagein_slow"));
    EXPECT_EQ(num_pages, m_entity->counter("pagein_threads"));
    EXPECT_EQ(0u, m_entity->counter("served_errors"));
}

TEST_F(test_absent, one_connection_stays_in_order)
{
    uct_nprdma_svc_operands_t operands = {5, 0};
    auto atomic  = svc_request(UCT_NPRDMA_SVC_ATOMIC, *m_present, 0, 8);
    auto nop     = svc_request(UCT_NPRDMA_SVC_NOP, 0, 0, 0);
    atomic.flags = nop.flags = UCT_NPRDMA_SVC_FLAG_REPLY;

    *m_present->ptr<uint64_t>() = 0;
    m_requester->post(fetch(*m_absent, 0));
    /* Both requests that are copied, and one that keeps its slot */
    m_requester->post(store(*m_present, 0, 8), bytes_of(10));
    m_requester->post(store(*m_present, page, 4000),
                      svc_requester::bytes(4000, 'x'));
    m_requester->post(fetch(*m_absent, 1));
    m_requester->post(atomic, {(char*)&operands, (char*)(&operands + 1)});
    m_requester->post(nop);
    await_faults(2);
    expect_other_is_served();
    *m_present->ptr<uint64_t>() = 0;

    m_held.provide(1);
    for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(UCT_NPRDMA_SVC_OK, m_other->status(nop));
    }
    EXPECT_EQ(0u, *m_present->ptr<uint64_t>());
    EXPECT_NE('x', *m_present->ptr(page));

    m_held.provide(0);
    expect_data(0);
    expect_data(1);
    EXPECT_EQ(10u, word(m_requester->receive()));
    EXPECT_EQ(UCT_NPRDMA_SVC_OK, header(m_requester->receive())->status);
    EXPECT_EQ(15u, *m_present->ptr<uint64_t>());
    EXPECT_EQ('x', *m_present->ptr(page + 3999));
}

/* Beyond its share the peer itself waits, and nothing is lost */
TEST_F(test_absent, flood_beyond_the_share)
{
    constexpr unsigned count = 3000;
    std::atomic<unsigned> posted(0);

    m_requester->post(fetch(*m_absent, 0));
    await_faults(1);
    std::thread flood([&]() {
        for (unsigned i = 0; i < count; ++i) {
            m_requester->post(store(*m_present, page, 8), bytes_of(i));
            ++posted;
        }
    });
    await([&]() { return posted > 340; });
    m_held.provide(0);
    flood.join();
    expect_data(0);
    await([&]() { return m_entity->counter("served_stores") == count; });
    EXPECT_EQ(count - 1, *m_present->ptr<uint64_t>(page));
}

/* It does not wait for the page, and the peer gets no data */
TEST_F(test_absent, deregistered_meanwhile)
{
    m_requester->post(fetch(*m_absent, 0));
    await_faults(1);
    m_absent->deregister();
    m_held.provide(0);
    EXPECT_EQ(UCT_NPRDMA_SVC_ERR_KEY, header(m_requester->receive())->status);
}

/* Its connection ends, and its requests with it */
TEST_F(test_absent, peer_dies_meanwhile)
{
    open({{"NPRDMA_CM_PROBE_INTERVAL", "20ms"}, {"NPRDMA_SVC_THREADS", "2"}});
    for (unsigned i = 0; i < num_pages; ++i) {
        m_requester->post(fetch(*m_absent, i));
    }
    m_requester->post(store(*m_present, page, 8), bytes_of(99));
    m_requester->post(store(*m_present, page, 4000),
                      svc_requester::bytes(4000, 99));
    await_faults(2); /* As many as there may be threads */
    expect_other_is_served();
    m_entity->wait([&]() { return m_entity->counter("cm_responders") == 2; });
    m_requester->kill();
    m_entity->wait([&]() { return m_entity->counter("cm_responders") == 1; });
    expect_other_is_served(1);

    m_held.provide(0);
    m_held.provide(1);
    svc_requester next(*m_entity);
    next.post(fetch(*m_absent, 0));
    EXPECT_EQ(content(0), word(next.receive()));
    next.post(fetch(*m_absent, 5)); /* No dropped request comes before it */
    await_faults(1);
    EXPECT_EQ(1u, m_held.faults().count(5));
    m_held.provide(5);
    EXPECT_EQ(content(5), word(next.receive()));
    EXPECT_EQ(2u + 2, m_entity->counter("served_fetches"));
    EXPECT_NE(99, *m_present->ptr(page));
}

/* The answer to a probe that was posted before the page came says nothing about
 * the requester after that */
TEST_F(test_absent, peer_leaves_after_it_answered)
{
    expect_leaver_stores_nothing(true, []() {});
}

/* A request waits as well if it has arrived, but is handled only after the page
 * came and after the requests before it are executed */
TEST_F(test_absent, peer_leaves_before_its_request_is_handled)
{
    expect_leaver_stores_nothing(false, [this]() {
        m_requester->post(store(*m_present, page, 8), bytes_of(99));
    });
}

/*
 * The answer to a probe that was posted before the requester connected again
 * says nothing about the requester after that. Its stores wait behind a page.
 * When the page has come, the requester answers a probe and leaves. Before the
 * target sees that, there is a second connection, whose first store has
 * arrived. The requester's stores are more than are executed at once, so this
 * one is executed between them.
 */
TEST_F(test_absent, peer_connects_again_while_its_requests_wait)
{
    open({{"NPRDMA_CM_PROBE_INTERVAL", "100s"}});
    m_requester->post(fetch(*m_absent, 0));
    for (unsigned i = 0; i < num_pages; ++i) {
        m_requester->post(store(*m_present, 2 * page, 8), bytes_of(i));
    }
    m_requester->post(store(*m_present, page, 8), bytes_of(99));
    await_faults(1);
    m_probed = [this]() {
        m_requester->leave();
        m_next.reset(new svc_requester(*m_entity));
        auto first   = store(*m_present, page, 8);
        first.flags |= UCT_NPRDMA_SVC_FLAG_REPLY;
        m_next->post(first, bytes_of(5));
        m_is_done = true;
    };
    arm_probed();
    m_held.provide(0);
    m_entity->wait([&]() { return m_is_done.load(); });
    EXPECT_EQ(UCT_NPRDMA_SVC_OK, header(m_next->receive())->status);

    /* Between any two of these the service could execute parked requests */
    for (unsigned i = 0; i < 4 * num_pages; ++i) {
        ASSERT_EQ(UCT_NPRDMA_SVC_OK,
                  m_next->status(store(*m_present, 0, 8), bytes_of(i)));
    }
    EXPECT_EQ(5u, *m_present->ptr<uint64_t>(page));
}

/* Nothing has to be parked for it. In copy mode the service takes the first
 * fault itself, so it is busy as long as the page is held. Also if the peer is
 * killed, and its successor only sends messages: what a handler writes is not
 * undone. */
TEST_F(test_absent, peer_connects_again_while_the_service_is_busy)
{
    for (auto kind : {UCT_NPRDMA_CONN_SVC, UCT_NPRDMA_CONN_AM}) {
        open({{"NPRDMA_MONITOR", "copy"},
              {"NPRDMA_CM_PROBE_INTERVAL", "100s"}});
        auto put   = store(*m_present, page, 8);
        auto plain = fetch(*m_absent, kind);
        plain.op   = 0;
        /* So it has answered a probe since the other one connected */
        ASSERT_EQ(UCT_NPRDMA_SVC_OK, m_requester->status(put, bytes_of(98)));
        m_other->post(plain);
        await_faults(1);
        m_requester->post(put, bytes_of(99));
        if (kind == UCT_NPRDMA_CONN_AM) {
            m_requester->kill();
        } else {
            m_requester->leave();
        }
        svc_requester next(*m_entity, kind);
        *m_present->ptr<uint64_t>(page) = 5; /* As either could write now */
        m_held.provide(kind);
        EXPECT_EQ(content(kind), word(m_other->receive()));
        for (unsigned i = 0; i < num_pages; ++i) {
            ASSERT_EQ(UCT_NPRDMA_SVC_OK,
                      m_other->status(store(*m_present, 0, 8), bytes_of(i)));
        }
        EXPECT_EQ(5u, *m_present->ptr<uint64_t>(page));
        close();
    }
}

/* The put that is executed meanwhile waits itself. The requester is connected
 * only when that can undo nothing any more. */
TEST_F(test_absent, peer_connects_again_while_its_put_is_executed)
{
    std::atomic<bool> is_connected{false};

    m_requester->post(store(*m_absent, page, 8), bytes_of(99));
    await_faults(1);
    m_requester->leave();
    std::thread provider([&]() {
        /* Without this time the test would prove less, but not fail */
        for (int i = 0; (i < 200) && !is_connected; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        m_held.provide(1);
    });
    svc_requester next(*m_entity);
    EXPECT_EQ(1u, m_entity->counter("served_stores"));
    is_connected = true;
    provider.join();
    *m_absent->ptr<uint64_t>(page) = 5; /* As its NIC could write now */
    for (unsigned i = 0; i < num_pages; ++i) {
        ASSERT_EQ(UCT_NPRDMA_SVC_OK,
                  next.status(store(*m_present, 0, 8), bytes_of(i)));
    }
    EXPECT_EQ(5u, *m_absent->ptr<uint64_t>(page));
}

/* Pages beyond the one that was asked for are no fault for a userfaultfd of the
 * program: its thread may be the one that polls */
TEST_F(test_absent, watched_pages_are_left_alone)
{
    const size_t last = m_held.length() - page;
    buffer control(m_entity->md(), m_held.length());

    m_held.provide(0);
    for (int op : {0, (int)UCT_NPRDMA_SVC_POPULATE_WRITE}) {
        unsigned char is_there = 0;

        madvise(control.ptr(), control.length(), MADV_DONTNEED);
        for (const buffer *memory : {m_absent.get(), &control}) {
            auto request     = svc_request(UCT_NPRDMA_SVC_POPULATE, *memory, 0,
                                           page);
            request.op       = op;
            request.prefetch = last;
            EXPECT_EQ(UCT_NPRDMA_SVC_OK,
                      header(m_requester->call(request))->status);
        }
        /* One thread does both, in this order */
        await([&]() {
            mincore(control.ptr(last), page, &is_there);
            return (is_there & 1) || !m_held.faults().empty();
        });
        EXPECT_EQ(std::set<size_t>(), m_held.faults());
    }
}

/* What is closed does not wait for ever for a page */
TEST_F(test_absent, closed_meanwhile)
{
    complaints log;

    m_requester->post(fetch(*m_absent, 0));
    m_requester->post(fetch(*m_absent, 1));
    await_faults(2);
    double start = now();
    close();
    EXPECT_LT(now() - start, patience.count());
    expect_line(log, "2 threads still wait");
    m_held.provide(0);
    m_held.provide(1);
    await([]() { return num_threads(getpid(), "nprdma-pager") == 0; });
}
