/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * The memory of a target is removed or replaced while the NIC of an initiator
 * is held at a named point of an operation on it. The initiator gets the new
 * contents or an error, and no page is freed while the NIC accesses it. The
 * same with the memory of the initiator itself: a program must not take it away
 * before the completion, but the consequence is no more than an error.
 */

namespace {

enum event_t {
    DONTNEED,
    REPLACE,        /* mmap(MAP_FIXED) */
    REMAP,          /* munmap(), mmap() */
    MOVE,           /* mremap() to elsewhere, mmap() */
    UNMAP,
    SHRINK,         /* brk() down and up; takes everything behind, too */
    FORK
};

constexpr size_t  area   = 128 << 10;
constexpr size_t  at     = 32 << 10;  /* Offset of the range that is removed */
constexpr size_t  gone   = 64 << 10;
constexpr size_t  region = 2 << 20;      /* The least one */
constexpr uint8_t before = 0x11, after = 0x22, sent = 0x33;

/* An order of the initiator to the target, before it starts an operation */
struct order {
    event_t event;
    int     point;
    bool    is_put;
    bool    end;
};

struct target_card {
    uint64_t address;
};

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
    case SHRINK:
        ASSERT_EQ(ptr + area - at, sbrk(0)) << "something else grew the heap";
        EXPECT_EQ(0, brk(ptr));
        EXPECT_EQ(0, brk(ptr + area - at));
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
    return (event == REMAP) || (event == MOVE) || (event == SHRINK);
}

/* The gate holds the system call, not the NIC */
bool is_blocked(int point)
{
    return (point == GATE_INVALIDATE_START) ||
           (point == GATE_INVALIDATE_QUIESCED);
}

/* The NIC has read the pages, so the call must wait until the NIC is done. That
 * a call does not return cannot be awaited, so this checks for a while. */
void expect_waits(const std::atomic<bool> &returned)
{
    for (double end = now() + 0.05; now() < end;) {
        ASSERT_FALSE(returned);
    }
}

/* Memory at the end of the heap. malloc() has enough below it, so that it does
 * not extend the heap. All of it is in one region: a region has no table before
 * a page of it is used, and the tests do not use the first page here. */
class heap_memory {
public:
    heap_memory()
    {
        mallopt(M_MMAP_THRESHOLD, 32 << 20);
        mallopt(M_TRIM_THRESHOLD, 64 << 20);
        void *volatile reserve = malloc(8 << 20);
        free(reserve);
        m_begin = (char*)sbrk(0);
        m_ptr   = m_begin + (-(uintptr_t)m_begin & (page_size - 1));

        size_t left = region - ((uintptr_t)m_ptr & (region - 1));
        m_ptr += (left < area) ? left : 0;
        EXPECT_EQ(0, brk(m_ptr + area));
    }

    ~heap_memory()
    {
        EXPECT_EQ(m_ptr + area, sbrk(0));
        EXPECT_EQ(0, brk(m_begin));
    }

    char *ptr() { return m_ptr; }

private:
    char *m_begin, *m_ptr;
};

/* While a call is in progress, the pages that it takes are not populated again.
 * Before it has taken them, they are in use. */
void obey_blocked(const order &order, paged_buffer &memory, peer &parent)
{
    bool is_there = order.point == GATE_INVALIDATE_START;
    std::thread thread([&]() {
        do_event(order.event, memory.ptr(at), nullptr);
    });
    ASSERT_EQ(0, page_table_gate_wait(memory.table(), order.point, 60000));
    parent.put(true);
    for (double end = now() + 0.1; now() < end;) {
        for (size_t i = 0; i < gone; i += page_size) {
            ASSERT_EQ(is_there, memory.has(at + i, 1, PAGE_R));
        }
    }
    page_table_gate_release(memory.table(), order.point);
    thread.join();
}

void obey(const order &order, paged_buffer &memory)
{
    std::atomic<bool> returned(false);
    pid_t child = 0;

    ASSERT_EQ(0, page_table_gate_wait(memory.table(), order.point, 60000));
    std::thread thread([&]() {
        do_event(order.event, memory.ptr(at), &child);
        returned = true;
    });
    if (order.point == GATE_CHUNK_CHECKED) {
        expect_waits(returned);
        page_table_gate_release(memory.table(), order.point);
        thread.join();
        if ((order.event != UNMAP) && (order.event != FORK)) {
            /* Not before the put is complete, because it may be repeated */
            if (!order.is_put) {
                memset(memory.ptr(at), after, gone);
            }
        }
    } else {
        thread.join();
        if ((order.event != UNMAP) && (order.event != FORK)) {
            memset(memory.ptr(at), after, gone);
        }
        page_table_gate_release(memory.table(), order.point);
    }
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
    }
}

} // namespace

PEER_FUNCTION(event_target)
{
    entity self({{"REGION_SIZE", "2m"}, {"SLICE", "64k"}});
    order order;

    parent.put_bytes(self.address());
    for (;;) {
        parent.receive(&order, sizeof(order));
        if (order.end) {
            return 0;
        }

        std::unique_ptr<heap_memory> heap;
        if (order.event == SHRINK) {
            heap.reset(new heap_memory);
        }
        paged_buffer memory(self, area, heap ? heap->ptr() : nullptr);
        memset(memory.ptr(), before, area);
        parent.put(target_card{memory.address()});
        parent.put_bytes(memory.packed_key());
        parent.get<bool>();
        if (order.point == GATE_MAP) {
            self.finish_prefetch();
            memory.evict(at, gone); /* Then the operation has to populate it */
        }
        page_table_gate_arm(memory.table(), order.point, memory.ptr(at));
        if (is_blocked(order.point)) {
            obey_blocked(order, memory, parent);
        } else {
            parent.put(true);
            obey(order, memory);
        }
        /* The initiator reports the status of its operation */
        ucs_status_t status = parent.get<ucs_status_t>();
        if (order.event != UNMAP) {
            /* If the call was not over yet, software may have stored the data
             * just before the call discarded it */
            if (order.is_put && (status == UCS_OK)) {
                expect_bytes(memory.ptr(at), gone,
                             (is_blocked(order.point) ||
                              (order.point == GATE_CHUNK_CHECKED)) ?
                             std::vector<uint8_t>{sent, after, 0} :
                             std::vector<uint8_t>{sent});
            }
            memset(memory.ptr(at), after, gone);
        }
        parent.put(true);
        parent.get<bool>();
        /* The NIC accessed no page that its table did not permit */
        EXPECT_EQ(0u, memory.stats().efault);
        if (order.event == UNMAP) {
            map_again(memory.ptr(at), MAP_FIXED_NOREPLACE);
        }
    }
}

class test_op_events : public ::testing::Test {
protected:
    virtual config_t config()
    {
        return {{"REGION_SIZE", "2m"}, {"SLICE", "64k"}};
    }

    void SetUp() override
    {
        m_peer.reset(new peer("event_target"));
        m_a.reset(new entity(config()));
        m_ep = m_a->connect(m_peer->get_bytes());
        m_local.reset(new paged_buffer(*m_a, area));
    }

    void TearDown() override
    {
        order end = {};

        end.end = true;
        m_peer->put(end);
        EXPECT_EQ(0, m_peer->join());
        m_local.reset();
        m_a.reset();
    }

    ucs_status_t operate(bool is_put, uint64_t address, uct_rkey_t rkey,
                         size_t length)
    {
        completion comp;
        uct_iov_t iov = {m_local->ptr(at), length, m_local->memh(), 0, 1};

        ucs_status_t status = m_a->retry([&]() {
            return is_put ?
                   uct_ep_put_zcopy(m_ep, &iov, 1, address, rkey, &comp) :
                   uct_ep_get_zcopy(m_ep, &iov, 1, address, rkey, &comp);
        });
        if (status != UCS_INPROGRESS) {
            return status;
        }
        m_a->wait([&]() { return comp.done; });
        return comp.status;
    }

    void expect_data(const order &order, ucs_status_t status, size_t length)
    {
        std::vector<uint8_t> allowed = {after};

        if (order.event == UNMAP) {
            /* A short one may have completed before the removal */
            EXPECT_TRUE((status != UCS_OK) ||
                        ((order.point != GATE_CHUNK_BEGIN) &&
                         ((order.point != GATE_MAP) || (length < gone))));
            return;
        }

        /* An operation that does not wait for the end of the call may find no
         * mapping, and gets an error */
        if (has_hole(order.event) && (status == UCS_ERR_INVALID_ADDR) &&
            (is_blocked(order.point) || (order.point == GATE_CHUNK_CHECKED))) {
            return;
        }

        EXPECT_EQ(UCS_OK, status) << ucs_status_string(status);
        if (order.event == FORK) {
            allowed = {before};
        } else if ((order.point != GATE_CHUNK_BEGIN) &&
                   ((order.point != GATE_MAP) || (length < gone))) {
            allowed = {before, after, 0};
        }
        if (!order.is_put) {
            expect_bytes(m_local->ptr(at), length, allowed);
        }
    }

    void run(event_t event, int point, bool is_put, size_t length)
    {
        order order = {event, point, is_put, false};

        SCOPED_TRACE(testing::Message() << "event " << event << " point "
                                        << point << " put " << is_put
                                        << " length " << length);
        m_peer->put(order);
        uint64_t address = m_peer->get<target_card>().address + at;
        uct_rkey_t rkey  = m_a->unpack(m_peer->get_bytes());
        /* Populates the pages, and fills the state cache */
        memset(m_local->ptr(), before, area);
        ASSERT_EQ(UCS_OK, operate(true, address - at, rkey, area - at));
        ASSERT_EQ(UCS_OK, operate(false, address - at, rkey, area - at));
        memset(m_local->ptr(at), is_put ? sent : 0x44, gone);
        m_peer->put(true);
        m_peer->get<bool>();

        ucs_status_t status = operate(is_put, address, rkey, length);
        expect_data(order, status, length);
        m_peer->put(((length == gone) || !is_put) ? status : UCS_ERR_CANCELED);
        m_peer->get<bool>();

        /* And afterwards */
        status = operate(false, address, rkey, gone);
        if (event == UNMAP) {
            EXPECT_NE(UCS_OK, status);
            reconnect();
        } else {
            EXPECT_EQ(UCS_OK, status);
            expect_bytes(m_local->ptr(at), gone, {after});
        }
        m_peer->put(true);
    }

    /* A flush may still have to report errors of small operations */
    void reconnect()
    {
        completion comp;

        ucs_status_t status = m_a->retry([&]() {
            return uct_ep_flush(m_ep, 0, &comp);
        });
        if (status == UCS_INPROGRESS) {
            m_a->wait([&]() { return comp.done; });
        }
    }

    void run_all(int point)
    {
        for (event_t event : {DONTNEED, REPLACE, REMAP, MOVE, UNMAP, SHRINK,
                              FORK}) {
            run(event, point, false, gone);
            run(event, point, false, 8000);
            run(event, point, true, gone);
        }
    }

    std::unique_ptr<peer>         m_peer;
    std::unique_ptr<entity>       m_a;
    std::unique_ptr<paged_buffer> m_local;
    uct_ep_h                      m_ep = nullptr;
};

TEST_F(test_op_events, populate_is_refused_during_a_call)
{
    run(DONTNEED, GATE_INVALIDATE_QUIESCED, false, gone);
    run(DONTNEED, GATE_INVALIDATE_QUIESCED, false, 8000);
    run(DONTNEED, GATE_INVALIDATE_QUIESCED, true, gone);
    run(REPLACE, GATE_INVALIDATE_QUIESCED, false, gone);
}

/* Before it takes pages, the call has no effect yet */
TEST_F(test_op_events, before_pages_are_taken)
{
    for (event_t event : {DONTNEED, REPLACE, SHRINK}) {
        run(event, GATE_INVALIDATE_START, false, gone);
        run(event, GATE_INVALIDATE_START, false, 8000);
        run(event, GATE_INVALIDATE_START, true, gone);
    }
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


/* The NIC looks pages up for each 256 bytes, and the event comes between the
 * first and the second lookup. This takes a process of its own, because the
 * granule applies to all of its NICs. */
class test_op_events_chunks : public test_op_events {
protected:
    config_t config() override
    {
        config_t config = test_op_events::config();
        config["FAULT"] = "granule=256";
        return config;
    }
};

TEST_F(test_op_events_chunks, before_the_nic_checks)
{
    run_all(GATE_CHUNK_BEGIN);
}

TEST_F(test_op_events_chunks, waits_for_accesses_in_flight)
{
    run_all(GATE_CHUNK_CHECKED);
}

TEST_F(test_op_events_chunks, after_a_chunk)
{
    run_all(GATE_CHUNK_END);
}


/* The initiator's own memory */
class test_op_events_local : public test_op {
protected:
    bool is_certain(int point) { return point != GATE_CHUNK_CHECKED; }

    void transfer(op_t op, size_t length, ucs_status_t *status)
    {
        completion comp;

        start(op, at, at, length, &comp);
        m_a->wait([&]() { return comp.done; });
        *status = comp.status;
    }

    void prepare(event_t event, op_t op)
    {
        ucs_status_t status;

        m_local.reset();
        m_heap.reset();
        if (event == SHRINK) {
            m_heap.reset(new heap_memory);
        }
        m_local.reset(new paged_buffer(*m_a, area,
                                       m_heap ? m_heap->ptr() : nullptr));
        m_remote.reset(new paged_buffer(*m_b, area));
        m_rkey = m_a->unpack(m_remote->packed_key());
        transfer(PUT_ZCOPY, gone, &status);
        transfer(GET_ZCOPY, gone, &status);
        memset(m_local->ptr(), (op == PUT_ZCOPY) ? before : 0x44, area);
        memset(m_remote->ptr(), (op == PUT_ZCOPY) ? 0x44 : sent, area);
    }

    /* If the call is over, the operation sees its result; otherwise any
     * state */
    void judge(const order &order, op_t op, size_t length, ucs_status_t status)
    {
        std::vector<uint8_t> allowed;

        if (order.event == UNMAP) {
            EXPECT_TRUE((status == UCS_ERR_INVALID_ADDR) ||
                        (!is_certain(order.point) && (status == UCS_OK)))
                    << ucs_status_string(status);
            return;
        }

        if (!is_certain(order.point) && (status == UCS_ERR_INVALID_ADDR) &&
            has_hole(order.event)) {
            return;
        }

        EXPECT_EQ(UCS_OK, status) << ucs_status_string(status);
        allowed = {(op != PUT_ZCOPY)     ? sent :
                   (order.event == FORK) ? before : after};
        if (!is_certain(order.point)) {
            allowed.push_back(before);
            allowed.push_back(0);
        }
        expect_bytes((op == PUT_ZCOPY) ? m_remote->ptr(at) : m_local->ptr(at),
                     length, allowed);
    }

    void run(event_t event, int point, op_t op, size_t length)
    {
        /* The caller cannot store new contents while the NIC still writes */
        order order = {event, point, true, false};
        ucs_status_t status;

        SCOPED_TRACE(testing::Message() << "event " << event << " point "
                                        << point << " op " << op << " length "
                                        << length);
        prepare(event, op);
        page_table_gate_arm(m_local->table(), point, m_local->ptr(at));
        std::thread thread([&]() { obey(order, *m_local); });
        transfer(op, length, &status);
        thread.join();
        judge(order, op, length, status);

        /* Memory around the range, and later operations */
        paged_buffer &to = (op == PUT_ZCOPY) ? *m_remote : *m_local;
        expect_bytes(to.ptr(), at, {0x44});
        if ((event != SHRINK) || (op == PUT_ZCOPY)) {
            expect_bytes(to.ptr(at + gone), area - at - gone, {0x44});
        }
        if (event == UNMAP) {
            map_again(m_local->ptr(at), MAP_FIXED_NOREPLACE);
        }
        memset(m_remote->ptr(), 0x66, area);
        transfer(GET_ZCOPY, gone, &status);
        EXPECT_EQ(UCS_OK, status);
        expect_bytes(m_local->ptr(at), gone, {0x66});
        EXPECT_EQ(0u, m_local->stats().efault);
    }

    void run_all(int point)
    {
        for (event_t event : {DONTNEED, REPLACE, REMAP, MOVE, UNMAP, SHRINK,
                              FORK}) {
            run(event, point, GET_ZCOPY, gone);
            run(event, point, GET_ZCOPY, 8000);
            run(event, point, PUT_ZCOPY, gone);
        }
    }

    void TearDown() override
    {
        m_local.reset();
        m_heap.reset();
        test_op::TearDown();
    }

private:
    std::unique_ptr<heap_memory> m_heap;
};

TEST_F(test_op_events_local, before_the_nic_checks)
{
    run_all(GATE_CHUNK_BEGIN);
}

TEST_F(test_op_events_local, waits_for_accesses_in_flight)
{
    run_all(GATE_CHUNK_CHECKED);
}

TEST_F(test_op_events_local, after_the_nic_is_done)
{
    run_all(GATE_CHUNK_END);
}
