/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * mpi_meddle KIND: checked messages, puts and gets. Meanwhile a thread of each
 * rank does what the system may do to any program at any time:
 *
 * policy  mbind() and move_pages() of the buffers, and compaction, which moves
 *         pages on machines with one node
 * thp     huge pages are formed, split, forbidden and permitted in the buffers
 * ksm     the kernel merges pages of the buffers
 * stop    rank 0 stops a random rank, and continues it
 *
 * If the system refuses that, the test is skipped. The effects are printed.
 */

#include "mpi_test.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#  define MADV_COLLAPSE  25
#endif

#define PAGE        4096ul
#define HUGE        (2ul << 20)
#define BUFFER      HUGE
#define NUM_PAGES   (BUFFER / PAGE)
#define MAX_LENGTH  (BUFFER / 2)
#define MAX_RANKS   16

/* From linux/mempolicy.h, which not every system has */
#define MPOL_DEFAULT_     0
#define MPOL_BIND_        2
#define MPOL_INTERLEAVE_  3
#define MPOL_MF_MOVE_     2

enum { OUT, IN, WINDOW, NUM_BUFFERS };

typedef struct meddler {
    const char *name;
    const char *(*begin)(void); /* Returns why not, or NULL */
    void (*meddle)(char *buffer);
    uint64_t (*effect)(void); /* A count that must become positive */
    const char *effect_name;
    void (*end)(void);
} meddler_t;

static const meddler_t *meddler;
static char            *buffers[NUM_BUFFERS];
static pid_t           pids[MAX_RANKS];
static uint64_t        state;
static atomic_int      is_over;
static atomic_ulong    num_effects; /* Counted by this rank */
static char            old_ksm[16];

static unsigned draw(unsigned bound)
{
    return mpi_test_random(&state) % bound;
}

static void wait_us(unsigned us)
{
    struct timespec ts = {0, us * 1000l};

    nanosleep(&ts, NULL);
}

static int write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t ret;

    if (fd < 0) {
        return -1;
    }
    ret = write(fd, text, strlen(text));
    close(fd);
    return ret < 0 ? -1 : 0;
}


/* ---- memory policies ---- */

/* Page frames of a buffer; zeroes without the privilege to see them */
static void frames_of(const char *buffer, uint64_t *frames)
{
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    ssize_t ret;

    memset(frames, 0, NUM_PAGES * sizeof(*frames));
    if (fd >= 0) {
        ret = pread(fd, frames, NUM_PAGES * sizeof(*frames),
                    (uintptr_t)buffer / PAGE * sizeof(*frames));
        close(fd);
        if (ret < 0) {
            memset(frames, 0, NUM_PAGES * sizeof(*frames));
        }
    }
}

static const char *policy_begin(void)
{
    unsigned long nodes = 1;

    if (syscall(SYS_mbind, buffers[OUT], BUFFER, MPOL_BIND_, &nodes, 64ul,
                0u) != 0) {
        return errno == EPERM || errno == ENOSYS ? "mbind is not permitted" :
               NULL;
    }
    return NULL;
}

static void policy_meddle(char *buffer)
{
    static const int policies[] = {MPOL_DEFAULT_, MPOL_BIND_, MPOL_INTERLEAVE_};
    static uint64_t before[NUM_PAGES], after[NUM_PAGES];
    unsigned long nodes = 1;
    int policy          = policies[draw(3)];
    size_t first        = draw(NUM_PAGES / 2);
    void *pages[16];
    int to[16], status[16];
    size_t i;

    frames_of(buffer, before);
    syscall(SYS_mbind, buffer + first * PAGE, BUFFER / 4, policy,
            policy == MPOL_DEFAULT_ ? NULL : &nodes,
            policy == MPOL_DEFAULT_ ? 0ul : 64ul, (unsigned)MPOL_MF_MOVE_);
    for (i = 0; i < 16; ++i) {
        pages[i] = buffer + (first + i) * PAGE;
        to[i]    = 0;
    }
    syscall(SYS_move_pages, 0, 16ul, pages, to, status, MPOL_MF_MOVE_);
    if (draw(8) == 0) {
        write_file("/proc/sys/vm/compact_memory", "1");
    }
    frames_of(buffer, after);
    for (i = 0; i < NUM_PAGES; ++i) {
        num_effects += (before[i] >> 63) && (after[i] >> 63) &&
                       (before[i] != after[i]);
    }
}

static uint64_t count_effects(void)
{
    return num_effects;
}


/* ---- huge pages ---- */

static void thp_meddle(char *buffer)
{
    unsigned long kb = 0, value;
    char line[256];
    FILE *file;

    switch (draw(5)) {
    case 0:
        madvise(buffer, BUFFER, MADV_HUGEPAGE);
        madvise(buffer, BUFFER, MADV_COLLAPSE);
        break;
    case 1:
        madvise(buffer, BUFFER, MADV_COLLAPSE);
        break;
    case 2:
        /* Splits the huge pages */
        madvise(buffer + draw(NUM_PAGES) * PAGE, PAGE, MADV_NOHUGEPAGE);
        break;
    case 3:
        madvise(buffer, BUFFER, MADV_NOHUGEPAGE);
        break;
    default:
        prctl(PR_SET_THP_DISABLE, draw(2), 0, 0, 0);
    }

    file = fopen("/proc/self/smaps_rollup", "r");
    while ((file != NULL) && (fgets(line, sizeof(line), file) != NULL)) {
        if (sscanf(line, "AnonHugePages: %lu kB", &value) == 1) {
            kb = value;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    num_effects += (kb > 0);
}

static const char *thp_begin(void)
{
    return access("/sys/kernel/mm/transparent_hugepage/enabled", R_OK) == 0 ?
           NULL : "no transparent huge pages";
}


/* ---- merged pages ---- */

#define KSM "/sys/kernel/mm/ksm/"

static const char *ksm_begin(void)
{
    FILE *file = fopen(KSM "run", "r");

    if ((file == NULL) || (fgets(old_ksm, sizeof(old_ksm), file) == NULL)) {
        old_ksm[0] = '\0';
    }
    if (file != NULL) {
        fclose(file);
    }
    if ((old_ksm[0] == '\0') ||
        (madvise(buffers[OUT], BUFFER, MADV_MERGEABLE) != 0)) {
        return "the kernel merges no pages (KSM)";
    }
    if ((old_ksm[0] != '1') && (write_file(KSM "run", "1") != 0)) {
        return "KSM is not running, and starting it is not permitted";
    }
    return NULL;
}

static void ksm_meddle(char *buffer)
{
    madvise(buffer, BUFFER, draw(4) ? MADV_MERGEABLE : MADV_UNMERGEABLE);
}

/* Merged pages of this process */
static uint64_t ksm_effect(void)
{
    FILE *file = fopen("/proc/self/ksm_merging_pages", "r");
    unsigned long num;

    if (file != NULL) {
        if ((fscanf(file, "%lu", &num) == 1) && (num > num_effects)) {
            num_effects = num;
        }
        fclose(file);
    }
    return num_effects;
}

static void ksm_end(void)
{
    if (old_ksm[0] == '0') {
        write_file(KSM "run", "0");
    }
}


/* ---- stopped ranks ---- */

static void stop_meddle(char *buffer)
{
    pid_t pid = pids[1 + draw(mpi_test_size - 1)];

    if ((mpi_test_rank != 0) || (buffer == NULL)) {
        return;
    }
    CHECK(kill(pid, SIGSTOP) == 0, "cannot stop %d: %m", (int)pid);
    wait_us(1000 + draw(200000));
    CHECK(kill(pid, SIGCONT) == 0, "cannot let %d go on: %m", (int)pid);
    ++num_effects;
}


/* ---- common to all kinds ---- */

static const meddler_t meddlers[] = {
    {"policy", policy_begin, policy_meddle, count_effects, "pages moved", NULL},
    {"thp", thp_begin, thp_meddle, count_effects, "times there were huge pages",
     NULL},
    {"ksm", ksm_begin, ksm_meddle, ksm_effect, "pages merged at once", ksm_end},
    {"stop", NULL, stop_meddle, count_effects, "stops", NULL}
};

static void *meddle(void *arg)
{
    while (!is_over) {
        wait_us(500 + draw(5000));
        meddler->meddle(buffers[draw(NUM_BUFFERS)]);
        meddler->effect();
    }
    return arg;
}

/* Whether the system permits this kind, on all ranks */
static int begin(const char *kind)
{
    const char *why = NULL;
    int is_refused;
    size_t i;

    for (i = 0; i < sizeof(meddlers) / sizeof(meddlers[0]); ++i) {
        if (!strcmp(kind, meddlers[i].name)) {
            meddler = &meddlers[i];
        }
    }
    CHECK(meddler != NULL, "'%s' is none of policy, thp, ksm, stop", kind);
    if (meddler->begin != NULL) {
        why = meddler->begin();
    }
    is_refused = (why != NULL);
    MPI_Allreduce(MPI_IN_PLACE, &is_refused, 1, MPI_INT, MPI_MAX,
                  MPI_COMM_WORLD);
    if (why != NULL) {
        printf("SKIPPED: %s\n", why);
    }
    return !is_refused;
}

static void map_buffers(void)
{
    size_t i;

    for (i = 0; i < NUM_BUFFERS; ++i) {
        buffers[i] = mmap(NULL, BUFFER + HUGE, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(buffers[i] != MAP_FAILED, "no memory: %m");
        buffers[i] = (char*)(((uintptr_t)buffers[i] + HUGE - 1) & ~(HUGE - 1));
        memset(buffers[i], 0, BUFFER);
    }
}

/* The second half of the outgoing buffer has the same contents in all pages, so
 * that KSM can merge them */
static uint64_t exchange(MPI_Win win, uint64_t *seed, int round)
{
    int next      = (mpi_test_rank + 1) % mpi_test_size;
    int previous  = (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
    size_t length = mpi_test_length(seed, MAX_LENGTH);
    char *out     = buffers[OUT] + mpi_test_random(seed) % PAGE;
    char *in      = buffers[IN] + mpi_test_random(seed) % PAGE;

    mpi_test_fill(out, length, mpi_test_rank + round);
    MPI_Sendrecv(out, length, MPI_BYTE, next, 1, in, length, MPI_BYTE, previous,
                 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    mpi_test_verify(in, length, previous + round, "message");

    MPI_Win_lock(MPI_LOCK_SHARED, next, 0, win);
    MPI_Put(out, length, MPI_BYTE, next, round % 64, length, MPI_BYTE, win);
    MPI_Win_flush(next, win);
    memset(in, 0xee, length);
    MPI_Get(in, length, MPI_BYTE, next, round % 64, length, MPI_BYTE, win);
    MPI_Win_unlock(next, win);
    mpi_test_verify(in, length, mpi_test_rank + round, "block got back");
    MPI_Barrier(MPI_COMM_WORLD);
    mpi_test_verify(buffers[WINDOW] + round % 64, length, previous + round,
                    "put block");
    MPI_Barrier(MPI_COMM_WORLD);
    return 3 * length;
}

/* Rounds until the thread has had an effect, for at most 20 seconds */
static uint64_t exchange_all(int rounds)
{
    double deadline = MPI_Wtime() + 20;
    uint64_t seed   = 4711;
    uint64_t bytes  = 0;
    int round, go_on;
    MPI_Win win;

    MPI_Win_create(buffers[WINDOW], BUFFER, 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                   &win);
    for (round = 0, go_on = 1; go_on; ++round) {
        bytes += exchange(win, &seed, round);
        go_on  = (round < rounds) || ((mpi_test_rank == 0) &&
                                     (meddler->effect() == 0) &&
                                     (MPI_Wtime() < deadline));
        MPI_Allreduce(MPI_IN_PLACE, &go_on, 1, MPI_INT, MPI_MAX,
                      MPI_COMM_WORLD);
    }
    is_over = 1;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_free(&win);
    return bytes;
}

int main(int argc, char **argv)
{
    char *no_rounds[] = {argv[0], NULL};
    pid_t pid         = getpid();
    uint64_t bytes, effects;
    pthread_t thread;

    mpi_test_init(1, no_rounds, MPI_THREAD_FUNNELED, 1);
    CHECK((argc > 1) && (mpi_test_size >= 2) && (mpi_test_size <= MAX_RANKS),
          "arguments are: KIND [ROUNDS], of 2 to %d ranks", MAX_RANKS);
    state = mpi_test_rank;
    map_buffers();
    MPI_Allgather(&pid, sizeof(pid), MPI_BYTE, pids, sizeof(pid), MPI_BYTE,
                  MPI_COMM_WORLD);
    if (!begin(argv[1])) {
        return mpi_test_done(0);
    }

    CHECK(pthread_create(&thread, NULL, meddle, NULL) == 0, "no thread");
    bytes = exchange_all(argc > 2 ? atoi(argv[2]) : 100);
    pthread_join(thread, NULL);
    if (meddler->end != NULL) {
        meddler->end();
    }

    effects = meddler->effect();
    MPI_Allreduce(MPI_IN_PLACE, &effects, 1, MPI_UINT64_T, MPI_SUM,
                  MPI_COMM_WORLD);
    if (mpi_test_rank == 0) {
        printf("%s: %" PRIu64 " %s\n", argv[1], effects, meddler->effect_name);
        if (effects == 0) {
            printf("SKIPPED: the system has done nothing of it\n");
        }
    }
    return mpi_test_done(bytes);
}
