/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_selfcheck.h"
#include "nprdma_loop.h"
#include "nprdma_mrs.h"


#include <ucs/debug/log.h>
#include <ucs/time/time.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Memory of the check */
#define UCT_NPRDMA_SELFCHECK_PAGES   8
#define UCT_NPRDMA_SELFCHECK_LENGTH \
    (UCT_NPRDMA_SELFCHECK_PAGES * NPRDMA_PAGE_SIZE)
#define UCT_NPRDMA_SELFCHECK_WORDS \
    (UCT_NPRDMA_SELFCHECK_LENGTH / sizeof(uint64_t))

/* Rounds of WRITE and READ with and without an invalidation meanwhile */
#define UCT_NPRDMA_SELFCHECK_ROUNDS  32

/* The kernel may take a page during a step, which is then repeated. A page that
 * is taken this often in a row is a device or a kernel that does not work. */
#define UCT_NPRDMA_SELFCHECK_TRIES   100


typedef struct uct_nprdma_selfcheck {
    uct_nprdma_mem_md_t *md;
    char                *why;
    size_t              max;
    ucs_status_t        status;  /* After the first failure nothing counts */

    uct_nprdma_loop_t   loop;

    uint64_t            *memory; /* Is accessed through views */
    size_t              room;    /* Bytes mapped there */
    nprdma_range_t      range;   /* of it; region is NULL before it is
                                  * registered */

    /* Pinned; a copy of the data, then of the states */
    uint64_t            *buffer;
    struct ibv_mr       *mr;

    uint64_t            seed;    /* of the current contents */
    double              span;    /* seconds that a WRITE takes */
    uint32_t            before[UCT_NPRDMA_SELFCHECK_PAGES];
} uct_nprdma_selfcheck_t;


/* The first failure is the one that is reported */
static void UCS_F_PRINTF(2, 3)
uct_nprdma_selfcheck_fail(uct_nprdma_selfcheck_t *self, const char *format, ...)
{
    char text[128];
    va_list args;

    if (self->status != UCS_OK) {
        return;
    }

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    snprintf(self->why, self->max, "self-check of the device: %s", text);
    self->status = UCS_ERR_IO_ERROR;
}

static void uct_nprdma_selfcheck_expect(uct_nprdma_selfcheck_t *self, int holds,
                                        const char *otherwise)
{
    if (!holds) {
        uct_nprdma_selfcheck_fail(self, "%s", otherwise);
    }
}


/* ---- contents ---- */

/* Word i of the contents with a seed. No two seeds have an equal word. */
static uint64_t uct_nprdma_selfcheck_word(uint64_t seed, size_t i)
{
    return ((seed << 32) | i) * 0x9e3779b97f4a7c15ull;
}

static void uct_nprdma_selfcheck_fill(uint64_t *words, uint64_t seed)
{
    size_t i;

    for (i = 0; i < UCT_NPRDMA_SELFCHECK_WORDS; ++i) {
        words[i] = uct_nprdma_selfcheck_word(seed, i);
    }
}

/* @return Whether words [first, first + count) have the contents of a seed. */
static int uct_nprdma_selfcheck_has(const uint64_t *words, size_t first,
                                    size_t count, uint64_t seed)
{
    size_t i;

    for (i = first; i < first + count; ++i) {
        if (__atomic_load_n(&words[i], __ATOMIC_RELAXED) !=
            uct_nprdma_selfcheck_word(seed, i)) {
            return 0;
        }
    }
    return 1;
}

static int uct_nprdma_selfcheck_all(const uint64_t *words, uint64_t seed)
{
    return uct_nprdma_selfcheck_has(words, 0, UCT_NPRDMA_SELFCHECK_WORDS, seed);
}

/* @return Whether the buffer is what absent pages read as. */
static int uct_nprdma_selfcheck_is_absent(const uct_nprdma_selfcheck_t *self)
{
    size_t i;

    for (i = 0; i < UCT_NPRDMA_SELFCHECK_WORDS; ++i) {
        if (self->buffer[i] != self->range.region->signature) {
            return 0;
        }
    }
    return 1;
}

/* @return States that the device has read. */
static const uint32_t *
uct_nprdma_selfcheck_read(const uct_nprdma_selfcheck_t *self)
{
    return (const uint32_t*)(self->buffer + UCT_NPRDMA_SELFCHECK_WORDS);
}


/* ---- work requests ---- */

static void uct_nprdma_selfcheck_post(uct_nprdma_selfcheck_t *self,
                                      enum ibv_wr_opcode opcode, uint32_t rkey)
{
    uct_nprdma_loop_post(&self->loop, opcode, self->buffer, self->mr->lkey,
                         UCT_NPRDMA_SELFCHECK_LENGTH, (uintptr_t)self->memory,
                         rkey);
}

static void uct_nprdma_selfcheck_post_read(uct_nprdma_selfcheck_t *self)
{
    uct_nprdma_selfcheck_post(self, IBV_WR_RDMA_READ,
                              uct_nprdma_mrs(self->range.region)->r->rkey);
}

static void uct_nprdma_selfcheck_post_write(uct_nprdma_selfcheck_t *self)
{
    uct_nprdma_selfcheck_post(self, IBV_WR_RDMA_WRITE,
                              uct_nprdma_mrs(self->range.region)->w->rkey);
}

static size_t uct_nprdma_selfcheck_index(const uct_nprdma_selfcheck_t *self)
{
    return nprdma_region_page_index(self->range.region,
                                    (uintptr_t)self->memory);
}

static void uct_nprdma_selfcheck_post_states(uct_nprdma_selfcheck_t *self)
{
    uct_nprdma_loop_post(&self->loop, IBV_WR_RDMA_READ,
                         self->buffer + UCT_NPRDMA_SELFCHECK_WORDS,
                         self->mr->lkey, sizeof(self->before),
                         uct_nprdma_selfcheck_index(self) * sizeof(uint32_t),
                         uct_nprdma_mrs(self->range.region)->s->rkey);
}

static void uct_nprdma_selfcheck_wait(uct_nprdma_selfcheck_t *self)
{
    enum ibv_wc_status status = uct_nprdma_loop_wait(&self->loop);

    if (status != IBV_WC_SUCCESS) {
        uct_nprdma_selfcheck_fail(self, "an operation fails with status %d",
                                  status);
    }
}


/* ---- pages ---- */

static void uct_nprdma_selfcheck_states(const uct_nprdma_selfcheck_t *self,
                                        uint32_t *states)
{
    const nprdma_page_state_t *words =
            &self->range.region->states[uct_nprdma_selfcheck_index(self)];
    unsigned i;

    for (i = 0; i < UCT_NPRDMA_SELFCHECK_PAGES; ++i) {
        states[i] = nprdma_page_load(&words[i]);
    }
}

/* @return Whether no state has changed since they were copied to before. */
static int uct_nprdma_selfcheck_unchanged(const uct_nprdma_selfcheck_t *self)
{
    uint32_t now[UCT_NPRDMA_SELFCHECK_PAGES];

    uct_nprdma_selfcheck_states(self, now);
    return memcmp(now, self->before, sizeof(now)) == 0;
}

static int uct_nprdma_selfcheck_bits(const uct_nprdma_selfcheck_t *self,
                                     uint32_t bits)
{
    unsigned i;

    for (i = 0; i < UCT_NPRDMA_SELFCHECK_PAGES; ++i) {
        if ((self->before[i] & NPRDMA_PAGE_BITS) != bits) {
            return 0;
        }
    }
    return 1;
}

/* Populate all pages, and copy their states to before. Zero after a failure. */
static int uct_nprdma_selfcheck_populate(uct_nprdma_selfcheck_t *self)
{
    ucs_status_t status = self->status;
    unsigned tries;

    for (tries = 0; (tries < UCT_NPRDMA_SELFCHECK_TRIES) &&
                    ((status == UCS_OK) || (status == UCS_ERR_BUSY));
         ++tries) {
        status = nprdma_monitor_populate(self->md->monitor, &self->range,
                                         self->range.address,
                                         self->range.length,
                                         NPRDMA_POPULATE_WRITE);
        uct_nprdma_selfcheck_states(self, self->before);
        if (uct_nprdma_selfcheck_bits(self, NPRDMA_PAGE_BITS)) {
            return 1;
        }
    }

    uct_nprdma_selfcheck_fail(self, "pages cannot be populated: %s",
                              ucs_status_string(status));
    return 0;
}

static ucs_status_t uct_nprdma_selfcheck_register(uct_nprdma_selfcheck_t *self)
{
    ucs_status_t status;

    status = nprdma_monitor_register(self->md->monitor, (uintptr_t)self->memory,
                                     UCT_NPRDMA_SELFCHECK_LENGTH, &self->range);
    if (status != UCS_OK) {
        self->range.region = NULL;
    }
    return status;
}

/* Take all pages away from the device. When this returns it does not access
 * them any more. The region stays: with NPRDMA_REVOKE_STRICT, too, that is what
 * the end of a registration does. */
static void uct_nprdma_selfcheck_invalidate(uct_nprdma_selfcheck_t *self)
{
    uintptr_t start = (uintptr_t)self->memory;
    ucs_status_t status;

    nprdma_monitor_unregister(self->md->monitor, &self->range, 0);
    nprdma_monitor_revoke(self->md->monitor,
                          nprdma_span(start,
                                      start + UCT_NPRDMA_SELFCHECK_LENGTH));
    status = uct_nprdma_selfcheck_register(self);
    if (status != UCS_OK) {
        uct_nprdma_selfcheck_fail(self, "cannot register again: %s",
                                  ucs_status_string(status));
    }
}


/* ---- what is checked ---- */

/* Memory that was never populated: the device must not see it */
static void uct_nprdma_selfcheck_untouched(uct_nprdma_selfcheck_t *self)
{
    uct_nprdma_selfcheck_fill(self->memory, ++self->seed);
    uct_nprdma_selfcheck_post_read(self);
    uct_nprdma_selfcheck_wait(self);
    uct_nprdma_selfcheck_expect(self, uct_nprdma_selfcheck_is_absent(self),
                                "an absent page does not read as the "
                                "signature");
}

static int
uct_nprdma_selfcheck_states_are_right(const uct_nprdma_selfcheck_t *self)
{
    return memcmp(uct_nprdma_selfcheck_read(self), self->before,
                  sizeof(self->before)) == 0;
}

/* Populated memory: reads, and states by RDMA. Zero if a page was taken
 * meanwhile. */
static int uct_nprdma_selfcheck_present(uct_nprdma_selfcheck_t *self)
{
    if (!uct_nprdma_selfcheck_populate(self)) {
        return 0;
    }

    uct_nprdma_selfcheck_post_read(self);
    uct_nprdma_selfcheck_post_states(self);
    uct_nprdma_selfcheck_wait(self);
    if (!uct_nprdma_selfcheck_unchanged(self)) {
        return 0;
    }

    uct_nprdma_selfcheck_expect(self,
                                uct_nprdma_selfcheck_all(self->buffer,
                                                         self->seed),
                                "a populated page reads as something else");
    uct_nprdma_selfcheck_expect(self,
                                uct_nprdma_selfcheck_states_are_right(self),
                                "page states that the device reads differ from "
                                "those mapped");
    return 1;
}

/* Pages that were taken away: the device neither reads nor writes them, and
 * reads that they are absent */
static void uct_nprdma_selfcheck_taken(uct_nprdma_selfcheck_t *self)
{
    uct_nprdma_selfcheck_invalidate(self);
    if (self->status != UCS_OK) {
        return;
    }

    uct_nprdma_selfcheck_states(self, self->before);
    uct_nprdma_selfcheck_expect(self, uct_nprdma_selfcheck_bits(self, 0),
                                "a page has bits after its invalidation");
    uct_nprdma_selfcheck_fill(self->buffer, self->seed + 1);
    uct_nprdma_selfcheck_post_write(self);
    uct_nprdma_selfcheck_post_states(self);
    uct_nprdma_selfcheck_wait(self);
    uct_nprdma_selfcheck_expect(self,
                                uct_nprdma_selfcheck_all(self->memory,
                                                         self->seed),
                                "a WRITE reaches an absent page");
    uct_nprdma_selfcheck_expect(self,
                                uct_nprdma_selfcheck_states_are_right(self),
                                "page states that the device reads are old");
    uct_nprdma_selfcheck_post_read(self);
    uct_nprdma_selfcheck_wait(self);
    uct_nprdma_selfcheck_expect(self, uct_nprdma_selfcheck_is_absent(self),
                                "a page can be read after its invalidation");
}

/* Rule for remote WRITE: a page whose state, read behind the WRITE, is that
 * from before it has the data */
static void uct_nprdma_selfcheck_verify(uct_nprdma_selfcheck_t *self)
{
    const size_t words    = NPRDMA_PAGE_SIZE / sizeof(uint64_t);
    const uint32_t *after = uct_nprdma_selfcheck_read(self);
    unsigned i;

    for (i = 0; i < UCT_NPRDMA_SELFCHECK_PAGES; ++i) {
        uct_nprdma_selfcheck_expect(
                self, (after[i] != self->before[i]) ||
                      uct_nprdma_selfcheck_has(self->memory, i * words, words,
                                               self->seed),
                "a READ of page states overtakes the WRITE before it");
    }
}

static void uct_nprdma_selfcheck_start_write(uct_nprdma_selfcheck_t *self)
{
    uct_nprdma_selfcheck_fill(self->buffer, ++self->seed);
    uct_nprdma_selfcheck_post_write(self);
    uct_nprdma_selfcheck_post_states(self);
}

/* WRITE and READ of the states, while all pages stay. Measures the time. Zero
 * if a page was taken meanwhile. */
static int uct_nprdma_selfcheck_write(uct_nprdma_selfcheck_t *self)
{
    ucs_time_t start;

    if (!uct_nprdma_selfcheck_populate(self)) {
        return 0;
    }

    start = ucs_get_time();
    uct_nprdma_selfcheck_start_write(self);
    uct_nprdma_selfcheck_wait(self);
    self->span = ucs_time_to_sec(ucs_get_time() - start);
    uct_nprdma_selfcheck_verify(self);
    return uct_nprdma_selfcheck_all(self->memory, self->seed);
}

/* Wait for a part of the time that a WRITE takes */
static void uct_nprdma_selfcheck_delay(const uct_nprdma_selfcheck_t *self,
                                       unsigned round)
{
    ucs_time_t end = ucs_get_time() +
                     ucs_time_from_sec(self->span * round /
                                       UCT_NPRDMA_SELFCHECK_ROUNDS);

    while (ucs_get_time() < end) {
    }
}

/* WRITE and READ of the states, with an invalidation in between */
static void
uct_nprdma_selfcheck_race_write(uct_nprdma_selfcheck_t *self, unsigned round)
{
    uint64_t copy[UCT_NPRDMA_SELFCHECK_WORDS];

    uct_nprdma_selfcheck_start_write(self);
    uct_nprdma_selfcheck_delay(self, round);
    uct_nprdma_selfcheck_invalidate(self);
    memcpy(copy, self->memory, sizeof(copy));
    uct_nprdma_selfcheck_wait(self);
    uct_nprdma_selfcheck_expect(self,
                                memcmp(copy, self->memory, sizeof(copy)) == 0,
                                "the device writes a page after its "
                                "invalidation");
    uct_nprdma_selfcheck_verify(self);
}

/* READ of the data, with an invalidation and a change of the memory */
static void
uct_nprdma_selfcheck_race_read(uct_nprdma_selfcheck_t *self, unsigned round)
{
    size_t i;

    uct_nprdma_selfcheck_post_read(self);
    uct_nprdma_selfcheck_delay(self, round);
    uct_nprdma_selfcheck_invalidate(self);
    uct_nprdma_selfcheck_fill(self->memory, ++self->seed);
    uct_nprdma_selfcheck_wait(self);
    for (i = 0; i < UCT_NPRDMA_SELFCHECK_WORDS; ++i) {
        uct_nprdma_selfcheck_expect(
                self, self->buffer[i] !=
                      uct_nprdma_selfcheck_word(self->seed, i),
                "the device reads a page after its invalidation");
    }
}

/* Do a step again if a page was taken in the middle of it */
static void
uct_nprdma_selfcheck_repeat(uct_nprdma_selfcheck_t *self,
                            int (*step)(uct_nprdma_selfcheck_t *self))
{
    unsigned tries;

    for (tries = 0; tries < UCT_NPRDMA_SELFCHECK_TRIES; ++tries) {
        if ((self->status != UCS_OK) || step(self)) {
            return;
        }
    }

    uct_nprdma_selfcheck_fail(self, "pages do not stay populated, or a WRITE "
                              "is lost");
}

static void uct_nprdma_selfcheck_steps(uct_nprdma_selfcheck_t *self)
{
    unsigned i;

    uct_nprdma_selfcheck_untouched(self);
    uct_nprdma_selfcheck_repeat(self, uct_nprdma_selfcheck_present);
    if (self->status == UCS_OK) {
        uct_nprdma_selfcheck_taken(self);
    }

    for (i = 0; i < UCT_NPRDMA_SELFCHECK_ROUNDS; ++i) {
        uct_nprdma_selfcheck_repeat(self, uct_nprdma_selfcheck_write);
        if (!uct_nprdma_selfcheck_populate(self)) {
            return;
        }

        if (i % 2) {
            uct_nprdma_selfcheck_race_read(self, i);
        } else {
            uct_nprdma_selfcheck_race_write(self, i);
        }
    }
}


/* ---- what it needs ---- */

/* `room`: bytes of the address space from the memory on that nothing else uses,
 * at least UCT_NPRDMA_SELFCHECK_LENGTH */
static int uct_nprdma_selfcheck_map(uct_nprdma_selfcheck_t *self, size_t room)
{
    void *memory = mmap(NULL, room, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED) {
        return 0;
    }

    if (mprotect(memory, UCT_NPRDMA_SELFCHECK_LENGTH,
                 PROT_READ | PROT_WRITE) != 0) {
        munmap(memory, room);
        return 0;
    }

    self->memory = memory;
    self->room   = room;
    return 1;
}

static void uct_nprdma_selfcheck_unmap(uct_nprdma_selfcheck_t *self)
{
    if (self->range.region != NULL) {
        nprdma_monitor_unregister(self->md->monitor, &self->range, 0);
        self->range.region = NULL;
    }
    if (self->memory != NULL) {
        munmap(self->memory, self->room);
        self->memory = NULL;
    }
}

/* The first region shows what the device refuses. The kernel maps memory at the
 * end of the address space first, where a region may be shorter than others. A
 * region begins at or below its memory, so with room for a whole one behind the
 * memory it ends before the address space does. */
static ucs_status_t uct_nprdma_selfcheck_first(uct_nprdma_selfcheck_t *self)
{
    size_t region_size = self->md->config.region_size;
    ucs_status_t status;

    status = uct_nprdma_selfcheck_register(self);
    if ((status != UCS_OK) || (self->range.region->length >= region_size)) {
        return status;
    }

    uct_nprdma_selfcheck_unmap(self);
    if (!uct_nprdma_selfcheck_map(self, UCT_NPRDMA_SELFCHECK_LENGTH +
                                        region_size)) {
        return UCS_ERR_NO_MEMORY;
    }

    status = uct_nprdma_selfcheck_register(self);
    if ((status == UCS_OK) && (self->range.region->length < region_size) &&
        (atomic_load(&self->md->refusal) == EINVAL)) {
        return UCS_ERR_INVALID_PARAM; /* The monitor has found a smaller one */
    }
    return status;
}

static void uct_nprdma_selfcheck_region(uct_nprdma_selfcheck_t *self)
{
    uct_nprdma_mem_md_t *md = self->md;
    ucs_time_t start        = ucs_get_time();
    int refusal;

    atomic_store(&md->refusal, 0);
    self->status = uct_nprdma_selfcheck_first(self);
    if (self->status == UCS_OK) {
        md->region_time = ucs_time_to_sec(ucs_get_time() - start);
        return;
    }

    refusal = atomic_load(&md->refusal);
    snprintf(self->why, self->max, "the %s refuses a region of %zu bytes: %s",
             (refusal != 0) ? "device" : "kernel module",
             md->config.region_size,
             (refusal != 0) ? strerror(refusal) :
                              ucs_status_string(self->status));
    if ((self->status == UCS_ERR_IO_ERROR) && (refusal != 0)) {
        self->status = UCS_ERR_NO_DEVICE;
    }
}

static void uct_nprdma_selfcheck_alloc(uct_nprdma_selfcheck_t *self)
{
    const size_t length      = UCT_NPRDMA_SELFCHECK_LENGTH + NPRDMA_PAGE_SIZE;
    uct_nprdma_device_t *dev = &self->md->super;

    if (!uct_nprdma_selfcheck_map(self, UCT_NPRDMA_SELFCHECK_LENGTH) ||
        (posix_memalign((void**)&self->buffer, NPRDMA_PAGE_SIZE, length) !=
         0)) {
        self->buffer = NULL;
        uct_nprdma_selfcheck_fail(self, "no memory");
        self->status = UCS_ERR_NO_MEMORY;
        return;
    }

    self->mr = dev->verbs->register_mr(dev->pd, self->buffer, length,
                                       IBV_ACCESS_LOCAL_WRITE);
    if (self->mr == NULL) {
        uct_nprdma_selfcheck_fail(self, "cannot pin %zu bytes: %m", length);
    }
}

static void uct_nprdma_selfcheck_init(uct_nprdma_selfcheck_t *self)
{
    if (!uct_nprdma_loop_init(&self->loop, &self->md->super)) {
        uct_nprdma_selfcheck_fail(self, "no port is active");
        return;
    }

    uct_nprdma_selfcheck_alloc(self);
    if (self->status == UCS_OK) {
        uct_nprdma_selfcheck_region(self);
    }
    if ((self->status == UCS_OK) && !uct_nprdma_loop_open(&self->loop)) {
        uct_nprdma_selfcheck_fail(self, "no loopback connection");
    }
}

static void uct_nprdma_selfcheck_cleanup(uct_nprdma_selfcheck_t *self)
{
    uct_nprdma_loop_close(&self->loop);
    uct_nprdma_selfcheck_unmap(self);
    if (self->mr != NULL) {
        self->md->super.verbs->dereg_mr(self->mr);
    }
    free(self->buffer);
}

ucs_status_t
uct_nprdma_selfcheck(uct_nprdma_mem_md_t *md, char *why, size_t max)
{
    uct_nprdma_selfcheck_t self = {
        .md     = md,
        .why    = why,
        .max    = max,
        .status = UCS_OK
    };
    ucs_time_t start            = ucs_get_time();

    uct_nprdma_selfcheck_init(&self);
    if ((self.status == UCS_OK) && md->config.selfcheck) {
        uct_nprdma_selfcheck_steps(&self);
    }
    uct_nprdma_selfcheck_cleanup(&self);
    ucs_debug("%s: self-check took %.3f ms, the region %.3f ms: %s",
              md->super.name, ucs_time_to_msec(ucs_get_time() - start),
              md->region_time * 1e3, (self.status == UCS_OK) ? "good" : why);
    return self.status;
}
