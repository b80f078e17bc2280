/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_shadow THREADS OPERATIONS
 *
 * Each of two processes has THREADS threads, which use one worker and one
 * endpoint at once. Each thread has an area in the memory of the other process,
 * and a shadow of it: what the area must contain. The threads start random puts
 * and gets. A flush is between operations that overlap. Results are compared
 * with the shadow, and in the end so is the memory itself.
 */

#define _GNU_SOURCE
#include "ucp_pair.h"

#include <pthread.h>

enum {
    MAX_THREADS = 8,
    AREA        = 2 << 20,
    MAX_SIZE    = 300000,
    NUM_FLIGHT  = 8,
    PUT         = 0,
    GET,
    NUM_KINDS
};

/* An operation since the last flush */
typedef struct {
    int              kind;
    size_t           offset;    /* In the area */
    size_t           size;
    ucs_status_ptr_t request;
    char             *data;     /* NULL: it is complete */
    char             *expected; /* Of a get: copy of the shadow */
} operation_t;

typedef struct {
    pthread_t   thread;
    unsigned    index;
    unsigned    seed;
    char        *shadow;
    operation_t operations[NUM_FLIGHT];
    unsigned    num_operations;
} worker_t;

static struct {
    unsigned   num_threads;
    unsigned   num_operations;
    unsigned   seed;
    ucp_ep_h   ep;
    ucp_rkey_h rkey;
    uint64_t   remote;          /* Address of the memory of the other process */
} self;

/* Both processes see these, of the memory of each */
static char (*shadows)[MAX_THREADS][AREA];

/* ---- operations of a thread ---- */

static size_t draw(worker_t *w, size_t bound)
{
    return rand_r(&w->seed) % bound;
}

/* Small ones are as frequent as large ones */
static size_t draw_size(worker_t *w)
{
    size_t size = 1 + draw(w, 1ul << (1 + draw(w, 19)));

    return (size < MAX_SIZE) ? size : MAX_SIZE;
}

static void complete(operation_t *op)
{
    CHECK_OK(wait_for(pair.worker, op->request));
    if (op->kind == GET) {
        CHECK(!memcmp(op->data, op->expected, op->size),
              "a get of %zu bytes at %zu is wrong", op->size, op->offset);
        munmap(op->expected, op->size);
    }
    munmap(op->data, op->size);
    op->data = NULL;
}

static void flush(worker_t *w)
{
    unsigned i;

    for (i = 0; i < w->num_operations; ++i) {
        if (w->operations[i].data != NULL) {
            complete(&w->operations[i]);
        }
    }
    w->num_operations = 0;
    CHECK_OK(wait_for(pair.worker, ucp_ep_flush_nbx(self.ep, &none)));
}

/* A new operation overlaps none since the last flush, unless both only read */
static operation_t *new_operation(worker_t *w, int kind, size_t offset,
                                  size_t size)
{
    operation_t *op;
    unsigned i;

    for (i = 0; i < w->num_operations; ++i) {
        op = &w->operations[i];
        if ((offset < op->offset + op->size) && (op->offset < offset + size) &&
            ((kind != GET) || (op->kind != GET))) {
            break;
        }
    }
    if ((i < w->num_operations) || (i == NUM_FLIGHT)) {
        flush(w);
    }

    op         = &w->operations[w->num_operations++];
    op->kind   = kind;
    op->offset = offset;
    op->size   = size;
    op->data   = new_memory(size);
    return op;
}

static uint64_t address_of(const worker_t *w, const operation_t *op)
{
    return self.remote + (uint64_t)w->index * AREA + op->offset;
}

static void put_or_get(worker_t *w, int kind)
{
    size_t size      = draw_size(w);
    operation_t *op  = new_operation(w, kind, draw(w, AREA - size), size);
    uint64_t address = address_of(w, op);

    if (kind == PUT) {
        fill(op->data, size, draw(w, 1 << 30));
        memcpy(w->shadow + op->offset, op->data, size);
        op->request = ucp_put_nbx(self.ep, op->data, size, address, self.rkey,
                                  &none);
        return;
    }

    op->expected = new_memory(size);
    memcpy(op->expected, w->shadow + op->offset, size);
    op->request = ucp_get_nbx(self.ep, op->data, size, address, self.rkey,
                              &none);
}

static void *run_thread(void *arg)
{
    worker_t *w = arg;
    unsigned i;

    for (i = 0; i < self.num_operations; ++i) {
        put_or_get(w, draw(w, NUM_KINDS));
        if (draw(w, 50) == 0) {
            flush(w);
        } else if (draw(w, 50) == 0) {
            CHECK_OK(ucp_worker_fence(pair.worker));
        }
    }
    flush(w);
    return NULL;
}

/* ---- the processes ---- */

static void open_worker(void)
{
    ucp_params_t params               = {
        .field_mask        = UCP_PARAM_FIELD_FEATURES |
                             UCP_PARAM_FIELD_MT_WORKERS_SHARED,
        .features          = UCP_FEATURE_RMA | UCP_FEATURE_TAG,
        .mt_workers_shared = 1
    };
    ucp_worker_params_t worker_params = {
        .field_mask  = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_MULTI
    };
    ucp_worker_attr_t attr            = {
        .field_mask = UCP_WORKER_ATTR_FIELD_THREAD_MODE
    };

    CHECK_OK(ucp_init(&params, NULL, &pair.context));
    CHECK_OK(ucp_worker_create(pair.context, &worker_params, &pair.worker));
    CHECK_OK(ucp_worker_query(pair.worker, &attr));
    if (attr.thread_mode != UCS_THREAD_MODE_MULTI) {
        printf("SKIPPED: this UCX has no workers for several threads\n");
        exit(77);
    }
}

static void run_threads(void)
{
    worker_t *workers = calloc(self.num_threads, sizeof(*workers));
    unsigned i;

    for (i = 0; i < self.num_threads; ++i) {
        workers[i].index  = i;
        workers[i].seed   = self.seed * 100 + pair.number * MAX_THREADS + i;
        workers[i].shadow = shadows[1 - pair.number][i];
        CHECK(!pthread_create(&workers[i].thread, NULL, run_thread,
                              &workers[i]), "pthread_create");
    }
    for (i = 0; i < self.num_threads; ++i) {
        pthread_join(workers[i].thread, NULL);
    }
    free(workers);
}

static void run(void)
{
    size_t length = (size_t)self.num_threads * AREA;
    char *memory  = new_memory(length);
    char hello    = 0;
    ucp_mem_h memh;
    unsigned i;

    open_worker();
    self.ep = pair_connect();
    CHECK_OK(wait_for(pair.worker, ucp_tag_send_nbx(self.ep, &hello, 1, 1,
                                                    &none)));
    CHECK_OK(wait_for(pair.worker, ucp_tag_recv_nbx(pair.worker, &hello, 1, 1,
                                                    -1, &none)));
    memh = pair_export(memory, length);
    CHECK_OK(ucp_ep_rkey_unpack(self.ep, pair_import(&self.remote),
                                &self.rkey));
    run_threads();
    pair_meet();
    for (i = 0; i < self.num_threads; ++i) {
        CHECK(!memcmp(memory + (size_t)i * AREA, shadows[pair.number][i], AREA),
              "the memory for thread %u is wrong", i);
    }

    ucp_rkey_destroy(self.rkey);
    CHECK_OK(wait_for(pair.worker, ucp_ep_close_nbx(self.ep, &none)));
    pair_meet();
    CHECK_OK(ucp_mem_unmap(pair.context, memh));
    close_ucp(pair.context, pair.worker);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 3, "usage: ucp_shadow THREADS OPERATIONS");
    self.num_threads    = atoi(argv[1]);
    self.num_operations = atoi(argv[2]);
    CHECK((self.num_threads > 0) && (self.num_threads <= MAX_THREADS),
          "1 to %d threads", MAX_THREADS);
    self.seed    = time(NULL);
    if (getenv("UCP_SHADOW_SEED") != NULL) {
        self.seed = atoi(getenv("UCP_SHADOW_SEED"));
    }
    shadows = new_shared(2 * sizeof(*shadows));
    printf("UCP_SHADOW_SEED=%u\n", self.seed);
    fflush(stdout);
    return run_pair(run);
}
