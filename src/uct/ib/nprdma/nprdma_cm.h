/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_CM_H_
#define UCT_NPRDMA_CM_H_

#include "nprdma_bounce.h"
#include "nprdma_conn.h"

#include <ucs/datastruct/khash.h>
#include <ucs/datastruct/list.h>
#include <ucs/time/time_def.h>

/*
 * Wire-up: finds the peer's interface by UD datagrams and makes the two QPs
 * of a connection know each other. Runs in the async context of the worker
 * (so that a busy or sleeping peer accepts) as well as in progress; everything
 * in uct_nprdma_cm_t is used with the async context blocked. What it decides
 * about endpoints is left in a list that only progress acts on.
 */

typedef struct uct_nprdma_cm_config {
    double         retry_interval;  /* first retransmission, seconds */
    double         retry_max;       /* longest interval */
    double         timeout;         /* give up */
    unsigned       window;          /* REQs in flight */
    unsigned       rx_slots;
    struct {                        /* misbehave on purpose, for tests */
        unsigned   drop;            /* percent of packets sent */
        unsigned   dup;
        unsigned   reorder;
        unsigned   seed;
    } inject;
} uct_nprdma_cm_config_t;


/* Requester's side of a connection, from uct_nprdma_conn_start() until
 * progress has seen the outcome. */
typedef struct uct_nprdma_cm_conn {
    ucs_list_link_t         list;       /* in one of the lists of the cm */
    uct_nprdma_conn_t       *conn;
    uct_nprdma_dev_addr_t   dev_addr;
    uct_nprdma_iface_addr_t iface_addr;
    uint32_t                psn;        /* ours */
    int                     in_flight;
    ucs_time_t              next;       /* retransmission is due */
    ucs_time_t              interval;
    ucs_time_t              deadline;
    ucs_status_t            status;     /* UCS_INPROGRESS, then the outcome */
} uct_nprdma_cm_conn_t;


/* Responder's side; see nprdma_cm.c */
struct uct_nprdma_cm_responder;

KHASH_TYPE(uct_nprdma_cm_responders, uint64_t,
           struct uct_nprdma_cm_responder *);

/* Address handles, one for every port talked to. */
typedef struct uct_nprdma_cm_ah {
    ucs_list_link_t       list;
    uct_nprdma_dev_addr_t dev_addr;
    struct ibv_ah         *ah;
} uct_nprdma_cm_ah_t;

typedef struct uct_nprdma_cm {
    struct ibv_comp_channel            *channel;
    struct ibv_cq                      *cq;
    struct ibv_qp                      *qp;
    uct_nprdma_bounce_t                pool;
    uint32_t                           tx_posted;
    ucs_list_link_t                    waiting;    /* for a place in window */
    ucs_list_link_t                    in_flight;  /* REQ sent */
    ucs_list_link_t                    outcomes;   /* for progress */
    unsigned                           num_in_flight;
    volatile int                       attention;  /* progress should look */
    khash_t(uct_nprdma_cm_responders)  responders;
    ucs_list_link_t                    unconfirmed; /* responders without RTU */
    ucs_list_link_t                    dead;        /* responders to be freed */
    ucs_list_link_t                    ahs;
    int                                timer_id;    /* -1: nothing to do */
    int                                wakeup_fd;   /* eventfd, part of the
                                                       iface's event fd */
    uct_nprdma_cm_config_t             config;
    uint64_t                           nonce;
    unsigned                           rand_state;
    uct_nprdma_slot_t                  *held;       /* packet to be reordered */
} uct_nprdma_cm_t;


/**
 * Set up wire-up on an interface whose port, address and CQs are known.
 *
 * @param [in] iface   Interface.
 * @param [in] config  Configuration, copied.
 *
 * @return UCS_OK, or an error with a logged reason.
 */
ucs_status_t uct_nprdma_cm_init(struct uct_nprdma_iface *iface,
                                const uct_nprdma_cm_config_t *config);

/** Undo uct_nprdma_cm_init(); responders of the interface are destroyed. */
void uct_nprdma_cm_cleanup(struct uct_nprdma_iface *iface);


/**
 * Ask the peer for the other side of a connection that is in INIT.
 *
 * @param [in] iface       Interface.
 * @param [in] conn        Connection in state CONNECTING, with a QP in INIT.
 * @param [in] dev_addr    Where the peer is.
 * @param [in] iface_addr  Which interface there.
 *
 * @return UCS_OK, or UCS_ERR_NO_MEMORY.
 */
ucs_status_t uct_nprdma_cm_connect(struct uct_nprdma_iface *iface,
                                   uct_nprdma_conn_t *conn,
                                   const uct_nprdma_dev_addr_t *dev_addr,
                                   const uct_nprdma_iface_addr_t *iface_addr);

/** Stop connecting; the connection is about to go. */
void uct_nprdma_cm_cancel(struct uct_nprdma_iface *iface,
                          uct_nprdma_conn_t *conn);


/**
 * Part of progress: act on what wire-up has decided.
 *
 * @return Number of things done.
 */
unsigned uct_nprdma_cm_progress(struct uct_nprdma_iface *iface);


/**
 * The requester's last message on an AM connection has been received.
 *
 * @param [in] qp_num  Local QP that it arrived on.
 */
void uct_nprdma_cm_fin(struct uct_nprdma_iface *iface, uint32_t qp_num);

#endif
