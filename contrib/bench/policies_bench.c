/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * MPI benchmark of what happens to buffers between messages.
 *
 *   stream SIZE MEMORY SEED [break]
 *       Messages from rank 0 to rank 1, 10 at once. PERCENT of them have the
 *       kept buffers of their slots; a rank allocates the other buffers, and
 *       frees them afterwards. MEMORY is malloc, or mmap without any advice.
 *       SEED determines which slots have new buffers. One line for each of four
 *       values of PERCENT:
 *           percent     PERCENT
 *           mb_per_s    allocating, writing, sending, receiving, freeing; not
 *                       checking. Of the fastest quarter of all batches of 10:
 *                       a busy machine stops the others.
 *           wrong       messages with a wrong byte; every byte is checked
 *           messages    timed ones, of both ranks; fresh: with new buffers
 *           choices     hash of which had new ones
 *           peak_kb     largest growth of resident memory since MPI_Init()
 *           after_kb    the same one second after the last buffer was freed
 *           locked_kb   most locked memory of a process
 *           faults      page faults of both ranks per MiB that is sent
 *       With "break" one byte of one message of each line is changed before it
 *       is sent, so "wrong" must be 1.
 *
 *   remap SIZE
 *       Without MPI. Microseconds of what would replace the last copy of a
 *       pool of pinned pages: swap_us exchanges the pages of two buffers,
 *       give_us puts the pool's pages in the place of the user's and drops
 *       those, and refill_us writes to new pages of the pool; copy_us is the
 *       copy.
 */

#include "bench.h"
#include "pattern.h"

#include <mpi.h>

#include <string.h>
#include <sys/resource.h>

#define SLOTS     10
#define WARM      2 /* Batches that are not timed */
#define MIN_TURNS 8
#define MAX_TURNS 512
#define VOLUME    (256ul << 20)
#define SETTLE_US 1e6
#define REMAPS    31

typedef struct {
    size_t   size;
    int      is_malloc, is_broken;
    uint64_t random;
    void     *kept[SLOTS];
    uint64_t number;             /* Of the next message */
    long     wrong, messages, fresh, choices;
    long     locked_kb;
    double   us;                 /* Of the last batch */
} stream_t;

static int  rank;
static long start_kb;

static void fail(const char *what)
{
    fprintf(stderr, "policies_bench: error: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(EXIT_FAILURE);
}

/* A line of /proc/self/status, in kB */
static long status_kb(const char *name)
{
    FILE *file = fopen("/proc/self/status", "r");
    long value = -1;
    char line[256];

    if (file == NULL) {
        fail("cannot read /proc/self/status");
    }
    while (fgets(line, sizeof(line), file) != NULL) {
        if (!strncmp(line, name, strlen(name))) {
            value = atol(line + strlen(name));
        }
    }
    fclose(file);
    if (value < 0) {
        fail("/proc/self/status lacks a line");
    }
    return value;
}

/* From here on VmHWM is the peak of what follows */
static void reset_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");

    if ((file == NULL) || (fputs("5", file) == EOF) || (fclose(file) != 0)) {
        fail("cannot write /proc/self/clear_refs");
    }
}

static long faults(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

static void *allocate(const stream_t *stream)
{
    void *buffer = stream->is_malloc ? malloc(stream->size) :
                   mmap(NULL, stream->size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK((buffer != NULL) && (buffer != MAP_FAILED),
          "cannot allocate %zu bytes", stream->size);
    return buffer;
}

static void release(const stream_t *stream, void *buffer)
{
    if (stream->is_malloc) {
        free(buffer);
    } else {
        munmap(buffer, stream->size);
    }
}

/* A number below `count` */
static int draw(stream_t *stream, int count)
{
    stream->random += 0x9e3779b97f4a7c15ull;
    return mix(stream->random) % count;
}

/* Kept buffers, and in some slots new ones. All batches have the same number of
 * these, so they can be compared. */
static void take_all(stream_t *stream, int percent, void **buffers)
{
    int left = SLOTS - SLOTS * percent / 100;
    int slot, is_fresh;

    for (slot = 0; slot < SLOTS; ++slot) {
        is_fresh        = draw(stream, SLOTS - slot) < left;
        left           -= is_fresh;
        stream->fresh  += is_fresh;
        stream->choices = (stream->choices * 31 + is_fresh) % 1000003;
        buffers[slot]   = is_fresh ? allocate(stream) : stream->kept[slot];
        ++stream->messages;
    }
}

static void write_messages(stream_t *stream, void **buffers)
{
    int slot;

    for (slot = 0; slot < SLOTS; ++slot) {
        write_pattern(buffers[slot], stream->size, stream->number + slot);
    }
    if (stream->is_broken) {
        ((char*)buffers[1])[stream->size / 2 + 1] ^= 1;
        stream->is_broken = 0;
    }
}

static void transfer(stream_t *stream, void **buffers)
{
    MPI_Request requests[SLOTS];
    int slot;

    for (slot = 0; slot < SLOTS; ++slot) {
        if (rank == 0) {
            MPI_Isend(buffers[slot], stream->size, MPI_BYTE, 1, slot,
                      MPI_COMM_WORLD, &requests[slot]);
        } else {
            MPI_Irecv(buffers[slot], stream->size, MPI_BYTE, 0, slot,
                      MPI_COMM_WORLD, &requests[slot]);
        }
    }
    MPI_Waitall(SLOTS, requests, MPI_STATUSES_IGNORE);
}

static void batch(stream_t *stream, int percent)
{
    void *buffers[SLOTS];
    double start;
    long locked;
    int slot;

    MPI_Barrier(MPI_COMM_WORLD);
    start = now_us();
    take_all(stream, percent, buffers);
    if (rank == 0) {
        write_messages(stream, buffers);
    }
    transfer(stream, buffers);
    stream->us = now_us() - start;

    locked            = status_kb("VmLck:");
    stream->locked_kb = locked > stream->locked_kb ? locked : stream->locked_kb;
    for (slot = 0; slot < SLOTS; ++slot) {
        stream->wrong += (rank == 1) &&
                         !is_pattern(buffers[slot], stream->size,
                                     stream->number + slot);
    }
    stream->number += SLOTS;

    start = now_us();
    for (slot = 0; slot < SLOTS; ++slot) {
        if (buffers[slot] != stream->kept[slot]) {
            release(stream, buffers[slot]);
        }
    }
    stream->us += now_us() - start;
}

/* The program goes on without buffers, as one that computes */
static void go_on(void)
{
    double end = now_us() + SETTLE_US;
    int is_there;

    while (now_us() < end) {
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &is_there,
                   MPI_STATUS_IGNORE);
    }
}

enum { WRONG, MESSAGES, FRESH, CHOICES, FAULTS, NUM_SUMS };
enum { PEAK, AFTER, LOCKED, NUM_MAXIMA };

/* The mean of the fastest quarter, of the slower rank in each batch */
static double fast_mean(const double *mine, int turns)
{
    double times[MAX_TURNS], sum = 0;
    int i, count = turns / 4;

    MPI_Reduce(mine, times, turns, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank != 0) {
        return 0;
    }
    sort_values(times, turns);
    for (i = 0; i < count; ++i) {
        sum += times[i];
    }
    return sum / count;
}

static void print_results(const stream_t *stream, int percent, int turns,
                          double us, double *sums, double *maxima)
{
    double sum[NUM_SUMS], max[NUM_MAXIMA];
    double bytes = (double)stream->size * SLOTS;

    MPI_Reduce(sums, sum, NUM_SUMS, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(maxima, max, NUM_MAXIMA, MPI_DOUBLE, MPI_MAX, 0,
               MPI_COMM_WORLD);
    if (rank == 0) {
        printf("percent %d mb_per_s %.1f wrong %.0f messages %.0f fresh %.0f "
               "choices %.0f peak_kb %.0f after_kb %.0f locked_kb %.0f "
               "faults %.2f\n",
               percent, bytes / us, sum[WRONG], sum[MESSAGES], sum[FRESH],
               sum[CHOICES], max[PEAK], max[AFTER], max[LOCKED],
               sum[FAULTS] * (1 << 20) / bytes / turns);
        fflush(stdout);
    }
}

static long positive(long value)
{
    return value > 0 ? value : 0;
}

static void share(size_t size, int is_malloc, uint64_t seed, int is_broken,
                  int percent)
{
    stream_t stream = {.size = size, .is_malloc = is_malloc,
                       .random = mix(seed + 2 * percent + rank)};
    int turn, turns = VOLUME / (SLOTS * size);
    double sums[NUM_SUMS], maxima[NUM_MAXIMA], times[MAX_TURNS];
    long faults_before;
    int slot;

    turns = turns < MIN_TURNS ? MIN_TURNS : turns;
    turns = turns > MAX_TURNS ? MAX_TURNS : turns;
    reset_peak();
    for (slot = 0; (percent > 0) && (slot < SLOTS); ++slot) {
        stream.kept[slot] = allocate(&stream);
    }
    for (turn = 0; turn < WARM; ++turn) {
        batch(&stream, percent > 0 ? 100 : 0);
    }

    stream.messages  = stream.fresh = stream.choices = 0;
    stream.is_broken = is_broken && (rank == 0);
    faults_before    = faults();
    for (turn = 0; turn < turns; ++turn) {
        batch(&stream, percent);
        times[turn] = stream.us;
    }
    sums[FAULTS] = faults() - faults_before;

    for (slot = 0; (percent > 0) && (slot < SLOTS); ++slot) {
        release(&stream, stream.kept[slot]);
    }
    go_on();
    sums[WRONG]    = stream.wrong;
    sums[MESSAGES] = stream.messages;
    sums[FRESH]    = stream.fresh;
    sums[CHOICES]  = stream.choices;
    maxima[PEAK]   = positive(status_kb("VmHWM:") - start_kb);
    maxima[AFTER]  = positive(status_kb("VmRSS:") - start_kb);
    maxima[LOCKED] = stream.locked_kb;
    print_results(&stream, percent, turns, fast_mean(times, turns), sums,
                  maxima);
}

static void stream(size_t size, const char *memory, uint64_t seed,
                   int is_broken)
{
    static const int percents[] = {0, 50, 90, 100};
    int is_malloc               = !strcmp(memory, "malloc");
    int ranks;
    size_t i;

    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if ((ranks != 2) || (!is_malloc && strcmp(memory, "mmap"))) {
        fail("stream needs 2 ranks, and malloc or mmap");
    }
    for (i = 0; i < sizeof(percents) / sizeof(*percents); ++i) {
        share(size, is_malloc, seed, is_broken, percents[i]);
    }
}

static void move(void *from, void *to, size_t size)
{
    CHECK(mremap(from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to,
          "cannot move pages: %m");
}

static void new_pages(void *where, size_t size)
{
    CHECK(mmap(where, size, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == where,
          "cannot map pages: %m");
    madvise(where, size, MADV_NOHUGEPAGE);
}

static void remap(size_t size)
{
    char *user = map_small_pages(size), *pool = map_small_pages(size);
    char *hole = mmap(NULL, size, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    double swap[REMAPS], copy[REMAPS], give[REMAPS], refill[REMAPS], start;
    int i;

    for (i = 0; i < REMAPS; ++i) {
        memset(pool, i, size);
        memset(user, i + 1, size);
        start = now_us();
        move(user, hole, size);
        move(pool, user, size);
        move(hole, pool, size);
        swap[i] = now_us() - start;
        CHECK(user[size - 1] == (char)i, "the pages were not exchanged");

        memset(pool, i + 2, size);
        start = now_us();
        memcpy(user, pool, size);
        copy[i] = now_us() - start;

        start = now_us();
        move(pool, user, size);
        give[i] = now_us() - start;
        new_pages(pool, size);
        start = now_us();
        memset(pool, 0, size);
        refill[i] = now_us() - start;
        /* mremap() has left the place of the hole and of the pool empty */
        hole = mmap(hole, size, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    printf("swap_us %.1f copy_us %.1f give_us %.1f refill_us %.1f\n",
           median(swap, REMAPS), median(copy, REMAPS), median(give, REMAPS),
           median(refill, REMAPS));
}

int main(int argc, char **argv)
{
    const char *kind = argc > 2 ? argv[1] : "";
    size_t size      = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;

    CHECK((size >= 4096) && (size % 4096 == 0),
          "the size must be a multiple of 4096");
    if (!strcmp(kind, "remap")) {
        remap(size);
        return EXIT_SUCCESS;
    }

    CHECK(!strcmp(kind, "stream") && (argc >= 5),
          "say stream SIZE MEMORY SEED [break], or remap SIZE");
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    start_kb = status_kb("VmRSS:");
    stream(size, argv[3], strtoull(argv[4], NULL, 0),
           (argc > 5) && !strcmp(argv[5], "break"));
    MPI_Finalize();
    return EXIT_SUCCESS;
}
