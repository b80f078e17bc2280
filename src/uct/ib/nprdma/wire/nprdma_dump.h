/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_DUMP_H_
#define UCT_NPRDMA_DUMP_H_

#include <stddef.h>

/* Text of every format, for the log. Pure. A dump shows a packet as it is, so
 * it takes any bytes: a truncated packet shows its length and first bytes, an
 * unknown value its number. Nothing here reads beyond `length`. */

/* Size in bytes that is enough for the text of any packet */
#define UCT_NPRDMA_DUMP_MAX  384


/* A format: the fields of its header */
typedef struct uct_nprdma_dump_format uct_nprdma_dump_format_t;

/* A message on a connection of kind AM or BULK */
extern const uct_nprdma_dump_format_t *const uct_nprdma_am_dump;

/* A wire-up packet, without the route header of UD */
extern const uct_nprdma_dump_format_t *const uct_nprdma_cm_dump;

extern const uct_nprdma_dump_format_t *const uct_nprdma_dev_addr_dump;
extern const uct_nprdma_dump_format_t *const uct_nprdma_iface_addr_dump;

/* A packed key */
extern const uct_nprdma_dump_format_t *const uct_nprdma_key_dump;

extern const uct_nprdma_dump_format_t *const uct_nprdma_svc_request_dump;
extern const uct_nprdma_dump_format_t *const uct_nprdma_svc_reply_dump;

/* The payload of a successful reply to a POPULATE */
extern const uct_nprdma_dump_format_t *const uct_nprdma_svc_populated_dump;


/* Write a packet as text on one line, terminated and cut off where it does not
 * fit into `max` bytes. Returns buf. */
const char *uct_nprdma_dump(const uct_nprdma_dump_format_t *format, char *buf,
                            size_t max, const void *packet, size_t length);

#endif
