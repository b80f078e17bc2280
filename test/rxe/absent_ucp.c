/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "absent.h"

#include <ucp/api/ucp.h>

/* What the two processes exchange, before address and key */
typedef struct peer {
    size_t   address_length, key_length;
    uint64_t memory;
} peer_t;

static struct {
    ucp_context_h context;
    ucp_worker_h  worker;
    ucp_ep_h      ep;
    ucp_rkey_h    rkey;
    ucp_mem_h     mem;
    uint8_t       *memory;
    uint64_t      remote;
} ucp;

#define CHECK_OK(_call)                                             \
    do {                                                            \
        ucs_status_t _status = (_call);                             \
        CHECK(_status == UCS_OK, "%s", ucs_status_string(_status)); \
    } while (0)

static void open_worker(void)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features   = UCP_FEATURE_RMA | UCP_FEATURE_AMO64
    };
    ucp_worker_params_t worker = {
        .field_mask  = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE
    };

    CHECK_OK(ucp_init(&params, NULL, &ucp.context));
    CHECK_OK(ucp_worker_create(ucp.context, &worker, &ucp.worker));
}

static void tell(int socket)
{
    peer_t self = {.memory = (uintptr_t)ucp.memory};
    ucp_address_t *address;
    void *key;

    CHECK_OK(ucp_worker_get_address(ucp.worker, &address,
                                    &self.address_length));
    CHECK_OK(ucp_rkey_pack(ucp.context, ucp.mem, &key, &self.key_length));
    absent_send(socket, &self, sizeof(self));
    absent_send(socket, address, self.address_length);
    absent_send(socket, key, self.key_length);
    ucp_rkey_buffer_release(key);
    ucp_worker_release_address(ucp.worker, address);
}

static void hear(int socket)
{
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    void *address, *key;
    peer_t peer;

    absent_receive(socket, &peer, sizeof(peer));
    address = malloc(peer.address_length);
    key     = malloc(peer.key_length);
    CHECK((address != NULL) && (key != NULL), "no memory");
    absent_receive(socket, address, peer.address_length);
    absent_receive(socket, key, peer.key_length);
    params.address = address;
    CHECK_OK(ucp_ep_create(ucp.worker, &params, &ucp.ep));
    CHECK_OK(ucp_ep_rkey_unpack(ucp.ep, key, &ucp.rkey));
    ucp.remote = peer.memory;
    free(key);
    free(address);
}

/* The owner calls UCP again only to close it. As with a device, it may sleep
 * meanwhile. */
static void connect_ucp(int owner, int socket, void *memory, size_t length)
{
    ucp_mem_map_params_t map = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                      UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address    = memory,
        .length     = length
    };

    open_worker();
    ucp.memory = memory;
    CHECK_OK(ucp_mem_map(ucp.context, &map, &ucp.mem));
    if (owner) {
        tell(socket);
    } else {
        hear(socket);
    }
}

/* The status of a request and of a flush behind it, because a put need not have
 * arrived before */
static ucs_status_t await(ucs_status_ptr_t request)
{
    ucs_status_t status;

    if (!UCS_PTR_IS_PTR(request)) {
        return UCS_PTR_STATUS(request);
    }
    do {
        ucp_worker_progress(ucp.worker);
        status = ucp_request_check_status(request);
    } while (status == UCS_INPROGRESS);
    ucp_request_free(request);
    return status;
}

static const char *transfer(absent_op_t op, size_t offset, size_t length)
{
    static const uint64_t one = 1;
    ucp_request_param_t param = {0};
    void *local               = ucp.memory + offset;
    uint64_t remote           = ucp.remote + offset;
    ucs_status_ptr_t request;
    ucs_status_t status;

    switch (op) {
    case ABSENT_READ:
        request = ucp_get_nbx(ucp.ep, local, length, remote, ucp.rkey, &param);
        break;
    case ABSENT_WRITE:
        request = ucp_put_nbx(ucp.ep, local, length, remote, ucp.rkey, &param);
        break;
    default:
        param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE |
                             UCP_OP_ATTR_FIELD_REPLY_BUFFER;
        param.datatype     = ucp_dt_make_contig(length);
        param.reply_buffer = local;
        request            = ucp_atomic_op_nbx(ucp.ep, UCP_ATOMIC_OP_ADD, &one,
                                               1, remote, ucp.rkey, &param);
    }
    status = await(request);
    if (status == UCS_OK) {
        param  = (ucp_request_param_t){0};
        status = await(ucp_ep_flush_nbx(ucp.ep, &param));
    }
    return (status == UCS_OK) ? NULL : ucs_status_string(status);
}

static void disconnect(void)
{
    ucp_request_param_t param = {0};

    if (ucp.ep != NULL) {
        ucp_rkey_destroy(ucp.rkey);
        CHECK_OK(await(ucp_ep_close_nbx(ucp.ep, &param)));
    }
    CHECK_OK(ucp_mem_unmap(ucp.context, ucp.mem));
    ucp_worker_destroy(ucp.worker);
    ucp_cleanup(ucp.context);
}

const absent_way_t absent_ucp = {connect_ucp, transfer, disconnect};
