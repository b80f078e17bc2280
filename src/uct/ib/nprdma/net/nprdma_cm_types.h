/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_CM_TYPES_H_
#define UCT_NPRDMA_CM_TYPES_H_

#include "nprdma_bounce.h"
#include "nprdma_conn_types.h"

#include <ucs/datastruct/khash.h>
#include <ucs/datastruct/list.h>
#include <ucs/time/time_def.h>

#include <stdatomic.h>

/* Outstanding probes of requesters at most, by an interface on its queue pairs
 * and by a service on its own: the completion queue of wire-up has room for
 * them */
#define UCT_NPRDMA_CM_MAX_PROBES  16

/* wr_id on the completion queue of wire-up. A number with bit 63 set is a probe
 * on the QP of that number. Otherwise it is a pointer to a slot: odd for a
 * send, even for a receive. */
static inline uint64_t uct_nprdma_cm_wr_id_send(uct_nprdma_slot_t *slot)
{
    return (uintptr_t)slot | 1;
}

static inline int uct_nprdma_cm_wr_id_is_send(uint64_t wr_id)
{
    return wr_id & 1;
}

static inline uct_nprdma_slot_t *uct_nprdma_cm_wr_id_slot(uint64_t wr_id)
{
    return (uct_nprdma_slot_t*)(uintptr_t)(wr_id & ~1ull);
}

static inline uint64_t uct_nprdma_cm_wr_id_probe(uint32_t qpn)
{
    return UCS_BIT(63) | qpn;
}

static inline int uct_nprdma_cm_wr_id_is_probe(uint64_t wr_id)
{
    return (wr_id & UCS_BIT(63)) != 0;
}

static inline uint32_t uct_nprdma_cm_wr_id_qpn(uint64_t wr_id)
{
    return (uint32_t)wr_id;
}


typedef struct uct_nprdma_cm_config {
    double         retry_interval;  /* before the first one, seconds */
    double         retry_max;       /* longest interval, seconds */
    double         timeout;         /* seconds until connecting fails */
    double         probe_interval;  /* seconds between probes of requesters */
} uct_nprdma_cm_config_t;


/* Requester's side of a connection, from uct_nprdma_conn_start() until progress
 * has handled the outcome */
typedef struct uct_nprdma_cm_conn {
    ucs_list_link_t         list;       /* in one of the lists of the cm */
    uct_nprdma_conn_t       *conn;
    uct_nprdma_dev_addr_t   dev_addr;
    uct_nprdma_iface_addr_t iface_addr;
    uint32_t                psn;        /* of the local QP */
    uint32_t                am_id;      /* as in the REQ */
    int                     in_flight;
    ucs_time_t              next;       /* time of the next retransmission */
    ucs_time_t              interval;
    ucs_time_t              deadline;
    ucs_status_t            status;     /* UCS_INPROGRESS, then the outcome */
} uct_nprdma_cm_conn_t;


/* Responder's side; see nprdma_responder.c */
typedef struct uct_nprdma_responder uct_nprdma_responder_t;

KHASH_TYPE(uct_nprdma_responders, uint64_t, uct_nprdma_responder_t*);

/* Address handle of a port that packets have been sent to */
typedef struct uct_nprdma_cm_ah {
    ucs_list_link_t       list;
    uct_nprdma_dev_addr_t dev_addr;
    struct ibv_ah         *ah;  /* NULL: the address could not be resolved */
    ucs_time_t            next; /* then: not tried again before this time */
} uct_nprdma_cm_ah_t;

typedef struct uct_nprdma_cm {
    struct ibv_comp_channel        *channel;
    struct ibv_cq                  *cq;        /* UD, and responders' probes */
    struct ibv_qp                  *qp;
    uct_nprdma_bounce_t            pool;
    unsigned                       tx_posted;
    unsigned                       rx_slots;
    unsigned                       rx_posted;
    int                            broken;     /* UD QP is in ERR */
    int                            sq_error;   /* UD QP is in SQE */
    int                            dead;       /* UD QP cannot be repaired */
    int                            has_doubted; /* a connection is doubted */
    ucs_list_link_t                waiting;    /* REQs: wait for the window */
    ucs_list_link_t                in_flight;  /* REQ sent */
    ucs_list_link_t                outcomes;   /* for progress to handle */
    atomic_uint                    num_in_flight;
    atomic_uint                    attention;  /* there are outcomes */
    khash_t(uct_nprdma_responders) responders; /* by requester and conn_id */
    khash_t(uct_nprdma_responders) by_qpn;     /* those of kinds AM and BULK */
    ucs_list_link_t                unconfirmed; /* responders without RTU */
    ucs_list_link_t                confirmed;  /* the next to probe first */
    /* With a QP in ERR, which may have completions */
    ucs_list_link_t                dying;
    ucs_list_link_t                drained;    /* without completions */
    atomic_uint                    num_dying;  /* length of both lists */
    unsigned                       num_probes; /* outstanding */
    unsigned                       probes_due; /* left in this round */
    ucs_list_link_t                ahs;        /* most recently used first */
    unsigned                       num_ahs;
    int                            timer_id;   /* -1: does not run */
    int                            probe_timer_id; /* -1: not started */
    /* By progress: UCX's thread may not exist, see uct_nprdma_cm_poll() */
    int                            is_polled;
    ucs_time_t                     next_tick;  /* if polled */
    ucs_time_t                     next_probe; /* if polled */
    int                            wakeup_fd;  /* in the event fd */
    uct_nprdma_cm_config_t         config;
    unsigned                       rand_state; /* of packet numbers */
} uct_nprdma_cm_t;


/* Read one of the atomics while the async context is not blocked */
static inline unsigned uct_nprdma_cm_hint(const atomic_uint *hint)
{
    return atomic_load_explicit(hint, memory_order_relaxed);
}

#endif
