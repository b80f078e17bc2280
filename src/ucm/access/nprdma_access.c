/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_access.h"
#include "nprdma_guard.h"
#include "nprdma_touch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>


/* There are two ways to access memory of the application. While the fault
 * handler is installed, the CPU accesses it (nprdma_touch.h), and the handler
 * turns a fault into an error. Otherwise the kernel copies the bytes. */

static struct {
    pthread_mutex_t lock;       /* Protects users */
    pthread_mutex_t copy_lock;  /* Held by an atomic that works on a copy */
    atomic_int      is_copying; /* Nonzero: copy_lock is held */
    unsigned        users;
    int             direct;
    pid_t           pid;
} nprdma_access = {
    .lock      = PTHREAD_MUTEX_INITIALIZER,
    .copy_lock = PTHREAD_MUTEX_INITIALIZER
};


ucs_status_t nprdma_access_copy(uintptr_t address, void *data, size_t length,
                                int is_store)
{
    struct iovec local  = { .iov_base = data, .iov_len = length };
    struct iovec remote = { .iov_base = (void*)address, .iov_len = length };
    ssize_t ret;

    if (is_store) {
        ret = process_vm_writev(nprdma_access.pid, &local, 1, &remote, 1, 0);
    } else {
        ret = process_vm_readv(nprdma_access.pid, &local, 1, &remote, 1, 0);
    }

    return (ret == (ssize_t)length) ? UCS_OK : UCS_ERR_INVALID_ADDR;
}

static inline int nprdma_access_by_cpu(void)
{
    return nprdma_access.direct && nprdma_fault_is_ready();
}

/* Whether one CPU instruction can access the bytes */
static inline int nprdma_access_is_word(uintptr_t address, size_t length)
{
    return ((length == 8) || (length == 4) || (length == 2) || (length == 1)) &&
           ((address & (length - 1)) == 0);
}

/* One instruction copies a word to or from `address`. The guard keeps a word
 * mapped: a store must not hit a new mapping. */
static ucs_status_t nprdma_access_touch(void *to, const void *from,
                                        size_t length, uintptr_t address)
{
    const int is_word = nprdma_access_is_word(address, length);
    nprdma_guard_ticket_t ticket;
    ucs_status_t status;
    int ret;

    if (is_word) {
        status = nprdma_guard_enter(address, length, &ticket);
        if (status != UCS_OK) {
            return status;
        }
    }

    /* A word is stored with release order and loaded with acquire order */
    atomic_thread_fence(memory_order_release);
    ret = nprdma_touch_copy(to, from, length, (void*)address);
    atomic_thread_fence(memory_order_acquire);
    if (is_word) {
        nprdma_guard_leave(&ticket);
    }
    return (ret == NPRDMA_TOUCH_FAULT) ? UCS_ERR_INVALID_ADDR : UCS_OK;
}

static int
nprdma_access_cswap(uintptr_t address, size_t size, uint64_t *expected,
                    uint64_t value)
{
    return (size == sizeof(uint32_t)) ?
           nprdma_touch_cswap4((void*)address, expected, value) :
           nprdma_touch_cswap8((void*)address, expected, value);
}

ucs_status_t
nprdma_access_store(uintptr_t address, const void *data, size_t length)
{
    return nprdma_access_by_cpu() ?
           nprdma_access_touch((void*)address, data, length, address) :
           nprdma_access_copy(address, (void*)data, length, 1);
}

ucs_status_t nprdma_access_fetch(void *data, uintptr_t address, size_t length)
{
    return nprdma_access_by_cpu() ?
           nprdma_access_touch(data, (void*)address, length, address) :
           nprdma_access_copy(address, data, length, 0);
}


/* ---- atomics ---- */

/* Operands have @a size bytes; their upper bits are ignored */
static uint64_t nprdma_access_operate(nprdma_atomic_op_t op, size_t size,
                                      uint64_t old, uint64_t value,
                                      uint64_t compare)
{
    switch (op) {
    case NPRDMA_ATOMIC_ADD:
        return old + value;
    case NPRDMA_ATOMIC_AND:
        return old & value;
    case NPRDMA_ATOMIC_OR:
        return old | value;
    case NPRDMA_ATOMIC_XOR:
        return old ^ value;
    case NPRDMA_ATOMIC_SWAP:
        return value;
    default:
        return ((size == sizeof(uint32_t)) ? ((uint32_t)old ==
                                              (uint32_t)compare) :
                                             (old == compare)) ? value : old;
    }
}

/* The first comparison is with a guess: the compare operand, or zero. If the
 * guess is wrong, the comparison returns the word. So there is a write even if
 * the word does not change, as with a NIC. */
static ucs_status_t
nprdma_access_atomic_cpu(nprdma_atomic_op_t op, size_t size, uintptr_t address,
                         uint64_t value, uint64_t compare, uint64_t *old_p)
{
    uint64_t old = (op == NPRDMA_ATOMIC_CSWAP) ? compare : 0;
    int ret;

    if (size == sizeof(uint32_t)) {
        old = (uint32_t)old;
    }

    do {
        ret = nprdma_access_cswap(address, size, &old,
                                  nprdma_access_operate(op, size, old, value,
                                                        compare));
        if (ret == NPRDMA_TOUCH_FAULT) {
            return UCS_ERR_INVALID_ADDR;
        }
    } while ((ret != 0) && (op != NPRDMA_ATOMIC_CSWAP));

    *old_p = old;
    return UCS_OK;
}

/* Fetch, operate on the copy, store. The lock is held, and no thread is in
 * nprdma_access_atomic_cpu() for this word. */
static ucs_status_t
nprdma_access_atomic_locked(nprdma_atomic_op_t op, size_t size,
                            uintptr_t address, uint64_t value,
                            uint64_t compare, uint64_t *old_p)
{
    ucs_status_t status;
    union {
        uint32_t u32;
        uint64_t u64;
    } word;

    status = nprdma_access_copy(address, &word, size, 0);
    if (status != UCS_OK) {
        return status;
    }

    *old_p = (size == sizeof(word.u32)) ? word.u32 : word.u64;
    value  = nprdma_access_operate(op, size, *old_p, value, compare);
    if (size == sizeof(word.u32)) {
        word.u32 = value;
    } else {
        word.u64 = value;
    }
    return nprdma_access_copy(address, &word, size, 1);
}

static ucs_status_t
nprdma_access_atomic_copy(nprdma_atomic_op_t op, size_t size, uintptr_t address,
                          uint64_t value, uint64_t compare, uint64_t *old_p)
{
    ucs_status_t status;

    pthread_mutex_lock(&nprdma_access.copy_lock);
    /* Another thread may have found the handler installed. Either it sees that
     * is_copying is set, or this thread waits for its operation. */
    atomic_store(&nprdma_access.is_copying, 1);
    if (nprdma_access.direct) {
        nprdma_guard_wait(address, size);
    }
    status = nprdma_access_atomic_locked(op, size, address, value, compare,
                                         old_p);
    atomic_store(&nprdma_access.is_copying, 0);
    pthread_mutex_unlock(&nprdma_access.copy_lock);
    return status;
}

ucs_status_t
nprdma_access_atomic(nprdma_atomic_op_t op, size_t size, uintptr_t address,
                     uint64_t value, uint64_t compare, uint64_t *old_p)
{
    nprdma_guard_ticket_t ticket;
    ucs_status_t status;

    if (((size != sizeof(uint32_t)) && (size != sizeof(uint64_t))) ||
        (address & (size - 1)) || ((unsigned)op >= NPRDMA_ATOMIC_LAST)) {
        return UCS_ERR_INVALID_PARAM;
    }

    if (nprdma_access_by_cpu()) {
        status = nprdma_guard_enter(address, size, &ticket);
        if (status != UCS_OK) {
            return status;
        }

        if (ucs_likely(!atomic_load(&nprdma_access.is_copying))) {
            status = nprdma_access_atomic_cpu(op, size, address, value, compare,
                                              old_p);
            nprdma_guard_leave(&ticket);
            return status;
        }
        nprdma_guard_leave(&ticket);
    }

    return nprdma_access_atomic_copy(op, size, address, value, compare, old_p);
}


/* ---- begin and end ---- */

static ucs_status_t nprdma_access_probe(void)
{
    uint64_t source = 1;
    uint64_t target = 0;
    ucs_status_t status;

    nprdma_access.pid = getpid();
    status = nprdma_access_copy((uintptr_t)&target, &source, sizeof(source), 1);
    if ((status != UCS_OK) || (target != source)) {
        return UCS_ERR_UNSUPPORTED;
    }

    nprdma_access.direct = nprdma_fault_install() &&
                           (nprdma_guard_init() == UCS_OK);
    return UCS_OK;
}

ucs_status_t nprdma_access_init(void)
{
    ucs_status_t status = UCS_OK;

    pthread_mutex_lock(&nprdma_access.lock);
    /* A forked child must not access the memory of its parent */
    if ((nprdma_access.users == 0) || (nprdma_access.pid != getpid())) {
        status = nprdma_access_probe();
    }
    if (status == UCS_OK) {
        ++nprdma_access.users;
    }
    pthread_mutex_unlock(&nprdma_access.lock);
    return status;
}

void nprdma_access_cleanup(void)
{
    pthread_mutex_lock(&nprdma_access.lock);
    if (--nprdma_access.users == 0) {
        nprdma_fault_remove();
        if (nprdma_access.direct) {
            nprdma_guard_cleanup();
            nprdma_access.direct = 0;
        }
    }
    pthread_mutex_unlock(&nprdma_access.lock);
}

int nprdma_access_is_direct(void)
{
    return nprdma_access.direct;
}

/* What they protect is the parent's: nprdma_access_init() begins anew in a
 * process with another id, and an atomic on a copy was one of the parent */
void nprdma_access_forked(void)
{
    pthread_mutex_init(&nprdma_access.lock, NULL);
    pthread_mutex_init(&nprdma_access.copy_lock, NULL);
    atomic_store(&nprdma_access.is_copying, 0);
}
