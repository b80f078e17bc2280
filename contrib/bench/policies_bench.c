/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * MPI benchmark of what happens to buffers between messages.
 *
 * All memory has pages of 4 KiB, whatever the machine's setting is.
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
 *   rate SIZE MEMORY SEED PERCENT
 *       The first six fields for this PERCENT, and nothing that takes time
 *       otherwise. Up to ROUNDS times all buffers are new, so that one place
 *       in memory, good or bad for the caches, does not decide. Processes
 *       that allocate alike get the same pages again and again. So a random
 *       amount of memory, up to BALLAST, is in use meanwhile.
 *
 *   floor SIZE MEMORY SEED PERCENT WAY
 *       The same without a transport, which no transport can be faster than:
 *       when the sender has written all, the receiver has the kernel bring in
 *       the pages of its new buffers. WAY is
 *           pages   this alone
 *           copy    and one copy, as the emulated NIC makes it; every byte is
 *                   checked
 *           helped  the pages, by two threads, while the sender polls
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

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SLOTS     10
#define WARM      2 /* Batches that are not timed */
#define WARM_KEPT 12 /* The same with kept buffers: until caches know them */
#define MIN_TURNS 8
#define MAX_TURNS 510 /* A multiple of ROUNDS */
#define VOLUME    (256ul << 20)
#define PAGE      4096ul
#define ROUNDS    6 /* Of rate and floor, at least 4 batches each */
#define BALLAST   (1ul << 30)
#define SETTLE_US 1e6
#define REMAPS    31

/* How the receiver gets its data; most ways leave that out */
typedef enum { BY_MESSAGES, PAGES, COPY, HELPED, NUM_WAYS } way_t;

static const char *const way_names[NUM_WAYS] = {
    "messages", "pages", "copy", "helped"
};

typedef struct {
    size_t     size;
    int        is_malloc, is_broken;
    way_t      way;
    pid_t      peer;             /* Rank 0 */
    uint64_t   random;
    void       *kept[SLOTS];
    void       *buffers[SLOTS];  /* Of this batch */
    atomic_int next;             /* Slot whose pages come in next */
    uint64_t   number;           /* Of the next message */
    long       wrong, messages, fresh, choices;
    long       locked_kb;
    double     us;               /* Of the last batch */
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

/* What a receiver cannot do without: the pages of its new buffers */
static void bring_in(const stream_t *stream, void *buffer)
{
    uintptr_t start = (uintptr_t)buffer & -PAGE;
    uintptr_t end   = ((uintptr_t)buffer + stream->size + PAGE - 1) & -PAGE;

    CHECK(!madvise((void*)start, end - start, MADV_POPULATE_WRITE),
          "MADV_POPULATE_WRITE: %m");
}

/* For one or two threads: the slots that no thread has taken yet */
static void *bring_in_all(void *arg)
{
    stream_t *stream = arg;
    int slot;

    while ((slot = atomic_fetch_add(&stream->next, 1)) < SLOTS) {
        if (stream->buffers[slot] != stream->kept[slot]) {
            bring_in(stream, stream->buffers[slot]);
        }
    }
    return NULL;
}

static void bring_in_helped(stream_t *stream)
{
    pthread_t helper;

    CHECK(!pthread_create(&helper, NULL, bring_in_all, stream),
          "cannot start a thread");
    bring_in_all(stream);
    pthread_join(helper, NULL);
}

/* One message as the emulated NIC moves it: by one system call */
static void copy_from(pid_t pid, const stream_t *stream, void *from, void *to)
{
    struct iovec local = {to, stream->size}, remote = {from, stream->size};

    CHECK(process_vm_readv(pid, &local, 1, &remote, 1, 0) ==
          (ssize_t)stream->size, "process_vm_readv: %m");
}

/* The receiver brings in the pages of a message and copies it, then the next */
static void copy_all(stream_t *stream, void *const *from)
{
    int slot;

    for (slot = 0; slot < SLOTS; ++slot) {
        if (stream->buffers[slot] != stream->kept[slot]) {
            bring_in(stream, stream->buffers[slot]);
        }
        copy_from(stream->peer, stream, from[slot], stream->buffers[slot]);
    }
}

/* Barriers stand for the messages that say that data is there, and received */
static void without_transport(stream_t *stream)
{
    void *from[SLOTS];

    memcpy(from, stream->buffers, sizeof(from));
    MPI_Bcast(from, sizeof(from), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank == 1) {
        switch (stream->way) {
        case PAGES:
            bring_in_all(stream);
            break;
        case HELPED:
            bring_in_helped(stream);
            break;
        case COPY:
            copy_all(stream, from);
            break;
        default:
            break;
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void batch(stream_t *stream, int percent)
{
    void **buffers = stream->buffers;
    double start;
    long locked;
    int slot;

    MPI_Barrier(MPI_COMM_WORLD);
    start = now_us();
    atomic_store(&stream->next, 0);
    take_all(stream, percent, buffers);
    if (rank == 0) {
        write_messages(stream, buffers);
    }
    if (stream->way == BY_MESSAGES) {
        transfer(stream, buffers);
    } else {
        without_transport(stream);
    }
    stream->us = now_us() - start;

    locked            = status_kb("VmLck:");
    stream->locked_kb = locked > stream->locked_kb ? locked : stream->locked_kb;
    for (slot = 0; slot < SLOTS; ++slot) {
        /* In all ways, for the caches, but some have moved no data */
        stream->wrong += (rank == 1) &&
                         !is_pattern(buffers[slot], stream->size,
                                     stream->number + slot) &&
                         ((stream->way == BY_MESSAGES) ||
                          (stream->way == COPY));
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

static void print_rate(stream_t *stream, int percent, const double *times,
                       int turns)
{
    double sums[NUM_SUMS] = {stream->wrong, stream->messages, stream->fresh,
                             stream->choices}, sum[NUM_SUMS];
    double us             = fast_mean(times, turns);

    MPI_Reduce(sums, sum, NUM_SUMS, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("percent %d mb_per_s %.1f wrong %.0f messages %.0f fresh %.0f "
               "choices %.0f\n", percent, (double)stream->size * SLOTS / us,
               sum[WRONG], sum[MESSAGES], sum[FRESH], sum[CHOICES]);
    }
}

static long positive(long value)
{
    return value > 0 ? value : 0;
}

static int count_turns(size_t size)
{
    size_t turns = VOLUME / (SLOTS * size);

    turns = turns < MIN_TURNS ? MIN_TURNS : turns;
    return turns > MAX_TURNS ? MAX_TURNS : turns;
}

/* The kept buffers, and batches that are neither timed nor counted */
static void begin(stream_t *stream, int percent)
{
    stream_t before = *stream;
    int slot, turn, warm = percent > 0 ? WARM_KEPT : WARM;

    for (slot = 0; (percent > 0) && (slot < SLOTS); ++slot) {
        stream->kept[slot] = allocate(stream);
    }
    for (turn = 0; turn < warm; ++turn) {
        batch(stream, percent > 0 ? 100 : 0);
    }
    stream->messages = before.messages;
    stream->fresh    = before.fresh;
    stream->choices  = before.choices;
}

static void end(stream_t *stream, int percent)
{
    int slot;

    for (slot = 0; (percent > 0) && (slot < SLOTS); ++slot) {
        release(stream, stream->kept[slot]);
    }
}

static void share(size_t size, int is_malloc, uint64_t seed, int is_broken,
                  int percent)
{
    stream_t stream = {.size = size, .is_malloc = is_malloc,
                       .random = mix(seed + 2 * percent + rank)};
    int turn, turns = count_turns(size);
    double sums[NUM_SUMS], maxima[NUM_MAXIMA], times[MAX_TURNS];
    long faults_before;

    reset_peak();
    begin(&stream, percent);
    stream.is_broken = is_broken && (rank == 0);
    faults_before    = faults();
    for (turn = 0; turn < turns; ++turn) {
        batch(&stream, percent);
        times[turn] = stream.us;
    }
    sums[FAULTS] = faults() - faults_before;

    end(&stream, percent);
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

/* Kept buffers, in other pages than those of the last round or process */
static void begin_elsewhere(stream_t *stream, int percent)
{
    size_t size = (1 + mix((uint64_t)(now_us() * 1e3) + rank) %
                       (BALLAST / PAGE)) * PAGE;
    char *ballast = map_small_pages(size);
    size_t i;

    for (i = 0; i < size; i += PAGE) {
        ballast[i] = 1;
    }
    begin(stream, percent);
    /* No memory hook may keep it */
    CHECK(!syscall(SYS_munmap, ballast, size), "cannot unmap memory: %m");
}

static void rate(size_t size, int is_malloc, uint64_t seed, int percent,
                 way_t way)
{
    stream_t stream = {.size = size, .is_malloc = is_malloc, .way = way,
                       .random = mix(seed + 2 * percent + rank)};
    int all    = count_turns(size);
    int rounds = all < 4 * ROUNDS ? all / 4 : ROUNDS;
    int turns  = (all + rounds - 1) / rounds;
    int round, turn, count = 0;
    double times[MAX_TURNS];

    stream.peer = getpid();
    MPI_Bcast(&stream.peer, sizeof(stream.peer), MPI_BYTE, 0, MPI_COMM_WORLD);

    for (round = 0; round < rounds; ++round) {
        if (percent > 0) {
            begin_elsewhere(&stream, percent);
        } else {
            begin(&stream, percent);
        }
        for (turn = 0; turn < turns; ++turn) {
            batch(&stream, percent);
            times[count++] = stream.us;
        }
        end(&stream, percent);
    }
    print_rate(&stream, percent, times, count);
}

static void stream(size_t size, int is_malloc, uint64_t seed, int is_broken)
{
    static const int percents[] = {0, 50, 90, 100};
    size_t i;

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

static way_t find_way(const char *name)
{
    way_t way;

    for (way = PAGES; way < NUM_WAYS; ++way) {
        if (!strcmp(name, way_names[way])) {
            return way;
        }
    }
    fail("no such way of floor");
    return NUM_WAYS;
}

/* What two ranks do; the words are those of the command line */
static void measure(const char *kind, size_t size, int count, char **words)
{
    int is_malloc = (count > 0) && !strcmp(words[0], "malloc");
    uint64_t seed = count > 1 ? strtoull(words[1], NULL, 0) : 0;
    int percent   = count > 2 ? atoi(words[2]) : 0;
    int ranks;

    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if ((ranks != 2) || (count < 2) ||
        (!is_malloc && strcmp(words[0], "mmap"))) {
        fail("needs 2 ranks, malloc or mmap, and a seed");
    } else if (!strcmp(kind, "stream")) {
        stream(size, is_malloc, seed,
               (count > 2) && !strcmp(words[2], "break"));
    } else if (!strcmp(kind, "rate") && (count == 3)) {
        rate(size, is_malloc, seed, percent, BY_MESSAGES);
    } else if (!strcmp(kind, "floor") && (count == 4)) {
        rate(size, is_malloc, seed, percent, find_way(words[3]));
    } else {
        fail("the head of policies_bench.c has the command line");
    }
}

int main(int argc, char **argv)
{
    const char *kind = argc > 2 ? argv[1] : "";
    size_t size      = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;

    CHECK((size >= PAGE) && (size % PAGE == 0),
          "the size must be a multiple of 4096");
    if (!strcmp(kind, "remap")) {
        remap(size);
        return EXIT_SUCCESS;
    }

    /* Huge pages would depend on the setting of the machine, the size and the
     * place of each buffer */
    CHECK(!prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), "PR_SET_THP_DISABLE: %m");
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    start_kb = status_kb("VmRSS:");
    measure(kind, size, argc - 3, argv + 3);
    MPI_Finalize();
    return EXIT_SUCCESS;
}
