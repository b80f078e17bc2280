/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_sockcm.h"
#include "nprdma_iface.h"
#include "uct/ib/nprdma/wire/nprdma_wire.h"

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>

/* The TCP manager, whose functions a copy with some of ours replaces */
typedef struct uct_nprdma_sockcm {
    uct_cm_ops_t       ops;         /* the manager points here */
    uct_cm_ops_t       *tcp_ops;
    struct {
        uct_ep_connect_func_t connect;
        uct_ep_destroy_func_t destroy;
    } tcp_ep;
    ucs_list_link_t    listeners;   /* with the async context blocked */
} uct_nprdma_sockcm_t;


typedef struct uct_nprdma_sock_listener {
    ucs_list_link_t                           list;
    uct_listener_h                            tcp;
    uct_nprdma_sockcm_t                       *sockcm;
    uct_worker_h                              worker;
    uct_cm_listener_conn_request_callback_t   conn_request_cb;
    void                                      *user_data;
} uct_nprdma_sock_listener_t;


/* Device of a connection at this side */
typedef struct uct_nprdma_sock_device {
    int                         is_used;  /* 0: what TCP reports remains */
    char                        name[UCT_DEVICE_NAME_MAX];
    uct_nprdma_dev_addr_t       addr;
    uct_worker_h                worker;
    const uct_nprdma_dev_addr_t *peer;    /* NULL: any; only for the search */
} uct_nprdma_sock_device_t;


/* A request of a client, until the user accepts or rejects it */
typedef struct uct_nprdma_sock_request {
    uct_conn_request_h       tcp;
    uct_nprdma_sock_device_t device;
} uct_nprdma_sock_request_t;


/* User data of a client's endpoint that names our device */
typedef struct uct_nprdma_sock_ep {
    uct_nprdma_sock_device_t device;
    uct_ep_params_t          user;  /* what remains valid: functions, data */
} uct_nprdma_sock_ep_t;


ucs_config_field_t uct_nprdma_sockcm_config_table[] = {
    {NULL}
};

static uct_nprdma_sockcm_t *uct_nprdma_sockcm(uct_cm_h cm)
{
    return ucs_container_of(cm->ops, uct_nprdma_sockcm_t, ops);
}

static uct_worker_h uct_nprdma_sockcm_worker(uct_cm_h cm)
{
    return &cm->iface.worker->super;
}

static uct_nprdma_sockcm_t *uct_nprdma_sockcm_of_ep(uct_ep_h ep)
{
    return uct_nprdma_sockcm(ucs_container_of(ep->iface, uct_cm_t,
                                              iface.super));
}


/* ---- device and trailer ---- */

static int
uct_nprdma_sock_device_match(const uct_nprdma_fork_entry_t *entry, void *arg)
{
    uct_nprdma_sock_device_t *device = arg;
    uct_nprdma_iface_t *iface = ucs_container_of(entry, uct_nprdma_iface_t,
                                                 fork);

    if ((&iface->net.super.worker->super != device->worker) ||
        ((device->peer != NULL) &&
         !uct_nprdma_iface_is_reachable(&iface->net.super.super,
                                        (const uct_device_addr_t*)device->peer,
                                        NULL))) {
        return 0;
    }

    ucs_snprintf_safe(device->name, sizeof(device->name), "%s:%u",
                      uct_nprdma_net_dev(&iface->net)->name,
                      iface->net.port_num);
    device->addr = iface->net.dev_addr;
    return 1;
}

/* The device of the interface on the worker that was opened first, and that
 * reaches the peer if its address is known. @return Whether there is one. */
static int uct_nprdma_sock_device_init(uct_nprdma_sock_device_t *device,
                                       uct_worker_h worker,
                                       const uct_nprdma_dev_addr_t *peer)
{
    device->worker  = worker;
    device->peer    = peer;
    device->is_used = uct_nprdma_fork_find(uct_nprdma_sock_device_match,
                                           device);
    return device->is_used;
}

/* The TCP manager copies private data before it returns, so the copy with a
 * trailer lives only during its call. */
static void *
uct_nprdma_sock_device_append(const uct_nprdma_sock_device_t *device,
                              const void *data, size_t length)
{
    void *copy = ucs_malloc(length + sizeof(uct_nprdma_sock_trailer_t),
                            "nprdma_sock_data");

    if (copy == NULL) {
        ucs_error("failed to allocate the private data of a connection");
        return NULL;
    }

    if (length > 0) {
        memcpy(copy, data, length);
    }
    uct_nprdma_sock_trailer_init(UCS_PTR_BYTE_OFFSET(copy, length),
                                 &device->addr);
    return copy;
}

/* What the user gets from a peer that has sent the address of a device. @return
 * Whether it has. */
static int uct_nprdma_sock_find_peer(const uct_cm_remote_data_t *tcp,
                                     uct_cm_remote_data_t *remote,
                                     uct_nprdma_dev_addr_t *peer)
{
    const uint64_t mask = UCT_CM_REMOTE_DATA_FIELD_CONN_PRIV_DATA |
                          UCT_CM_REMOTE_DATA_FIELD_CONN_PRIV_DATA_LENGTH;

    *remote                        = *tcp;
    remote->field_mask            |= UCT_CM_REMOTE_DATA_FIELD_DEV_ADDR |
                                     UCT_CM_REMOTE_DATA_FIELD_DEV_ADDR_LENGTH;
    remote->dev_addr               = (const uct_device_addr_t*)peer;
    remote->dev_addr_length        = sizeof(*peer);
    remote->conn_priv_data_length -= sizeof(uct_nprdma_sock_trailer_t);
    return ucs_test_all_flags(tcp->field_mask, mask) &&
           uct_nprdma_sock_trailer_find(tcp->conn_priv_data,
                                        tcp->conn_priv_data_length, peer);
}


/* ---- callbacks of the TCP manager; the last action of each is the user's
 * callback, which may destroy the endpoint ---- */

static ucs_status_t
uct_nprdma_sock_ep_resolved(void *arg, const uct_cm_ep_resolve_args_t *tcp_args)
{
    uct_nprdma_sock_ep_t *ep      = arg;
    uct_cm_ep_resolve_args_t args = *tcp_args;

    ucs_strncpy_safe(args.dev_name, ep->device.name, UCT_DEVICE_NAME_MAX);
    return ep->user.cm_resolve_cb(ep->user.user_data, &args);
}

static void
uct_nprdma_sock_ep_connected(uct_ep_h tl_ep, void *arg,
                             const uct_cm_ep_client_connect_args_t *tcp_args)
{
    uct_nprdma_sock_ep_t *ep             = arg;
    uct_cm_ep_client_connect_args_t args = *tcp_args;
    uct_nprdma_dev_addr_t peer;
    uct_cm_remote_data_t remote;

    if ((args.field_mask & UCT_CM_EP_CLIENT_CONNECT_ARGS_FIELD_REMOTE_DATA) &&
        uct_nprdma_sock_find_peer(args.remote_data, &remote, &peer)) {
        args.remote_data = &remote;
    }
    ep->user.sockaddr_cb_client(tl_ep, ep->user.user_data, &args);
}

static void uct_nprdma_sock_ep_disconnected(uct_ep_h tl_ep, void *arg)
{
    uct_nprdma_sock_ep_t *ep = arg;

    ep->user.disconnect_cb(tl_ep, ep->user.user_data);
}

/* NULL: an endpoint of TCP alone, or of a server, which needs no callback */
static uct_nprdma_sock_ep_t *uct_nprdma_sock_ep(uct_ep_h tl_ep)
{
    uct_cm_base_ep_t *tcp_ep = ucs_derived_of(tl_ep, uct_cm_base_ep_t);

    return (tcp_ep->disconnect_cb == uct_nprdma_sock_ep_disconnected) ?
           tcp_ep->user_data : NULL;
}

static void
uct_nprdma_sock_requested(uct_listener_h tcp_listener, void *arg,
                          const uct_cm_listener_conn_request_args_t *tcp_args)
{
    uct_nprdma_sock_listener_t *listener     = arg;
    uct_cm_listener_conn_request_args_t args = *tcp_args;
    uct_nprdma_sock_request_t *request;
    uct_nprdma_dev_addr_t peer;
    uct_cm_remote_data_t remote;

    request = ucs_calloc(1, sizeof(*request), "nprdma_sock_request");
    if (request == NULL) {
        ucs_error("failed to allocate a request to connect: it is rejected");
        listener->sockcm->tcp_ops->listener_reject(tcp_listener,
                                                   args.conn_request);
        return;
    }

    if ((args.field_mask &
         UCT_CM_LISTENER_CONN_REQUEST_ARGS_FIELD_REMOTE_DATA) &&
        uct_nprdma_sock_find_peer(args.remote_data, &remote, &peer) &&
        uct_nprdma_sock_device_init(&request->device, listener->worker,
                                    &peer)) {
        args.remote_data = &remote;
        ucs_strncpy_safe(args.dev_name, request->device.name,
                         UCT_DEVICE_NAME_MAX);
    }

    request->tcp      = args.conn_request;
    args.conn_request = request;
    listener->conn_request_cb(tcp_listener, listener->user_data, &args);
}


/* ---- endpoints ---- */

/* Whether an endpoint of a client is as UCP makes it. TCP serves any other one
 * alone. */
static int uct_nprdma_sock_ep_is_of_ucp(const uct_ep_params_t *params)
{
    const uint64_t mask = UCT_EP_PARAM_FIELD_USER_DATA |
                          UCT_EP_PARAM_FIELD_CM_RESOLVE_CB |
                          UCT_EP_PARAM_FIELD_SOCKADDR_CONNECT_CB_CLIENT |
                          UCT_EP_PARAM_FIELD_SOCKADDR_DISCONNECT_CB;

    return ucs_test_all_flags(params->field_mask, mask) &&
           (params->cm_resolve_cb != NULL) &&
           (params->sockaddr_cb_client != NULL) &&
           (params->disconnect_cb != NULL);
}

static ucs_status_t
uct_nprdma_sock_ep_create_client(uct_nprdma_sockcm_t *sockcm,
                                 uct_ep_params_t *params, uct_ep_h *ep_p)
{
    uct_nprdma_sock_ep_t *ep;
    ucs_status_t status;

    ep = ucs_calloc(1, sizeof(*ep), "nprdma_sock_ep");
    if (ep == NULL) {
        ucs_error("failed to allocate an endpoint of a connection");
        return UCS_ERR_NO_MEMORY;
    }

    ep->user = *params;
    if (!uct_nprdma_sock_ep_is_of_ucp(params) ||
        !uct_nprdma_sock_device_init(&ep->device,
                                     uct_nprdma_sockcm_worker(params->cm),
                                     NULL)) {
        ucs_free(ep);
        return sockcm->tcp_ops->ep_create(params, ep_p);
    }

    params->cm_resolve_cb      = uct_nprdma_sock_ep_resolved;
    params->sockaddr_cb_client = uct_nprdma_sock_ep_connected;
    params->disconnect_cb      = uct_nprdma_sock_ep_disconnected;
    params->user_data          = ep;
    status                     = sockcm->tcp_ops->ep_create(params, ep_p);
    if (status != UCS_OK) {
        ucs_free(ep);
    }
    return status;
}

/* The private data are a parameter */
static ucs_status_t
uct_nprdma_sock_ep_create_server(uct_nprdma_sockcm_t *sockcm,
                                 uct_ep_params_t *params, uct_ep_h *ep_p)
{
    const uint64_t data_mask           = UCT_EP_PARAM_FIELD_PRIV_DATA |
                                         UCT_EP_PARAM_FIELD_PRIV_DATA_LENGTH;
    uct_nprdma_sock_request_t *request = params->conn_request;
    void *data                         = NULL;
    size_t length                      = 0;
    ucs_status_t status;

    params->conn_request = request->tcp;
    if (request->device.is_used &&
        !(params->field_mask & UCT_EP_PARAM_FIELD_SOCKADDR_PACK_CB)) {
        if (ucs_test_all_flags(params->field_mask, data_mask)) {
            length = params->private_data_length;
        }
        data = uct_nprdma_sock_device_append(&request->device,
                                             params->private_data, length);
        if (data == NULL) {
            ucs_free(request);
            return UCS_ERR_NO_MEMORY;
        }

        params->field_mask         |= data_mask;
        params->private_data        = data;
        params->private_data_length = length +
                                      sizeof(uct_nprdma_sock_trailer_t);
    }

    status = sockcm->tcp_ops->ep_create(params, ep_p);
    ucs_free(data);
    ucs_free(request);
    return status;
}

static ucs_status_t
uct_nprdma_sock_ep_create(const uct_ep_params_t *user_params, uct_ep_h *ep_p)
{
    uct_ep_params_t params      = *user_params;
    uct_nprdma_sockcm_t *sockcm = uct_nprdma_sockcm(params.cm);

    return (params.field_mask & UCT_EP_PARAM_FIELD_CONN_REQUEST) ?
           uct_nprdma_sock_ep_create_server(sockcm, &params, ep_p) :
           uct_nprdma_sock_ep_create_client(sockcm, &params, ep_p);
}

static ucs_status_t
uct_nprdma_sock_ep_connect(uct_ep_h tl_ep,
                           const uct_ep_connect_params_t *user_params)
{
    uct_nprdma_sock_ep_t *ep       = uct_nprdma_sock_ep(tl_ep);
    uct_nprdma_sockcm_t *sockcm    = uct_nprdma_sockcm_of_ep(tl_ep);
    uct_ep_connect_params_t params = *user_params;
    const void *data;
    ucs_status_t status;
    size_t length;
    void *copy;

    if (ep == NULL) {
        return sockcm->tcp_ep.connect(tl_ep, user_params);
    }

    uct_ep_connect_params_get(user_params, &data, &length);
    copy = uct_nprdma_sock_device_append(&ep->device, data, length);
    if (copy == NULL) {
        return UCS_ERR_NO_MEMORY;
    }

    params.field_mask         |= UCT_EP_CONNECT_PARAM_FIELD_PRIVATE_DATA |
                                 UCT_EP_CONNECT_PARAM_FIELD_PRIVATE_DATA_LENGTH;
    params.private_data        = copy;
    params.private_data_length = length + sizeof(uct_nprdma_sock_trailer_t);
    status                     = sockcm->tcp_ep.connect(tl_ep, &params);
    ucs_free(copy);
    return status;
}

/* The TCP manager calls no callback of a destroyed endpoint */
static void uct_nprdma_sock_ep_destroy(uct_ep_h tl_ep)
{
    uct_nprdma_sock_ep_t *ep = uct_nprdma_sock_ep(tl_ep);

    uct_nprdma_sockcm_of_ep(tl_ep)->tcp_ep.destroy(tl_ep);
    ucs_free(ep);
}


/* ---- listeners ---- */

static ucs_status_t
uct_nprdma_sock_listener_create(uct_cm_h cm, const struct sockaddr *saddr,
                                socklen_t socklen,
                                const uct_listener_params_t *user_params,
                                uct_listener_h *listener_p)
{
    uct_nprdma_sockcm_t *sockcm  = uct_nprdma_sockcm(cm);
    uct_listener_params_t params = *user_params;
    uct_nprdma_sock_listener_t *listener;
    ucs_status_t status;

    listener = ucs_calloc(1, sizeof(*listener), "nprdma_sock_listener");
    if (listener == NULL) {
        ucs_error("failed to allocate a listener");
        return UCS_ERR_NO_MEMORY;
    }

    listener->sockcm          = sockcm;
    listener->worker          = uct_nprdma_sockcm_worker(cm);
    listener->conn_request_cb = params.conn_request_cb;
    listener->user_data       = (params.field_mask &
                                 UCT_LISTENER_PARAM_FIELD_USER_DATA) ?
                                params.user_data : NULL;
    params.field_mask        |= UCT_LISTENER_PARAM_FIELD_USER_DATA;
    params.user_data          = listener;
    params.conn_request_cb    = uct_nprdma_sock_requested;

    UCS_ASYNC_BLOCK(cm->iface.worker->async);
    status = sockcm->tcp_ops->listener_create(cm, saddr, socklen, &params,
                                              &listener->tcp);
    if (status == UCS_OK) {
        ucs_list_add_tail(&sockcm->listeners, &listener->list);
        *listener_p = listener->tcp;
    } else {
        ucs_free(listener);
    }
    UCS_ASYNC_UNBLOCK(cm->iface.worker->async);
    return status;
}

static ucs_status_t
uct_nprdma_sock_listener_reject(uct_listener_h tcp_listener,
                                uct_conn_request_h conn_request)
{
    uct_nprdma_sock_request_t *request = conn_request;
    uct_conn_request_h tcp             = request->tcp;

    ucs_free(request);
    return uct_nprdma_sockcm(tcp_listener->cm)
            ->tcp_ops->listener_reject(tcp_listener, tcp);
}

static void uct_nprdma_sock_listener_destroy(uct_listener_h tcp_listener)
{
    uct_cm_h cm                 = tcp_listener->cm;
    uct_nprdma_sockcm_t *sockcm = uct_nprdma_sockcm(cm);
    uct_nprdma_sock_listener_t *listener, *tmp;

    sockcm->tcp_ops->listener_destroy(tcp_listener);
    UCS_ASYNC_BLOCK(cm->iface.worker->async);
    ucs_list_for_each_safe(listener, tmp, &sockcm->listeners, list) {
        if (listener->tcp == tcp_listener) {
            ucs_list_del(&listener->list);
            ucs_free(listener);
        }
    }
    UCS_ASYNC_UNBLOCK(cm->iface.worker->async);
}


/* ---- the manager ---- */

static ucs_status_t uct_nprdma_sockcm_query(uct_cm_h cm, uct_cm_attr_t *attr)
{
    ucs_status_t status = uct_nprdma_sockcm(cm)->tcp_ops->cm_query(cm, attr);

    if ((status == UCS_OK) &&
        (attr->field_mask & UCT_CM_ATTR_FIELD_MAX_CONN_PRIV)) {
        attr->max_conn_priv -= ucs_min(attr->max_conn_priv,
                                       sizeof(uct_nprdma_sock_trailer_t));
    }
    return status;
}

static void uct_nprdma_sockcm_close(uct_cm_h cm)
{
    uct_nprdma_sockcm_t *sockcm = uct_nprdma_sockcm(cm);

    cm->ops = sockcm->tcp_ops;
    cm->ops->close(cm);
    ucs_free(sockcm);
}

static ucs_status_t
uct_nprdma_sockcm_open_tcp(uct_worker_h worker, uct_cm_h *cm_p)
{
    uct_component_h tcp;
    uct_cm_config_t *config;
    ucs_status_t status;

    ucs_list_for_each(tcp, &uct_components_list, list) {
        if (!strcmp(tcp->name, "tcp") &&
            (tcp->flags & UCT_COMPONENT_FLAG_CM)) {
            status = uct_cm_config_read(tcp, NULL, NULL, &config);
            if (status == UCS_OK) {
                status = uct_cm_open(tcp, worker, config, cm_p);
                uct_config_release(config);
            }
            return status;
        }
    }

    ucs_debug("this UCX has no TCP connection manager: nprdma has none either");
    return UCS_ERR_UNSUPPORTED;
}

ucs_status_t uct_nprdma_sockcm_open(uct_component_t *component,
                                    uct_worker_h worker,
                                    const uct_cm_config_t *config,
                                    uct_cm_h *cm_p)
{
    uct_nprdma_sockcm_t *sockcm;
    uct_iface_ops_t *ep_ops;
    ucs_status_t status;
    uct_cm_h cm;

    sockcm = ucs_calloc(1, sizeof(*sockcm), "nprdma_sockcm");
    if (sockcm == NULL) {
        ucs_error("failed to allocate a connection manager");
        return UCS_ERR_NO_MEMORY;
    }

    status = uct_nprdma_sockcm_open_tcp(worker, &cm);
    if (status != UCS_OK) {
        ucs_free(sockcm);
        return status;
    }

    ucs_list_head_init(&sockcm->listeners);
    sockcm->tcp_ops              = cm->ops;
    sockcm->ops                  = *cm->ops;
    sockcm->ops.close            = uct_nprdma_sockcm_close;
    sockcm->ops.cm_query         = uct_nprdma_sockcm_query;
    sockcm->ops.listener_create  = uct_nprdma_sock_listener_create;
    sockcm->ops.listener_reject  = uct_nprdma_sock_listener_reject;
    sockcm->ops.listener_destroy = uct_nprdma_sock_listener_destroy;
    sockcm->ops.ep_create        = uct_nprdma_sock_ep_create;
    cm->ops                      = &sockcm->ops;

    ep_ops                 = &cm->iface.super.ops;
    sockcm->tcp_ep.connect = ep_ops->ep_connect;
    sockcm->tcp_ep.destroy = ep_ops->ep_destroy;
    ep_ops->ep_connect     = uct_nprdma_sock_ep_connect;
    ep_ops->ep_destroy     = uct_nprdma_sock_ep_destroy;
    *cm_p                  = cm;
    return UCS_OK;
}
