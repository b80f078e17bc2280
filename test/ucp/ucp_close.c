/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_close ROUNDS
 *
 * Operations of all kinds are outstanding when an endpoint is closed by force:
 * each request ends, and no buffer changes afterwards. Then a new endpoint
 * works.
 */

#define _GNU_SOURCE
#include "ucp_pair.h"

enum {
    MAX_SIZE  = 2 << 20,
    AM_ID     = 7,
    NUM_KINDS = 5
};

static struct {
    unsigned      rounds;
    unsigned      seed;
    ucp_address_t *peer;
    ucp_ep_h      ep;
    ucs_status_t  error;
    uint64_t      peer_memory;
    void          *peer_key;
} self;


static void connect_to_peer(void)
{
    self.ep = new_ep_to(pair.worker, self.peer, &self.error);
}

/*
 * One operation of each kind. The first one writes to a buffer. No fetching
 * atomic: UCP 1.13 does not complete its request when the endpoint is closed by
 * force, not even over tcp.
 */
static void start_all(ucp_rkey_h rkey, char *in, const char *out,
                      ucs_status_ptr_t *requests)
{
    static const ucp_request_param_t rndv = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags        = UCP_AM_SEND_FLAG_RNDV
    };
    const size_t half = MAX_SIZE / 2;

    requests[0] = ucp_get_nbx(self.ep, in, half, self.peer_memory, rkey, &none);
    requests[1] = ucp_put_nbx(self.ep, out, half, self.peer_memory + half, rkey,
                              &none);
    requests[2] = ucp_tag_send_nbx(self.ep, out, MAX_SIZE, 1, &none);
    requests[3] = ucp_stream_send_nbx(self.ep, out, MAX_SIZE, &none);
    requests[4] = ucp_am_send_nbx(self.ep, AM_ID, NULL, 0, out, MAX_SIZE,
                                  &rndv);
}

static void close_by_force(void)
{
    ucs_status_ptr_t requests[NUM_KINDS];
    char *in  = new_memory(MAX_SIZE);
    char *out = new_memory(MAX_SIZE);
    char *end = new_memory(MAX_SIZE);
    ucp_rkey_h rkey;
    unsigned i;

    connect_to_peer();
    CHECK_OK(ucp_ep_rkey_unpack(self.ep, self.peer_key, &rkey));
    fill(out, MAX_SIZE, MAX_SIZE / 2);
    start_all(rkey, in, out, requests);
    for (i = rand_r(&self.seed) % 64; i > 0; --i) {
        ucp_worker_progress(pair.worker);
    }

    ucp_rkey_destroy(rkey);
    close_ep(pair.worker, self.ep, UCP_EP_CLOSE_FLAG_FORCE);
    for (i = 0; i < NUM_KINDS; ++i) {
        wait_for(pair.worker, requests[i]);
    }

    /* From now on the buffers must not be written any more */
    memcpy(end, in, MAX_SIZE);
    for (i = 0; i < 100; ++i) {
        ucp_worker_progress(pair.worker);
    }
    CHECK(!memcmp(end, in, MAX_SIZE), "written after the close");
    munmap(in, MAX_SIZE);
    munmap(out, MAX_SIZE);
    munmap(end, MAX_SIZE);
}

/* The result of a put that was closed by force is not defined, so the memory is
 * written first */
static void put_and_get(void)
{
    char *data = new_memory(MAX_SIZE);
    ucp_rkey_h rkey;

    connect_to_peer();
    CHECK_OK(ucp_ep_rkey_unpack(self.ep, self.peer_key, &rkey));
    fill(data, MAX_SIZE, 0);
    CHECK_OK(wait_for(pair.worker, ucp_put_nbx(self.ep, data, MAX_SIZE,
                                               self.peer_memory, rkey, &none)));
    CHECK_OK(wait_for(pair.worker, ucp_ep_flush_nbx(self.ep, &none)));
    memset(data, 0, MAX_SIZE);
    CHECK_OK(wait_for(pair.worker, ucp_get_nbx(self.ep, data, MAX_SIZE,
                                               self.peer_memory, rkey, &none)));
    expect(data, MAX_SIZE, 0);
    ucp_rkey_destroy(rkey);
    close_ep(pair.worker, self.ep, UCP_EP_CLOSE_FLAG_FORCE);
    munmap(data, MAX_SIZE);
}

/* Drops messages that were left by endpoints that were closed by force */
static ucs_status_t drop_message(void *arg, const void *header, size_t size,
                                 void *data, size_t length,
                                 const ucp_am_recv_param_t *param)
{
    return UCS_OK;
}

static void run(void)
{
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                      UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id         = AM_ID,
        .cb         = drop_message
    };
    char *memory                   = new_memory(MAX_SIZE);
    ucp_mem_h memh;
    unsigned i;

    open_ucp(UCP_FEATURE_RMA | UCP_FEATURE_TAG | UCP_FEATURE_STREAM |
             UCP_FEATURE_AM, &pair.context, &pair.worker);
    CHECK_OK(ucp_worker_set_am_recv_handler(pair.worker, &handler));
    self.peer     = pair_exchange_addresses();
    memh          = pair_export(memory, MAX_SIZE);
    self.peer_key = pair_import(&self.peer_memory);
    for (i = 0; (pair.number == 0) && (i < self.rounds); ++i) {
        close_by_force();
    }
    if (pair.number == 0) {
        put_and_get();
    }
    pair_meet();
    CHECK_OK(ucp_mem_unmap(pair.context, memh));
    close_ucp(pair.context, pair.worker);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: ucp_close ROUNDS");
    self.rounds = atoi(argv[1]);
    self.seed   = 1;
    return run_pair(run);
}
