/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Random calls, half of them nearly valid, by several threads on the same
 * regions, while the memory changes. Every result must be an errno value that
 * the interface documents, and the kernel's log must stay clean. KMOD_SEED is
 * the seed. The number of calls and the time are limited.
 */

#include "kmod_test.h"

#define NUM_THREADS 4
#define NUM_CALLS   20000
#define MAX_MS      40000
#define NUM_PAGES   1024
#define MAX_ERRNO   134

typedef struct fuzz {
    int      ctx;
    uint8_t  *memory;
    uint64_t end;
} fuzz_t;

typedef struct fuzz_thread {
    fuzz_t    *fuzz;
    unsigned  seed;
    pthread_t thread;
    unsigned  answers[MAX_ERRNO];
} fuzz_thread_t;

/* Sizes of the structures, by number of the call */
static const unsigned sizes[] = {
    sizeof(struct nprdma_ioc_query),
    sizeof(struct nprdma_ioc_check_device),
    sizeof(struct nprdma_ioc_region_create),
    sizeof(struct nprdma_ioc_region_destroy),
    sizeof(struct nprdma_ioc_export),
    sizeof(struct nprdma_ioc_register),
    sizeof(struct nprdma_ioc_unregister),
    sizeof(struct nprdma_ioc_populate),
    sizeof(struct nprdma_ioc_invalidate),
    sizeof(struct nprdma_ioc_stats)
};

/* Errors that the interface documents */
static const int allowed[] = {0,      EPERM,  ENOENT, EINTR,  EFAULT, EACCES,
                              EINVAL, ENODEV, ENOSPC, ERANGE, ENOTTY, E2BIG,
                              EFBIG,  EDQUOT, ENOMEM, EBUSY,  EOPNOTSUPP,
                              EMFILE, ENFILE, ESTALE};

static uint64_t fuzz_number(fuzz_thread_t *thread)
{
    fuzz_t *fuzz  = thread->fuzz;
    uint64_t some = rand_r(&thread->seed);

    switch (rand_r(&thread->seed) % 8) {
    case 0:
        return some << 32 | rand_r(&thread->seed);
    case 1:
        return 1ull << (some % 64);
    case 2:
        return -(some % 8192);
    case 3:
        return some % 8;
    case 4:
        return (some % (NUM_PAGES + 4)) * PAGE;
    default:
        return (uintptr_t)fuzz->memory + (some % (NUM_PAGES + 4)) * PAGE;
    }
}

/* Random words; half of the calls get fields that pass the first checks */
static void fuzz_fill(fuzz_thread_t *thread, unsigned nr, uint64_t *words)
{
    uint32_t *halves = (uint32_t*)words;
    unsigned i;

    for (i = 0; i < 512 / sizeof(*words); ++i) {
        words[i] = fuzz_number(thread);
    }
    if ((nr >= sizeof(sizes) / sizeof(sizes[0])) ||
        (rand_r(&thread->seed) % 2)) {
        return;
    }

    halves[0] = sizes[nr];
    halves[1] = rand_r(&thread->seed) % 4;
    if (nr == _IOC_NR(NPRDMA_IOC_REGION_CREATE)) {
        halves[1] = 0;
        words[1]  = (uintptr_t)thread->fuzz->memory +
                    rand_r(&thread->seed) % NUM_PAGES * PAGE;
        words[2]  = (1 + rand_r(&thread->seed) % NUM_PAGES) * PAGE;
    } else {
        halves[2] = rand_r(&thread->seed) % 16;
        halves[3] = rand_r(&thread->seed) % 4;
        words[2]  = (uintptr_t)thread->fuzz->memory +
                    rand_r(&thread->seed) % (NUM_PAGES * PAGE);
        words[3]  = rand_r(&thread->seed) % (NUM_PAGES * PAGE / 2);
        if ((nr == _IOC_NR(NPRDMA_IOC_REGISTER)) ||
            (nr == _IOC_NR(NPRDMA_IOC_POPULATE))) {
            halves[3] = 0;
        }
    }
}

static void fuzz_memory(fuzz_thread_t *thread)
{
    static const int advice[] = {MADV_DONTNEED, MADV_FREE, MADV_PAGEOUT,
                                 MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLD};
    uint8_t *start            = thread->fuzz->memory +
                                rand_r(&thread->seed) % NUM_PAGES * PAGE;
    size_t length             = PAGE << (rand_r(&thread->seed) % 8);
    size_t left               = thread->fuzz->memory + NUM_PAGES * PAGE - start;

    length = (length < left) ? length : left;
    switch (rand_r(&thread->seed) % 4) {
    case 0:
        mmap(start, length, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        break;
    case 1:
        munmap(start, length);
        break;
    default:
        madvise(start, length, advice[rand_r(&thread->seed) % 6]);
    }
}

/* Close descriptors that a call may have opened, because they would run out */
static void fuzz_close(unsigned nr, const uint64_t *words)
{
    if (nr == _IOC_NR(NPRDMA_IOC_REGION_CREATE)) {
        close(((struct nprdma_ioc_region_create*)words)->states_fd);
    } else if (nr == _IOC_NR(NPRDMA_IOC_EXPORT)) {
        close(((struct nprdma_ioc_export*)words)->fd);
    }
}

static void *fuzz_run(void *arg)
{
    fuzz_thread_t *thread = arg;
    uint64_t words[512 / sizeof(uint64_t)];
    unsigned calls, nr;
    size_t i;
    int ret;

    for (calls = 0; (calls < NUM_CALLS) &&
                    (kmod_time_ms() < thread->fuzz->end); ++calls) {
        nr = rand_r(&thread->seed) % 12;
        fuzz_fill(thread, nr, words);
        ret = kmod_call(thread->fuzz->ctx, _IO(NPRDMA_IOC_TYPE, nr),
                        (rand_r(&thread->seed) % 64) ?
                        (void*)words : (void*)fuzz_number(thread));
        for (i = 0; (i < sizeof(allowed) / sizeof(allowed[0])) &&
                    (allowed[i] != ret); ++i) {
        }
        CHECK(i < sizeof(allowed) / sizeof(allowed[0]), "call %u: %s", nr,
              strerror(ret));
        ++thread->answers[ret];
        if (ret == 0) {
            fuzz_close(nr, words);
        }
        if (calls % 8 == 0) {
            fuzz_memory(thread);
        }
    }
    return NULL;
}

KMOD_CASE(fuzz, random_calls)
{
    const char *text = getenv("KMOD_SEED");
    unsigned seed    = (text != NULL) ? strtoul(text, NULL, 0) : 1;
    fuzz_thread_t threads[NUM_THREADS];
    fuzz_t fuzz;
    unsigned i, j, sum = 0;

    printf("seed %u\n", seed);
    fuzz.ctx    = kmod_open();
    fuzz.memory = kmod_map(NUM_PAGES * PAGE);
    fuzz.end    = kmod_time_ms() + MAX_MS;
    memset(threads, 0, sizeof(threads));
    for (i = 0; i < NUM_THREADS; ++i) {
        threads[i].fuzz = &fuzz;
        threads[i].seed = seed * NUM_THREADS + i;
        CHECK_EQ(pthread_create(&threads[i].thread, NULL, fuzz_run,
                                &threads[i]), 0);
    }
    for (i = 0; i < NUM_THREADS; ++i) {
        CHECK_EQ(pthread_join(threads[i].thread, NULL), 0);
    }

    /* A run in which all calls fail early tests nothing */
    for (j = 0; j < MAX_ERRNO; ++j) {
        for (i = 0, sum = 0; i < NUM_THREADS; ++i) {
            sum += threads[i].answers[j];
        }
        if (sum > 0) {
            printf("%6u %s\n", sum, strerror(j));
        }
        CHECK((j != 0) || (sum > 100), "%u calls succeeded", sum);
    }
}
