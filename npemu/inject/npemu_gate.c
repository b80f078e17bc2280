/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Gates: points at which a test holds the NIC or the monitor. The gate's state
 * is a futex in the table, so that the test and the thread that it holds may be
 * in different processes.
 */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "iommu/npemu_table.h"

#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Interval at which a held thread checks that the process that armed the gate
 * is alive. */
#define NPEMU_GATE_POLL_NS 100000000l

#ifdef __SANITIZE_THREAD__
#  define NPEMU_TSAN
#elif defined(__has_feature)
#  if __has_feature(thread_sanitizer)
#    define NPEMU_TSAN
#  endif
#endif

/*
 * A process may have a table mapped at several addresses, and ThreadSanitizer
 * identifies atomics by their address. So what a gate orders is annotated with
 * the address of the memory that the table covers.
 */
#ifdef NPEMU_TSAN
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
#  define npemu_gate_acquire(_header) \
    __tsan_acquire((void*)(uintptr_t)(_header)->address)
#  define npemu_gate_publish(_header) \
    __tsan_release((void*)(uintptr_t)(_header)->address)
#else
#  define npemu_gate_acquire(_header)
#  define npemu_gate_publish(_header)
#endif

NPEMU_HOOK
static void npemu_gate_sleep(npemu_gate_t *gate, uint32_t state, int64_t ns)
{
    struct timespec timeout = {ns / 1000000000, ns % 1000000000};

    syscall(SYS_futex, &gate->state, FUTEX_WAIT, state, &timeout, NULL, 0);
}

NPEMU_HOOK
static void npemu_gate_wake(npemu_gate_t *gate)
{
    syscall(SYS_futex, &gate->state, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

NPEMU_HOOK
static void npemu_gate_set(npemu_gate_t *gate, uint32_t state)
{
    atomic_store(&gate->state, state);
    npemu_gate_wake(gate);
}

void npemu_gate_arm(npemu_iommu_header_t *header, npemu_gate_point_t point,
                    uint64_t page)
{
    npemu_gate_t *gate = &header->gates[point];

    npemu_gate_publish(header);
    npemu_gate_set(gate, NPEMU_GATE_IDLE);
    atomic_store(&gate->pid, getpid());
    atomic_store(&gate->page, page);
    npemu_gate_set(gate, NPEMU_GATE_ARMED);
    atomic_fetch_or(&header->hooks, 1u << point);
}

int npemu_gate_wait(npemu_iommu_header_t *header, npemu_gate_point_t point,
                    int timeout_ms)
{
    npemu_gate_t *gate = &header->gates[point];
    int64_t end        = (int64_t)npemu_time_ns() + timeout_ms * 1000000ll;
    int64_t left       = NPEMU_GATE_POLL_NS;
    uint32_t state;

    while ((state = atomic_load(&gate->state)) != NPEMU_GATE_HELD) {
        if (timeout_ms >= 0) {
            left = end - (int64_t)npemu_time_ns();
            if (left <= 0) {
                return ETIMEDOUT;
            }
        }
        npemu_gate_sleep(gate, state, left);
    }
    npemu_gate_acquire(header);
    return 0;
}

NPEMU_HOOK
void npemu_gate_release(npemu_iommu_header_t *header, npemu_gate_point_t point)
{
    npemu_gate_publish(header);
    atomic_fetch_and(&header->hooks, ~(1u << point));
    npemu_gate_set(&header->gates[point], NPEMU_GATE_IDLE);
}

NPEMU_HOOK
void npemu_gate_hold(npemu_iommu_header_t *header, npemu_gate_point_t point,
                     uint64_t first, uint64_t count)
{
    npemu_gate_t *gate = &header->gates[point];
    uint64_t page      = atomic_load(&gate->page);
    uint32_t state     = NPEMU_GATE_ARMED;
    int pid;

    npemu_gate_publish(header);
    if (((page != NPEMU_GATE_ANY_PAGE) && (page - first >= count)) ||
        !atomic_compare_exchange_strong(&gate->state, &state,
                                        NPEMU_GATE_HELD)) {
        return;
    }

    /* The state is not written again: it may have been released by now */
    npemu_gate_wake(gate);
    pid = atomic_load(&gate->pid);
    while (atomic_load(&gate->state) == NPEMU_GATE_HELD) {
        npemu_gate_sleep(gate, NPEMU_GATE_HELD, NPEMU_GATE_POLL_NS);
        if ((syscall(SYS_kill, pid, 0) < 0) && (errno == ESRCH)) {
            npemu_gate_release(header, point);
        }
    }
    npemu_gate_acquire(header);
}

NPEMU_HOOK
void npemu_gate_pass(npemu_iommu_header_t *header, npemu_gate_point_t point,
                     uint64_t first, uint64_t count)
{
    /* What the gate is for is read behind it */
    if (npemu_unlikely(atomic_load_explicit(&header->hooks,
                                            memory_order_acquire) &
                       (1u << point))) {
        npemu_gate_hold(header, point, first, count);
    }
}
