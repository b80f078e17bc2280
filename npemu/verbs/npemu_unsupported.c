/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Verbs that this device does not offer. */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "npemu.h"

#include <errno.h>
#include <stddef.h>

int npemu_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr,
                   size_t length, int access)
{
    (void)mr;
    (void)flags;
    (void)pd;
    (void)addr;
    (void)length;
    (void)access;
    errno = EOPNOTSUPP;
    return IBV_REREG_MR_ERR_INPUT; /* the MR is unchanged */
}

int npemu_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid,
                       uint16_t lid)
{
    (void)qp;
    (void)gid;
    (void)lid;
    return EOPNOTSUPP;
}

int npemu_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid,
                       uint16_t lid)
{
    (void)qp;
    (void)gid;
    (void)lid;
    return EOPNOTSUPP;
}

int npemu_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
    (void)qp;
    (void)ece;
    return EOPNOTSUPP;
}

int npemu_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
    (void)qp;
    (void)ece;
    return EOPNOTSUPP;
}

int npemu_resolve_eth_l2_from_gid(struct ibv_context *context,
                                  struct ibv_ah_attr *attr, uint8_t *eth_mac,
                                  uint16_t *vid)
{
    (void)context;
    (void)attr;
    (void)eth_mac;
    (void)vid;
    errno = EOPNOTSUPP;
    return -1; /* the link layer is InfiniBand */
}

struct ibv_context *npemu_import_device(int cmd_fd)
{
    (void)cmd_fd;
    errno = EOPNOTSUPP;
    return NULL;
}

struct ibv_pd *npemu_import_pd(struct ibv_context *context, uint32_t handle)
{
    (void)context;
    (void)handle;
    errno = EOPNOTSUPP;
    return NULL;
}

void npemu_unimport_pd(struct ibv_pd *pd)
{
    (void)pd;
    errno = EOPNOTSUPP;
}

struct ibv_mr *npemu_import_mr(struct ibv_pd *pd, uint32_t handle)
{
    (void)pd;
    (void)handle;
    errno = EOPNOTSUPP;
    return NULL;
}

void npemu_unimport_mr(struct ibv_mr *mr)
{
    (void)mr;
    errno = EOPNOTSUPP;
}

struct ibv_dm *npemu_import_dm(struct ibv_context *context, uint32_t handle)
{
    (void)context;
    (void)handle;
    errno = EOPNOTSUPP;
    return NULL;
}

void npemu_unimport_dm(struct ibv_dm *dm)
{
    (void)dm;
    errno = EOPNOTSUPP;
}

int npemu_export_buf_dmabuf_fd(struct ibv_buf *buf)
{
    (void)buf;
    errno = EOPNOTSUPP;
    return -1;
}
