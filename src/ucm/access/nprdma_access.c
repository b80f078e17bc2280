/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_access.h"
#include "ucm/events/nprdma_hook.h"

#include <nprdma_page_state.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>


/* There are two ways to access memory of the application. While the fault
 * handler is installed, the CPU accesses it by touches, and the handler
 * turns a fault into an error. Otherwise the kernel copies the bytes. */

static struct {
    pthread_mutex_t lock;       /* Protects users */
    pthread_mutex_t copy_lock;  /* Held by an atomic that works on a copy */
    atomic_int      is_copying; /* Nonzero: copy_lock is held */
    atomic_uint     by_cpu;     /* Atomics of the CPU in progress */
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

/* A word is one instruction, which copies it to or from `address` */
static ucs_status_t nprdma_access_touch(void *to, const void *from,
                                        size_t length, uintptr_t address)
{
    int ret;

    /* A word is stored with release order and loaded with acquire order */
    atomic_thread_fence(memory_order_release);
    ret = nprdma_touch_copy(to, from, length, (void*)address);
    atomic_thread_fence(memory_order_acquire);
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
 * nprdma_access_atomic_cpu(). */
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
    while (atomic_load(&nprdma_access.by_cpu) > 0) {
        sched_yield();
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
    ucs_status_t status;

    if (((size != sizeof(uint32_t)) && (size != sizeof(uint64_t))) ||
        (address & (size - 1)) || ((unsigned)op >= NPRDMA_ATOMIC_LAST)) {
        return UCS_ERR_INVALID_PARAM;
    }

    if (nprdma_access_by_cpu()) {
        atomic_fetch_add(&nprdma_access.by_cpu, 1);
        if (ucs_likely(!atomic_load(&nprdma_access.is_copying))) {
            status = nprdma_access_atomic_cpu(op, size, address, value, compare,
                                              old_p);
            atomic_fetch_sub(&nprdma_access.by_cpu, 1);
            return status;
        }
        atomic_fetch_sub(&nprdma_access.by_cpu, 1);
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
    source = 0;
    if ((status != UCS_OK) || (target != 1) ||
        (nprdma_access_copy((uintptr_t)&target, &source, sizeof(source), 0) !=
         UCS_OK) || (source != 1)) {
        return UCS_ERR_UNSUPPORTED;
    }

    nprdma_access.direct = nprdma_fault_install();
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
        nprdma_access.direct = 0;
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
    atomic_store(&nprdma_access.by_cpu, 0);
}


/* ---- touches ---- */

_Static_assert(NPRDMA_LINE_SIZE == 64, "nprdma_touch_lines() steps by 64");

/*
 * All routines are between nprdma_touch_begin and nprdma_touch_end. In each of
 * them, two registers hold the range of application memory:
 *
 *            start  length
 *   x86-64   r10    r11
 *   aarch64  x9     x10
 *
 * A routine never changes the stack pointer, a callee-saved register, or the
 * direction flag. So a jump from any of its instructions to nprdma_touch_failed
 * returns to the caller.
 */

/* Symbol and unwind information of a routine */
#define NPRDMA_TOUCH_ROUTINE(_name, _landing) \
    ".p2align 4\n" \
    ".globl " _name "\n" \
    ".hidden " _name "\n" \
    ".type " _name ", %function\n" \
    _name ":\n" \
    ".cfi_startproc\n" \
    _landing "\n"

#define NPRDMA_TOUCH_ROUTINE_END(_name) \
    ".cfi_endproc\n" \
    ".size " _name ", . - " _name "\n"

#define NPRDMA_TOUCH_LABEL(_name) \
    ".globl " _name "\n" \
    ".hidden " _name "\n" \
    _name ":\n"


#if defined(__x86_64__)

#define NPRDMA_TOUCH_BEGIN(_name)  NPRDMA_TOUCH_ROUTINE(_name, "endbr64")

/* Bytes from which `rep movsb` is as fast as vector instructions */
#define NPRDMA_TOUCH_STRING  "$768"

/* A load of 4 bytes into a register clears the upper half of it */
#define NPRDMA_TOUCH_CSWAP(_size, _expected, _value) \
    NPRDMA_TOUCH_BEGIN("nprdma_touch_cswap" _size) \
    "    mov %rdi, %r10\n" \
    "    mov $" _size ", %r11d\n" \
    "    mov (%rsi), " _expected "\n" \
    "    lock cmpxchg " _value ", (%rdi)\n" \
    "    setne %cl\n" \
    "    mov %rax, (%rsi)\n" \
    "    movzbl %cl, %eax\n" \
    "    ret\n" \
    NPRDMA_TOUCH_ROUTINE_END("nprdma_touch_cswap" _size)

__asm__(
    ".pushsection .text\n"
    ".p2align 4\n"
    NPRDMA_TOUCH_LABEL("nprdma_touch_begin")

    /* to: rdi, from: rsi, length: rdx, app: rcx */
    NPRDMA_TOUCH_BEGIN("nprdma_touch_copy")
    "    mov %rcx, %r10\n"
    "    mov %rdx, %r11\n"
    "    cmp " NPRDMA_TOUCH_STRING ", %rdx\n"
    "    jae 9f\n"
    "1:  cmp $64, %rdx\n"
    "    jb 2f\n"
    "    movups (%rsi), %xmm0\n"
    "    movups 16(%rsi), %xmm1\n"
    "    movups 32(%rsi), %xmm2\n"
    "    movups 48(%rsi), %xmm3\n"
    "    movups %xmm0, (%rdi)\n"
    "    movups %xmm1, 16(%rdi)\n"
    "    movups %xmm2, 32(%rdi)\n"
    "    movups %xmm3, 48(%rdi)\n"
    "    add $64, %rsi\n"
    "    add $64, %rdi\n"
    "    sub $64, %rdx\n"
    "    jmp 1b\n"
    "2:  test $48, %dl\n"
    "    jz 4f\n"
    "    test $32, %dl\n"
    "    jz 3f\n"
    "    movups (%rsi), %xmm0\n"
    "    movups 16(%rsi), %xmm1\n"
    "    movups %xmm0, (%rdi)\n"
    "    movups %xmm1, 16(%rdi)\n"
    "    add $32, %rsi\n"
    "    add $32, %rdi\n"
    "3:  test $16, %dl\n"
    "    jz 4f\n"
    "    movups (%rsi), %xmm0\n"
    "    movups %xmm0, (%rdi)\n"
    "    add $16, %rsi\n"
    "    add $16, %rdi\n"
    "4:  test $8, %dl\n"
    "    jz 5f\n"
    "    mov (%rsi), %rax\n"
    "    mov %rax, (%rdi)\n"
    "    add $8, %rsi\n"
    "    add $8, %rdi\n"
    "5:  test $7, %dl\n"
    "    jz 8f\n"
    "    test $4, %dl\n"
    "    jz 6f\n"
    "    mov (%rsi), %eax\n"
    "    mov %eax, (%rdi)\n"
    "    add $4, %rsi\n"
    "    add $4, %rdi\n"
    "6:  test $2, %dl\n"
    "    jz 7f\n"
    "    movzwl (%rsi), %eax\n"
    "    mov %ax, (%rdi)\n"
    "    add $2, %rsi\n"
    "    add $2, %rdi\n"
    "7:  test $1, %dl\n"
    "    jz 8f\n"
    "    movzbl (%rsi), %eax\n"
    "    mov %al, (%rdi)\n"
    "8:  xor %eax, %eax\n"
    "    ret\n"
    "9:  mov %rdx, %rcx\n"
    "    rep movsb\n"
    "    xor %eax, %eax\n"
    "    ret\n"
    NPRDMA_TOUCH_ROUTINE_END("nprdma_touch_copy")

    NPRDMA_TOUCH_CSWAP("4", "%eax", "%edx")
    NPRDMA_TOUCH_CSWAP("8", "%rax", "%rdx")

    /* app: rdi, num_lines: rsi, value: rdx */
    NPRDMA_TOUCH_BEGIN("nprdma_touch_lines")
    "    mov %rdi, %r10\n"
    "    mov %rsi, %r11\n"
    "    shl $6, %r11\n"
    "    xor %eax, %eax\n"
    "    test %rsi, %rsi\n"
    "    jz 2f\n"
    "1:  xor %ecx, %ecx\n"
    "    cmp %rdx, (%rdi)\n"
    "    sete %cl\n"
    "    add %rcx, %rax\n"
    "    add $64, %rdi\n"
    "    dec %rsi\n"
    "    jnz 1b\n"
    "2:  ret\n"
    NPRDMA_TOUCH_ROUTINE_END("nprdma_touch_lines")

    NPRDMA_TOUCH_LABEL("nprdma_touch_end")

    NPRDMA_TOUCH_ROUTINE("nprdma_touch_failed", "")
    "    mov $-1, %rax\n"
    "    ret\n"
    NPRDMA_TOUCH_ROUTINE_END("nprdma_touch_failed")
    ".popsection\n");

#elif defined(__aarch64__)

#define NPRDMA_TOUCH_BEGIN(_name)  NPRDMA_TOUCH_ROUTINE(_name, "hint #34")

/* A load of 4 bytes into a register clears the upper half of it */
#define NPRDMA_TOUCH_CSWAP(_size, _r) \
    NPRDMA_TOUCH_BEGIN("nprdma_touch_cswap" _size) \
    "    mov x9, x0\n" \
    "    mov x10, #" _size "\n" \
    "    ldr " _r "3, [x1]\n" \
    "1:  ldaxr " _r "4, [x0]\n" \
    "    cmp " _r "4, " _r "3\n" \
    "    b.ne 2f\n" \
    "    stlxr w5, " _r "2, [x0]\n" \
    "    cbnz w5, 1b\n" \
    "    str x4, [x1]\n" \
    "    mov x0, #0\n" \
    "    ret\n" \
    "2:  clrex\n" \
    "    str x4, [x1]\n" \
    "    mov x0, #1\n" \
    "    ret\n" \
    NPRDMA_TOUCH_ROUTINE_END("nprdma_touch_cswap" _size)

__asm__(
    ".pushsection .text\n"
    ".p2align 4\n"
    NPRDMA_TOUCH_LABEL("nprdma_touch_begin")

    /* to: x0, from: x1, length: x2, app: x3 */
    NPRDMA_TOUCH_BEGIN("nprdma_touch_copy")
    "    mov x9, x3\n"
    "    mov x10, x2\n"
    "1:  cmp x2, #64\n"
    "    b.lo 2f\n"
    "    ldp q0, q1, [x1]\n"
    "    ldp q2, q3, [x1, #32]\n"
    "    stp q0, q1, [x0]\n"
    "    stp q2, q3, [x0, #32]\n"
    "    add x1, x1, #64\n"
    "    add x0, x0, #64\n"
    "    sub x2, x2, #64\n"
    "    b 1b\n"
    "2:  tbz x2, #5, 3f\n"
    "    ldp q0, q1, [x1], #32\n"
    "    stp q0, q1, [x0], #32\n"
    "3:  tbz x2, #4, 4f\n"
    "    ldr q0, [x1], #16\n"
    "    str q0, [x0], #16\n"
    "4:  tbz x2, #3, 5f\n"
    "    ldr x4, [x1], #8\n"
    "    str x4, [x0], #8\n"
    "5:  tbz x2, #2, 6f\n"
    "    ldr w4, [x1], #4\n"
    "    str w4, [x0], #4\n"
    "6:  tbz x2, #1, 7f\n"
    "    ldrh w4, [x1], #2\n"
    "    strh w4, [x0], #2\n"
    "7:  tbz x2, #0, 8f\n"
    "    ldrb w4, [x1]\n"
    "    strb w4, [x0]\n"
    "8:  mov x0, #0\n"
    "    ret\n"
    NPRDMA_TOUCH_ROUTINE_END("nprdma_touch_copy")

    NPRDMA_TOUCH_CSWAP("4", "w")
    NPRDMA_TOUCH_CSWAP("8", "x")

    /* app: x0, num_lines: x1, value: x2 */
    NPRDMA_TOUCH_BEGIN("nprdma_touch_lines")
    "    mov x9, x0\n"
    "    lsl x10, x1, #6\n"
    "    mov x3, #0\n"
    "    cbz x1, 2f\n"
    "1:  ldr x4, [x0], #64\n"
    "    cmp x4, x2\n"
    "    cinc x3, x3, eq\n"
    "    sub x1, x1, #1\n"
    "    cbnz x1, 1b\n"
    "2:  mov x0, x3\n"
    "    ret\n"
    NPRDMA_TOUCH_ROUTINE_END("nprdma_touch_lines")

    NPRDMA_TOUCH_LABEL("nprdma_touch_end")

    NPRDMA_TOUCH_ROUTINE("nprdma_touch_failed", "hint #34")
    "    mov x0, #-1\n"
    "    ret\n"
    NPRDMA_TOUCH_ROUTINE_END("nprdma_touch_failed")
    ".popsection\n");

#endif


extern const char nprdma_touch_begin[] __attribute__((visibility("hidden")));
extern const char nprdma_touch_end[] __attribute__((visibility("hidden")));
extern const char nprdma_touch_failed[] __attribute__((visibility("hidden")));

NPRDMA_UNINSTRUMENTED
int nprdma_touch_is_at(const void *context, nprdma_touch_regs_t *regs)
{
    const mcontext_t *machine = &((const ucontext_t*)context)->uc_mcontext;

#if defined(__x86_64__)
    regs->pc     = machine->gregs[REG_RIP];
    regs->start  = machine->gregs[REG_R10];
    regs->length = machine->gregs[REG_R11];
#else
    regs->pc     = machine->pc;
    regs->start  = machine->regs[9];
    regs->length = machine->regs[10];
#endif
    return (regs->pc >= (uintptr_t)nprdma_touch_begin) &&
           (regs->pc < (uintptr_t)nprdma_touch_end);
}

NPRDMA_UNINSTRUMENTED
void nprdma_touch_fail(void *context)
{
    mcontext_t *machine = &((ucontext_t*)context)->uc_mcontext;

#if defined(__x86_64__)
    machine->gregs[REG_RIP] = (uintptr_t)nprdma_touch_failed;
#else
    machine->pc = (uintptr_t)nprdma_touch_failed;
#endif
}
