/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_rma_iface.h"


UCS_CLASS_INIT_FUNC(uct_nprdma_rma_iface_t,
                    const uct_nprdma_rma_config_t *rma_config,
                    const uct_nprdma_net_ops_t *ops, uct_iface_ops_t *iface_ops,
                    uct_iface_internal_ops_t *internal_ops, uct_md_h md,
                    uct_worker_h worker, const uct_iface_params_t *params,
                    const uct_iface_config_t *config)
{
    UCS_CLASS_CALL_SUPER_INIT(uct_nprdma_net_iface_t, ops, iface_ops,
                              internal_ops, md, worker, params, config);

    self->config = rma_config;
    self->res    = NULL;
    memset(&self->local, 0, sizeof(self->local));
    memset(&self->longest, 0, sizeof(self->longest));
    return UCS_OK;
}

static UCS_CLASS_CLEANUP_FUNC(uct_nprdma_rma_iface_t)
{
}

UCS_CLASS_DEFINE(uct_nprdma_rma_iface_t, uct_nprdma_net_iface_t);

UCS_CLASS_INIT_FUNC(uct_nprdma_rma_ep_t, const uct_ep_params_t *params)
{
    UCS_CLASS_CALL_SUPER_INIT(uct_nprdma_net_ep_t, params);

    self->rma = NULL;
    memset(&self->longest, 0, sizeof(self->longest));
    return UCS_OK;
}

static UCS_CLASS_CLEANUP_FUNC(uct_nprdma_rma_ep_t)
{
}

UCS_CLASS_DEFINE(uct_nprdma_rma_ep_t, uct_nprdma_net_ep_t);
