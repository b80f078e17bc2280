/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "serve.h"
#include "page_table.h"
#include "test_mem.h"

#include <thread>

/*
 * A signal stops one of the two processes at an exact point of a transfer.
 * Memory changes meanwhile, and the process is continued. The transfer ends as
 * if nothing had happened.
 */

namespace {

constexpr size_t size = 1u << 20;
constexpr size_t at   = size / 2; /* Where the initiator is stopped */

struct order {
    bool is_get;
    int  point;
};

/* A get or a put of all of it */
ucs_status_t transfer(entity &e, uct_ep_h ep, bool is_get, const buffer &local,
                      uint64_t address, uct_rkey_t rkey)
{
    uct_iov_t iov = {local.ptr(), size, nullptr, 0, 1};
    completion comp;
    ucs_status_t status = e.retry([&]() {
        return is_get ? uct_ep_get_zcopy(ep, &iov, 1, address, rkey, &comp) :
                        uct_ep_put_zcopy(ep, &iov, 1, address, rkey, &comp);
    });

    if (status != UCS_INPROGRESS) {
        return status;
    }
    e.wait([&]() { return comp.done; });
    return comp.status;
}

bool equal(const buffer &a, const buffer &b)
{
    return memcmp(a.ptr(), b.ptr(), size) == 0;
}

/* Gets data that the parent has filled with 1, or puts data that it fills with
 * 2 */
PEER_FUNCTION(stopped_initiator)
{
    entity e;
    buffer local(e.md(), size), wanted(e.md(), size);
    uct_ep_h ep      = e.connect(parent.get_bytes());
    uct_rkey_t rkey  = e.unpack(parent.get_bytes());
    uint64_t address = parent.get<uint64_t>();
    bool is_get      = parent.get<bool>();

    wanted.fill(1);
    local.fill(2);
    parent.put('r');
    parent.get<char>();
    EXPECT_EQ(UCS_OK, transfer(e, ep, is_get, local, address, rkey));
    EXPECT_TRUE(!is_get || equal(local, wanted));
    parent.put('d');
    parent.get<char>();
    return 0;
}

/* A gate holds its service at the first page that it populates for the parent.
 * A thread of the pager handles the pages ahead of it. */
PEER_FUNCTION(stopped_target)
{
    entity e;
    buffer memory(e.md(), size);
    page_table_t *table;

    publish(parent, e, memory);
    table = page_table_find(memory.ptr());
    page_table_gate_arm(table, GATE_MAP, memory.ptr());
    parent.put('r');
    EXPECT_EQ(0, page_table_gate_wait(table, GATE_MAP, 60000));
    parent.put('h');
    parent.get<char>(); /* Stopped and continued meanwhile */
    page_table_gate_release(table, GATE_MAP);
    parent.get<char>();
    page_table_close(table);
    return 0;
}

class test_stopped : public ::testing::TestWithParam<order> {
};

} // namespace

TEST_P(test_stopped, initiator)
{
    entity e;
    buffer memory(e.md(), size), wanted(e.md(), size);
    peer initiator("stopped_initiator");

    memory.fill(1);
    wanted.fill(2);
    initiator.put_bytes(e.address());
    initiator.put_bytes(memory.packed_key());
    initiator.put(memory.address());
    initiator.put(GetParam().is_get);
    initiator.get<char>();

    page_table_t *table = page_table_find(memory.ptr(at));
    ASSERT_NE(nullptr, table);
    page_table_gate_arm(table, GetParam().point, memory.ptr(at));
    initiator.put('g');
    ASSERT_EQ(0, page_table_gate_wait(table, GetParam().point, 60000));
    initiator.stop();
    page_table_gate_release(table, GetParam().point);

    if (GetParam().point == GATE_CHUNK_CHECKED) {
        /* The hook waits for the access of the stopped process. The advice
         * takes the page from the NIC and keeps its contents: the initiator
         * goes on before the hook ends. */
        std::thread taker([&]() {
            madvise(memory.ptr(at), page, MADV_KEEPONFORK);
        });
        e.wait([&]() {
            return (page_table_word(table, memory.ptr(at)) &
                    (PAGE_R | PAGE_W)) == 0;
        });
        initiator.go_on();
        taker.join();
    } else {
        /* It waits for no other access. The page is taken, and returns. */
        std::vector<char> copy(memory.ptr(at), memory.ptr(at) + page);
        madvise(memory.ptr(at), page, MADV_DONTNEED);
        memcpy(memory.ptr(at), copy.data(), page);
        initiator.go_on();
    }

    e.wait([&]() { return initiator.ready(); });
    initiator.get<char>();
    EXPECT_TRUE(GetParam().is_get || equal(memory, wanted));
    initiator.put('e');
    EXPECT_EQ(0, initiator.join());
    page_table_close(table);
}

INSTANTIATE_TEST_SUITE_P(points, test_stopped,
                         ::testing::Values(order{true, GATE_CHUNK_BEGIN},
                                           order{true, GATE_CHUNK_CHECKED},
                                           order{true, GATE_CHUNK_END},
                                           order{false, GATE_CHUNK_BEGIN},
                                           order{false, GATE_CHUNK_CHECKED},
                                           order{false, GATE_CHUNK_END}),
                         [](const ::testing::TestParamInfo<order> &info) {
                             int point = info.param.point;
                             return std::string(info.param.is_get ? "get_" :
                                                                    "put_") +
                                    ((point == GATE_CHUNK_BEGIN) ? "begin" :
                                     (point == GATE_CHUNK_END)   ? "end" :
                                                                   "checked");
                         });

TEST(test_stopped_peer, target)
{
    peer target("stopped_target");
    entity e, other;
    buffer local(e.md(), size), zeros(e.md(), size), memory(other.md(), size);
    uct_ep_h ep      = e.connect(target.get_bytes());
    uct_rkey_t rkey  = e.unpack(target.get_bytes());
    uint64_t address = target.get<uint64_t>();
    uct_iov_t iov    = {local.ptr(), size, nullptr, 0, 1};
    completion comp;

    local.fill(1);
    target.get<char>();
    ASSERT_EQ(UCS_INPROGRESS, e.retry([&]() {
        return uct_ep_get_zcopy(ep, &iov, 1, address, rkey, &comp);
    }));
    e.wait([&]() { return target.ready(); });
    target.get<char>();
    target.stop();

    /* Other peers are served meanwhile */
    memory.fill(3);
    buffer got(e.md(), size);
    e.add_progress(&other);
    EXPECT_EQ(UCS_OK, transfer(e, e.connect(other.address()), true, got,
                               memory.address(),
                               e.unpack(memory.packed_key())));
    EXPECT_TRUE(equal(got, memory));
    EXPECT_FALSE(comp.done);

    target.go_on();
    target.put('g');
    e.wait([&]() { return comp.done; });
    EXPECT_EQ(UCS_OK, comp.status);
    EXPECT_TRUE(equal(local, zeros));
    target.put('e');
    EXPECT_EQ(0, target.join());
}
