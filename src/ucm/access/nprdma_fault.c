/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "ucm/events/nprdma_hook.h"
#include "nprdma_access.h"

#include <ucs/time/time.h>

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>


#define NPRDMA_FAULT_MASK \
    ((UINT64_C(1) << (SIGSEGV - 1)) | (UINT64_C(1) << (SIGBUS - 1)))

/* Time in microseconds for which a check of the handler is valid */
#define NPRDMA_FAULT_FRESH_USEC  100

/* <asm/signal.h> has it; the C library hides it */
#define NPRDMA_FAULT_SA_RESTORER  0x04000000ul

/* Flags by which the kernel calls a handler: copied from the replaced action */
#define NPRDMA_FAULT_FLAGS  ((unsigned long)(SA_ONSTACK | SA_NODEFER | \
                                             SA_RESTART))


/* The kernel's struct sigaction. The system call is used, and not sigaction():
 * other libraries, among them the sanitizers, interpose that function to watch
 * the application. */
typedef struct nprdma_fault_action {
    void          *handler;
    unsigned long flags;
    void          *restorer;
    uint64_t      mask;
} nprdma_fault_action_t;

typedef void (*nprdma_fault_func_t)(int sig, siginfo_t *info, void *context);

static struct {
    atomic_int            is_ready;
    _Atomic uint64_t      checked;     /* Time of the last check */
    nprdma_fault_action_t previous[2]; /* Changes while ours is not there */
    atomic_int            is_used[2];  /* Our handler may be called */
    atomic_int            is_spent[2]; /* previous was called, and it has
                                        * SA_RESETHAND */
} nprdma_fault;

static const int nprdma_fault_signals[2] = { SIGSEGV, SIGBUS };


/* Return address of the handler when the kernel calls it. It distinguishes
 * calls by the kernel from calls by a handler of the application. Unwinders
 * recognise signal frames by exactly these instructions. */
#if defined(__x86_64__)
#define NPRDMA_FAULT_SIGRETURN \
    "    movq $15, %rax\n" \
    "    syscall\n"
#else
#define NPRDMA_FAULT_SIGRETURN \
    "    mov x8, #139\n" \
    "    svc #0\n"
#endif

__asm__(
    ".pushsection .text\n"
    ".p2align 4\n"
    "    nop\n"
    ".globl nprdma_fault_restorer\n"
    ".hidden nprdma_fault_restorer\n"
    ".type nprdma_fault_restorer, %function\n"
    "nprdma_fault_restorer:\n"
    NPRDMA_FAULT_SIGRETURN
    ".size nprdma_fault_restorer, . - nprdma_fault_restorer\n"
    ".popsection\n");

extern const char nprdma_fault_restorer[]
        __attribute__((visibility("hidden")));


NPRDMA_UNINSTRUMENTED
static int
nprdma_fault_sigaction(int sig, const nprdma_fault_action_t *action,
                       nprdma_fault_action_t *old)
{
    return (int)syscall(SYS_rt_sigaction, sig, action, old, sizeof(uint64_t));
}

NPRDMA_UNINSTRUMENTED
static int nprdma_fault_is_default(const void *handler)
{
    return (handler == (void*)SIG_DFL) || (handler == (void*)SIG_IGN);
}


/* ---- in a signal handler ---- */

/* Whether an instruction of this thread has caused the signal. If not, a
 * process has sent it, or it reports broken memory that was not accessed
 * (BUS_MCEERR_AO). */
NPRDMA_UNINSTRUMENTED
static int nprdma_fault_is_synchronous(int sig, const siginfo_t *info)
{
    return (info->si_code > 0) &&
           !((sig == SIGBUS) && (info->si_code == BUS_MCEERR_AO));
}

/* Whether an address is a sign-extended one of 48 bits */
NPRDMA_UNINSTRUMENTED
static int nprdma_fault_is_canonical(uintptr_t address)
{
    intptr_t upper = (intptr_t)address >> 47;

    return (upper == 0) || (upper == -1);
}

/* Whether the address of a fault is in the range of the touch */
NPRDMA_UNINSTRUMENTED
static int nprdma_fault_is_inside(int sig, const siginfo_t *info,
                                  const nprdma_touch_regs_t *regs)
{
    uintptr_t first   = regs->start;
    uintptr_t address = (uintptr_t)info->si_addr;
    uintptr_t unknown = 0;

    if (info->si_code == SI_KERNEL) {
        /* The CPU does not report a non-canonical address */
        return !nprdma_fault_is_canonical(first) ||
               !nprdma_fault_is_canonical(first + regs->length - 1);
    }

    if ((sig == SIGBUS) && (info->si_code == BUS_MCEERR_AR)) {
        /* Broken memory: these bits of the address are not valid */
        unknown  = ((uintptr_t)1 << info->si_addr_lsb) - 1;
        address &= ~unknown;
    }

#ifdef __aarch64__
    /* The kernel reports addresses without the tag in bits 63 to 56 */
    first   &= ~(uintptr_t)0 >> 8;
    address &= ~(uintptr_t)0 >> 8;
#endif
    /* Without sums, which wrap at the end of the address space */
    return (address - first < regs->length) || (first - address <= unknown);
}

NPRDMA_UNINSTRUMENTED
static int nprdma_fault_recover(int sig, const siginfo_t *info, void *context)
{
    nprdma_touch_regs_t regs;

    if (!nprdma_touch_is_at(context, &regs) ||
        !nprdma_fault_is_synchronous(sig, info) ||
        !nprdma_fault_is_inside(sig, info, &regs)) {
        return 0;
    }

    nprdma_touch_fail(context);
    return 1;
}

NPRDMA_UNINSTRUMENTED
static int nprdma_fault_peek(void *dest, const void *source, size_t length)
{
    struct iovec local  = { .iov_base = dest, .iov_len = length };
    struct iovec remote = { .iov_base = (void*)source, .iov_len = length };

    return syscall(SYS_process_vm_readv, syscall(SYS_getpid), &local, 1,
                   &remote, 1, 0) == (long)length;
}

/* The same if a handler of the application has called ours. It may pass only
 * the number of the signal, as handlers of signal() do. Then the other
 * arguments are undefined, so the kernel reads what they point at. */
NPRDMA_UNINSTRUMENTED
static int nprdma_fault_recover_called(int sig, const siginfo_t *info,
                                       void *context)
{
    ucontext_t context_copy;
    siginfo_t info_copy;

    return nprdma_fault_peek(&info_copy, info, sizeof(info_copy)) &&
           (info_copy.si_signo == sig) &&
           nprdma_fault_peek(&context_copy, context,
                             offsetof(ucontext_t, uc_mcontext) +
                             sizeof(context_copy.uc_mcontext)) &&
           nprdma_fault_recover(sig, &info_copy, &context_copy) &&
           nprdma_fault_recover(sig, info, context);
}

/* The default action; the kernel also takes it if an instruction causes a
 * signal that is ignored. The signal is sent again, and is delivered when the
 * handler returns. So the process ends at the faulting instruction, as a core
 * file shows. */
NPRDMA_UNINSTRUMENTED
static void nprdma_fault_default(int sig, siginfo_t *info)
{
    nprdma_fault_action_t action = { .handler = (void*)SIG_DFL };
    pid_t pid, tid;

    nprdma_fault_sigaction(sig, &action, NULL);
    pid = (pid_t)syscall(SYS_getpid);
    tid = (pid_t)syscall(SYS_gettid);
    if (syscall(SYS_rt_tgsigqueueinfo, pid, tid, sig, info) != 0) {
        syscall(SYS_tgkill, pid, tid, sig); /* The siginfo is not valid */
    }
}

static void nprdma_fault_handler(int sig, siginfo_t *info, void *context);

/* Execute the action that would have been executed without our handler */
NPRDMA_UNINSTRUMENTED
static void nprdma_fault_chain(int sig, siginfo_t *info, void *context,
                               int is_called)
{
    int which                             = (sig == SIGBUS);
    const nprdma_fault_action_t *previous = &nprdma_fault.previous[which];
    nprdma_fault_action_t current;

    if (is_called && (nprdma_fault_sigaction(sig, NULL, &current) == 0) &&
        (current.handler == (void*)nprdma_fault_handler)) {
        if (current.restorer == nprdma_fault_restorer) {
            /* The previous handler has called ours, whose address it had from
             * an earlier time */
            nprdma_fault_default(sig, info);
            return;
        }
        is_called = 0; /* The application has installed our function */
    }

    if ((previous->handler == (void*)SIG_IGN) && !is_called &&
        !nprdma_fault_is_synchronous(sig, info)) {
        return;
    }

    if (nprdma_fault_is_default(previous->handler) ||
        ((previous->flags & SA_RESETHAND) &&
         atomic_exchange(&nprdma_fault.is_spent[which], 1))) {
        nprdma_fault_default(sig, info);
        return;
    }

    /* Mask, stack and flags are those of this action already. The kernel passes
     * three arguments to every handler, too. */
    ((nprdma_fault_func_t)previous->handler)(sig, info, context);
}

NPRDMA_UNINSTRUMENTED __attribute__((noinline))
static void nprdma_fault_handler(int sig, siginfo_t *info, void *context)
{
    int is_called   = (__builtin_return_address(0) != nprdma_fault_restorer);
    int saved_errno = errno;

    if (!(is_called ? nprdma_fault_recover_called(sig, info, context) :
                      nprdma_fault_recover(sig, info, context))) {
        errno = saved_errno;
        nprdma_fault_chain(sig, info, context, is_called);
    }
    errno = saved_errno;
}


/* ---- installation ---- */

static int nprdma_fault_is_same(const nprdma_fault_action_t *a,
                                const nprdma_fault_action_t *b)
{
    return (a->handler == b->handler) && (a->flags == b->flags) &&
           (a->mask == b->mask);
}

/* Without SA_SIGINFO the handler does not get the address: the application may
 * have installed our function by signal() */
static int nprdma_fault_is_ours(const nprdma_fault_action_t *action)
{
    return (action->handler == (void*)nprdma_fault_handler) &&
           (action->flags & SA_SIGINFO);
}

static int nprdma_fault_install_one(int which)
{
    int sig = nprdma_fault_signals[which];
    nprdma_fault_action_t current, action, old;

    if (nprdma_fault_sigaction(sig, NULL, &current) != 0) {
        return 0;
    }

    if (nprdma_fault_is_ours(&current)) {
        return 1;
    }

    /* A handler that has replaced ours may call it, so ours must not call that
     * one */
    if (atomic_load(&nprdma_fault.is_used[which]) &&
        !nprdma_fault_is_same(&nprdma_fault.previous[which], &current)) {
        return 0;
    }

    /* With a signal stack, our handler runs after a stack overflow, too.
     * Without one, the kernel ends the process. */
    action.handler  = (void*)nprdma_fault_handler;
    action.restorer = (void*)nprdma_fault_restorer;
    action.mask     = current.mask;
    action.flags    = SA_SIGINFO | NPRDMA_FAULT_SA_RESTORER |
                      (nprdma_fault_is_default(current.handler) ? SA_ONSTACK :
                       (current.flags & NPRDMA_FAULT_FLAGS));
    nprdma_fault.previous[which] = current;
    atomic_store(&nprdma_fault.is_spent[which], 0);
    atomic_store(&nprdma_fault.is_used[which], 1);
    if (nprdma_fault_sigaction(sig, &action, &old) != 0) {
        return 0;
    }

    if (!nprdma_fault_is_same(&old, &current)) {
        /* The application has replaced the action meanwhile: restore that */
        nprdma_fault_sigaction(sig, &old, NULL);
        return 0;
    }
    return 1;
}

int nprdma_fault_install(void)
{
    return nprdma_fault_install_one(0) && nprdma_fault_install_one(1) &&
           nprdma_fault_check();
}

int nprdma_fault_check(void)
{
    nprdma_fault_action_t current;
    int is_ready = 1;
    int i;

    for (i = 0; is_ready && (i < 2); ++i) {
        is_ready = (nprdma_fault_sigaction(nprdma_fault_signals[i], NULL,
                                           &current) == 0) &&
                   nprdma_fault_is_ours(&current);
    }

    atomic_store_explicit(&nprdma_fault.checked, ucs_get_time(),
                          memory_order_relaxed);
    if (is_ready != nprdma_fault_is_ready()) {
        atomic_store(&nprdma_fault.is_ready, is_ready);
    }
    return is_ready;
}

void nprdma_fault_remove(void)
{
    nprdma_fault_action_t action, current, old;
    int i;

    atomic_store(&nprdma_fault.is_ready, 0);
    for (i = 0; i < 2; ++i) {
        if ((nprdma_fault_sigaction(nprdma_fault_signals[i], NULL, &current) !=
             0) || (current.handler != (void*)nprdma_fault_handler)) {
            continue;
        }

        action = nprdma_fault.previous[i];
        if (atomic_load(&nprdma_fault.is_spent[i])) {
            memset(&action, 0, sizeof(action)); /* SIG_DFL */
        }
        nprdma_fault_sigaction(nprdma_fault_signals[i], &action, &old);
        if (old.handler != current.handler) {
            nprdma_fault_sigaction(nprdma_fault_signals[i], &old, NULL);
        } else {
            atomic_store(&nprdma_fault.is_used[i], 0);
        }
    }
}

static int nprdma_fault_is_fresh(void)
{
    uint64_t checked = atomic_load_explicit(&nprdma_fault.checked,
                                            memory_order_relaxed);

    return nprdma_fault_is_ready() &&
           (ucs_get_time() - checked <
            ucs_time_from_usec(NPRDMA_FAULT_FRESH_USEC));
}

int nprdma_fault_enter(nprdma_fault_section_t *section)
{
    uint64_t mask = NPRDMA_FAULT_MASK;

    if (syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &mask, &section->blocked,
                sizeof(mask)) != 0) {
        section->blocked = 0;
        return 0;
    }

    section->blocked &= mask;
    return nprdma_fault_is_fresh() || nprdma_fault_check();
}

void nprdma_fault_leave(const nprdma_fault_section_t *section)
{
    if (ucs_unlikely(section->blocked != 0)) {
        syscall(SYS_rt_sigprocmask, SIG_BLOCK, &section->blocked, NULL,
                sizeof(section->blocked));
    }
}

int nprdma_fault_may_touch(void)
{
    uint64_t blocked;

    return (syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &blocked,
                    sizeof(blocked)) == 0) &&
           !(blocked & NPRDMA_FAULT_MASK) && nprdma_fault_check();
}

int nprdma_fault_is_ready(void)
{
    return atomic_load_explicit(&nprdma_fault.is_ready, memory_order_relaxed);
}
