/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RESPONDER_H_
#define UCT_NPRDMA_RESPONDER_H_

#include "nprdma_net.h"

/*
 * The responder's side of connections that peers have opened to an interface:
 * an RC QP on the interface's SRQ (kind AM), or a connection of the MD's
 * service (kind SVC). Named by the requester's nonce and connection id, so that
 * a repeated REQ finds what the first one made.
 *
 * A responder goes when its requester says so, by FIN as the last message of
 * the connection or by RST, when the requester never confirms (RTU), or when a
 * probe finds the requester's QP gone.
 *
 * All with the async context blocked, except where another rule is given.
 */
struct uct_nprdma_responder {
    ucs_list_link_t                list;       /* cm.unconfirmed, or dying */
    uint64_t                       nonce;      /* requester's interface */
    uint32_t                       conn_id;    /* given by the requester */
    uint8_t                        kind;       /* enum uct_nprdma_conn_kind */
    uint8_t                        confirmed;
    uint8_t                        probing;    /* a probe is outstanding */
    uint32_t                       ud_qpn;     /* requester's interface */
    struct ibv_qp                  *qp;        /* kind AM */
    struct uct_nprdma_service_conn *svc;       /* kind SVC */
    uct_nprdma_qp_addr_t           peer;
    uint32_t                       qpn;        /* ours */
    uint32_t                       psn;
    ucs_time_t                     next;       /* REP is repeated */
    ucs_time_t                     interval;
    ucs_time_t                     deadline;
};


/** Begin without responders. */
void uct_nprdma_responder_init(uct_nprdma_net_iface_t *iface);

/** Handle a REQ: make a responder, or find the one that it made before. */
void uct_nprdma_responder_req(uct_nprdma_net_iface_t *iface,
                              const uct_nprdma_cm_packet_t *packet);

/** Handle an RTU or RST. */
void uct_nprdma_responder_confirm(uct_nprdma_net_iface_t *iface,
                                  const uct_nprdma_cm_packet_t *packet);

/** Repeat REPs that are due, drop responders whose requester is silent. */
void uct_nprdma_responder_timer(uct_nprdma_net_iface_t *iface, ucs_time_t now);

/** Ask the QPs of all requesters whether they are there. */
void uct_nprdma_responder_probe_all(uct_nprdma_net_iface_t *iface);

/** A probe is complete. */
void uct_nprdma_responder_probed(uct_nprdma_net_iface_t *iface,
                                 const struct ibv_wc *wc);

/**
 * The requester's last message on an AM connection has been received.
 *
 * @param [in] qp_num  Local QP that it arrived on.
 */
void uct_nprdma_responder_fin(uct_nprdma_net_iface_t *iface,
                              uint32_t qp_num);

/**
 * The receive CQ has been seen empty: destroy the responders that were dying
 * before, and let those wait for the next time that have been added since.
 */
void uct_nprdma_responder_reap(uct_nprdma_net_iface_t *iface);

/** Destroy all of an interface. */
void uct_nprdma_responder_cleanup(uct_nprdma_net_iface_t *iface);

#endif
