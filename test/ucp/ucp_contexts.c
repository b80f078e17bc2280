/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_contexts N
 *
 * N contexts in one process, in a ring. Each puts into memory of the next one,
 * while the others exist.
 */

#include "ucp_common.h"

enum {
    SIZE = 300000,
    MAX  = 100
};

static struct side {
    ucp_context_h context;
    ucp_worker_h  worker;
    ucp_ep_h      ep;      /* To the next one */
    ucs_status_t  error;
    ucp_rkey_h    rkey;    /* Of its memory */
    char          *memory; /* SIZE */
    ucp_mem_h     memh;
} sides[MAX];

static int num_sides;

static void connect_to(struct side *side, const struct side *next)
{
    ucp_address_t *address;
    size_t length;
    void *key;

    CHECK_OK(ucp_worker_get_address(next->worker, &address, &length));
    side->ep = new_ep_to(side->worker, address, &side->error);
    ucp_worker_release_address(next->worker, address);
    CHECK_OK(ucp_rkey_pack(next->context, next->memh, &key, &length));
    CHECK_OK(ucp_ep_rkey_unpack(side->ep, key, &side->rkey));
    ucp_rkey_buffer_release(key);
}

static void finish(const struct side *side, ucs_status_ptr_t request)
{
    int i;

    while (!is_done(request)) {
        for (i = 0; i < num_sides; ++i) {
            ucp_worker_progress(sides[i].worker);
        }
    }
    CHECK_OK(wait_for(side->worker, request));
}

static void use(const struct side *side, const struct side *next, size_t size)
{
    static char buffer[SIZE];

    fill(buffer, size, size);
    finish(side, ucp_put_nbx(side->ep, buffer, size, (uintptr_t)next->memory,
                             side->rkey, &none));
    finish(side, ucp_ep_flush_nbx(side->ep, &none));
    expect(next->memory, size, size);
}

int main(int argc, char **argv)
{
    const struct side *next;
    struct side *side;
    int i;

    num_sides = (argc == 2) ? atoi(argv[1]) : 0;
    CHECK((num_sides > 0) && (num_sides <= MAX), "say how many");
    for (side = sides; side < &sides[num_sides]; ++side) {
        side->memory = new_memory(SIZE);
        open_ucp(UCP_FEATURE_RMA, &side->context, &side->worker);
        side->memh = map_memory(side->context, side->memory, SIZE);
    }
    for (i = 0; i < num_sides; ++i) {
        side = &sides[i];
        next = &sides[(i + 1) % num_sides];
        connect_to(side, next);
        use(side, next, 8);
        use(side, next, SIZE);
    }
    for (side = sides; side < &sides[num_sides]; ++side) {
        ucp_rkey_destroy(side->rkey);
        finish(side, ucp_ep_close_nbx(side->ep, &none));
    }
    return 0;
}
