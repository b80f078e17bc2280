/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

/*
 * The memory of a target is removed or replaced while the NIC of an initiator
 * is held at a named point of an operation on it. The initiator gets the new
 * contents or an error, and no page is freed while the NIC accesses it. For the
 * memory of the initiator itself see test_taken.
 */

namespace {

enum event_t {
    DONTNEED,
    REPLACE,        /* mmap(MAP_FIXED) */
    REMAP,          /* munmap(), mmap() */
    MOVE,           /* mremap() to elsewhere, mmap() */
    UNMAP,
    FORK
};

constexpr size_t  area   = 128 << 10;
constexpr size_t  at     = 32 << 10;  /* Offset of the range that is removed */
constexpr size_t  gone   = 64 << 10;
constexpr uint8_t before = 0x11, after = 0x22, sent = 0x33;

void map_again(char *ptr, int how)
{
    EXPECT_EQ(ptr, mmap(ptr, gone, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | how, -1, 0));
}

/* The mapping grows and has to move. mremap() gets no address, because the
 * hooks of UCX before 1.15 lose it. */
void move_away(char *ptr)
{
    void *moved = mremap(ptr, gone, gone + page_size, MREMAP_MAYMOVE);

    ASSERT_NE(MAP_FAILED, moved);
    EXPECT_NE(ptr, moved);
    map_again(ptr, MAP_FIXED_NOREPLACE);
    EXPECT_EQ(0, munmap(moved, gone + page_size));
}

/* The event of the program. The thread ends when the system call has
 * returned. */
void do_event(event_t event, char *ptr, pid_t *child)
{
    switch (event) {
    case DONTNEED:
        EXPECT_EQ(0, madvise(ptr, gone, MADV_DONTNEED));
        break;
    case REPLACE:
        map_again(ptr, MAP_FIXED);
        break;
    case REMAP:
        EXPECT_EQ(0, munmap(ptr, gone));
        map_again(ptr, MAP_FIXED_NOREPLACE);
        break;
    case MOVE:
        move_away(ptr);
        break;
    case UNMAP:
        EXPECT_EQ(0, munmap(ptr, gone));
        break;
    case FORK:
        *child = fork();
        ASSERT_NE(-1, *child);
        if (*child == 0) {
            /* The child writes to its own copy */
            memset(ptr, 0xff, gone);
            pause();
            _exit(0);
        }
        break;
    }
}

bool expect_bytes(const char *ptr, size_t length, std::vector<uint8_t> allowed)
{
    for (size_t i = 0; i < length; ++i) {
        if (std::find(allowed.begin(), allowed.end(), (uint8_t)ptr[i]) ==
            allowed.end()) {
            ADD_FAILURE() << "byte " << i << " is " << (int)(uint8_t)ptr[i];
            return false;
        }
    }
    return true;
}

/* Events that leave no mapping for a moment */
bool has_hole(event_t event)
{
    return (event == REMAP) || (event == MOVE);
}

/* The gate holds the system call, not the NIC */
bool is_blocked(int point)
{
    return point == GATE_INVALIDATE_QUIESCED;
}

/* The NIC has read the pages, so the call must wait until the NIC is done. That
 * a call does not return cannot be awaited, so this checks for a while. */
void expect_waits(const std::atomic<bool> &returned)
{
    for (double end = now() + 0.05; now() < end;) {
        ASSERT_FALSE(returned);
    }
}

} // namespace

class test_op_events : public test_op {
protected:
    config_t config() override
    {
        return {{"REGION_SIZE", "2m"}, {"SLICE", "64k"}};
    }

    ucs_status_t operate(bool is_put, size_t offset, size_t length)
    {
        return is_put ? m_a->put(m_ab, m_local->ptr(offset), length,
                                 m_remote->address(offset), m_rkey) :
                        m_a->get(m_ab, m_local->ptr(offset), length,
                                 m_remote->address(offset), m_rkey);
    }

    /* While a call is in progress, the pages that it takes are not populated
     * again */
    void obey_blocked(event_t event, int point)
    {
        std::thread thread([&]() {
            do_event(event, m_remote->ptr(at), nullptr);
        });

        ASSERT_EQ(0, page_table_gate_wait(m_remote->table(), point, 60000));
        m_is_called = true;
        for (double end = now() + 0.1; now() < end;) {
            for (size_t i = 0; i < gone; i += page_size) {
                ASSERT_FALSE(m_remote->has(at + i, 1, PAGE_R));
            }
        }
        page_table_gate_release(m_remote->table(), point);
        thread.join();
    }

    void obey(event_t event, int point, bool is_put)
    {
        std::atomic<bool> returned(false);
        pid_t child = 0;
        bool stores = (event != UNMAP) && (event != FORK);

        ASSERT_EQ(0, page_table_gate_wait(m_remote->table(), point, 60000));
        std::thread thread([&]() {
            do_event(event, m_remote->ptr(at), &child);
            returned = true;
        });
        if (point == GATE_CHUNK_CHECKED) {
            expect_waits(returned);
            page_table_gate_release(m_remote->table(), point);
            thread.join();
            /* Not before a put is complete, because it may be repeated */
            stores = stores && !is_put;
        } else {
            thread.join();
        }
        if (stores) {
            memset(m_remote->ptr(at), after, gone);
        }
        page_table_gate_release(m_remote->table(), point);
        if (child > 0) {
            kill(child, SIGKILL);
            waitpid(child, nullptr, 0);
        }
    }

    void expect_data(event_t event, int point, bool is_put, ucs_status_t status,
                     size_t length)
    {
        std::vector<uint8_t> allowed = {after};
        bool is_early = (point == GATE_CHUNK_BEGIN) ||
                        ((point == GATE_MAP) && (length == gone));
        bool is_open  = is_blocked(point) || (point == GATE_CHUNK_CHECKED);

        if (event == UNMAP) {
            /* A short one may have completed before the removal */
            EXPECT_TRUE((status != UCS_OK) || !is_early);
            return;
        }

        /* An operation that does not wait for the end of the call may find no
         * mapping, and gets an error */
        if (has_hole(event) && (status == UCS_ERR_INVALID_ADDR) && is_open) {
            return;
        }

        EXPECT_EQ(UCS_OK, status) << ucs_status_string(status);
        if (is_put) {
            /* If the call was not over yet, software may have stored the data
             * just before the call discarded it */
            expect_bytes(m_remote->ptr(at), gone,
                         is_open ? std::vector<uint8_t>{sent, after, 0} :
                                   std::vector<uint8_t>{sent});
            return;
        }

        if (event == FORK) {
            allowed = {before};
        } else if (!is_early) {
            allowed = {before, after, 0};
        }
        expect_bytes(m_local->ptr(at), length, allowed);
    }

    void run(event_t event, int point, bool is_put, size_t length)
    {
        SCOPED_TRACE(testing::Message() << "event " << event << " point "
                                        << point << " put " << is_put
                                        << " length " << length);
        m_local.reset(new paged_buffer(*m_a, area));
        m_remote.reset(new paged_buffer(*m_b, area));
        m_rkey = m_a->unpack(m_remote->packed_key());
        memset(m_local->ptr(), before, area);
        /* Populates the pages, and fills the state cache */
        ASSERT_EQ(UCS_OK, operate(true, 0, area));
        ASSERT_EQ(UCS_OK, operate(false, 0, area));
        memset(m_local->ptr(at), is_put ? sent : 0x44, gone);
        m_b->finish_prefetch();
        if (point == GATE_MAP) {
            m_remote->evict(at, gone); /* The operation has to populate it */
        }

        m_is_called = false;
        page_table_gate_arm(m_remote->table(), point, m_remote->ptr(at));
        std::thread thread([&]() {
            is_blocked(point) ? obey_blocked(event, point) :
                                obey(event, point, is_put);
        });
        await([&]() { return m_is_called || !is_blocked(point); });
        ucs_status_t status = operate(is_put, at, length);
        thread.join();
        expect_data(event, point, is_put, status, length);

        /* And afterwards */
        if (event == UNMAP) {
            EXPECT_NE(UCS_OK, operate(false, at, gone));
            m_a->flush_status(m_ab); /* May have errors of small operations */
            map_again(m_remote->ptr(at), MAP_FIXED_NOREPLACE);
        } else {
            memset(m_remote->ptr(at), after, gone);
            EXPECT_EQ(UCS_OK, operate(false, at, gone));
            expect_bytes(m_local->ptr(at), gone, {after});
        }
        /* The NIC accessed no page that its table did not permit */
        EXPECT_EQ(0u, m_remote->stats().efault);
    }

    void run_all(int point)
    {
        for (event_t event : {DONTNEED, REPLACE, REMAP, MOVE, UNMAP, FORK}) {
            run(event, point, false, gone);
            run(event, point, false, 8000);
            run(event, point, true, gone);
        }
    }

    std::atomic<bool> m_is_called{false};
};

TEST_F(test_op_events, populate_is_refused_during_a_call)
{
    run(DONTNEED, GATE_INVALIDATE_QUIESCED, false, gone);
    run(DONTNEED, GATE_INVALIDATE_QUIESCED, false, 8000);
    run(DONTNEED, GATE_INVALIDATE_QUIESCED, true, gone);
    run(REPLACE, GATE_INVALIDATE_QUIESCED, false, gone);
}

/* The service is populating absent pages again */
TEST_F(test_op_events, before_pages_are_mapped)
{
    run_all(GATE_MAP);
}

TEST_F(test_op_events, before_the_nic_checks)
{
    run_all(GATE_CHUNK_BEGIN);
}

TEST_F(test_op_events, waits_for_accesses_in_flight)
{
    run_all(GATE_CHUNK_CHECKED);
}

TEST_F(test_op_events, after_the_nic_is_done)
{
    run_all(GATE_CHUNK_END);
}
