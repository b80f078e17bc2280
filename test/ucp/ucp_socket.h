/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCP_SOCKET_H_
#define UCP_SOCKET_H_

/*
 * Endpoints with error handling that are connected by socket address, by
 * default on the loopback device.
 */

#include "ucp_common.h"

#include <netinet/in.h>
#include <sys/socket.h>

/* Unless its port is set, of the loopback device */
static struct sockaddr_in socket_in = {.sin_family = AF_INET};

/* @return Length of the address of this family. The port is ignored where an
 * IPv4 address is set. */
static inline socklen_t
make_address(struct sockaddr_storage *storage, int family, uint16_t port)
{
    struct sockaddr_in6 *in6 = (struct sockaddr_in6*)storage;
    struct sockaddr_in *in   = (struct sockaddr_in*)storage;

    memset(storage, 0, sizeof(*storage));
    if (family == AF_INET6) {
        in6->sin6_family = AF_INET6;
        in6->sin6_addr   = in6addr_loopback;
        in6->sin6_port   = htons(port);
        return sizeof(*in6);
    }

    *in = socket_in;
    if (in->sin_port == 0) {
        in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        in->sin_port        = htons(port);
    }
    return sizeof(*in);
}

static inline ucp_ep_h
connect_to(ucp_worker_h worker, int family, uint16_t port, ucs_status_t *error)
{
    struct sockaddr_storage storage;
    ucp_ep_params_t params = {
        .field_mask       = UCP_EP_PARAM_FIELD_FLAGS |
                            UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .flags            = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr.addr    = (struct sockaddr*)&storage,
        .sockaddr.addrlen = make_address(&storage, family, port)
    };

    return new_ep(worker, &params, error);
}

static inline ucp_ep_h
accept_request(ucp_worker_h worker, ucp_conn_request_h request,
               ucs_status_t *error)
{
    ucp_ep_params_t params = {
        .field_mask   = UCP_EP_PARAM_FIELD_CONN_REQUEST,
        .conn_request = request
    };

    return new_ep(worker, &params, error);
}

/* @return Port of the new listener. */
static inline uint16_t
listen_anywhere(ucp_worker_h worker, int family,
                ucp_listener_conn_callback_t cb, ucp_listener_h *listener)
{
    struct sockaddr_storage storage;
    ucp_listener_params_t params = {
        .field_mask       = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                            UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr.addr    = (struct sockaddr*)&storage,
        .sockaddr.addrlen = make_address(&storage, family, 0),
        .conn_handler.cb  = cb
    };
    ucp_listener_attr_t attr     = {
        .field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR
    };

    CHECK_OK(ucp_listener_create(worker, &params, listener));
    CHECK_OK(ucp_listener_query(*listener, &attr));
    /* The port is at the same place in both families */
    return ntohs(((struct sockaddr_in*)&attr.sockaddr)->sin_port);
}

#endif
