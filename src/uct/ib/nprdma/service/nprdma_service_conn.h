/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SERVICE_CONN_H_
#define UCT_NPRDMA_SERVICE_CONN_H_

#include "nprdma_service_types.h"

/* Connections of a service as the executing thread uses them: completions of
 * replies, and probes of the requester */

/* The connection of a queue pair, or NULL */
uct_nprdma_service_conn_t *
uct_nprdma_service_find(uct_nprdma_service_t *service, uint32_t qpn);

/* Its requests are executed no more. It ends when its replies have
 * completed. */
void uct_nprdma_service_conn_stop(uct_nprdma_service_t *service,
                                  uct_nprdma_service_conn_t *conn);

/* Take the completions of replies and of probes */
void uct_nprdma_service_reap(uct_nprdma_service_t *service);

/* Whether a reply or a probe can be posted now */
static inline int
uct_nprdma_service_can_send(const uct_nprdma_service_t *service,
                            const uct_nprdma_service_conn_t *conn)
{
    return (service->send_cq_avail > 0) &&
           (conn->outstanding < UCT_NPRDMA_SERVICE_SQ_LEN);
}

/* Ask whether the requester still exists, if that can be posted now */
void uct_nprdma_service_conn_probe(uct_nprdma_service_t *service,
                                   uct_nprdma_service_conn_t *conn);

/* The requester may have left: it has to answer a probe that is posted from now
 * on before a request of it changes memory */
void uct_nprdma_service_conn_doubt(uct_nprdma_service_conn_t *conn);

/* Whether a request may be executed now: it changes no memory, or its requester
 * is alive */
int uct_nprdma_service_may_change(uct_nprdma_service_t *service,
                                  uct_nprdma_service_conn_t *conn,
                                  const uct_nprdma_svc_request_t *request);

/* The cm is told no more how many requests were executed */
void uct_nprdma_service_end_executed(uct_nprdma_service_conn_t *conn);

#endif
