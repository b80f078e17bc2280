/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_svc_wire.h"

#include "ucm/access/nprdma_access.h"

#define UCT_NPRDMA_SVC_TYPE(_type, _name, _reply) \
    [UCT_NPRDMA_SVC_##_type - UCT_NPRDMA_SVC_STORE] = { \
        _name, UCT_NPRDMA_SVC_REPLY_##_reply \
    }

const uct_nprdma_svc_type_info_t uct_nprdma_svc_types[] = {
    UCT_NPRDMA_SVC_TYPE(STORE, "put", NONE),
    UCT_NPRDMA_SVC_TYPE(FETCH, "get", DATA),
    UCT_NPRDMA_SVC_TYPE(ATOMIC, "atomic", DATA),
    UCT_NPRDMA_SVC_TYPE(NOP, "flush", NONE),
    UCT_NPRDMA_SVC_TYPE(FIN, "close", NONE),
    UCT_NPRDMA_SVC_TYPE(POPULATE, "populate", STATES)
};


const uct_nprdma_svc_request_t *
uct_nprdma_svc_request_parse(const void *data, size_t length)
{
    const uct_nprdma_svc_request_t *request = data;
    uint64_t range;
    size_t payload;
    int valid;

    if (length < sizeof(*request)) {
        return NULL;
    }

    payload = length - sizeof(*request);
    if ((request->flags & ~UCT_NPRDMA_SVC_FLAG_REPLY) ||
        (request->reserved != 0) ||
        ((request->prefetch != 0) &&
         (request->type != UCT_NPRDMA_SVC_POPULATE))) {
        return NULL;
    }

    switch (request->type) {
    case UCT_NPRDMA_SVC_STORE:
        valid = (request->op == 0) && (payload == request->length) &&
                (payload > 0) && (payload <= UCT_NPRDMA_SVC_MAX_PIECE);
        break;
    case UCT_NPRDMA_SVC_FETCH:
        valid = !(request->op & ~UCT_NPRDMA_SVC_FETCH_POPULATE) &&
                (payload == 0) && (request->length > 0) &&
                (request->length <= UCT_NPRDMA_SVC_MAX_PIECE) &&
                (request->flags & UCT_NPRDMA_SVC_FLAG_REPLY);
        break;
    case UCT_NPRDMA_SVC_ATOMIC:
        valid = (request->op < NPRDMA_ATOMIC_LAST) &&
                (payload == sizeof(uct_nprdma_svc_operands_t)) &&
                ((request->length == 4) || (request->length == 8));
        break;
    case UCT_NPRDMA_SVC_POPULATE:
        range = (uint64_t)request->length + request->prefetch;
        valid = !(request->op & ~UCT_NPRDMA_SVC_POPULATE_WRITE) &&
                (payload == 0) && (request->length > 0) &&
                (range <= (UINT64_MAX - request->address)) &&
                (request->flags & UCT_NPRDMA_SVC_FLAG_REPLY);
        break;
    case UCT_NPRDMA_SVC_NOP:
    case UCT_NPRDMA_SVC_FIN:
        valid = (request->op == 0) && (payload == 0) && (request->key == 0) &&
                (request->address == 0) && (request->length == 0);
        break;
    default:
        valid = 0;
        break;
    }

    return valid ? request : NULL;
}

const uct_nprdma_svc_reply_t *
uct_nprdma_svc_reply_parse(const void *data, size_t length, uint8_t type,
                           uint32_t sn, size_t expected)
{
    const uct_nprdma_svc_reply_t *reply = data;

    if ((length < sizeof(*reply)) || (reply->type != UCT_NPRDMA_SVC_REPLY) ||
        (reply->status >= UCT_NPRDMA_SVC_STATUS_LAST) ||
        (reply->failed_status >= UCT_NPRDMA_SVC_STATUS_LAST) ||
        (reply->reserved != 0) || (reply->sn != sn) ||
        (reply->length != (length - sizeof(*reply)))) {
        return NULL;
    }

    if (reply->status != UCT_NPRDMA_SVC_OK) {
        if (type == UCT_NPRDMA_SVC_NOP) {
            return NULL;
        }
        expected = 0;
    }

    return (reply->length == expected) ? reply : NULL;
}

const uct_nprdma_svc_populated_t *
uct_nprdma_svc_populated_parse(const void *data, uint32_t length)
{
    const uct_nprdma_svc_populated_t *populated = data;

    return (populated->length <= length) ? populated : NULL;
}

ucs_status_t uct_nprdma_svc_ucs_status(uint8_t status)
{
    switch (status) {
    case UCT_NPRDMA_SVC_OK:
        return UCS_OK;
    case UCT_NPRDMA_SVC_ERR_KEY:
    case UCT_NPRDMA_SVC_ERR_ACCESS:
        return UCS_ERR_REJECTED;
    case UCT_NPRDMA_SVC_ERR_RANGE:
    case UCT_NPRDMA_SVC_ERR_FAULT:
        return UCS_ERR_INVALID_ADDR;
    case UCT_NPRDMA_SVC_ERR_ALIGN:
        return UCS_ERR_INVALID_PARAM;
    case UCT_NPRDMA_SVC_ERR_VIEW:
        return UCS_ERR_UNSUPPORTED;
    default:
        return UCS_ERR_IO_ERROR;
    }
}
