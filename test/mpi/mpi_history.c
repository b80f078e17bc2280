/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Random one-sided programs that conform to MPI-3.1 11.7, from all ranks to the
 * windows of all, while the processes fork and lose pages. The values that the
 * ranks saw and the final contents of the windows must have an order that MPI
 * permits: see history_log.h. The check does not depend on the
 * implementation, so the program passes over every correct one. Of Open MPI
 * 4.1.4, osc/ucx over tcp and shared memory is correct, and so is osc/sm.
 * Others are not: with osc/pt2pt small operations pass large ones of the same
 * origin; osc/rdma over vader ends in SIGSEGV in a compare and swap on the own
 * window.
 *
 * -s SEED    of random choices (default: from the clock), printed on failure
 * -t SECONDS of phases (default 10)
 * -p PHASE   the first one (default 0): to repeat a failure; with -n 1, alone
 * -n NUMBER  of phases, instead of seconds
 * -d LIST    of fork, pageout, move, huge, remap (memory of windows is replaced
 *            between phases; MPI does not promise that this works, and with
 *            pinned memory it does not)
 * -a         windows of MPI_Win_allocate (default: MPI_Win_create)
 * -k         keep going after a failure
 * -x         control: change one value in each phase; the check must find
 *            exactly that one
 */

#include "history_disturb.h"
#include "history_log.h"
#include "history_run.h"
#include "mpi_test.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* A phase that takes longer is considered hung */
#define PHASE_SECONDS  150u

#define REMAP          16u /* In addition to history_disturbance_t */

#define HUGE           (2ul << 20)

static struct {
    uint64_t seed;
    double   seconds;
    uint32_t first;
    uint32_t num;
    unsigned disturb;
    int      allocate;
    int      keep_going;
    int      lie;
} options = {.seconds = 10};

static history_run_t  run;
static char           initial[HISTORY_WINDOW]; /* The own window */
static char           last[HISTORY_WINDOW];
static char           hung[160]; /* What is said of a phase that hangs */
static int            has_lied;
static uint64_t       num_found; /* Changed values that were found exactly */

static unsigned parse_disturbances(char *list)
{
    static const char *const names[] = {"fork", "pageout", "move", "huge",
                                        "remap"};
    unsigned kinds = 0;
    unsigned i;
    char *name;

    for (name = strtok(list, ","); name != NULL; name = strtok(NULL, ",")) {
        for (i = 0; strcmp(name, names[i]) != 0;) {
            CHECK(++i < 5, "-d '%s' is no disturbance", name);
        }
        kinds |= 1u << i;
    }
    return kinds;
}

static void parse(int argc, char **argv)
{
    int option;

    options.seed = time(NULL);
    while ((option = getopt(argc, argv, "s:t:p:n:d:akx")) != -1) {
        switch (option) {
        case 's':
            options.seed = strtoull(optarg, NULL, 0);
            break;
        case 't':
            options.seconds = atof(optarg);
            break;
        case 'p':
            options.first = atoi(optarg);
            break;
        case 'n':
            options.num = atoi(optarg);
            break;
        case 'd':
            options.disturb = parse_disturbances(optarg);
            break;
        case 'a':
            options.allocate = 1;
            break;
        case 'k':
            options.keep_going = 1;
            break;
        case 'x':
            options.lie        = 1;
            options.keep_going = 1;
            break;
        default:
            CHECK(0, "options are in the head of mpi_history.c");
        }
    }
    CHECK(optind == argc, "argument '%s'", argv[optind]);
    MPI_Bcast(&options.seed, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
}

static void open_logs(void)
{
    char name[64] = "";

    if (mpi_test_rank == 0) {
        snprintf(name, sizeof(name), "/mpi_history.%d.%" PRIx64, getpid(),
                 options.seed);
        run.logs = history_log_open(name, mpi_test_size, 1);
        CHECK(run.logs != NULL, "shared memory %s: %m", name);
    }
    MPI_Bcast(name, sizeof(name), MPI_CHAR, 0, MPI_COMM_WORLD);
    if (mpi_test_rank != 0) {
        run.logs = history_log_open(name, mpi_test_size, 0);
        CHECK(run.logs != NULL, "shared memory %s: %m", name);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (mpi_test_rank == 0) {
        history_log_unlink(name);
    }
}

static void open_window(void)
{
    if (options.allocate) {
        MPI_Win_allocate(HISTORY_WINDOW, 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                         &run.base, &run.win);
    } else {
        /* Huge pages can replace all pages around it */
        run.base = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(run.base != MAP_FAILED, "no memory: %m");
        run.base += -(uintptr_t)run.base % HUGE;
        history_disturb_add(run.base, HISTORY_WINDOW);
        MPI_Win_create(run.base, HISTORY_WINDOW, 1, MPI_INFO_NULL,
                       MPI_COMM_WORLD, &run.win);
    }

    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, mpi_test_rank, 0, run.win);
    memset(run.base, 0, HISTORY_WINDOW);
    MPI_Win_unlock(mpi_test_rank, run.win);
    memset(initial, 0, HISTORY_WINDOW);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Replaces the window's memory by other memory with other contents. Everything
 * that the process and its peers know of the old pages is invalid then. */
static void remap_window(uint64_t *state)
{
    uint64_t *words = (uint64_t*)last;
    size_t i;

    if (history_random(state, 2) == 0) {
        CHECK(mmap(run.base, HISTORY_WINDOW, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == run.base,
              "no memory: %m");
    } else {
        CHECK(madvise(run.base, HISTORY_WINDOW, MADV_DONTNEED) == 0, "%m");
    }
    /* Some pages stay untouched: zeroes that are not populated */
    for (i = 0; i < HISTORY_WINDOW / sizeof(*words); ++i) {
        words[i] = (i / 4096) % 2 ? 0 : words[i] + 0x1000000010000ul;
    }
    for (i = 0; i < HISTORY_WINDOW; i += 4096 * sizeof(*words)) {
        if (words[i / sizeof(*words)] != 0) {
            memcpy(run.base + i, last + i, 4096 * sizeof(*words));
        }
    }
}

/* Changes one value that the rank has fetched; if there is none, the last value
 * of an element of its window, see take_window() */
static void lie_about_log(const history_phase_t *phase, uint64_t *state)
{
    history_log_t *log = &run.logs[mpi_test_rank];
    unsigned i         = history_random(state, log->num_calls + 1);

    for (; i < log->num_calls; ++i) {
        if (log->calls[i].values != HISTORY_NO_VALUES) {
            log->values[log->calls[i].values +
                        phase->width * history_random(state,
                                                      log->calls[i].count) +
                        phase->width - 1] ^= 0x55;
            has_lied = 1;
            return;
        }
    }
}

static int is_liar(const history_phase_t *phase)
{
    return options.lie &&
           ((int)(phase->number % mpi_test_size) == mpi_test_rank);
}

static void take_window(const history_phase_t *phase)
{
    uint64_t state = history_seed(options.seed, phase->number, 0xfe);

    memcpy(last, run.base, HISTORY_WINDOW);
    if (is_liar(phase) && !has_lied) {
        last[history_random(&state, HISTORY_WINDOW)] ^= 0x55;
    }
    run.num_bad = history_judge(phase, run.logs, mpi_test_size, mpi_test_rank,
                                initial, last);
    if (phase->remap && (options.disturb & REMAP) && !options.allocate) {
        remap_window(&state);
    }
    memcpy(initial, run.base, HISTORY_WINDOW);
}

/* Called after the last operation and all flushes of all ranks */
static void look_at_window(const history_phase_t *phase)
{
    if (phase->sync == HISTORY_FENCES) {
        take_window(phase);
        return;
    }
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, mpi_test_rank, 0, run.win);
    take_window(phase);
    MPI_Win_unlock(mpi_test_rank, run.win);
}

static void handle_alarm(int sig)
{
    _exit(sig + (write(STDERR_FILENO, hung, strlen(hung)) < 0));
}

static void watch_phase(uint32_t number)
{
    snprintf(hung, sizeof(hung),
             "FAILED on rank %d: seed %" PRIu64 " phase %u has not ended "
             "within %u s\n", mpi_test_rank, options.seed, number,
             PHASE_SECONDS);
    alarm(PHASE_SECONDS);
}

/* Ends a phase on all ranks. Nonzero: it was the last one. */
static int end_phase(uint32_t number, double end, uint64_t *num_bad)
{
    uint64_t state[3] = {run.num_bad, run.num_bad != 0, 0};

    if (mpi_test_rank == 0) {
        state[2] = (options.num > 0) ?
                   (number + 1 - options.first >= options.num) :
                   (MPI_Wtime() > end);
    }
    MPI_Allreduce(MPI_IN_PLACE, state, 3, MPI_UINT64_T, MPI_SUM,
                  MPI_COMM_WORLD);
    if ((state[0] != 0) && (mpi_test_rank == 0)) {
        printf("seed %" PRIu64 " phase %u: %" PRIu64 " elements in %" PRIu64
               " windows have no legal order\n", options.seed, number,
               state[0], state[1]);
        fflush(stdout);
    }
    *num_bad  += (state[0] != 0);
    num_found += (state[0] == 1);
    return state[2] || ((state[0] != 0) && !options.keep_going);
}

static uint32_t run_phases(uint64_t *num_bad)
{
    double end      = MPI_Wtime() + options.seconds;
    uint32_t number = options.first;
    history_phase_t phase;
    uint64_t state;
    int is_last;

    do {
        watch_phase(number);
        history_phase(options.seed, number, mpi_test_size, &phase);
        history_run_phase(&run, &phase,
                          history_seed(options.seed, number, mpi_test_rank));
        has_lied = 0;
        if (is_liar(&phase)) {
            state = history_seed(options.seed, number, 0xfd);
            lie_about_log(&phase, &state);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        look_at_window(&phase);
        is_last = end_phase(number, end, num_bad);
        ++number;
    } while (!is_last);

    alarm(0);
    return number - options.first;
}

static void report(uint32_t num_phases, uint64_t num_bad)
{
    const unsigned long *counts = history_disturb_stop();
    uint64_t sums[]             = {run.num_calls, run.num_fetched, counts[0],
                                   counts[1], counts[2], counts[3]};

    MPI_Allreduce(MPI_IN_PLACE, sums, 6, MPI_UINT64_T, MPI_SUM,
                  MPI_COMM_WORLD);
    if (mpi_test_rank == 0) {
        printf("history: seed %" PRIu64 ", %u phases, %" PRIu64 " bad, %"
               PRIu64 " operations, %" PRIu64 " elements fetched, %" PRIu64
               " forks, %" PRIu64 " pageouts, %" PRIu64 " moves, %" PRIu64
               " huge pages\n", options.seed, num_phases, num_bad, sums[0],
               sums[1], sums[2], sums[3], sums[4], sums[5]);
    }
}

int main(int argc, char **argv)
{
    char *no_rounds[] = {argv[0], NULL};
    uint64_t num_bad  = 0;
    uint32_t num_phases;

    mpi_test_init(1, no_rounds, MPI_THREAD_FUNNELED, 1);
    CHECK((mpi_test_size >= 2) &&
          (mpi_test_size <= (int)HISTORY_MAX_ORIGINS), "%d ranks",
          mpi_test_size);
    parse(argc, argv);
    signal(SIGALRM, handle_alarm);
    open_logs();
    open_window();
    run.is_disturbed = (options.disturb != 0);
    history_run_init(&run);
    history_disturb_start(options.disturb & ~REMAP,
                          history_seed(options.seed, 0, 0xf0 + mpi_test_rank));

    num_phases = run_phases(&num_bad);
    report(num_phases, num_bad);
    MPI_Win_free(&run.win);
    if (options.lie && (num_found == num_phases)) {
        if (mpi_test_rank == 0) {
            printf("history: all %u lies found, and nothing else\n",
                   num_phases);
        }
    } else if (num_bad > 0) {
        MPI_Finalize();
        return EXIT_FAILURE;
    }
    return mpi_test_done(run.num_bytes);
}
