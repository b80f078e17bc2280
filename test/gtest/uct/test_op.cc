/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "hook.h"
#include "serve.h"
#include "test_op.h"

#include <algorithm>
#include <cstring>

/* ---- a peer ---- */

PEER_FUNCTION(op_target)
{
    entity self({{"REGION_SIZE", "2m"}, {"MONITOR", "emulated"}});
    buffer memory(self.md(), 4 << 20);

    memory.fill(1);
    publish(parent, self, memory);
    for (;;) {
        self.progress(); /* Until it is killed */
    }
}

/* ---- memory ---- */

far_memory::far_memory(size_t length) : m_length(length)
{
    /* Regions of 2 MiB, or as large as the buffer */
    static uint64_t next = remote_place + (UINT64_C(1) << 32);

    m_ptr = (char*)mmap((void*)next, length, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
                        0);
    if (m_ptr == MAP_FAILED) {
        throw std::runtime_error("mmap");
    }
    next += UINT64_C(1) << 32;
}

far_memory::~far_memory()
{
    munmap(m_ptr, m_length);
}

paged_buffer::paged_buffer(entity &owner, size_t length, void *place) :
    m_memory((place == nullptr) ? new far_memory(length) : nullptr),
    m_ptr((place == nullptr) ? m_memory->ptr() : (char*)place),
    m_length(length), m_buffer(new buffer(owner.md(), length, m_ptr))
{
}

paged_buffer::~paged_buffer()
{
    if (m_table != nullptr) {
        page_table_close(m_table);
    }
}

page_table_t *paged_buffer::table()
{
    if (m_table == nullptr) {
        m_table = page_table_find(ptr());
        if (m_table == nullptr) {
            throw std::runtime_error("no table covers the buffer");
        }
    }
    return m_table;
}

bool paged_buffer::has(size_t offset, size_t length, uint32_t bits)
{
    for (size_t i = offset & ~(page_size - 1); i < offset + length;
         i += page_size) {
        if ((page_table_word(table(), ptr(i)) & bits) != bits) {
            return false;
        }
    }
    return true;
}

void paged_buffer::evict(size_t offset, size_t length, uint32_t bits)
{
    for (size_t i = offset & ~(page_size - 1); i < offset + length;
         i += page_size) {
        page_table_evict(table(), ptr(i), bits);
    }
}

int paged_buffer::fault(size_t offset, uint32_t views, uint32_t access,
                        uint32_t tear, uint32_t restore, bool from_start)
{
    page_fault_t fault = {ptr(offset), views, access, tear, restore,
                          from_start};

    int index = page_table_fault(table(), &fault);
    EXPECT_GE(index, 0);
    return index;
}

page_table_stats_t paged_buffer::stats()
{
    page_table_stats_t stats;

    page_table_query(table(), &stats);
    return stats;
}

/* ---- operations ---- */

void test_op::TearDown()
{
    hook_let_go();
    m_local.reset();
    m_remote.reset();
    uct_pair_test::TearDown();
}

void test_op::make(size_t length)
{
    m_local.reset(new paged_buffer(*m_a, length));
    m_remote.reset(new paged_buffer(*m_b, length));
    m_rkey = m_a->unpack(m_remote->packed_key());
    m_local->fill(m_seed++);
    m_remote->fill(m_seed++);
    run(PUT_ZCOPY, 0, 0, length);
    run(GET_ZCOPY, 0, 0, length);
    m_a->finish_prefetch();
    m_b->finish_prefetch();
    ASSERT_TRUE(m_local->has(0, length, PAGE_R | PAGE_W));
    ASSERT_TRUE(m_remote->has(0, length, PAGE_R | PAGE_W));
}

void test_op::stop_service(uct_ep_h ep, size_t offset, completion *put)
{
    uct_iov_t iov = {m_local->ptr(), 20000, m_local->memh(), 0, 1};

    m_remote->evict(offset, 1);
    page_table_gate_arm(m_remote->table(), GATE_MAP, m_remote->ptr(offset));
    ASSERT_EQ(UCS_INPROGRESS, m_a->retry([&]() {
        return uct_ep_put_zcopy(ep, &iov, 1, m_remote->address(offset), m_rkey,
                                put);
    }));
    m_a->wait_alone([&]() { /* The gate holds what executes */
        return page_table_gate_wait(m_remote->table(), GATE_MAP, 1) == 0;
    });
}

ucs_status_t test_op::put_word(size_t offset, uint64_t value)
{
    return uct_ep_put_short(m_ab, &value, sizeof(value),
                            m_remote->address(offset), m_rkey);
}

void test_op::start(op_t op, size_t local, size_t remote, size_t length,
                    completion *comp)
{
    /* With a second, empty buffer, a small get goes directly to the first
     * one */
    uct_iov_t iov[] = {{m_local->ptr(local), length, m_local->memh(), 0, 1},
                       {m_local->ptr(local), 0, m_local->memh(), 0, 1}};

    ucs_status_t status = m_a->retry([&]() {
        switch (op) {
        case GET_BCOPY:
            return uct_ep_get_bcopy(m_ab, unpack_to, iov->buffer, length,
                                    m_remote->address(remote), m_rkey, comp);
        case GET_ZCOPY:
            return uct_ep_get_zcopy(m_ab, iov, 2, m_remote->address(remote),
                                    m_rkey, comp);
        case GET_COPIED:
            return uct_ep_get_zcopy(m_ab, iov, 1, m_remote->address(remote),
                                    m_rkey, comp);
        default:
            return uct_ep_put_zcopy(m_ab, iov, 1, m_remote->address(remote),
                                    m_rkey, comp);
        }
    });
    ASSERT_EQ(UCS_INPROGRESS, status) << ucs_status_string(status);
}

void test_op::expect_data(op_t op, size_t local, size_t remote, size_t length)
{
    const char *got      = m_local->ptr(local);
    const char *expected = m_remote->ptr(remote);

    if (memcmp(got, expected, length) != 0) {
        size_t i = std::mismatch(got, got + length, expected).first - got;
        ADD_FAILURE() << "op " << op << ", local " << local << ", remote "
                      << remote << ", " << length << " bytes: byte " << i
                      << " differs";
    }
}

/* A word of data in which every byte differs from the signature's byte */
static uint64_t unlike(uint64_t word, uint64_t signature)
{
    const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
    uint64_t diff      = word ^ signature;

    /* The highest bit of each byte that is zero */
    return word ^ (~(((diff & low) + low) | diff | low) >> 7);
}

/* New data each time. Every byte differs from the signature's byte at its
 * place: chance matches would cost assists, and tests count assists. */
void test_op::fill(op_t op, size_t from, size_t length)
{
    bool is_get        = op != PUT_ZCOPY;
    uint64_t seed      = m_seed++;
    uint64_t signature = is_get ? page_table_signature(m_remote->table()) : 0;
    unsigned skew      = 8 * (from % 8);
    char *data         = source(op).ptr(from);

    signature = (signature >> skew) | (signature << (-skew % 64));
    for (size_t i = 0; i < length; i += page_size) {
        uint64_t words[page_size / 8];
        for (uint64_t &word : words) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
            word = is_get ? unlike(seed, signature) : seed;
        }
        memcpy(data + i, words, std::min(page_size, length - i));
    }
}

/* Runs one operation. No byte around its data may change. */
void test_op::run(op_t op, size_t local, size_t remote, size_t length)
{
    paged_buffer &to   = (op == PUT_ZCOPY) ? *m_remote : *m_local;
    size_t at          = (op == PUT_ZCOPY) ? remote : local;
    size_t from        = (op == PUT_ZCOPY) ? local : remote;
    size_t edge_before = std::min<size_t>(at, 100);
    size_t edge_after  = std::min<size_t>(to.length() - at - length, 100);
    completion comp;

    std::vector<char> before(to.ptr(at - edge_before), to.ptr(at));
    std::vector<char> after(to.ptr(at + length),
                            to.ptr(at + length + edge_after));
    fill(op, from, length);
    start(op, local, remote, length, &comp);
    m_a->wait([&]() { return comp.done; });
    EXPECT_EQ(UCS_OK, comp.status) << ucs_status_string(comp.status);
    expect_data(op, local, remote, length);
    EXPECT_TRUE(std::equal(before.begin(), before.end(),
                           to.ptr(at - edge_before)));
    EXPECT_TRUE(std::equal(after.begin(), after.end(), to.ptr(at + length)));
}
