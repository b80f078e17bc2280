/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_svc_wire.h"

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
