/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The public control verbs that take an object of a device, as a table. The
 * shim is generated from it, and the test that compares the shim's exports with
 * the installed libibverbs reads it. A verb that is new in libibverbs gets one
 * line here.
 *
 * A line is _(result, name, failure, owner, parameters, arguments):
 *   failure  what the verb returns when it cannot be carried out,
 *   owner    the context of the object.
 */

#ifndef NPEMU_SHIM_H
#define NPEMU_SHIM_H

#include "npemu.h"

/* npemu_<name> serves objects of npemu0, ibv_<name> all others. */
#define NPEMU_SHIM_SERVED(_) \
    _(int, close_device, EOPNOTSUPP, context, \
      (struct ibv_context *context), (context)) \
    _(int, query_device, EOPNOTSUPP, context, \
      (struct ibv_context *context, struct ibv_device_attr *attr), \
      (context, attr)) \
    _(int, query_gid, -1, context, \
      (struct ibv_context *context, uint8_t port, int index, \
       union ibv_gid *gid), \
      (context, port, index, gid)) \
    _(int, query_gid_type, -1, context, \
      (struct ibv_context *context, uint8_t port, unsigned index, \
       unsigned *type), \
      (context, port, index, type)) \
    _(int, query_pkey, -1, context, \
      (struct ibv_context *context, uint8_t port, int index, __be16 *pkey), \
      (context, port, index, pkey)) \
    _(int, get_pkey_index, -1, context, \
      (struct ibv_context *context, uint8_t port, __be16 pkey), \
      (context, port, pkey)) \
    _(int, get_async_event, -1, context, \
      (struct ibv_context *context, struct ibv_async_event *event), \
      (context, event)) \
    _(struct ibv_pd *, alloc_pd, NULL, context, \
      (struct ibv_context *context), (context)) \
    _(int, dealloc_pd, EOPNOTSUPP, pd->context, \
      (struct ibv_pd *pd), (pd)) \
    _(struct ibv_mr *, reg_mr, NULL, pd->context, \
      (struct ibv_pd *pd, void *addr, size_t length, int access), \
      (pd, addr, length, access)) \
    _(struct ibv_mr *, reg_mr_iova, NULL, pd->context, \
      (struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, \
       int access), \
      (pd, addr, length, iova, access)) \
    _(struct ibv_mr *, reg_mr_iova2, NULL, pd->context, \
      (struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, \
       unsigned access), \
      (pd, addr, length, iova, access)) \
    _(int, dereg_mr, EOPNOTSUPP, mr->context, \
      (struct ibv_mr *mr), (mr)) \
    _(struct ibv_comp_channel *, create_comp_channel, NULL, context, \
      (struct ibv_context *context), (context)) \
    _(int, destroy_comp_channel, EOPNOTSUPP, channel->context, \
      (struct ibv_comp_channel *channel), (channel)) \
    _(struct ibv_cq *, create_cq, NULL, context, \
      (struct ibv_context *context, int cqe, void *cq_context, \
       struct ibv_comp_channel *channel, int comp_vector), \
      (context, cqe, cq_context, channel, comp_vector)) \
    _(int, destroy_cq, EOPNOTSUPP, cq->context, \
      (struct ibv_cq *cq), (cq)) \
    _(int, get_cq_event, -1, channel->context, \
      (struct ibv_comp_channel *channel, struct ibv_cq **cq, \
       void **cq_context), \
      (channel, cq, cq_context)) \
    _(void, ack_cq_events, (void)0, cq->context, \
      (struct ibv_cq *cq, unsigned nevents), (cq, nevents)) \
    _(struct ibv_srq *, create_srq, NULL, pd->context, \
      (struct ibv_pd *pd, struct ibv_srq_init_attr *attr), (pd, attr)) \
    _(int, modify_srq, EOPNOTSUPP, srq->context, \
      (struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask), \
      (srq, attr, mask)) \
    _(int, query_srq, EOPNOTSUPP, srq->context, \
      (struct ibv_srq *srq, struct ibv_srq_attr *attr), (srq, attr)) \
    _(int, destroy_srq, EOPNOTSUPP, srq->context, \
      (struct ibv_srq *srq), (srq)) \
    _(struct ibv_qp *, create_qp, NULL, pd->context, \
      (struct ibv_pd *pd, struct ibv_qp_init_attr *attr), (pd, attr)) \
    _(int, modify_qp, EOPNOTSUPP, qp->context, \
      (struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask), \
      (qp, attr, mask)) \
    _(int, query_qp, EOPNOTSUPP, qp->context, \
      (struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, \
       struct ibv_qp_init_attr *init_attr), \
      (qp, attr, mask, init_attr)) \
    _(int, destroy_qp, EOPNOTSUPP, qp->context, \
      (struct ibv_qp *qp), (qp)) \
    _(struct ibv_ah *, create_ah, NULL, pd->context, \
      (struct ibv_pd *pd, struct ibv_ah_attr *attr), (pd, attr)) \
    _(int, destroy_ah, EOPNOTSUPP, ah->context, \
      (struct ibv_ah *ah), (ah)) \
    _(struct ibv_mr *, reg_dmabuf_mr, NULL, pd->context, \
      (struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, \
       int fd, int access), \
      (pd, offset, length, iova, fd, access)) \
    /* of rdma-core 65, which the headers we compile with may not know */ \
    _(void *, alloc_buf, NULL, pd->context, \
      (struct ibv_pd *pd, size_t size, struct ibv_buf **buf), \
      (pd, size, buf)) \
    _(struct ibv_mr *, reg_buf_mr, NULL, pd->context, \
      (struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, \
       int access), \
      (pd, buf, addr, length, access))

struct ibv_comp_cntr;
struct ibv_comp_cntr_caps;
struct ibv_comp_cntr_init_attr;
struct ibv_dmah;
struct ibv_dmah_init_attr;
struct ibv_mr_init_attr;
struct ibv_qp_attach_comp_cntr_attr;

/*
 * EOPNOTSUPP for npemu0, ibv_<name> for all others. The last ones are of
 * rdma-core 57 and later: the headers we compile with may not know them.
 */
#define NPEMU_SHIM_UNSUPPORTED(_) \
    _(int, init_ah_from_wc, -1, context, \
      (struct ibv_context *context, uint8_t port, struct ibv_wc *wc, \
       struct ibv_grh *grh, struct ibv_ah_attr *attr), \
      (context, port, wc, grh, attr)) \
    _(struct ibv_ah *, create_ah_from_wc, NULL, pd->context, \
      (struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, \
       uint8_t port), \
      (pd, wc, grh, port)) \
    _(int, resize_cq, EOPNOTSUPP, cq->context, \
      (struct ibv_cq *cq, int cqe), (cq, cqe)) \
    _(struct ibv_qp_ex *, qp_to_qp_ex, NULL, qp->context, \
      (struct ibv_qp *qp), (qp)) \
    _(int, query_qp_data_in_order, 0, qp->context, \
      (struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags), \
      (qp, op, flags)) \
    _(int, rereg_mr, IBV_REREG_MR_ERR_INPUT, mr->context, \
      (struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, \
       size_t length, int access), \
      (mr, flags, pd, addr, length, access)) \
    _(int, attach_mcast, EOPNOTSUPP, qp->context, \
      (struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid), \
      (qp, gid, lid)) \
    _(int, detach_mcast, EOPNOTSUPP, qp->context, \
      (struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid), \
      (qp, gid, lid)) \
    _(int, query_ece, EOPNOTSUPP, qp->context, \
      (struct ibv_qp *qp, struct ibv_ece *ece), (qp, ece)) \
    _(int, set_ece, EOPNOTSUPP, qp->context, \
      (struct ibv_qp *qp, struct ibv_ece *ece), (qp, ece)) \
    _(int, resolve_eth_l2_from_gid, -1, context, \
      (struct ibv_context *context, struct ibv_ah_attr *attr, \
       uint8_t eth_mac[ETHERNET_LL_SIZE], uint16_t *vid), \
      (context, attr, eth_mac, vid)) \
    _(struct ibv_pd *, import_pd, NULL, context, \
      (struct ibv_context *context, uint32_t handle), (context, handle)) \
    _(void, unimport_pd, (void)0, pd->context, \
      (struct ibv_pd *pd), (pd)) \
    _(struct ibv_mr *, import_mr, NULL, pd->context, \
      (struct ibv_pd *pd, uint32_t handle), (pd, handle)) \
    _(void, unimport_mr, (void)0, mr->context, \
      (struct ibv_mr *mr), (mr)) \
    _(struct ibv_dm *, import_dm, NULL, context, \
      (struct ibv_context *context, uint32_t handle), (context, handle)) \
    _(void, unimport_dm, (void)0, dm->context, \
      (struct ibv_dm *dm), (dm)) \
    _(struct ibv_dmah *, alloc_dmah, NULL, context, \
      (struct ibv_context *context, struct ibv_dmah_init_attr *attr), \
      (context, attr)) \
    _(struct ibv_mr *, reg_mr_ex, NULL, pd->context, \
      (struct ibv_pd *pd, struct ibv_mr_init_attr *attr), (pd, attr)) \
    _(int, dm_export_dmabuf_fd, -1, dm->context, \
      (struct ibv_dm *dm), (dm)) \
    _(int, query_port_speed, EOPNOTSUPP, context, \
      (struct ibv_context *context, uint32_t port, uint64_t *speed), \
      (context, port, speed)) \
    _(struct ibv_comp_cntr *, create_comp_cntr, NULL, context, \
      (struct ibv_context *context, struct ibv_comp_cntr_init_attr *attr), \
      (context, attr)) \
    _(int, qp_attach_comp_cntr, EOPNOTSUPP, qp->context, \
      (struct ibv_qp *qp, struct ibv_comp_cntr *cntr, \
       struct ibv_qp_attach_comp_cntr_attr *attr), \
      (qp, cntr, attr))

/* The same, of functions that only an inline of the header calls. */
#define NPEMU_SHIM_HIDDEN(_) \
    _(int, query_gid_ex, EOPNOTSUPP, context, \
      (struct ibv_context *context, uint32_t port, uint32_t index, \
       struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size), \
      (context, port, index, entry, flags, entry_size)) \
    _(ssize_t, query_gid_table, -EOPNOTSUPP, context, \
      (struct ibv_context *context, struct ibv_gid_entry *entries, \
       size_t max_entries, uint32_t flags, size_t entry_size), \
      (context, entries, max_entries, flags, entry_size))

/*
 * Public functions that the shim leaves to libibverbs: they take no object of a
 * device, or only one of a kind that npemu0 never creates.
 */
#define NPEMU_SHIM_LEFT_ALONE(_) \
    /* names, numbers, files */ \
    _(ibv_event_type_str) \
    _(ibv_node_type_str) \
    _(ibv_port_state_str) \
    _(ibv_wc_status_str) \
    _(ibv_rate_to_mbps) \
    _(ibv_rate_to_mult) \
    _(mbps_to_ibv_rate) \
    _(mult_to_ibv_rate) \
    _(ibv_get_sysfs_path) \
    _(ibv_read_sysfs_file) \
    /* kernel structures */ \
    _(ibv_copy_ah_attr_from_kern) \
    _(ibv_copy_path_rec_from_kern) \
    _(ibv_copy_path_rec_to_kern) \
    _(ibv_copy_qp_attr_from_kern) \
    /* address ranges, drivers */ \
    _(ibv_dofork_range) \
    _(ibv_dontfork_range) \
    _(ibv_is_fork_initialized) \
    _(ibv_register_driver) \
    /* objects that npemu0 never creates */ \
    _(ibv_dealloc_dmah) \
    _(ibv_destroy_comp_cntr) \
    _(ibv_inc_comp_cntr) \
    _(ibv_inc_err_comp_cntr) \
    _(ibv_read_comp_cntr) \
    _(ibv_read_err_comp_cntr) \
    _(ibv_set_comp_cntr) \
    _(ibv_set_err_comp_cntr)

#endif
