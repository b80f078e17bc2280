/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "history_disturb.h"
#include "history_plan.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#  define MADV_COLLAPSE 25
#endif

#define PAGE  4096u
#define HUGE  (2ul << 20)

/* From linux/mempolicy.h, which not every system has */
#define MPOL_BIND_     2
#define MPOL_MF_MOVE_  2

static struct {
    struct {
        char   *address;
        size_t length;
    } ranges[HISTORY_DISTURB_RANGES];
    unsigned      num_ranges;
    unsigned      kinds;
    uint64_t      state;
    pthread_t     thread;
    atomic_int    stop;
    unsigned long counts[HISTORY_NUM_DISTURBANCES];
} disturb;

static void history_sleep(unsigned us)
{
    struct timespec ts = {us / 1000000, (us % 1000000) * 1000l};

    nanosleep(&ts, NULL);
}

/* Selects some pages of one range */
static char *history_pages(size_t *length)
{
    unsigned i       = history_random(&disturb.state, disturb.num_ranges);
    size_t num_pages = disturb.ranges[i].length / PAGE;
    size_t first     = history_random(&disturb.state, num_pages);

    *length = (1 + history_random(&disturb.state, num_pages - first)) * PAGE;
    return disturb.ranges[i].address + first * PAGE;
}

/* A child that writes to its copies, which must not affect its parent */
static void history_fork(void)
{
    int writes = (disturb.num_ranges > 0) &&
                 (history_random(&disturb.state, 2) == 0);
    unsigned i, us = history_random(&disturb.state, 2000);
    size_t length;
    char *pages;
    pid_t pid;

    pid = fork();
    if (pid < 0) {
        perror("history: fork");
        abort();
    }
    if (pid == 0) {
        for (i = 0; writes && (i < 4); ++i) {
            pages = history_pages(&length);
            memset(pages, 0xdb, length);
        }
        history_sleep(us);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    ++disturb.counts[0];
}

static void history_pageout(void)
{
    size_t length;
    char *pages = history_pages(&length);

    /* Without swap this has no effect */
    madvise(pages, length, history_random(&disturb.state, 4) == 0 ? MADV_COLD :
                           MADV_PAGEOUT);
    ++disturb.counts[1];
}

/* What the system refuses has no effect. On machines with one node only
 * compaction moves pages. */
static void history_move(void)
{
    unsigned long nodes = 1;
    int status, to      = 0;
    size_t length;
    char *pages = history_pages(&length);
    FILE *file;

    syscall(SYS_mbind, pages, length, MPOL_BIND_, &nodes, 64ul,
            (unsigned)MPOL_MF_MOVE_);
    syscall(SYS_move_pages, 0, 1ul, &pages, &to, &status, MPOL_MF_MOVE_);
    ++disturb.counts[2];
    file = (history_random(&disturb.state, 8) == 0) ?
           fopen("/proc/sys/vm/compact_memory", "w") : NULL;
    if (file != NULL) {
        fputs("1", file);
        fclose(file);
    }
}

/* The memory of a window is part of one huge page, or of small ones */
static void history_huge(void)
{
    size_t length;
    uintptr_t pages = (uintptr_t)history_pages(&length);
    void *huge      = (void*)(pages & ~(HUGE - 1));

    if (history_random(&disturb.state, 2) == 0) {
        madvise((void*)pages, length, MADV_NOHUGEPAGE);
        return;
    }
    madvise(huge, HUGE, MADV_HUGEPAGE);
    disturb.counts[3] += (madvise(huge, HUGE, MADV_COLLAPSE) == 0);
}

static const struct {
    unsigned kind;
    void     (*run)(void);
} history_kinds[HISTORY_NUM_DISTURBANCES] = {
    {HISTORY_FORK, history_fork}, {HISTORY_PAGEOUT, history_pageout},
    {HISTORY_MOVE, history_move}, {HISTORY_HUGE, history_huge}
};

static void *history_disturb_thread(void *arg)
{
    unsigned i;

    while (!atomic_load(&disturb.stop)) {
        history_sleep(history_random(&disturb.state, 4000));
        do {
            i = history_random(&disturb.state, HISTORY_NUM_DISTURBANCES);
        } while (!(disturb.kinds & history_kinds[i].kind));
        if ((disturb.num_ranges > 0) || (i == 0)) {
            history_kinds[i].run();
        }
    }
    return arg;
}

void history_disturb_add(void *address, size_t length)
{
    if (disturb.num_ranges == HISTORY_DISTURB_RANGES) {
        abort();
    }
    disturb.ranges[disturb.num_ranges].address  = address;
    disturb.ranges[disturb.num_ranges++].length = length;
}

void history_disturb_start(unsigned kinds, uint64_t seed)
{
    disturb.kinds = kinds;
    disturb.state = seed;
    if ((kinds != 0) && (pthread_create(&disturb.thread, NULL,
                                        history_disturb_thread, NULL) != 0)) {
        fprintf(stderr, "history: no thread\n");
        abort();
    }
}

const unsigned long *history_disturb_stop(void)
{
    if (disturb.kinds != 0) {
        atomic_store(&disturb.stop, 1);
        pthread_join(disturb.thread, NULL);
    }
    return disturb.counts;
}
