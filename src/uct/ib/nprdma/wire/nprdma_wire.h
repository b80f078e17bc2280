/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_WIRE_H_
#define UCT_NPRDMA_WIRE_H_

/* The formats that travel between two processes: addresses that UCX carries,
 * wire-up packets over UD, headers of active messages over RC.
 * nprdma_svc_wire.h has the messages of the service. All integers are little
 * endian: both sides of a job run the same build on the same kind of machine.
 * The version byte of the addresses distinguishes builds. */

#include <stddef.h>
#include <stdint.h>

#define UCT_NPRDMA_WIRE_VERSION  3

/* In the version of an interface: its slots are short */
#define UCT_NPRDMA_WIRE_SHORT    0x80

/* First bytes of every wire-up packet; they distinguish it from foreign UD
 * traffic */
#define UCT_NPRDMA_CM_MAGIC      0x6d63706eu

/* A UD receive begins with 40 bytes for the global route header (InfiniBand
 * specification, UD transport) */
#define UCT_NPRDMA_GRH_LEN       40u


/* Device address: a fabric and a port of the device */
typedef struct uct_nprdma_dev_addr {
    uint8_t  version;
    uint8_t  flags;             /* UCT_NPRDMA_DEV_ADDR_xx */
    uint16_t lid;
    uint8_t  mtu;               /* enum ibv_mtu */
    uint8_t  reserved[3];
    uint8_t  gid[16];
} __attribute__((packed)) uct_nprdma_dev_addr_t;

enum {
    UCT_NPRDMA_DEV_ADDR_ETH = 1 << 0 /* RoCE: only the GID is an address */
};


/* Interface address: the destination of wire-up packets. The nonce
 * distinguishes an interface from an earlier one with the same QPN. */
typedef struct uct_nprdma_iface_addr {
    uint8_t  version;           /* | UCT_NPRDMA_WIRE_SHORT if slots are short */
    uint8_t  reserved[3];
    uint32_t ud_qpn;
    uint64_t nonce;
} __attribute__((packed)) uct_nprdma_iface_addr_t;


/* Address of a QP, for the peer that connects its own QP to it */
typedef struct uct_nprdma_qp_addr {
    uint32_t              qpn;
    uint32_t              psn;
    uct_nprdma_dev_addr_t dev;
} __attribute__((packed)) uct_nprdma_qp_addr_t;


/* Purpose of the requester's QP; selects the part of the peer that answers */
enum uct_nprdma_conn_kind {
    UCT_NPRDMA_CONN_AM,         /* iface SRQ, application's progress */
    UCT_NPRDMA_CONN_SVC,        /* MD service: SRQ, CQ and thread of its own */
    /* As AM; the NIC answers, so that it receives the last message only */
    UCT_NPRDMA_CONN_BULK,
    UCT_NPRDMA_CONN_KIND_LAST
};


enum uct_nprdma_cm_type {
    UCT_NPRDMA_CM_REQ = 1,      /* request to connect */
    UCT_NPRDMA_CM_REP,          /* connected; carries the responder's QP */
    /* The REP arrived; the responder stops sending it */
    UCT_NPRDMA_CM_RTU,
    UCT_NPRDMA_CM_REJ,          /* refused, with a reason */
    UCT_NPRDMA_CM_RST,          /* answers a REP for an unknown connection */
    UCT_NPRDMA_CM_TYPE_LAST
};


enum uct_nprdma_cm_reason {
    UCT_NPRDMA_CM_REASON_NONE,
    UCT_NPRDMA_CM_REASON_STALE,     /* the addressed interface is gone */
    UCT_NPRDMA_CM_REASON_NO_RES,    /* no QP or memory */
    UCT_NPRDMA_CM_REASON_LAST
};


/* Wire-up packet, of the same size for all types. The pair (interface nonce of
 * the requester, conn_id) names a connection. */
typedef struct uct_nprdma_cm_packet {
    uint32_t             magic;
    uint8_t              version;
    uint8_t              type;      /* enum uct_nprdma_cm_type */
    uint8_t              kind;      /* enum uct_nprdma_conn_kind */
    uint8_t              reason;    /* enum uct_nprdma_cm_reason, REJ only */
    uint64_t             src_nonce; /* interface that sends the packet */
    uint64_t             dst_nonce; /* interface that the packet is for */
    uint32_t             conn_id;   /* chosen by the requester */
    uint32_t             ud_qpn;    /* destination of the answer */
    /* REQ of kind SVC: conn_id of the connection of kind AM of the same
     * endpoint; otherwise 0 */
    uint32_t             am_id;
    uct_nprdma_qp_addr_t qp;        /* sender's QP */
} __attribute__((packed)) uct_nprdma_cm_packet_t;


/* "npsk" */
#define UCT_NPRDMA_SOCK_MAGIC    0x6b73706eu

/* Last bytes of the private data of a connection by socket address: the device
 * of the sender */
typedef struct uct_nprdma_sock_trailer {
    uint32_t              magic;
    uct_nprdma_dev_addr_t dev;
} __attribute__((packed)) uct_nprdma_sock_trailer_t;


/* Messages on the RC queue pair of an endpoint (kind AM) */
enum uct_nprdma_am_type {
    UCT_NPRDMA_AM_DATA = 0x41,
    /* The last message: the responder may destroy its QP */
    UCT_NPRDMA_AM_FIN
};

/* Number of active message ids; equal to UCT_AM_ID_MAX */
#define UCT_NPRDMA_AM_ID_MAX  32

/* Bits of the number of requests that a message follows; the others are in the
 * immediate data */
#define UCT_NPRDMA_AM_FOLLOWS_SHIFT  32
#define UCT_NPRDMA_AM_FOLLOWS_BITS   48

typedef struct uct_nprdma_am_hdr {
    uint8_t  type;              /* enum uct_nprdma_am_type */
    uint8_t  am_id;
    uint16_t follows;           /* upper bits, if there are immediate data */
    uint32_t length;            /* bytes of payload that follow */
} __attribute__((packed)) uct_nprdma_am_hdr_t;


/* Whether a message that follows this number of requests, the lower bits of a
 * count, may be delivered. Right while fewer than half of what the bits can
 * count lie between the two. */
static inline int
uct_nprdma_am_may_follow(uint64_t follows, uint64_t executed)
{
    const uint64_t half = 1ull << (UCT_NPRDMA_AM_FOLLOWS_BITS - 1);

    return ((executed - follows) & (2 * half - 1)) < half;
}


/* Copy a wire-up packet, and check it. Zero: it is malformed. Pure, so that it
 * can be fuzzed. */
int uct_nprdma_cm_parse(const void *data, size_t length,
                        uct_nprdma_cm_packet_t *packet);


/* Type of a received active message, or -1 if it is malformed. Pure. */
int uct_nprdma_am_parse(const void *data, size_t length);


/* Write the trailer of private data, of any alignment */
void uct_nprdma_sock_trailer_init(void *buf, const uct_nprdma_dev_addr_t *dev);


/* Whether private data of the peer, of any alignment, ends with a valid
 * trailer. Pure. */
int uct_nprdma_sock_trailer_find(const void *data, size_t length,
                                 uct_nprdma_dev_addr_t *dev);

#endif
