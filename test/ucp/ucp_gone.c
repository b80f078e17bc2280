/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_gone
 *
 * Two contexts in one process. The target's one is destroyed, and the initiator
 * has an endpoint that handles errors: each operation has to end, and the
 * endpoint to fail.
 *
 * stale     the endpoint is created after the target is destroyed
 * created   before that, and nothing has been sent
 * used      messages and data have been exchanged
 * during    the operation has been started, too
 *
 * No large message is under way: it waits for the other side with nothing
 * outstanding, and UCP makes no check of its own before its wire-up, see
 * doc/transport.md.
 */

#include "ucp_common.h"

enum {
    SMALL = 256,
    LARGE = 16 << 20,
    TAG   = 1
};

enum operation {
    PUT,
    GET,
    SEND,
    NUM_OPERATIONS
};

static const char *const operation_names[] = {"put", "get", "send"};

typedef struct {
    ucp_context_h context;
    ucp_worker_h  worker;
    ucp_ep_h      ep;
    ucs_status_t  error;   /* UCS_OK until the endpoint fails */
    char          *memory; /* LARGE */
} side_t;

typedef struct {
    side_t        initiator;
    side_t        target;
    ucp_address_t *address;
    ucp_mem_h     memh; /* the target's memory */
    void          *packed_key;
    ucp_rkey_h    rkey;
} pair_t;

static void open_side(side_t *side)
{
    memset(side, 0, sizeof(*side));
    side->memory = new_memory(LARGE);
    open_ucp(UCP_FEATURE_RMA | UCP_FEATURE_TAG, &side->context, &side->worker);
}

static void close_side(side_t *side)
{
    close_ucp(side->context, side->worker);
    munmap(side->memory, LARGE);
}

static void create_ep(pair_t *pair)
{
    pair->initiator.ep = new_ep_to(pair->initiator.worker, pair->address,
                                   &pair->initiator.error);
    CHECK_OK(ucp_ep_rkey_unpack(pair->initiator.ep, pair->packed_key,
                                &pair->rkey));
}

static ucs_status_ptr_t
start(pair_t *pair, enum operation operation, size_t size)
{
    side_t *side             = &pair->initiator;

    switch (operation) {
    case PUT:
        return ucp_put_nbx(side->ep, side->memory, size,
                           (uintptr_t)pair->target.memory, pair->rkey, &none);
    case GET:
        return ucp_get_nbx(side->ep, side->memory, size,
                           (uintptr_t)pair->target.memory, pair->rkey, &none);
    default:
        return ucp_tag_send_nbx(side->ep, side->memory, size, TAG, &none);
    }
}

static void finish_both(pair_t *pair, ucs_status_ptr_t request)
{
    while (!is_done(request)) {
        ucp_worker_progress(pair->initiator.worker);
        ucp_worker_progress(pair->target.worker);
    }
    CHECK_OK(wait_for(pair->initiator.worker, request));
}

/* All operations, while the target is there */
static void use(pair_t *pair)
{
    ucs_status_ptr_t receive;
    int i;

    for (i = 0; i < NUM_OPERATIONS; ++i) {
        receive = NULL;
        if (i == SEND) {
            receive = ucp_tag_recv_nbx(pair->target.worker, pair->target.memory,
                                       SMALL, TAG, -1, &none);
        }
        finish_both(pair, start(pair, i, SMALL));
        finish_both(pair, ucp_ep_flush_nbx(pair->initiator.ep, &none));
        finish_both(pair, receive);
    }
}

/* Returns when the operation has ended and the endpoint has failed. `request`
 * is not NULL if it has been started. */
static void fail(pair_t *pair, ucs_status_ptr_t request,
                 enum operation operation, size_t size)
{
    side_t *side = &pair->initiator;
    ucs_status_ptr_t flush;

    if (request == NULL) {
        request = start(pair, operation, size);
    }
    flush = ucp_ep_flush_nbx(side->ep, &none);
    while (!is_done(request) || !is_done(flush) || (side->error == UCS_OK)) {
        ucp_worker_progress(side->worker);
    }
    wait_for(side->worker, request);
    wait_for(side->worker, flush);
    ucp_rkey_destroy(pair->rkey);
    close_ep(side->worker, side->ep, UCP_EP_CLOSE_FLAG_FORCE);
}

static void run(const char *name, enum operation operation, size_t size)
{
    int is_during            = !strcmp(name, "during");
    ucs_status_ptr_t request = NULL;
    size_t length;
    pair_t pair;

    open_side(&pair.initiator);
    open_side(&pair.target);
    CHECK_OK(ucp_worker_get_address(pair.target.worker, &pair.address,
                                    &length));
    /* Not the initiator's: UCX 1.18 does not end a large send to a peer that is
     * gone as long as the program has registered the buffer */
    pair.memh = map_memory(pair.target.context, pair.target.memory, LARGE);
    CHECK_OK(ucp_rkey_pack(pair.target.context, pair.memh, &pair.packed_key,
                           &length));
    if (strcmp(name, "stale")) {
        create_ep(&pair);
    }
    if (!strcmp(name, "used") || is_during) {
        use(&pair);
    }
    if (is_during) {
        request = start(&pair, operation, size);
    }

    CHECK_OK(ucp_mem_unmap(pair.target.context, pair.memh));
    close_side(&pair.target);
    if (!strcmp(name, "stale")) {
        create_ep(&pair);
    }
    fail(&pair, request, operation, size);

    ucp_rkey_buffer_release(pair.packed_key);
    free(pair.address);
    close_side(&pair.initiator);
    printf("%-8s %-4s %8zu bytes: %s\n", name, operation_names[operation],
           size, ucs_status_string(pair.initiator.error));
    fflush(stdout);
}

int main(void)
{
    static const char *const names[] = {"stale", "created", "used", "during"};
    int i, operation;

    for (i = 0; i < 4; ++i) {
        for (operation = 0; operation < NUM_OPERATIONS; ++operation) {
            run(names[i], operation, SMALL);
            if ((operation != SEND) || strcmp(names[i], "during")) {
                run(names[i], operation, LARGE);
            }
        }
    }
    return 0;
}
