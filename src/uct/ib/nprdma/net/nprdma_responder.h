/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RESPONDER_H_
#define UCT_NPRDMA_RESPONDER_H_

#include "nprdma_executed.h"
#include "nprdma_net.h"

/*
 * The responder's side of connections that peers have opened to an interface:
 * an RC QP on the interface's SRQ (kinds AM and BULK), or a connection of the
 * MD's service (kind SVC). The requester's nonce and connection id are its
 * name, so that a repeated REQ finds the responder of the first one.
 *
 * A responder ends in one of two ways. Its requester ends it, by FIN as the
 * last message of the connection or by RST. Or a probe finds that the
 * requester's QP is gone. It is probed when the requester has confirmed it
 * (RTU), or should have done so long ago.
 *
 * The async context is blocked in all these functions, unless the comment says
 * otherwise.
 */
struct uct_nprdma_responder {
    /* Of cm: unconfirmed, confirmed, dying or drained */
    ucs_list_link_t                list;
    uint64_t                       nonce;      /* requester's interface */
    uint32_t                       conn_id;    /* chosen by the requester */
    uint8_t                        kind;       /* enum uct_nprdma_conn_kind */
    uint8_t                        confirmed;
    uint8_t                        probing;    /* a probe is outstanding */
    uint8_t                        is_dying;   /* in a list of dying ones */
    uint32_t                       ud_qpn;     /* requester's interface */
    struct ibv_qp                  *qp;        /* other kinds */
    struct uct_nprdma_service_conn *svc;       /* kind SVC */
    /* Kind AM: requests of the same endpoint */
    uct_nprdma_executed_t          *executed;
    uct_nprdma_qp_addr_t           peer;
    uint32_t                       qpn;        /* of the local QP */
    uint32_t                       psn;
    ucs_time_t                     next;       /* time of the next REP */
    ucs_time_t                     interval;
    ucs_time_t                     deadline;
};


void uct_nprdma_responder_init(uct_nprdma_net_iface_t *iface);

/* Create a responder, or find that of an earlier copy of the REQ, which
 * uct_nprdma_cm_parse() has checked */
void uct_nprdma_responder_req(uct_nprdma_net_iface_t *iface,
                              const uct_nprdma_cm_packet_t *packet);

/* Handle an RTU or RST that uct_nprdma_cm_parse() has checked */
void uct_nprdma_responder_confirm(uct_nprdma_net_iface_t *iface,
                                  const uct_nprdma_cm_packet_t *packet);

/* Repeat REPs that are due; take responders for confirmed that wait too long */
void uct_nprdma_responder_timer(uct_nprdma_net_iface_t *iface, ucs_time_t now);

/* Begin a round of probes: each requester's QP is asked once, a bounded number
 * at the same time. A round that has not ended goes on where it is. */
void uct_nprdma_responder_probe_all(uct_nprdma_net_iface_t *iface);

/* Completion of a probe, possibly an error */
void uct_nprdma_responder_probed(uct_nprdma_net_iface_t *iface,
                                 const struct ibv_wc *wc);

/* The last message on an AM connection has been received. From progress, with
 * the async context not blocked. */
void uct_nprdma_responder_fin(uct_nprdma_net_iface_t *iface,
                              uint32_t qp_num);

/* How many requests of the endpoint have been executed, with a reference for
 * the caller; NULL if the QP is not of kind AM. From progress, with the async
 * context not blocked. */
uct_nprdma_executed_t *
uct_nprdma_responder_executed(uct_nprdma_net_iface_t *iface, uint32_t qp_num);

/* Progress has found the receive CQ empty: destroy the responders that ended
 * before the last such call. The async context is not blocked. */
void uct_nprdma_responder_reap(uct_nprdma_net_iface_t *iface);

void uct_nprdma_responder_cleanup(uct_nprdma_net_iface_t *iface);

#endif
