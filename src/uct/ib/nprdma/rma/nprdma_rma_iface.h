/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_IFACE_H_
#define UCT_NPRDMA_RMA_IFACE_H_

#include "nprdma_local.h"
#include "nprdma_order.h"

#include "uct/ib/nprdma/mem/nprdma_mem_md.h"
#include "uct/ib/nprdma/net/nprdma_net.h"

#include <ucs/time/time_def.h>

/* Limits of a slice. Buffers for page states have the size for the largest
 * slice. */
#define UCT_NPRDMA_MIN_SLICE  NPRDMA_PAGE_SIZE
#define UCT_NPRDMA_MAX_SLICE  (1024 * 1024)

/* With UCX_NPRDMA_SCHED=y: bytes of the longest operation that is urgent, and
 * of a slice while something urgent goes on */
#define UCT_NPRDMA_PRIO_MAX    8192
#define UCT_NPRDMA_BUSY_SLICE  65536

/* Configuration of put, get and atomics */
typedef struct uct_nprdma_rma_config {
    /* Bytes of an operation that are moved and verified at once */
    size_t   slice;
    /* Nonzero: small operations pass large ones; the next four follow from
     * it */
    int      sched;
    size_t   prio_max;      /* longest operation that is urgent, bytes */
    size_t   quota;         /* as uct_nprdma_sched_init() has it */
    size_t   busy_slice;    /* slice while something urgent goes on, bytes */
    /* Large operations have queue pairs of their own, unless the interface has
     * many endpoints */
    int      has_bulk_qp;
    size_t   scan_max;      /* longest get that is scanned, bytes */
    unsigned max_tries;     /* optimistic tries of a slice */
    uct_nprdma_order_mode_t order; /* what waits for earlier operations */
    size_t   state_cache;   /* bytes for page states of peers */
} uct_nprdma_rma_config_t;


typedef struct uct_nprdma_rma      uct_nprdma_rma_t;
typedef struct uct_nprdma_rma_res  uct_nprdma_rma_res_t;
typedef struct uct_nprdma_rma_reply uct_nprdma_rma_reply_t;

/* The part of an interface and of an endpoint that initiates put, get and
 * atomics */

/* Kinds of waits of an endpoint; see nprdma_rma_watch.h */
typedef enum uct_nprdma_longest_kind {
    UCT_NPRDMA_LONGEST_CONNECT,
    UCT_NPRDMA_LONGEST_SEND,    /* Active messages */
    UCT_NPRDMA_LONGEST_REQUEST, /* Requests to the service */
    UCT_NPRDMA_LONGEST_OP,      /* Optimistic operations */
    UCT_NPRDMA_LONGEST_PENDING,
    UCT_NPRDMA_LONGEST_LAST
} uct_nprdma_longest_kind_t;


typedef struct uct_nprdma_longest {
    uint64_t   mark;        /* Of the oldest one at the last scan */
    ucs_time_t since;       /* Time of the first scan that found it */
    unsigned   num_reports; /* Number of log messages */
} uct_nprdma_longest_t;


/* Scans of an interface; initially all zeros */
typedef struct uct_nprdma_longest_iface {
    unsigned   num_polls; /* Calls of progress that found no work */
    ucs_time_t next;      /* Time of the next scan */
} uct_nprdma_longest_iface_t;


typedef struct uct_nprdma_rma_iface {
    union {
        uct_nprdma_net_iface_t    super;
        uct_nprdma_net_iface_t    net;     /* named after its floor */
    };
    const uct_nprdma_rma_config_t *config;
    uct_nprdma_local_t            local;   /* see nprdma_local.h */
    uct_nprdma_longest_iface_t    longest;
    /* NULL until first needed */
    struct uct_nprdma_rma_res     *res;
} uct_nprdma_rma_iface_t;

typedef struct uct_nprdma_rma_ep {
    union {
        uct_nprdma_net_ep_t       super;
        uct_nprdma_net_ep_t       net;     /* named after its floor */
    };
    /* State of svc; NULL until first needed */
    struct uct_nprdma_rma         *rma;
    /* waits of its operations */
    uct_nprdma_longest_t          longest[UCT_NPRDMA_LONGEST_LAST];
} uct_nprdma_rma_ep_t;


UCS_CLASS_DECLARE(uct_nprdma_rma_iface_t, const uct_nprdma_rma_config_t *,
                  const uct_nprdma_net_ops_t *, uct_iface_ops_t *,
                  uct_iface_internal_ops_t *, uct_md_h, uct_worker_h,
                  const uct_iface_params_t *, const uct_iface_config_t *);

UCS_CLASS_DECLARE(uct_nprdma_rma_ep_t, const uct_ep_params_t *);


/* With registrations and regions */
static inline uct_nprdma_mem_md_t *
uct_nprdma_rma_md(const uct_nprdma_rma_iface_t *iface)
{
    return ucs_derived_of(iface->net.super.md, uct_nprdma_mem_md_t);
}

static inline const char *
uct_nprdma_rma_dev_name(const uct_nprdma_rma_iface_t *iface)
{
    return uct_nprdma_net_dev(&iface->net)->name;
}

#endif
