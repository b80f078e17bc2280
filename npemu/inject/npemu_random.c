/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The random fault plan: every access of this process to a page behind an IOMMU
 * table evicts it with some probability. The decision is a hash of seed, table,
 * page and the count of accesses to the page, so that a run in which nothing
 * else is random can be repeated. Evictions can be recorded, and replayed in
 * part or as a whole.
 */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "base/npemu_file.h"
#include "base/npemu_limits.h"
#include "base/npemu_log.h"
#include "inject/npemu_fault.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NPEMU_RANDOM_PATH_MAX 256

/* One eviction, and its line in a record: "OWNER.NUMBER PAGE ACCESS VIEW TEAR
 * RESTORE". OWNER.NUMBER is the table, see npemu_iommu.c. */
typedef struct {
    uint64_t name;
    uint64_t page;
    uint32_t access;
    uint32_t view;
    uint32_t tear;
    uint32_t restore;
    uint32_t number;  /* in the record, from 1 */
} npemu_random_line_t;

typedef struct {
    double   rate;
    uint64_t seed;
    uint64_t granule;
    uint64_t restore;
    char     record[NPEMU_RANDOM_PATH_MAX];
    char     replay[NPEMU_RANDOM_PATH_MAX];
} npemu_random_spec_t;

_Atomic int npemu_random_active;
_Atomic uint32_t npemu_dma_granule;

/* Changed only while no request is executed. */
static struct {
    uint64_t            threshold;  /* a hash below it evicts */
    uint64_t            seed;
    uint32_t            restore;
    int                 record_fd;
    npemu_random_line_t *lines;     /* to replay, sorted */
    size_t              num_lines;
    int                 is_replay;
} npemu_random = {.record_fd = -1};

/* --- decisions -------------------------------------------------------------*/

/* The finalizer of splitmix64. */
static uint64_t npemu_random_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x  = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x  = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* By table, page and access, which identify an eviction. */
static int npemu_random_compare(const void *left, const void *right)
{
    const npemu_random_line_t *a = left, *b = right;

    if (a->name != b->name) {
        return (a->name < b->name) ? -1 : 1;
    }
    if (a->page != b->page) {
        return (a->page < b->page) ? -1 : 1;
    }
    return (a->access < b->access) ? -1 : (a->access > b->access);
}

/* Where an eviction tears the access: before it, after it, at a boundary of the
 * NIC's granules, or at one of packets, counted from the first byte of the
 * access. */
static uint32_t npemu_random_tear(uint64_t hash, uint32_t start)
{
    uint32_t granule = atomic_load(&npemu_dma_granule);
    uint32_t count, tear;

    if ((granule == 0) || (granule > NPEMU_DMA_GRANULE_MIN)) {
        granule = NPEMU_DMA_GRANULE_MIN;
    }
    count   = NPRDMA_PAGE_SIZE / granule;
    tear    = granule * (1 + (hash >> 8) % (count - 1));
    switch (hash % 4) {
    case 0:
        return 0;
    case 1:
        return NPRDMA_PAGE_SIZE;
    case 2:
        return tear;
    default:
        tear += start;
        return (tear < NPRDMA_PAGE_SIZE) ? tear : NPRDMA_PAGE_SIZE;
    }
}

static int npemu_random_replay(npemu_random_line_t *line)
{
    const npemu_random_line_t *found;

    if (npemu_random.num_lines == 0) {
        return 0;
    }

    found = bsearch(line, npemu_random.lines, npemu_random.num_lines,
                    sizeof(*line), npemu_random_compare);
    if (found == NULL) {
        return 0;
    }

    line->tear    = found->tear;
    line->restore = found->restore;
    return 1;
}

static int npemu_random_draw(npemu_random_line_t *line, uint32_t start)
{
    uint64_t hash;

    hash = npemu_random_mix(npemu_random.seed ^ npemu_random_mix(line->name));
    hash = npemu_random_mix(hash ^ line->page);
    hash = npemu_random_mix(hash ^ line->access);
    if (hash >= npemu_random.threshold) {
        return 0;
    }

    line->tear    = npemu_random_tear(npemu_random_mix(hash), start);
    line->restore = npemu_random.restore;
    return 1;
}

/* One write per line, so that lines of several processes do not mix. */
static void npemu_random_record(const npemu_random_line_t *line)
{
    char text[128];
    int length;

    length = snprintf(text, sizeof(text), "%u.%u %lu %u %u %u %u\n",
                      (unsigned)(line->name >> 32), (unsigned)line->name,
                      (unsigned long)line->page, line->access, line->view,
                      line->tear, line->restore);
    if (npemu_file_write(npemu_random.record_fd, text, length) != length) {
        npemu_warn("a line of the fault record is lost: %s", strerror(errno));
    }
}

void npemu_random_decide(npemu_table_t *table, npemu_fault_ticket_t *ticket)
{
    npemu_random_line_t line;

    line.name   = table->header->name;
    line.page   = ticket->page;
    line.access = atomic_fetch_add(&table->accesses[ticket->page], 1) + 1;
    line.view = ticket->view;
    if (!(npemu_random.is_replay ? npemu_random_replay(&line) :
                                   npemu_random_draw(&line,
                                                     ticket->start))) {
        return;
    }

    ticket->evict   = 1;
    ticket->tear    = line.tear;
    ticket->restore = line.restore;
    if (npemu_random.record_fd >= 0) {
        npemu_random_record(&line);
    }
}

/* --- configuration ---------------------------------------------------------*/

/* Parse a number of a line, and the character after it. Returns 1, or 0 if it
 * is not valid. */
static int npemu_random_field(const char **text, uint64_t max, char follows,
                              uint64_t *value)
{
    char *end;

    errno  = 0;
    *value = strtoull(*text, &end, 10);
    if ((**text < '0') || (**text > '9') || (errno != 0) || (*value > max) ||
        (*end != follows)) {
        return 0;
    }

    *text = end + 1;
    return 1;
}

/* Accept exactly what npemu_random_record() writes: else the file is not a
 * record, or is truncated. */
static int npemu_random_parse_line(const char *text, npemu_random_line_t *line)
{
    uint64_t owner, number, access, view, tear, restore;

    if (!npemu_random_field(&text, UINT32_MAX, '.', &owner) ||
        !npemu_random_field(&text, UINT32_MAX, ' ', &number) ||
        !npemu_random_field(&text, UINT64_MAX, ' ', &line->page) ||
        !npemu_random_field(&text, UINT32_MAX, ' ', &access) ||
        !npemu_random_field(&text, NPRDMA_PAGE_BITS, ' ', &view) ||
        !npemu_random_field(&text, NPRDMA_PAGE_SIZE, ' ', &tear) ||
        !npemu_random_field(&text, UINT32_MAX, '\n', &restore)) {
        return 0;
    }

    line->name    = (owner << 32) | number;
    line->access  = access;
    line->view  = view;
    line->tear    = tear;
    line->restore = restore;
    return (access > 0) && (view > 0);
}

/* Lines are sorted. An access is evicted once in a run. If it is twice in the
 * record, that is of two runs, or of processes without a rank, and cannot be
 * repeated exactly. */
static void npemu_random_check_unique(const char *path,
                                      const npemu_random_line_t *lines,
                                      size_t count)
{
    size_t i;

    for (i = 1; i < count; ++i) {
        if (npemu_random_compare(&lines[i - 1], &lines[i]) == 0) {
            npemu_warn("fault record %s: lines %u and %u name the same "
                       "access; one of them is replayed", path,
                       lines[i - 1].number, lines[i].number);
            return;
        }
    }
}

/* Read a record. Returns 0, or EINVAL with an error line. */
static int npemu_random_load(const char *path)
{
    size_t capacity = 0, count = 0;
    npemu_random_line_t *lines = NULL, *more;
    char text[256];
    FILE *file;
    int ret = 0;

    file = fopen(path, "re");
    if (file == NULL) {
        npemu_error("cannot read the fault record %s: %s", path,
                    strerror(errno));
        return EINVAL;
    }

    while ((ret == 0) && (fgets(text, sizeof(text), file) != NULL)) {
        if (count == capacity) {
            capacity = 2 * capacity + 64;
            more     = realloc(lines, capacity * sizeof(*lines));
            if (more == NULL) {
                ret = EINVAL;
                npemu_error("no memory for the fault record %s", path);
                break;
            }
            lines = more;
        }
        if (npemu_random_parse_line(text, &lines[count])) {
            lines[count].number = count + 1;
            ++count;
        } else {
            ret = EINVAL;
            npemu_error("fault record %s, line %zu: not \"OWNER.NUMBER PAGE "
                        "ACCESS VIEW TEAR RESTORE\"", path, count + 1);
        }
    }
    fclose(file);
    if (ret != 0) {
        free(lines);
        return ret;
    }

    if (count > 0) {
        qsort(lines, count, sizeof(*lines), npemu_random_compare);
        npemu_random_check_unique(path, lines, count);
    }
    npemu_random.lines     = lines;
    npemu_random.num_lines = count;
    npemu_random.is_replay = 1;
    return 0;
}

/* Parse an integer, decimal or with 0x. Returns 1, or 0 if it is not valid. */
static int npemu_random_number(const char *text, uint64_t max, uint64_t *value)
{
    char *end;

    errno  = 0;
    *value = strtoull(text, &end, 0);
    return (text[0] >= '0') && (text[0] <= '9') && (*end == '\0') &&
           (errno == 0) && (*value <= max);
}

static int npemu_random_is_granule(uint64_t value)
{
    return (value >= NPEMU_DMA_GRANULE_MIN) && (value <= NPEMU_DMA_CHUNK) &&
           ((value & (value - 1)) == 0);
}

static int npemu_random_path(const char *text, char *path)
{
    if ((text[0] == '\0') || (strlen(text) >= NPEMU_RANDOM_PATH_MAX)) {
        return 0;
    }

    strcpy(path, text);
    return 1;
}

/* Parse one KEY=VALUE. Returns 1, or 0 if it is not valid. */
static int npemu_random_parse_key(const char *key, const char *value,
                                  npemu_random_spec_t *spec)
{
    char *end;

    if (!strcmp(key, "rate")) {
        spec->rate = strtod(value, &end);
        return (end != value) && (*end == '\0') && (spec->rate >= 0) &&
               (spec->rate <= 1);
    } else if (!strcmp(key, "seed")) {
        return npemu_random_number(value, UINT64_MAX, &spec->seed);
    } else if (!strcmp(key, "granule")) {
        return npemu_random_number(value, NPEMU_DMA_CHUNK, &spec->granule) &&
               npemu_random_is_granule(spec->granule);
    } else if (!strcmp(key, "restore")) {
        return npemu_random_number(value, UINT32_MAX, &spec->restore);
    } else if (!strcmp(key, "record")) {
        return npemu_random_path(value, spec->record);
    } else if (!strcmp(key, "replay")) {
        return npemu_random_path(value, spec->replay);
    }
    return 0;
}

static int npemu_random_parse(const char *text, npemu_random_spec_t *spec)
{
    char *copy = strdup(text);
    char *item, *value, *save = NULL;
    int ret = 0;

    memset(spec, 0, sizeof(*spec));
    if (copy == NULL) {
        return ENOMEM;
    }

    for (item = strtok_r(copy, ",", &save); (item != NULL) && (ret == 0);
         item = strtok_r(NULL, ",", &save)) {
        value = strchr(item, '=');
        if (value != NULL) {
            *value++ = '\0';
        }
        if ((value == NULL) || !npemu_random_parse_key(item, value, spec)) {
            npemu_error("fault plan \"%s\": %s%s%s is none of rate=0..1, "
                        "seed=N, granule=256..65536, restore=N, record=FILE, "
                        "replay=FILE", text, item, (value == NULL) ? "" : "=",
                        (value == NULL) ? "" : value);
            ret = EINVAL;
        }
    }
    free(copy);
    return ret;
}

static void npemu_random_stop(void)
{
    atomic_store(&npemu_random_active, 0);
    free(npemu_random.lines);
    npemu_random.lines     = NULL;
    npemu_random.num_lines = 0;
    npemu_random.is_replay = 0;
    if (npemu_random.record_fd >= 0) {
        close(npemu_random.record_fd);
        npemu_random.record_fd = -1;
    }
}

static int npemu_random_start(const npemu_random_spec_t *spec)
{
    int ret;

    if (spec->granule != 0) {
        atomic_store(&npemu_dma_granule, spec->granule);
    }
    npemu_random.seed      = npemu_random_mix(spec->seed);
    npemu_random.restore   = spec->restore;
    /* A double cannot hold UINT64_MAX, and no integer is 2^64 */
    npemu_random.threshold = (spec->rate >= 1) ?
                                     UINT64_MAX :
                                     (uint64_t)(spec->rate * 0x1p64);
    if (spec->replay[0] != '\0') {
        ret = npemu_random_load(spec->replay);
        if (ret != 0) {
            return ret;
        }
    }
    if (spec->record[0] != '\0') {
        npemu_random.record_fd = npemu_file_append(spec->record, 0600);
        if (npemu_random.record_fd < 0) {
            npemu_error("cannot write the fault record %s: %s", spec->record,
                        (errno == EPERM) ? "it belongs to another user" :
                                           strerror(errno));
            return EINVAL;
        }
    }

    if ((npemu_random.threshold > 0) || npemu_random.is_replay) {
        npemu_info("pages are evicted at random: rate %g, seed %lu",
                   spec->rate, (unsigned long)spec->seed);
        atomic_store(&npemu_random_active, 1);
    }
    return 0;
}

int npemu_random_configure(const char *text)
{
    npemu_random_spec_t spec;
    int ret;

    ret = npemu_random_parse(text, &spec);
    if (ret != 0) {
        return ret;
    }

    npemu_random_stop();
    ret = npemu_random_start(&spec);
    if (ret != 0) {
        npemu_random_stop();
    }
    return ret;
}

void npemu_random_init(void)
{
    /* secure_getenv(): the user of a setuid program must not name files that
     * the program writes */
    const char *granule = secure_getenv("NPEMU_DMA_GRANULE");
    const char *spec    = secure_getenv("NPEMU_FAULT");
    uint64_t value;

    atomic_store(&npemu_dma_granule, 0);
    if ((granule != NULL) && (granule[0] != '\0')) {
        if (npemu_random_number(granule, NPEMU_DMA_CHUNK, &value) &&
            npemu_random_is_granule(value)) {
            atomic_store(&npemu_dma_granule, value);
        } else {
            npemu_error("NPEMU_DMA_GRANULE=%s is not a power of two from %d "
                        "to %d; ignored", granule, NPEMU_DMA_GRANULE_MIN,
                        NPEMU_DMA_CHUNK);
        }
    }

    npemu_random_configure((spec == NULL) ? "" : spec);
}
