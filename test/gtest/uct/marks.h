/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_MARKS_H_
#define NPRDMA_TEST_MARKS_H_

#include <uct/api/uct.h>

/*
 * How the packets of an emulated RNIC are marked for the network: what the
 * device has kept for each queue pair that was connected, and for each address
 * handle of datagrams. A process has one record, of all MDs that it was started
 * for.
 */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mark {
    unsigned sl;
    unsigned traffic_class;
    int      is_datagram;
} mark_t;

/** Discard the record. No MD is added. */
void marks_clear(void);

/** Add an MD, of one kind of device each time. Its interface has no connection
 * yet. */
void marks_start(uct_md_h md, uct_iface_h iface);

/** @return Number of entries so far; the connections of both sides count. */
unsigned marks_count(void);

/** @return An entry, in the order in which they were made. */
mark_t marks_get(unsigned index);

/** From now on the ports of the MDs are of Ethernet. */
void marks_set_ethernet(void);

#ifdef __cplusplus
}
#endif

#endif
