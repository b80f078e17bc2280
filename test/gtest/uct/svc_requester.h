/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_SVC_REQUESTER_H_
#define NPRDMA_TEST_SVC_REQUESTER_H_

#include "uct_test.h"

extern "C" {
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"
#include "uct/ib/nprdma/wire/nprdma_wire.h"
}

/*
 * The requester's side of a connection, by default a service connection. It is
 * made by hand in another process, on the emulated RNIC, so that it can send
 * malformed requests as well.
 */
class svc_requester {
public:
    using bytes = std::vector<char>;

    /* It tells the target that it is connected, or not: its RTU is lost */
    explicit
    svc_requester(const entity &target,
                  uct_nprdma_conn_kind kind = UCT_NPRDMA_CONN_SVC,
                  bool confirms = true);

    /* Sends a message. Returns false if the connection is gone. */
    bool send(const bytes &message);

    /* Returns the next reply. The test fails if none comes. */
    bytes receive();

    /* Sends a request and returns when it has arrived */
    void post(uct_nprdma_svc_request_t request, const bytes &payload = {});

    /* Sends a request and returns its reply, each with header and payload */
    bytes call(uct_nprdma_svc_request_t request, const bytes &payload = {});

    /* Returns the status of the reply to a request */
    int status(const uct_nprdma_svc_request_t &request,
               const bytes &payload = {});

    /* Sequence number of the next request that the target accepts */
    uint32_t next_sn() const { return m_sn + 1; }

    /* Sends this datagram to the queue pair for wire-up, and does not wait for
     * an answer */
    void datagram(const bytes &packet);

    /* Destroys the queue pair without notice, and lives on. Sends nothing
     * after that. */
    void leave();

    /* Connects anew with the same id, and tells nothing of the end of the
     * earlier connection */
    void again();

    /* Ends the process without notice, like a crash */
    void kill() { m_peer.kill(); }

private:
    peer     m_peer;
    uint32_t m_sn = 0;
};

/* What is sent of a request */
svc_requester::bytes svc_message(const uct_nprdma_svc_request_t &request,
                                 const svc_requester::bytes &payload = {});

/* A request that is complete except for its sequence number */
uct_nprdma_svc_request_t
svc_request(uint8_t type, uint64_t key, uint64_t address, uint32_t length);

/* The same to memory of the target */
uct_nprdma_svc_request_t svc_request(uint8_t type, const buffer &memory,
                                     size_t offset, uint32_t length);

#endif
