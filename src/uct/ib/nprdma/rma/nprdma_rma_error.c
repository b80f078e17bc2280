/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_rma_error.h"

#include <inttypes.h>


void uct_nprdma_rma_report(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                           const char *name, uint64_t address, size_t length,
                           ucs_status_t status)
{
    const uct_nprdma_rma_ep_t *ep = rma->ep;

    ucs_log(rma->is_reported ? UCS_LOG_LEVEL_DEBUG : UCS_LOG_LEVEL_ERROR,
            "%s: %s of %zu bytes at 0x%" PRIx64 " failed at the peer with lid "
            "%u UD queue pair 0x%x: %s",
            uct_nprdma_rma_dev_name(iface), name, length, address,
            (ep == NULL) ? 0 : ep->net.dev_addr.lid,
            (ep == NULL) ? 0 : ep->net.iface_addr.ud_qpn,
            ucs_status_string(status));
    rma->is_reported = 1;
}

void uct_nprdma_rma_report_local(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma, int is_get,
                                 const void *buffer, size_t length)
{
    ucs_log(rma->is_reported ? UCS_LOG_LEVEL_DEBUG : UCS_LOG_LEVEL_ERROR,
            "%s: %zu bytes at %p were unmapped or protected before the %s that "
            "uses them was complete",
            uct_nprdma_rma_dev_name(iface), length, buffer,
            is_get ? "get" : "put");
    rma->is_reported = 1;
}

void uct_nprdma_rma_report_on_demand(uct_nprdma_rma_iface_t *iface,
                                     uct_nprdma_rma_t *rma, int is_get,
                                     const void *buffer, uint64_t address,
                                     size_t length, ucs_status_t status)
{
    const char *reason;

    /* Completion statuses of the peer's device and of the own one */
    if (status == UCS_ERR_CONNECTION_RESET) {
        reason = "the peer's device could not bring its memory in, or the key "
                 "has ended";
    } else if (status == UCS_ERR_IO_ERROR) {
        reason = "the device could not bring the local memory in";
    } else {
        return;
    }

    ucs_log(rma->is_reported ? UCS_LOG_LEVEL_DEBUG : UCS_LOG_LEVEL_ERROR,
            "%s: %s of %zu bytes between %p and the peer's 0x%" PRIx64
            " failed with on-demand paging: %s (not mapped, protected, "
            "truncated, under a userfaultfd?)",
            uct_nprdma_rma_dev_name(iface), is_get ? "get" : "put", length,
            buffer, address, reason);
    rma->is_reported = 1;
}

void uct_nprdma_rma_report_reply(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma,
                                 const uct_nprdma_rma_reply_t *reply,
                                 uint32_t failed_sn, ucs_status_t status)
{
    const uct_nprdma_rma_recent_t *recent =
            &rma->recent[failed_sn % UCT_NPRDMA_RMA_RECENT];
    int is_recent = recent->sn == failed_sn;

    if (reply->failed != UCS_OK) {
        uct_nprdma_rma_report(iface, rma,
                              is_recent ? "put or atomic" :
                                        "one of many puts and atomics",
                            is_recent ? recent->address : 0,
                            is_recent ? recent->length : 0, reply->failed);
    }

    if ((status != UCS_OK) && !uct_nprdma_rma_kind_is_of_slice(reply->kind)) {
        uct_nprdma_rma_report(iface, rma,
                              uct_nprdma_svc_type_info(reply->type)->name,
                              reply->address, reply->size, status);
    }
}
