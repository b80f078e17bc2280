/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_CONN_TYPES_H_
#define UCT_NPRDMA_CONN_TYPES_H_

#include "nprdma_verbs.h"

#include "uct/ib/nprdma/wire/nprdma_wire.h"

#include <ucs/datastruct/queue.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/sys/math.h>
#include <ucs/type/status.h>

struct uct_nprdma_net_iface;
struct uct_nprdma_net_ep;

/*
 * A connection: the requester's RC queue pair of one direction, with the
 * accounting of its work requests. The responder's side is at the peer
 * (nprdma_responder for kinds AM and BULK, nprdma_service for kind SVC).
 *
 * The thread that calls the interface's progress owns all fields except those
 * marked "cm".
 */

typedef struct uct_nprdma_conn uct_nprdma_conn_t;
typedef struct uct_nprdma_comp uct_nprdma_comp_t;

typedef enum uct_nprdma_conn_state {
    UCT_NPRDMA_CONN_NONE,       /* no QP yet */
    UCT_NPRDMA_CONN_CONNECTING, /* REQ is sent or waits */
    UCT_NPRDMA_CONN_CONNECTED,
    UCT_NPRDMA_CONN_FAILED,     /* no more posts; WRs may still be flushed */
    UCT_NPRDMA_CONN_CLOSING     /* waits for the last WR */
} uct_nprdma_conn_state_t;


/* Called from progress when a work request is done, in posting order. With
 * UCS_OK a SEND or RDMA WRITE has been placed at the peer. conn->ep is NULL if
 * the endpoint has been destroyed meanwhile. The completion may be reused or
 * freed in the call. */
typedef void (*uct_nprdma_comp_func_t)(struct uct_nprdma_net_iface *iface,
                                       uct_nprdma_conn_t *conn,
                                       uct_nprdma_comp_t *comp,
                                       ucs_status_t status);

/* Embedded in each object that handles the completion of a work request */
struct uct_nprdma_comp {
    ucs_queue_elem_t       queue;
    uct_nprdma_comp_func_t func;
    uint16_t               sn;      /* of its WR; set by the post */
};

struct uct_nprdma_conn {
    struct ibv_qp             *qp;
    /* WRs that may be posted; few while CONNECTING, 0 after it */
    int32_t                   credits;
    int32_t                   max_credits;
    int32_t                   reserve;    /* for redo and verification */
    /* Credits that large operations do not get; includes reserve */
    int32_t                   small_reserve;
    /* Places in the CQ that are left to connections of the other kind */
    int32_t                   cq_reserve;
    uint16_t                  sn;         /* of the last WR posted */
    uint16_t                  done_sn;    /* of the last WR known to be done */
    uint16_t                  unsignaled; /* WRs since the last signaled one */
    /* From one signaled WR to the next, at most */
    uint16_t                  moderation;
    uint16_t                  num_slots;  /* slots that its WRs hold */
    uint8_t                   kind;       /* enum uct_nprdma_conn_kind */
    uint8_t                   state;      /* uct_nprdma_conn_state_t */
    /* cm: QP is connected; progress may not have seen that */
    uint8_t                   established;
    /* cm: the peer may be gone, and progress has to ask it */
    uint8_t                   doubted;
    /* cm: the device refused a WR of the backlog: no more posts */
    uint8_t                   refused;
    uint32_t                  id;         /* see UCT_NPRDMA_CONN_INDEX */
    struct uct_nprdma_net_ep      *ep;        /* NULL: destroyed */
    uint8_t                   broken;     /* progress has to fail it */
    uint8_t                   fin_due;    /* CLOSING: FIN not posted yet */
    ucs_queue_head_t          comps;      /* of WRs posted, in order */
    ucs_queue_head_t          backlog;    /* see nprdma_backlog.h */
    ucs_status_t              status;     /* reason of FAILED */
    struct uct_nprdma_cm_conn *cm;        /* cm: while connecting */
};

/* A connection id is an index into the interface's table plus a generation, so
 * that late completions and packets find no newer connection */
#define UCT_NPRDMA_CONN_INDEX_BITS   20
#define UCT_NPRDMA_CONN_INDEX(_id)   ((_id) & \
                                      ((1u << UCT_NPRDMA_CONN_INDEX_BITS) - 1))
#define UCT_NPRDMA_CONN_NO_INDEX     UINT32_MAX

/* Entry of the table */
typedef struct uct_nprdma_conn_entry {
    uct_nprdma_conn_t *conn;    /* NULL: free */
    /* Of conn, or of the last connection in this entry */
    uint32_t          id;
    /* Free: the one that was freed next; after the last one the first */
    uint32_t          next;
} uct_nprdma_conn_entry_t;

/* Maximum number of gather elements of a send */
#define UCT_NPRDMA_MAX_SEND_SGE      2

/* WRs of a connection of kind SVC or BULK that new operations do not get. They
 * verify and redo operations that have started, whatever the user posts in
 * callbacks (ARCHITECTURE 3, progress). */
#define UCT_NPRDMA_CONN_REDO_WR      4

/* Further WRs of an SVC connection that large operations do not get, at most: a
 * small one never waits for a WR of a large one */
#define UCT_NPRDMA_CONN_SMALL_WR     16

/* Maximum number of bytes of the last message of an SVC connection */
#define UCT_NPRDMA_FIN_MAX           64

/* UCX has such functions too, but in different headers in each version */
static inline size_t uct_nprdma_align_up(size_t value, size_t pow2)
{
    return (value + pow2 - 1) & ~(pow2 - 1);
}


/* wr_id of sends: the connection's id and the sequence number of the WR. wr_id
 * of receives on the interface's receive CQ: for the SRQ a pointer to a slot
 * (even); for the own RQ of an SVC connection the id of the connection and a
 * number that the poster chooses (odd). */
static inline uint64_t uct_nprdma_wr_id_tx(uint32_t conn_id, uint16_t sn)
{
    return ((uint64_t)conn_id << 32) | sn;
}

static inline uint64_t uct_nprdma_wr_id_svc(uint32_t conn_id, uint32_t index)
{
    return ((uint64_t)conn_id << 32) | (index << 1) | 1;
}

static inline int uct_nprdma_wr_id_is_svc(uint64_t wr_id)
{
    return wr_id & 1;
}

static inline uint32_t uct_nprdma_wr_id_conn(uint64_t wr_id)
{
    return wr_id >> 32;
}

static inline uint32_t uct_nprdma_wr_id_index(uint64_t wr_id)
{
    return (uint32_t)wr_id >> 1;
}

#endif
