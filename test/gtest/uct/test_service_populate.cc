/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "page_table.h"
#include "svc_requester.h"

#include <nprdma_page_state.h>

#include <algorithm>
#include <cstring>

#include <sys/mman.h>

/*
 * Valid and invalid requests to the service, above all POPULATE, sent by a
 * hand-made requester. The target is this process.
 */

namespace {

constexpr size_t page = NPRDMA_PAGE_SIZE;

/* Anonymous memory that has not been touched */
class pages {
public:
    explicit pages(size_t count, int prot = PROT_READ | PROT_WRITE) :
        m_count(count)
    {
        /* Far from the addresses that the kernel chooses: mappings of other
         * threads would fill the holes that tests make */
        static uint64_t next = hole_place;
        void *place          = (void*)next;

        next += ((count * page) | ((2 << 20) - 1)) + 1;
        m_ptr = (char*)mmap(place, count * page, prot,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT_EQ(place, m_ptr);
        /* A huge page would bring in more than the test requests */
        madvise(m_ptr, count * page, MADV_NOHUGEPAGE);
    }

    ~pages() { munmap(m_ptr, m_count * page); }

    char *ptr(size_t index = 0) const { return m_ptr + (index * page); }
    size_t length() const { return m_count * page; }

    /* Number of resident pages among [first, last) */
    size_t resident(size_t first, size_t last) const
    {
        std::vector<unsigned char> vec(last - first);
        EXPECT_EQ(0, mincore(ptr(first), vec.size() * page, vec.data()));
        return std::count_if(vec.begin(), vec.end(),
                             [](unsigned char c) { return c & 1; });
    }

    size_t resident() const { return resident(0, m_count); }

private:
    size_t m_count;
    char   *m_ptr;
};

/* The reply to a POPULATE */
struct populated {
    explicit populated(const svc_requester::bytes &reply)
    {
        auto header = (const uct_nprdma_svc_reply_t*)reply.data();
        auto body   = (const uct_nprdma_svc_populated_t*)(header + 1);

        status = header->status;
        if (status == UCT_NPRDMA_SVC_OK) {
            length = body->length;
            states.assign(body->states,
                          (const uint32_t*)(reply.data() + reply.size()));
        }
    }

    int                   status;
    size_t                length = 0;
    std::vector<uint32_t> states;
};

} // namespace

class test_service_populate : public ::testing::Test {
protected:
    void SetUp() override { open({}); }

    void open(const config_t &config)
    {
        m_requester.reset();
        m_entity.reset(new entity(config));
        m_requester.reset(new svc_requester(*m_entity));
    }

    static uct_nprdma_svc_request_t
    request(const buffer &memory, size_t offset, size_t length, int is_write,
            size_t prefetch = 0)
    {
        auto req     = svc_request(UCT_NPRDMA_SVC_POPULATE, memory, offset,
                                   length);
        req.op       = is_write ? UCT_NPRDMA_SVC_POPULATE_WRITE : 0;
        req.prefetch = prefetch;
        return req;
    }

    populated populate(const buffer &memory, size_t offset, size_t length,
                       int is_write, size_t prefetch = 0)
    {
        return populated(m_requester->call(request(memory, offset, length,
                                                   is_write, prefetch)));
    }

    void await(const std::function<bool()> &condition)
    {
        m_entity->wait(condition);
    }

    /* Returns when the pager has finished its present work, or has done one
     * more step of it: what is queued later is done later. The service itself
     * populates the first page of a request. */
    void await_turn(const buffer &registered, const pages &memory)
    {
        madvise(memory.ptr(), memory.length(), MADV_DONTNEED);
        for (size_t i = 0; i < 2; ++i) {
            m_requester->call(
                    request(registered, 2 * i * page, 1, 0, (2 * page) - 1));
            await([&]() { return memory.resident(2 * i, 2 * i + 2) == 2; });
        }
    }

    std::unique_ptr<entity>        m_entity;
    std::unique_ptr<svc_requester> m_requester;
};

TEST_F(test_service_populate, more_than_the_key_allows)
{
    pages memory(64);
    buffer registered(m_entity->md(), 32 * page, memory.ptr(16));
    buffer readable(m_entity->md(), page, memory.ptr(16),
                    UCT_MD_MEM_ACCESS_REMOTE_GET);
    buffer writable(m_entity->md(), page, memory.ptr(17),
                    UCT_MD_MEM_ACCESS_REMOTE_PUT);

    EXPECT_EQ(UCT_NPRDMA_SVC_ERR_RANGE,
              populate(registered, 0, 32 * page + 1, 0).status);
    EXPECT_EQ(UCT_NPRDMA_SVC_ERR_RANGE,
              populate(registered, -1, page, 0).status);
    EXPECT_EQ(UCT_NPRDMA_SVC_ERR_RANGE,
              populate(registered, 0, page, 0, 31 * page + 1).status);
    EXPECT_EQ(UCT_NPRDMA_SVC_ERR_RANGE,
              populate(registered, 0, UINT32_MAX, 0, UINT32_MAX).status);
    EXPECT_EQ(UCT_NPRDMA_SVC_ERR_ACCESS, populate(readable, 0, 1, 1).status);
    EXPECT_EQ(UCT_NPRDMA_SVC_ERR_ACCESS, populate(writable, 0, 1, 0).status);

    auto req = request(registered, 0, page, 0);
    req.key += 1ull << 32;
    EXPECT_EQ(UCT_NPRDMA_SVC_ERR_KEY, m_requester->status(req));
    req.key  = 0;
    EXPECT_EQ(UCT_NPRDMA_SVC_ERR_KEY, m_requester->status(req));

    /* None of these requests has touched a page */
    EXPECT_EQ(0u, memory.resident());

    req = request(registered, 0, page, 0);
    registered.deregister();
    EXPECT_EQ(UCT_NPRDMA_SVC_ERR_KEY, m_requester->status(req));
    EXPECT_EQ(0u, memory.resident());
}

/* Pages that a dead peer asked for are not populated any further */
TEST_F(test_service_populate, requester_dies_while_it_is_populated)
{
    constexpr size_t reached = 1000;

    open({{"CM_PROBE_INTERVAL", "20ms"}});
    pages memory(4096), others(4);
    buffer registered(m_entity->md(), memory.length(), memory.ptr());
    buffer next(m_entity->md(), others.length(), others.ptr());
    auto nop = svc_request(UCT_NPRDMA_SVC_NOP, 0, 0, 0);

    EXPECT_EQ(UCT_NPRDMA_SVC_OK, populate(registered, 0, page, 1).status);
    page_table_t *table = page_table_find(memory.ptr());
    ASSERT_NE(nullptr, table);
    page_table_gate_arm(table, GATE_MAP, memory.ptr(reached));
    svc_requester dying(*m_entity);
    dying.call(request(registered, 0, page, 1, memory.length() - page));
    ASSERT_EQ(0, page_table_gate_wait(table, GATE_MAP, 60000));
    await([&]() { return m_entity->counter("cm_responders") == 2; });
    dying.kill();
    await([&]() { return m_entity->counter("cm_responders") == 1; });
    /* A few more requests ensure that the service has dropped the dead peer and
     * its requests */
    for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(UCT_NPRDMA_SVC_OK, m_requester->status(nop));
    }
    page_table_gate_release(table, GATE_MAP);
    page_table_close(table);

    await_turn(next, others);
    EXPECT_GE(memory.resident(), reached);
    EXPECT_LE(memory.resident(), reached + 32); /* Current step */
}

/* Once an interface is closed, its peers' requests are not executed, even if
 * the memory domain and the keys live on and the service had no time to end the
 * connections */
TEST_F(test_service_populate, closed_interface_executes_nothing)
{
    constexpr size_t reached = 1000, target = 2000;
    pages memory(4096);
    buffer registered(m_entity->md(), memory.length(), memory.ptr());
    auto held  = request(registered, reached * page, page, 1);
    auto store = svc_request(UCT_NPRDMA_SVC_STORE, registered, target * page,
                             8);
    auto nop   = svc_request(UCT_NPRDMA_SVC_NOP, 0, 0, 0);

    EXPECT_EQ(UCT_NPRDMA_SVC_OK, populate(registered, 0, page, 1).status);
    page_table_t *table = page_table_find(memory.ptr());
    ASSERT_NE(nullptr, table);
    page_table_gate_arm(table, GATE_MAP, memory.ptr(reached));
    held.flags |= UCT_NPRDMA_SVC_FLAG_REPLY;
    m_requester->post(held);
    ASSERT_EQ(0, page_table_gate_wait(table, GATE_MAP, 60000));
    m_requester->post(store, svc_requester::bytes(8, 17));
    m_entity->close_iface();
    page_table_gate_release(table, GATE_MAP);
    page_table_close(table);

    await([&]() {
        nop.sn     = m_requester->next_sn();
        nop.flags |= UCT_NPRDMA_SVC_FLAG_REPLY;
        return !m_requester->send(svc_message(nop));
    });
    EXPECT_EQ(0u, *(const uint64_t*)memory.ptr(target));
}

/* A requester that asks for replies without posting receives for them is
 * disconnected, and no other requester waits for it */
TEST_F(test_service_populate, no_receives_for_replies)
{
    pages memory(16);
    buffer registered(m_entity->md(), memory.length(), memory.ptr());
    auto nop   = svc_request(UCT_NPRDMA_SVC_NOP, 0, 0, 0);
    auto fetch = svc_request(UCT_NPRDMA_SVC_FETCH, registered, 0, 8 * page);

    for (auto request : {nop, fetch}) {
        svc_requester greedy(*m_entity);
        int sent      = 0;
        request.flags = UCT_NPRDMA_SVC_FLAG_REPLY;
        do {
            request.sn = greedy.next_sn();
            ASSERT_LT(++sent, 1000);
            ASSERT_EQ(UCT_NPRDMA_SVC_OK, m_requester->status(nop));
        } while (greedy.send(svc_message(request)));
        EXPECT_GT(sent, UCT_NPRDMA_SVC_MAX_REPLIES);
    }
    EXPECT_EQ(UCT_NPRDMA_SVC_OK, m_requester->status(fetch));
}

/* A malformed request closes the connection that sent it, and no other one. The
 * fuzzer of the parser has all kinds of them. */
TEST_F(test_service_populate, malformed_requests)
{
    pages memory(64);
    buffer registered(m_entity->md(), 16 * page, memory.ptr(16));
    auto good = request(registered, 0, page, 0);
    auto nop  = svc_request(UCT_NPRDMA_SVC_NOP, 0, 0, 0);
    std::vector<svc_requester::bytes> messages;

    auto add = [&](std::function<void(uct_nprdma_svc_request_t&)> spoil,
                   size_t payload = 0) {
        auto req  = good;
        req.sn    = 1;
        req.flags = UCT_NPRDMA_SVC_FLAG_REPLY;
        spoil(req);
        messages.push_back(svc_message(req, svc_requester::bytes(payload)));
    };
    add([](auto &req) { req.sn = 2; });
    add([](auto &req) { req.reserved = 1; });
    add([](auto &req) { req.address = UINT64_MAX - 5; });
    add([](auto &) {}, 1);
    messages.push_back({});
    messages.push_back(svc_requester::bytes(10, 'x'));

    for (const auto &message : messages) {
        svc_requester foul(*m_entity);
        /* The connection may be gone by the time the message is complete */
        foul.send(message);
        await([&]() { return !foul.send(svc_requester::bytes(1)); });
        EXPECT_EQ(UCT_NPRDMA_SVC_OK, m_requester->status(nop));
    }
    EXPECT_EQ(0u, memory.resident());
    EXPECT_EQ(UCT_NPRDMA_SVC_OK, m_requester->status(good));
}

/* A reply longer than a slot of this process is malformed as well, however long
 * those of others are */
TEST(test_service_populate_short, reply_fits_into_a_slot)
{
    entity target(config_t{{"MAX_PINNED", "64k"}});
    buffer memory(target.md(), 2 * page);
    size_t longest = UCT_NPRDMA_SVC_SLOT(UCT_NPRDMA_SVC_SHORT_PIECE) -
                     sizeof(uct_nprdma_svc_reply_t);

    memory.fill(1);
    for (size_t length : {longest, longest + 1, page}) {
        auto req = svc_request(UCT_NPRDMA_SVC_FETCH, memory, 0, length);
        svc_requester peer(target);
        if (length == longest) {
            EXPECT_EQ(UCT_NPRDMA_SVC_OK, peer.status(req));
            continue;
        }
        req.sn    = 1;
        req.flags = UCT_NPRDMA_SVC_FLAG_REPLY;
        EXPECT_TRUE(peer.send(svc_message(req)));
        await([&]() { return !peer.send(svc_requester::bytes(1)); });
        EXPECT_EQ(1u, target.counter("served_fetches")) << length;
    }
}

/* A peer that gets a page mostly gets the next ones. Absent pages stay absent,
 * and pages beyond the registration are not populated. */
TEST_F(test_service_populate, resident_pages_behind_a_fetch)
{
    pages memory(128);
    buffer registered(m_entity->md(), 100 * page, memory.ptr());
    std::vector<uct_nprdma_svc_request_t> fetches;
    std::vector<uint64_t> populated;

    /* To pack the key would populate what is resident */
    for (size_t index : {0, 90}) {
        fetches.push_back(svc_request(UCT_NPRDMA_SVC_FETCH, registered,
                                      index * page, 8));
        fetches.back().op    = UCT_NPRDMA_SVC_FETCH_POPULATE;
        fetches.back().flags = UCT_NPRDMA_SVC_FLAG_REPLY;
    }
    memset(memory.ptr(), 1, 30 * page);
    memset(memory.ptr(40), 1, 88 * page);
    for (const auto &fetch : fetches) {
        EXPECT_EQ(UCT_NPRDMA_SVC_OK, m_requester->status(fetch));
        /* The one before is done then */
        EXPECT_EQ(UCT_NPRDMA_SVC_OK,
                  m_requester->status(svc_request(UCT_NPRDMA_SVC_NOP, 0, 0,
                                                  0)));
        populated.push_back(m_entity->counter("pages_populated"));
    }
    EXPECT_EQ((std::vector<uint64_t>{30 + 25, 30 + 25 + 10}), populated);
    EXPECT_EQ(118u, memory.resident());
}
