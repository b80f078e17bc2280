/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_DUMP_H_
#define UCT_NPRDMA_DUMP_H_

#include <stddef.h>

/*
 * Text of every format, for the log. Pure. A dump shows a packet as it is, so
 * it takes any bytes: a truncated packet shows its length and first bytes, an
 * unknown value its number. No function here reads beyond `length`.
 */

/* Size in bytes that is enough for the text of any packet */
#define UCT_NPRDMA_DUMP_MAX  320


/**
 * Write a packet as text.
 *
 * @param [out] buf     Text on one line, terminated and cut off where it does
 *                      not fit.
 * @param [in]  max     Size of buf in bytes. If it is 0, nothing is written.
 * @param [in]  packet  First byte, of any alignment; may be NULL if length is
 *                      0.
 * @param [in]  length  Length in bytes.
 *
 * @return buf.
 */
typedef const char *(*uct_nprdma_dump_func_t)(char *buf, size_t max,
                                              const void *packet,
                                              size_t length);


/** Dump a message on a connection of kind AM or BULK, see
 * uct_nprdma_dump_func_t. */
const char *uct_nprdma_am_dump(char *buf, size_t max, const void *packet,
                               size_t length);


/** Dump a wire-up packet, without the route header of UD. */
const char *uct_nprdma_cm_dump(char *buf, size_t max, const void *packet,
                               size_t length);


/** Dump a device address. */
const char *uct_nprdma_dev_addr_dump(char *buf, size_t max, const void *packet,
                                     size_t length);


/** Dump an interface address. */
const char *uct_nprdma_iface_addr_dump(char *buf, size_t max,
                                       const void *packet, size_t length);


/** Dump a packed key. */
const char *uct_nprdma_key_dump(char *buf, size_t max, const void *packet,
                                size_t length);


/** Dump a request to the service. */
const char *uct_nprdma_svc_request_dump(char *buf, size_t max,
                                        const void *packet, size_t length);


/** Dump a reply of the service. */
const char *uct_nprdma_svc_reply_dump(char *buf, size_t max, const void *packet,
                                      size_t length);


/** Dump the payload of a successful reply to a POPULATE. */
const char *uct_nprdma_svc_populated_dump(char *buf, size_t max,
                                          const void *packet, size_t length);

#endif
