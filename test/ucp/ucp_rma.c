/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_rma [NAME=VALUE...]
 *
 * Puts and gets of all sizes without memory handles, over one endpoint of a
 * process to itself. The settings are given to UCP by ucp_config_modify(), so
 * transports do not see them. Exits with 77 if this UCX does not know one.
 */

#include "ucp_common.h"

enum {
    MAX_SIZE = 4 << 20,
    ROUNDS   = 10,
    TAG      = 1
};

static const size_t sizes[] = {8, 1000, 8192, 20001, 65536, 300000, MAX_SIZE};

static ucp_context_h context;
static ucp_worker_h  near, far; /* The workers of initiator and target */


static void open_context(char **settings, int num_settings)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features   = UCP_FEATURE_RMA | UCP_FEATURE_TAG
    };
    ucp_config_t *config;
    ucs_status_t status;
    char *value;
    int i;

    CHECK_OK(ucp_config_read(NULL, NULL, &config));
    for (i = 0; i < num_settings; ++i) {
        value = strchr(settings[i], '=');
        CHECK(value != NULL, "'%s' is no NAME=VALUE", settings[i]);
        *value++ = '\0';
        status   = ucp_config_modify(config, settings[i], value);
        if (status == UCS_ERR_NO_ELEM) {
            printf("SKIPPED: this UCX has no %s\n", settings[i]);
            exit(77);
        }
        CHECK(status == UCS_OK, "%s=%s: %s", settings[i], value,
              ucs_status_string(status));
    }
    CHECK_OK(ucp_init(&params, config, &context));
    ucp_config_release(config);
}

static ucp_ep_h connect_workers(void)
{
    ucp_worker_params_t worker_params = {};
    ucp_ep_params_t params            = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
    };
    ucp_address_t *address;
    size_t length;
    ucp_ep_h ep;

    CHECK_OK(ucp_worker_create(context, &worker_params, &near));
    CHECK_OK(ucp_worker_create(context, &worker_params, &far));
    CHECK_OK(ucp_worker_get_address(far, &address, &length));
    params.address = address;
    CHECK_OK(ucp_ep_create(near, &params, &ep));
    ucp_worker_release_address(far, address);
    return ep;
}

/* Waits while both workers progress */
static void finish(ucs_status_ptr_t request)
{
    while (!is_done(request)) {
        ucp_worker_progress(near);
        ucp_worker_progress(far);
    }
    CHECK_OK(wait_for(near, request));
}

static ucp_rkey_h get_key(ucp_ep_h ep, ucp_mem_h memh)
{
    void *packed;
    size_t size;
    ucp_rkey_h rkey;

    CHECK_OK(ucp_rkey_pack(context, memh, &packed, &size));
    CHECK_OK(ucp_ep_rkey_unpack(ep, packed, &rkey));
    ucp_rkey_buffer_release(packed);
    return rkey;
}

/* One put and one get, with a buffer that UCP has never seen */
static void put_and_get(ucp_ep_h ep, char *target, ucp_rkey_h rkey,
                        size_t size, uint64_t place)
{
    char *local              = new_memory(MAX_SIZE);

    fill(local, size, place);
    memset(target, 0, size);
    finish(ucp_put_nbx(ep, local, size, (uintptr_t)target, rkey, &none));
    finish(ucp_ep_flush_nbx(ep, &none));
    expect(target, size, place);

    fill(target, size, place + MAX_SIZE);
    finish(ucp_get_nbx(ep, local, size, (uintptr_t)target, rkey, &none));
    expect(local, size, place + MAX_SIZE);
    CHECK(munmap(local, MAX_SIZE) == 0, "munmap: %m");
}

static void send_message(ucp_ep_h ep)
{
    uint64_t sent = 1, received = 0;
    ucs_status_ptr_t request;

    request = ucp_tag_recv_nbx(far, &received, sizeof(received), TAG, -1,
                               &none);
    finish(ucp_tag_send_nbx(ep, &sent, sizeof(sent), TAG, &none));
    finish(request);
    CHECK(received == sent, "the message is wrong");
}

int main(int argc, char **argv)
{
    char *target             = new_memory(MAX_SIZE);
    unsigned i, round;
    ucp_rkey_h rkey;
    ucp_mem_h memh;
    ucp_ep_h ep;

    open_context(argv + 1, argc - 1);
    ep   = connect_workers();
    memh = map_memory(context, target, MAX_SIZE);
    rkey = get_key(ep, memh);
    for (round = 0; round < ROUNDS; ++round) {
        for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
            put_and_get(ep, target, rkey, sizes[i], round * 1000 + i);
        }
    }
    send_message(ep);

    ucp_rkey_destroy(rkey);
    CHECK_OK(ucp_mem_unmap(context, memh));
    finish(ucp_ep_close_nbx(ep, &none));
    ucp_worker_destroy(near);
    ucp_worker_destroy(far);
    ucp_cleanup(context);
    return 0;
}
