/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_SVC_REQUESTER_H_
#define NPRDMA_TEST_SVC_REQUESTER_H_

#include "uct_test.h"

extern "C" {
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"
#include "uct/ib/nprdma/wire/nprdma_wire.h"
}

/*
 * The requester of a connection, of the service if nothing else is said, made
 * by hand on the emulated RNIC by another process, so that it can send whatever
 * it likes.
 */
class svc_requester {
public:
    using bytes = std::vector<char>;

    explicit
    svc_requester(const entity &target,
                  uct_nprdma_conn_kind kind = UCT_NPRDMA_CONN_SVC);

    /* Send a message; false if the connection is gone */
    bool send(const bytes &message);

    /* Send short messages on a new connection, without waiting for each to
     * arrive, until one fails; returns how many have arrived */
    int send_all(const std::vector<bytes> &messages);

    /* Next reply; the test fails if none comes */
    bytes receive();

    /* A request with a reply: header, and what follows it in both */
    bytes call(uct_nprdma_svc_request_t request, const bytes &payload = {});

    /* Status of the reply to a request */
    int status(const uct_nprdma_svc_request_t &request,
               const bytes &payload = {});

    /* Number of the next request that the target will take */
    uint32_t next_sn() const { return m_sn + 1; }

    /* As if the process had crashed */
    void kill() { m_peer.kill(); }

private:
    peer     m_peer;
    uint32_t m_sn = 0;
};

/* A request that lacks nothing but its number */
uct_nprdma_svc_request_t
svc_request(uint8_t type, uint64_t key, uint64_t address, uint32_t length);

#endif
