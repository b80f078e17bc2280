/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_poke.h"

#if defined(__x86_64__) && !defined(__ILP32__)

#include <asm/prctl.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of AT_HWCAP2: the kernel lets everybody use the instructions */
#define NPRDMA_POKE_FSGSBASE  (1 << 1)

static atomic_int nprdma_poke_works;


static inline uint64_t nprdma_poke_base(void)
{
    uint64_t base;

    __asm__ volatile("rdgsbase %0" : "=r"(base));
    return base;
}

static inline void nprdma_poke_set_base(uint64_t base)
{
    __asm__ volatile("wrgsbase %0" : : "r"(base) : "memory");
}

/* The processor takes no other as a base: it would be a signal */
static inline int nprdma_poke_is_address(uint64_t value)
{
    return (uint64_t)((int64_t)(value << 16) >> 16) == value;
}

int nprdma_poke(uintptr_t address, uint64_t value)
{
    long ret;

    /* Whoever has a base needs it, and his signal handlers do. One of ours that
     * comes in between finds it in use, or restores it. */
    if (!atomic_load_explicit(&nprdma_poke_works, memory_order_relaxed) ||
        !nprdma_poke_is_address(value) || (nprdma_poke_base() != 0)) {
        return 0;
    }

    nprdma_poke_set_base(value);
    ret = syscall(SYS_arch_prctl, ARCH_GET_GS, address);
    nprdma_poke_set_base(0);
    if ((ret != 0) && (errno != EFAULT)) {
        /* A sandbox will not change its mind */
        atomic_store_explicit(&nprdma_poke_works, 0, memory_order_relaxed);
    }
    return ret == 0;
}

int nprdma_poke_init(void)
{
    uint64_t value = 0x1234567890;
    uint64_t word  = 0;
    int works;

    works = (getauxval(AT_HWCAP2) & NPRDMA_POKE_FSGSBASE) != 0;
    atomic_store(&nprdma_poke_works, works);
    works = nprdma_poke((uintptr_t)&word, value) && (word == value);
    atomic_store(&nprdma_poke_works, works);
    return works;
}

#else

int nprdma_poke_init(void)
{
    return 0;
}

int nprdma_poke(uintptr_t address, uint64_t value)
{
    return 0;
}

#endif
