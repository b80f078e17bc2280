/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_SERVE_H_
#define NPRDMA_TEST_SERVE_H_

#include "uct_test.h"

/* Sends a parent what it needs to access memory: address of the interface, key
 * and address of the memory */
inline void publish(peer &parent, const entity &e, const buffer &memory)
{
    parent.put_bytes(e.address());
    parent.put_bytes(memory.packed_key());
    parent.put(memory.address());
}

/* A target for put, get and atomic operations and for active messages with id
 * 1. Makes progress until the parent sends something or closes.
 *
 * @return 0, as a PEER_FUNCTION does. */
inline int serve(peer &parent, entity &e, const buffer &memory)
{
    publish(parent, e, memory);
    while (!parent.ready()) {
        e.progress();
    }
    return 0;
}

#endif
