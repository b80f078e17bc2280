/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_run_job.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits against records that are made up */
#define NPRDMA_RUN_MAX_PROCESSES 1000000u
#define NPRDMA_RUN_MAX_RANKS     1000000l

/* Reasons that are written; the rest is counted */
#define NPRDMA_RUN_MAX_REASONS   8

#define NPRDMA_RUN_BUCKETS       65536u

typedef struct nprdma_run_process {
    struct nprdma_run_process *next;     /* in its bucket */
    struct nprdma_run_process *next_all; /* of the job */
    char                 *id;
    char                 *host;
    char                 *program;
    char                 *job;           /* NULL: the launcher does not say */
    char                 *pml;
    char                 *tls;
    char                 *uct;
    char                 *refused;
    long                 pid;
    long                 rank;           /* -1: no rank */
    long                 size;           /* 0: unknown */
    int                  has_ended;
    int                  has_opened;
    int                  has_counted;
    int                  has_mpi;
    int                  has_component;
    nprdma_record_sums_t sums;
    nprdma_record_sums_t paged;          /* the same, of its files */
    int                  is_bad;         /* nprdma-run, of a job that is */
} nprdma_run_process_t;

struct nprdma_run_job {
    nprdma_run_process_t *buckets[NPRDMA_RUN_BUCKETS];
    nprdma_run_process_t *all;
    unsigned             count;
};

/* Processes of one world of ranks, by rank */
typedef struct {
    const char           *job;
    long                 size;
    nprdma_run_process_t **ranks;
} nprdma_run_world_t;

/* ---- records ---- */

nprdma_run_job_t *nprdma_run_job_create(void)
{
    return calloc(1, sizeof(nprdma_run_job_t));
}

void nprdma_run_job_destroy(nprdma_run_job_t *job)
{
    nprdma_run_process_t *process;

    while ((process = job->all) != NULL) {
        job->all = process->next_all;
        free(process->id);
        free(process->host);
        free(process->program);
        free(process->job);
        free(process->pml);
        free(process->tls);
        free(process->uct);
        free(process->refused);
        free(process);
    }
    free(job);
}

/* The value of a key in lines that end with zero bytes */
static const char *
nprdma_run_value(const char *text, size_t length, const char *key)
{
    size_t key_length = strlen(key);
    const char *end   = text + length;

    for (; text < end; text += strlen(text) + 1) {
        if (!strncmp(text, key, key_length) && (text[key_length] == ' ')) {
            return text + key_length + 1;
        }
    }
    return NULL;
}

static long nprdma_run_number(const char *text, size_t length, const char *key,
                              long missing)
{
    const char *value = nprdma_run_value(text, length, key);
    char *end;
    long number;

    if (value == NULL) {
        return missing;
    }
    number = strtol(value, &end, 10);
    return ((end == value) || (*end != '\0') || (number < 0)) ? missing :
                                                                number;
}

/* Keeps the last value; an earlier one stays if there is none */
static void nprdma_run_keep(char **field, const char *text, size_t length,
                            const char *key)
{
    const char *value = nprdma_run_value(text, length, key);
    char *copy        = (value == NULL) ? NULL : strdup(value);

    if (copy != NULL) {
        free(*field);
        *field = copy;
    }
}

static nprdma_run_process_t *
nprdma_run_job_find(nprdma_run_job_t *job, const char *id)
{
    uint32_t hash = 2166136261u;
    nprdma_run_process_t *process;
    const char *c;

    for (c = id; *c != '\0'; ++c) {
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    }
    hash %= NPRDMA_RUN_BUCKETS;
    for (process = job->buckets[hash]; process != NULL;
         process = process->next) {
        if (!strcmp(process->id, id)) {
            return process;
        }
    }

    if (job->count >= NPRDMA_RUN_MAX_PROCESSES) {
        return NULL;
    }
    process = calloc(1, sizeof(*process));
    if ((process == NULL) || ((process->id = strdup(id)) == NULL)) {
        free(process);
        return NULL;
    }
    process->rank      = -1;
    process->next      = job->buckets[hash];
    process->next_all  = job->all;
    job->buckets[hash] = process;
    job->all           = process;
    ++job->count;
    return process;
}

static void nprdma_run_add(nprdma_record_sums_t *sums,
                           const nprdma_record_sums_t *more)
{
#define NPRDMA_RUN_ADD_SUM(_name) sums->_name += more->_name;
    NPRDMA_RECORD_FOREACH_SUM(NPRDMA_RUN_ADD_SUM)
#undef NPRDMA_RUN_ADD_SUM
}

/* Files have all of a process that records have, but for memory, and go on
 * after the last record. Where a process could make no file it is the other way
 * round. */
static nprdma_record_sums_t
nprdma_run_sums(const nprdma_run_process_t *process)
{
    nprdma_record_sums_t sums = process->sums;

#define NPRDMA_RUN_MAX_SUM(_name) \
    if (process->paged._name > sums._name) { \
        sums._name = process->paged._name; \
    }
    NPRDMA_RECORD_FOREACH_SUM(NPRDMA_RUN_MAX_SUM)
#undef NPRDMA_RUN_MAX_SUM
    return sums;
}

static void nprdma_run_job_take_sums(nprdma_run_process_t *process,
                                     const char *text, size_t length)
{
    const char *value;

    process->has_counted = process->has_opened = 1;
#define NPRDMA_RUN_TAKE_SUM(_name) \
    value                = nprdma_run_value(text, length, #_name); \
    process->sums._name  = (value == NULL) ? 0 : strtoull(value, NULL, 10);
    NPRDMA_RECORD_FOREACH_SUM(NPRDMA_RUN_TAKE_SUM)
#undef NPRDMA_RUN_TAKE_SUM
}

void nprdma_run_job_take_page(nprdma_run_job_t *job, const char *id,
                              const nprdma_record_sums_t *sums)
{
    nprdma_run_process_t *process = nprdma_run_job_find(job, id);

    if (process != NULL) {
        process->has_counted = process->has_opened = 1;
        nprdma_run_add(&process->paged, sums);
    }
}

void nprdma_run_job_take(nprdma_run_job_t *job, char *text)
{
    size_t length = strlen(text);
    nprdma_run_process_t *process;
    const char *kind, *id;
    char *c;

    for (c = text; c < text + length; ++c) {
        if (*c == '\n') {
            *c = '\0';
        } else if (((unsigned char)*c < ' ') || (*c == 0x7f)) {
            *c = '?'; /* it may be written to a terminal */
        }
    }

    kind    = nprdma_run_value(text, length, "kind");
    id      = nprdma_run_value(text, length, "process");
    process = ((kind == NULL) || (id == NULL)) ? NULL :
              nprdma_run_job_find(job, id);
    if (process == NULL) {
        return;
    }

    nprdma_run_keep(&process->host, text, length, "host");
    nprdma_run_keep(&process->program, text, length, "program");
    nprdma_run_keep(&process->job, text, length, "job");
    nprdma_run_keep(&process->pml, text, length, "pml");
    nprdma_run_keep(&process->tls, text, length, "tls");
    nprdma_run_keep(&process->uct, text, length, "uct");
    process->pid  = nprdma_run_number(text, length, "pid", process->pid);
    process->rank = nprdma_run_number(text, length, "rank", process->rank);
    process->size = nprdma_run_number(text, length, "size", process->size);
    process->is_bad |= nprdma_run_number(text, length, "bad", 0) > 0;
    if (!strcmp(kind, NPRDMA_RECORD_ENDED)) {
        process->has_ended     = 1;
        process->has_mpi       = nprdma_run_number(text, length, "mpi", 0) > 0;
        process->has_component = nprdma_run_number(text, length, "component",
                                                   0) > 0;
    } else if (!strcmp(kind, NPRDMA_RECORD_OPENED)) {
        process->has_opened = 1;
    } else if (!strcmp(kind, NPRDMA_RECORD_COUNTED)) {
        nprdma_run_job_take_sums(process, text, length);
    } else if (!strcmp(kind, NPRDMA_RECORD_REFUSED)) {
        nprdma_run_keep(&process->refused, text, length, "reason");
    }
}

/* ---- the verdict ---- */

static int nprdma_run_same_job(const char *a, const char *b)
{
    return (a == b) || ((a != NULL) && (b != NULL) && !strcmp(a, b));
}

/* How much a process says about its rank: a shell around the program says
 * less than the program */
static int nprdma_run_weight(const nprdma_run_process_t *process)
{
    return (process->has_counted * 32) + (process->has_opened * 16) +
           ((process->refused != NULL) * 8) + ((process->uct != NULL) * 4) +
           (process->has_mpi * 2) + process->has_ended;
}

/* Fill the ranks of the world that a process belongs to. Returns 0 if there is
 * no memory or no size. */
static int nprdma_run_world(const nprdma_run_job_t *job,
                            const nprdma_run_process_t *member,
                            nprdma_run_world_t *world)
{
    nprdma_run_process_t *process, **best;

    world->job  = member->job;
    world->size = 0;
    for (process = job->all; process != NULL; process = process->next_all) {
        if (nprdma_run_same_job(process->job, world->job) &&
            (process->size > world->size)) {
            world->size = process->size;
        }
    }
    if ((world->size == 0) || (world->size > NPRDMA_RUN_MAX_RANKS)) {
        return 0;
    }

    world->ranks = calloc(world->size, sizeof(*world->ranks));
    if (world->ranks == NULL) {
        return 0;
    }
    for (process = job->all; process != NULL; process = process->next_all) {
        if (!nprdma_run_same_job(process->job, world->job) ||
            (process->rank < 0) || (process->rank >= world->size)) {
            continue;
        }
        best = &world->ranks[process->rank];
        if ((*best == NULL) ||
            (nprdma_run_weight(process) > nprdma_run_weight(*best))) {
            *best = process;
        }
    }
    return 1;
}

/* Why a process has no interface of nprdma; empty if it has one */
static void nprdma_run_reason(const nprdma_run_process_t *process, char *reason,
                              size_t size)
{
    reason[0] = '\0';
    if (process == NULL) {
        snprintf(reason, size, "sent no record: the launcher did not give it "
                 "LD_PRELOAD and NPRDMA_RUN (mpirun -x), the program is "
                 "static or setuid, or it cannot reach this host");
    } else if (process->has_opened) {
        return;
    } else if (process->refused != NULL) {
        snprintf(reason, size, "%s", process->refused);
    } else if (!process->has_ended) {
        snprintf(reason, size, "was killed or lost LD_PRELOAD before it used "
                 "nprdma (%s on %s, process %ld)",
                 process->program ? process->program : "?",
                 process->host ? process->host : "?", process->pid);
    } else if ((process->pml != NULL) && strcmp(process->pml, "ucx") &&
               process->has_mpi) {
        snprintf(reason, size, "Open MPI was told to use pml %s, not ucx "
                 "(mpirun --mca pml, or OMPI_MCA_pml)", process->pml);
    } else if (process->uct == NULL) {
        snprintf(reason, size, process->has_mpi ?
                 "its MPI did not load UCX: it is not built on UCX, or did not "
                 "select it" : "its program %s used neither MPI nor UCX",
                 process->program ? process->program : "?");
    } else if (!process->has_component) {
        snprintf(reason, size, "its UCX, %s, did not load nprdma: no "
                 "component was built for it (nprdma-build-for-ucx), or no "
                 "LD_PRELOAD of libnprdma_preload.so", process->uct);
    } else {
        snprintf(reason, size, "UCX opened no interface of nprdma: UCX_TLS=%s, "
                 "or the device is not usable (UCX_LOG_LEVEL=info says why)",
                 process->tls ? process->tls : "(not set)");
    }
}

/* Ranks with one reason make one line */
static unsigned nprdma_run_judge_world(const nprdma_run_world_t *world,
                                       const char *level)
{
    char reason[2048], next[2048];
    unsigned count = 0;
    long first, last;

    for (first = 0; first < world->size; first = last + 1) {
        last = first;
        nprdma_run_reason(world->ranks[first], reason, sizeof(reason));
        if (reason[0] == '\0') {
            continue;
        }
        while (last + 1 < world->size) {
            nprdma_run_reason(world->ranks[last + 1], next, sizeof(next));
            if (strcmp(next, reason)) {
                break;
            }
            ++last;
        }
        if (++count > NPRDMA_RUN_MAX_REASONS) {
            continue;
        }
        if (last > first) {
            fprintf(stderr, "nprdma-run: %s: ranks %ld to %ld of %ld: %s\n",
                    level, first, last, world->size, reason);
        } else {
            fprintf(stderr, "nprdma-run: %s: rank %ld of %ld: %s\n", level,
                    first, world->size, reason);
        }
    }
    if (count > NPRDMA_RUN_MAX_REASONS) {
        fprintf(stderr, "nprdma-run: %s: and %u more such lines\n", level,
                count - NPRDMA_RUN_MAX_REASONS);
    }
    return count;
}

/* Whether this is the first process of its world in the list */
static int nprdma_run_is_first(const nprdma_run_job_t *job,
                               const nprdma_run_process_t *member)
{
    const nprdma_run_process_t *process;

    for (process = job->all; process != member; process = process->next_all) {
        if ((process->rank >= 0) && (process->size > 0) &&
            nprdma_run_same_job(process->job, member->job)) {
            return 0;
        }
    }
    return 1;
}

/* Processes without a rank: reported only if there was no byte at all, because
 * a program may use UCX for something else */
static void nprdma_run_judge_others(const nprdma_run_job_t *job,
                                    const char *level)
{
    const nprdma_run_process_t *process;
    unsigned count = 0;
    char reason[2048];

    for (process = job->all; process != NULL; process = process->next_all) {
        nprdma_run_reason(process, reason, sizeof(reason));
        if (((process->rank < 0) || (process->size == 0)) && reason[0] &&
            (++count <= NPRDMA_RUN_MAX_REASONS)) {
            fprintf(stderr, "nprdma-run: %s: process %ld (%s): %s\n", level,
                    process->pid, process->program ? process->program : "?",
                    reason);
        }
    }
}

/* Sums of the job. Returns how many processes have opened an interface and not
 * said what went over it. */
static unsigned nprdma_run_uncounted(const nprdma_run_job_t *job,
                                     nprdma_record_sums_t *sums,
                                     unsigned *opened)
{
    const nprdma_run_process_t *process;
    nprdma_record_sums_t more;
    unsigned uncounted = 0;

    *opened = 0;
    memset(sums, 0, sizeof(*sums));
    for (process = job->all; process != NULL; process = process->next_all) {
        *opened   += process->has_opened;
        uncounted += process->has_opened && !process->has_counted;
        more       = nprdma_run_sums(process);
        nprdma_run_add(sums, &more);
    }
    return uncounted;
}

static void nprdma_run_judge_bytes(const nprdma_run_job_t *job,
                                   unsigned opened, unsigned uncounted,
                                   const char *level)
{
    const char *tls = NULL;
    const nprdma_run_process_t *process;

    for (process = job->all; process != NULL; process = process->next_all) {
        tls = (process->has_opened && process->tls) ? process->tls : tls;
    }
    if (uncounted > 0) {
        fprintf(stderr, "nprdma-run: %s: it is unknown whether a byte went "
                "over nprdma: %u of %u processes that opened it ended without "
                "their counters\n", level, uncounted, opened);
        return;
    }

    fprintf(stderr, "nprdma-run: %s: no byte went over nprdma: ", level);
    if (job->count == 0) {
        fprintf(stderr, "no process of the command used MPI or UCX, or "
                "LD_PRELOAD does not reach them\n");
    } else if (opened == 0) {
        fprintf(stderr, "no process opened an interface of it\n");
    } else {
        fprintf(stderr, "%u of %u processes opened it, and had nothing to "
                "send, or sent it by another transport (UCX_TLS=%s)\n", opened,
                job->count, tls ? tls : "(not set)");
    }
}

int nprdma_run_job_judge(const nprdma_run_job_t *job, const char *level)
{
    const nprdma_run_process_t *process;
    unsigned uncounted, opened, bad = 0;
    nprdma_record_sums_t sums;
    nprdma_run_world_t world;

    uncounted = nprdma_run_uncounted(job, &sums, &opened);
    if (sums.bytes_sent + sums.bytes_received == 0) {
        ++bad;
        nprdma_run_judge_bytes(job, opened, uncounted, level);
        nprdma_run_judge_others(job, level);
    }
    for (process = job->all; process != NULL; process = process->next_all) {
        bad += process->is_bad;
        if ((process->rank >= 0) && (process->size > 0) &&
            nprdma_run_is_first(job, process) &&
            nprdma_run_world(job, process, &world)) {
            bad += nprdma_run_judge_world(&world, level);
            free(world.ranks);
        }
    }
    return bad == 0;
}

void nprdma_run_job_report(const nprdma_run_job_t *job, int is_good)
{
    nprdma_record_sums_t sums;
    unsigned uncounted, opened;
    nprdma_record_t record;
    const char *kind;

    uncounted = nprdma_run_uncounted(job, &sums, &opened);
    kind      = (opened == 0) ? NPRDMA_RECORD_REFUSED :
                ((uncounted > 0) && (sums.bytes_sent + sums.bytes_received ==
                                     0)) ? NPRDMA_RECORD_OPENED :
                NPRDMA_RECORD_COUNTED;
    if (nprdma_record_begin(&record, kind)) {
        nprdma_record_add(&record, "bad", "%d", !is_good);
        nprdma_record_add(&record, "reason", "it has said why");
        nprdma_record_add_sums(&record, &sums);
        nprdma_record_send(&record);
    }
}

void nprdma_run_job_print(const nprdma_run_job_t *job)
{
    const nprdma_run_process_t *process;
    unsigned counted = 0, uncounted, opened;
    nprdma_record_sums_t sums;
    char line[512], lost[64]   = "";

    uncounted = nprdma_run_uncounted(job, &sums, &opened);
    for (process = job->all; process != NULL; process = process->next_all) {
        counted += process->has_counted;
    }
    if (uncounted > 0) {
        snprintf(lost, sizeof(lost), " (%u more ended without their counters)",
                 uncounted);
    }
    nprdma_record_line(&sums, line, sizeof(line));
    fprintf(stderr, "# nprdma job of %u processes%s: %s\n", counted, lost,
            line);
}
