/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "verbs/npemu_ah.h"
#include "base/npemu_limits.h"
#include "engine/npemu_wqe.h"
#include "fabric/npemu_fabric.h"
#include "npemu.h"
#include "verbs/npemu_pd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int npemu_ah_check(const struct ibv_ah_attr *attr, uint8_t *unroutable)
{
    union ibv_gid gid;

    if ((attr->port_num != NPEMU_PORT) || (attr->sl > 15)) {
        return EINVAL;
    }

    *unroutable = (attr->dlid != NPEMU_LID);
    if (attr->is_global) {
        if (attr->grh.sgid_index != 0) {
            return EINVAL;
        }

        npemu_gid(&gid);
        *unroutable = memcmp(&gid, &attr->grh.dgid, sizeof(gid)) != 0;
    }
    return 0;
}

struct ibv_ah *npemu_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    uint8_t unroutable;
    npemu_ah_t *ah;
    int ret;

    ret = (npemu_context_proc(pd->context) == NULL) ?
                  NPEMU_ERR_FORKED :
                  npemu_ah_check(attr, &unroutable);
    if (ret != 0) {
        errno = ret;
        return NULL;
    }

    ah = calloc(1, sizeof(*ah));
    if (ah == NULL) {
        return NULL;
    }

    ah->super.context = pd->context;
    ah->super.pd      = pd;
    ah->av.dlid       = attr->dlid;
    ah->av.is_global  = attr->is_global;
    ah->av.unroutable = unroutable;
    ah->av.path.sl    = attr->sl;
    if (attr->is_global) {
        ah->av.path.hop_limit = attr->grh.hop_limit;
        ah->av.path.flow      = ((uint32_t)attr->grh.traffic_class << 20) |
                                (attr->grh.flow_label & 0xfffff);
    }
    atomic_fetch_add(&npemu_pd(pd)->refcount, 1);
    return &ah->super;
}

int npemu_destroy_ah(struct ibv_ah *ibah)
{
    if (npemu_context_proc(ibah->context) == NULL) {
        return NPEMU_ERR_FORKED;
    }

    atomic_fetch_sub(&npemu_pd(ibah->pd)->refcount, 1);
    free(npemu_ah(ibah));
    return 0;
}
