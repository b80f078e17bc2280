/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_contexts N
 *
 * N contexts in one process, in a ring. Each sends messages to the next one,
 * and gets and puts memory there, while the others exist.
 */

#include "ucp_common.h"

enum {
    SIZE = 300000,
    TAG  = 1
};

typedef struct {
    ucp_context_h context;
    ucp_worker_h  worker;
    ucp_ep_h      ep;      /* To the next one */
    ucs_status_t  error;
    char          *memory;
    ucp_mem_h     memh;
} side_t;

static char   source[SIZE];
static side_t *sides;
static int    num_sides;


static void open_side(side_t *side)
{
    side->memory = new_memory(SIZE);
    open_ucp(UCP_FEATURE_RMA | UCP_FEATURE_TAG, &side->context, &side->worker);
    side->memh = map_memory(side->context, side->memory, SIZE);
}

static void close_side(side_t *side)
{
    CHECK_OK(ucp_mem_unmap(side->context, side->memh));
    close_ucp(side->context, side->worker);
    munmap(side->memory, SIZE);
}

static void connect_to(side_t *side, side_t *next)
{
    ucp_address_t *address;
    size_t length;

    CHECK_OK(ucp_worker_get_address(next->worker, &address, &length));
    side->ep = new_ep_to(side->worker, address, &side->error);
    ucp_worker_release_address(next->worker, address);
}

static void progress_all(void)
{
    int i;

    for (i = 0; i < num_sides; ++i) {
        ucp_worker_progress(sides[i].worker);
    }
}

static void finish(side_t *side, ucs_status_ptr_t request)
{
    while (!is_done(request)) {
        progress_all();
    }
    CHECK_OK(wait_for(side->worker, request));
}

static void exchange(side_t *side, side_t *next, size_t size, int number)
{
    ucs_status_ptr_t send, receive;
    ucp_rkey_h rkey;
    size_t length;
    void *key;

    fill(source, size, number);
    receive = ucp_tag_recv_nbx(next->worker, next->memory, size, TAG, -1,
                               &none);
    send    = ucp_tag_send_nbx(side->ep, source, size, TAG, &none);
    /* If it fails, the sender waits for ever */
    finish(next, receive);
    finish(side, send);
    expect(next->memory, size, number);

    CHECK_OK(ucp_rkey_pack(next->context, next->memh, &key, &length));
    CHECK_OK(ucp_ep_rkey_unpack(side->ep, key, &rkey));
    ucp_rkey_buffer_release(key);
    fill(source, size, number + 1);
    finish(side, ucp_put_nbx(side->ep, source, size,
                             (uintptr_t)next->memory, rkey, &none));
    finish(side, ucp_ep_flush_nbx(side->ep, &none));
    expect(next->memory, size, number + 1);
    memset(source, 0, size);
    finish(side, ucp_get_nbx(side->ep, source, size,
                             (uintptr_t)next->memory, rkey, &none));
    expect(source, size, number + 1);
    ucp_rkey_destroy(rkey);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {8, 2000, SIZE};
    side_t *next;
    size_t size;
    int i;

    num_sides = (argc == 2) ? atoi(argv[1]) : 0;
    CHECK(num_sides > 0, "say how many");
    sides = calloc(num_sides, sizeof(*sides));
    CHECK(sides != NULL, "calloc");
    for (i = 0; i < num_sides; ++i) {
        open_side(&sides[i]);
    }
    for (i = 0; i < num_sides; ++i) {
        connect_to(&sides[i], &sides[(i + 1) % num_sides]);
    }
    for (i = 0; i < num_sides; ++i) {
        next = &sides[(i + 1) % num_sides];
        for (size = 0; size < sizeof(sizes) / sizeof(*sizes); ++size) {
            exchange(&sides[i], next, sizes[size], 7 * i);
        }
    }
    for (i = 0; i < num_sides; ++i) {
        finish(&sides[i], ucp_ep_close_nbx(sides[i].ep, &none));
    }
    for (i = 0; i < num_sides; ++i) {
        close_side(&sides[i]);
    }
    printf("passed: %d contexts\n", num_sides);
    return 0;
}
