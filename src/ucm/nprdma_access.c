/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_access.h"
#include "nprdma_events.h"
#include "nprdma_guard.h"
#include "nprdma_scratch.h"

#include <linux/futex.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif


/*
 * What touches application memory by the CPU. The guard keeps the memory, but
 * not what ThreadSanitizer has written about it: that is unmapped for a moment
 * by its munmap(), before the system call and our hook.
 */
#define NPRDMA_ACCESS_CPU  NPRDMA_UNINSTRUMENTED


/* Operations of one width; the compiler makes each a single instruction */
#define NPRDMA_ATOMIC_DO(_type, _op, _address, _value, _compare, _old_p) \
    do { \
        _type *_ptr = (_type*)(_address); \
        _type _cmp  = (_type)(_compare); \
        _type _val  = (_type)(_value); \
        \
        switch (_op) { \
        case NPRDMA_ATOMIC_ADD: \
            *(_old_p) = __atomic_fetch_add(_ptr, _val, __ATOMIC_SEQ_CST); \
            break; \
        case NPRDMA_ATOMIC_AND: \
            *(_old_p) = __atomic_fetch_and(_ptr, _val, __ATOMIC_SEQ_CST); \
            break; \
        case NPRDMA_ATOMIC_OR: \
            *(_old_p) = __atomic_fetch_or(_ptr, _val, __ATOMIC_SEQ_CST); \
            break; \
        case NPRDMA_ATOMIC_XOR: \
            *(_old_p) = __atomic_fetch_xor(_ptr, _val, __ATOMIC_SEQ_CST); \
            break; \
        case NPRDMA_ATOMIC_SWAP: \
            *(_old_p) = __atomic_exchange_n(_ptr, _val, __ATOMIC_SEQ_CST); \
            break; \
        default: \
            /* On failure the old value is left in _cmp, else it equals it */ \
            __atomic_compare_exchange_n(_ptr, &_cmp, _val, 0, \
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
            *(_old_p) = _cmp; \
            break; \
        } \
    } while (0)


static struct {
    pthread_mutex_t lock;      /* Protects users */
    pthread_mutex_t copy_lock; /* Held by an atomic that is done on a copy */
    unsigned        users;
    int             direct;
    pid_t           pid;
    size_t          page_size;
} nprdma_access = {
    .lock      = PTHREAD_MUTEX_INITIALIZER,
    .copy_lock = PTHREAD_MUTEX_INITIALIZER
};


/* Not through libc: UCM would report this madvise to our own guard */
static int nprdma_access_populate(uintptr_t address, size_t length, int advice)
{
    uintptr_t mask  = ~(uintptr_t)(nprdma_access.page_size - 1);
    uintptr_t start = address & mask;

    return (int)syscall(SYS_madvise, start, address + length - start, advice);
}

/*
 * Have the kernel write a word of memory without a change, which takes less
 * time than to populate it: it adds zero, atomically. Who waits there, as for a
 * futex, is not woken, unless the word is NEVER; then one is, who has to look
 * again anyhow.
 *
 * Device memory might change, so it must be known not to be any.
 *
 * Returns zero if the kernel could not, for whatever reason.
 */
static int nprdma_access_touch(uintptr_t address)
{
    static const uint32_t nobody;
    enum { NEVER = -2047 };

    return syscall(SYS_futex, &nobody, FUTEX_WAKE_OP_PRIVATE, 0, 0,
                   address & ~(uintptr_t)(sizeof(nobody) - 1),
                   FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, NEVER)) >= 0;
}

/* The same before a word is written, while the guard keeps it */
static int nprdma_access_populate_word(uintptr_t address, size_t length,
                                       const nprdma_guard_ticket_t *ticket)
{
    if (nprdma_guard_knows(ticket, address) && nprdma_access_touch(address)) {
        return 0;
    }

    if (nprdma_access_populate(address, length, MADV_POPULATE_WRITE) != 0) {
        return -1;
    }

    nprdma_guard_note(ticket, address);
    return 0;
}

ucs_status_t nprdma_access_copy(uintptr_t address, void *data, size_t length,
                                int is_store)
{
    struct iovec local  = { .iov_base = data, .iov_len = length };
    struct iovec remote = { .iov_base = (void*)address, .iov_len = length };
    ssize_t ret;

    if ((length == 0) ||
        (is_store && nprdma_scratch_store(address, data, length))) {
        return UCS_OK;
    }

    if (is_store) {
        ret = process_vm_writev(nprdma_access.pid, &local, 1, &remote, 1, 0);
    } else {
        ret = process_vm_readv(nprdma_access.pid, &local, 1, &remote, 1, 0);
    }

    return (ret == (ssize_t)length) ? UCS_OK : UCS_ERR_INVALID_ADDR;
}

/*
 * Make sure that a CPU access to a word will not fault, until
 * nprdma_guard_leave().
 */
static ucs_status_t
nprdma_access_begin(uintptr_t address, size_t length, int is_write,
                    nprdma_guard_ticket_t *ticket)
{
    ucs_status_t status;
    int ret;

    status = nprdma_guard_enter(address, length, ticket);
    if (status != UCS_OK) {
        return status;
    }

    ret = is_write ?
          nprdma_access_populate_word(address, length, ticket) :
          nprdma_access_populate(address, length, MADV_POPULATE_READ);
    if (ret != 0) {
        nprdma_guard_leave(ticket);
        return UCS_ERR_INVALID_ADDR;
    }

    return UCS_OK;
}

/* Whether one CPU instruction can do it */
static inline int nprdma_access_is_word(uintptr_t address, size_t length)
{
    return nprdma_access.direct &&
           ((length == 8) || (length == 4) || (length == 2) || (length == 1)) &&
           ((address & (length - 1)) == 0);
}

/* Released: whoever sees these bytes sees what was stored before them */
NPRDMA_ACCESS_CPU
static void
nprdma_access_store_word(uintptr_t address, const void *data, size_t length)
{
    union {
        uint64_t u64;
        uint32_t u32;
        uint16_t u16;
        uint8_t  u8;
    } value;

    memcpy(&value, data, length); /* The source need not be aligned */
    switch (length) {
    case 8:
        __atomic_store_n((uint64_t*)address, value.u64, __ATOMIC_RELEASE);
        break;
    case 4:
        __atomic_store_n((uint32_t*)address, value.u32, __ATOMIC_RELEASE);
        break;
    case 2:
        __atomic_store_n((uint16_t*)address, value.u16, __ATOMIC_RELEASE);
        break;
    default:
        __atomic_store_n((uint8_t*)address, value.u8, __ATOMIC_RELEASE);
        break;
    }
}

NPRDMA_ACCESS_CPU
static void
nprdma_access_fetch_word(void *data, uintptr_t address, size_t length)
{
    union {
        uint64_t u64;
        uint32_t u32;
        uint16_t u16;
        uint8_t  u8;
    } value;

    switch (length) {
    case 8:
        value.u64 = __atomic_load_n((uint64_t*)address, __ATOMIC_ACQUIRE);
        break;
    case 4:
        value.u32 = __atomic_load_n((uint32_t*)address, __ATOMIC_ACQUIRE);
        break;
    case 2:
        value.u16 = __atomic_load_n((uint16_t*)address, __ATOMIC_ACQUIRE);
        break;
    default:
        value.u8 = __atomic_load_n((uint8_t*)address, __ATOMIC_ACQUIRE);
        break;
    }

    memcpy(data, &value, length);
}

static ucs_status_t nprdma_access_probe(void)
{
    uint64_t source = 1;
    uint64_t target = 0;
    ucs_status_t status;

    nprdma_access.pid       = getpid();
    nprdma_access.page_size = (size_t)sysconf(_SC_PAGESIZE);
    nprdma_scratch_cleanup();
    status = nprdma_access_copy((uintptr_t)&target, &source, sizeof(source), 1);
    if ((status != UCS_OK) || (target != source)) {
        return UCS_ERR_UNSUPPORTED;
    }

    (void)nprdma_scratch_init(); /* Without it stores take longer */

    /* MADV_POPULATE_* came with Linux 5.14 */
    nprdma_access.direct =
            (nprdma_access_populate((uintptr_t)&target, sizeof(target),
                                    MADV_POPULATE_WRITE) == 0) &&
            (nprdma_guard_init() == UCS_OK);
    return UCS_OK;
}

ucs_status_t nprdma_access_init(void)
{
    ucs_status_t status = UCS_OK;

    pthread_mutex_lock(&nprdma_access.lock);
    /* A forked child must not go on with the memory of its parent */
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
        nprdma_scratch_cleanup();
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

ucs_status_t
nprdma_access_store(uintptr_t address, const void *data, size_t length)
{
    nprdma_guard_ticket_t ticket;
    ucs_status_t status;

    if (!nprdma_access_is_word(address, length)) {
        return nprdma_access_copy(address, (void*)data, length, 1);
    }

    status = nprdma_access_begin(address, length, 1, &ticket);
    if (status != UCS_OK) {
        return status;
    }

    nprdma_access_store_word(address, data, length);
    nprdma_guard_leave(&ticket);
    return UCS_OK;
}

ucs_status_t nprdma_access_fetch(void *data, uintptr_t address, size_t length)
{
    nprdma_guard_ticket_t ticket;
    ucs_status_t status;

    if (!nprdma_access_is_word(address, length)) {
        return nprdma_access_copy(address, data, length, 0);
    }

    status = nprdma_access_begin(address, length, 0, &ticket);
    if (status != UCS_OK) {
        return status;
    }

    nprdma_access_fetch_word(data, address, length);
    nprdma_guard_leave(&ticket);
    return UCS_OK;
}

NPRDMA_ACCESS_CPU
static void
nprdma_access_atomic_cpu(nprdma_atomic_op_t op, size_t size, uintptr_t address,
                         uint64_t value, uint64_t compare, uint64_t *old_p)
{
    if (size == sizeof(uint32_t)) {
        NPRDMA_ATOMIC_DO(uint32_t, op, address, value, compare, old_p);
    } else {
        NPRDMA_ATOMIC_DO(uint64_t, op, address, value, compare, old_p);
    }
}

/* Without the guard: fetch, operate on the copy, store */
static ucs_status_t
nprdma_access_atomic_copy(nprdma_atomic_op_t op, size_t size, uintptr_t address,
                          uint64_t value, uint64_t compare, uint64_t *old_p)
{
    uint64_t copy = 0;
    ucs_status_t status;

    pthread_mutex_lock(&nprdma_access.copy_lock);
    status = nprdma_access_copy(address, &copy, size, 0);
    if (status == UCS_OK) {
        nprdma_access_atomic_cpu(op, size, (uintptr_t)&copy, value, compare,
                                 old_p);
        status = nprdma_access_copy(address, &copy, size, 1);
    }
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

    if (!nprdma_access.direct) {
        return nprdma_access_atomic_copy(op, size, address, value, compare,
                                         old_p);
    }

    status = nprdma_access_begin(address, size, 1, &ticket);
    if (status != UCS_OK) {
        return status;
    }

    nprdma_access_atomic_cpu(op, size, address, value, compare, old_p);
    nprdma_guard_leave(&ticket);
    return UCS_OK;
}
