/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_WIRE_H_
#define UCT_NPRDMA_WIRE_H_

/*
 * Everything that travels between two processes: addresses that UCX carries
 * for us, wire-up packets over UD, active message headers over RC. The service
 * messages are in the second half. All integers are little endian, as both
 * sides of a job run the same build on the same kind of machine; the version
 * byte of the addresses tells builds apart.
 */

#include <stddef.h>
#include <stdint.h>

#define UCT_NPRDMA_WIRE_VERSION  1

/* First bytes of every wire-up packet: tells foreign UD traffic apart. */
#define UCT_NPRDMA_CM_MAGIC      0x6d63706eu

/* A UD receive begins with room for the global route header. */
#define UCT_NPRDMA_GRH_LEN       40u


/* Device address: which fabric and which port of it. */
typedef struct uct_nprdma_dev_addr {
    uint8_t  version;
    uint8_t  flags;             /* UCT_NPRDMA_DEV_ADDR_xx */
    uint16_t lid;
    uint8_t  mtu;               /* enum ibv_mtu */
    uint8_t  reserved[3];
    uint8_t  gid[16];
} __attribute__((packed)) uct_nprdma_dev_addr_t;

enum {
    UCT_NPRDMA_DEV_ADDR_ETH = 1 << 0 /* RoCE: reach by GID only */
};


/* Interface address: where its wire-up packets go, and which life of it. */
typedef struct uct_nprdma_iface_addr {
    uint8_t  version;
    uint8_t  reserved[3];
    uint32_t ud_qpn;
    uint64_t nonce;
} __attribute__((packed)) uct_nprdma_iface_addr_t;


/* What one side must know about the other side's QP to connect to it. */
typedef struct uct_nprdma_qp_addr {
    uint32_t              qpn;
    uint32_t              psn;
    uct_nprdma_dev_addr_t dev;
} __attribute__((packed)) uct_nprdma_qp_addr_t;


/* What the requester's QP is for, and therefore who answers at the peer. */
enum uct_nprdma_conn_kind {
    UCT_NPRDMA_CONN_AM,         /* iface SRQ, application's progress */
    UCT_NPRDMA_CONN_SVC,        /* MD service: SRQ, CQ and thread of its own */
    UCT_NPRDMA_CONN_KIND_LAST
};


enum uct_nprdma_cm_type {
    UCT_NPRDMA_CM_REQ = 1,      /* connect to me */
    UCT_NPRDMA_CM_REP,          /* connected, here is the responder's QP */
    UCT_NPRDMA_CM_RTU,          /* REP arrived: stop sending it */
    UCT_NPRDMA_CM_REJ,          /* no; with a reason */
    UCT_NPRDMA_CM_RST,          /* REP for a connection that I do not have */
    UCT_NPRDMA_CM_TYPE_LAST
};


enum uct_nprdma_cm_reason {
    UCT_NPRDMA_CM_REASON_NONE,
    UCT_NPRDMA_CM_REASON_STALE,     /* the interface it was meant for is gone */
    UCT_NPRDMA_CM_REASON_NO_RES,    /* no QP or memory for it */
    UCT_NPRDMA_CM_REASON_LAST
};


/*
 * Wire-up packet, the same size for all types. A connection is named by its
 * requester: (requester's iface nonce, conn_id).
 */
typedef struct uct_nprdma_cm_packet {
    uint32_t             magic;
    uint8_t              version;
    uint8_t              type;      /* enum uct_nprdma_cm_type */
    uint8_t              kind;      /* enum uct_nprdma_conn_kind */
    uint8_t              reason;    /* enum uct_nprdma_cm_reason, REJ only */
    uint64_t             src_nonce; /* iface that sends this packet */
    uint64_t             dst_nonce; /* iface that it is meant for */
    uint32_t             conn_id;   /* given by the requester */
    uint32_t             ud_qpn;    /* where to send the answer */
    uct_nprdma_qp_addr_t qp;        /* sender's side of the connection */
} __attribute__((packed)) uct_nprdma_cm_packet_t;


/* Outcome of checking a wire-up packet. */
typedef enum uct_nprdma_cm_parse_result {
    UCT_NPRDMA_CM_PARSE_OK,
    UCT_NPRDMA_CM_PARSE_SHORT,
    UCT_NPRDMA_CM_PARSE_MAGIC,
    UCT_NPRDMA_CM_PARSE_VERSION,
    UCT_NPRDMA_CM_PARSE_FIELD
} uct_nprdma_cm_parse_result_t;


/* Messages on the RC queue pair of an endpoint (kind AM). */
enum uct_nprdma_am_type {
    UCT_NPRDMA_AM_DATA = 0x41,
    UCT_NPRDMA_AM_FIN          /* last message: the responder may go */
};

/* Active message ids are below this; the same as UCT_AM_ID_MAX. */
#define UCT_NPRDMA_AM_ID_MAX  32

typedef struct uct_nprdma_am_hdr {
    uint8_t  type;              /* enum uct_nprdma_am_type */
    uint8_t  am_id;
    uint16_t reserved;
    uint32_t length;            /* bytes that follow */
} __attribute__((packed)) uct_nprdma_am_hdr_t;


/**
 * Check a wire-up packet and copy it out. Pure: touches nothing else, so that
 * it can be fuzzed.
 *
 * @param [in]  data    First byte after the global route header.
 * @param [in]  length  Bytes received there.
 * @param [out] packet  Filled on UCT_NPRDMA_CM_PARSE_OK.
 *
 * @return UCT_NPRDMA_CM_PARSE_OK, or what is wrong with it.
 */
uct_nprdma_cm_parse_result_t
uct_nprdma_cm_parse(const void *data, size_t length,
                    uct_nprdma_cm_packet_t *packet);


/**
 * Check an active message as it came from the wire. Pure.
 *
 * @param [in]  data    Received message.
 * @param [in]  length  Bytes received.
 *
 * @return Its type, or -1 when it is malformed.
 */
int uct_nprdma_am_parse(const void *data, size_t length);

#endif
