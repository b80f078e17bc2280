/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_VERBS_H_
#define UCT_NPRDMA_VERBS_H_

#include "nprdma_perf.h"

#include <infiniband/verbs.h>

struct ibv_buf; /* since rdma-core 65 */
struct nprdma_backend;

/* Control verbs of one provider. The data path (post, poll, req_notify) needs
 * no entry here: the inlines of verbs.h dispatch through the objects. */
typedef struct uct_nprdma_verbs {
    const char           *name;
    /* Costs of its devices, unless UCX_NPRDMA_PERF tells others */
    const uct_nprdma_perf_t *perf;
    struct ibv_device **(*get_device_list)(int *num_devices);
    void                (*free_device_list)(struct ibv_device **list);
    const char         *(*get_device_name)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device);
    int                 (*close_device)(struct ibv_context *context);
    int                 (*query_device)(struct ibv_context *context,
                                        struct ibv_device_attr *attr);
    /* verbs.h defines ibv_query_port as a macro, hence the other name */
    int                 (*query_port_attr)(struct ibv_context *context,
                                           uint8_t port_num,
                                           struct ibv_port_attr *attr);
    int                 (*query_gid)(struct ibv_context *context,
                                     uint8_t port_num, int index,
                                     union ibv_gid *gid);
    struct ibv_pd      *(*alloc_pd)(struct ibv_context *context);
    int                 (*dealloc_pd)(struct ibv_pd *pd);
    /* another name as well, because of ibv_reg_mr */
    struct ibv_mr      *(*register_mr)(struct ibv_pd *pd, void *addr,
                                       size_t length, int access);
    int                 (*dereg_mr)(struct ibv_mr *mr);
    struct ibv_comp_channel *(*create_comp_channel)(
                                     struct ibv_context *context);
    int                 (*destroy_comp_channel)(
                                     struct ibv_comp_channel *channel);
    struct ibv_cq      *(*create_cq)(struct ibv_context *context, int cqe,
                                     void *cq_context,
                                     struct ibv_comp_channel *channel,
                                     int comp_vector);
    int                 (*destroy_cq)(struct ibv_cq *cq);
    int                 (*get_cq_event)(struct ibv_comp_channel *channel,
                                        struct ibv_cq **cq, void **cq_context);
    void                (*ack_cq_events)(struct ibv_cq *cq, unsigned nevents);
    struct ibv_srq     *(*create_srq)(struct ibv_pd *pd,
                                      struct ibv_srq_init_attr *attr);
    int                 (*destroy_srq)(struct ibv_srq *srq);
    struct ibv_qp      *(*create_qp)(struct ibv_pd *pd,
                                     struct ibv_qp_init_attr *attr);
    int                 (*modify_qp)(struct ibv_qp *qp,
                                     struct ibv_qp_attr *attr, int attr_mask);
    int                 (*destroy_qp)(struct ibv_qp *qp);
    struct ibv_ah      *(*create_ah)(struct ibv_pd *pd,
                                     struct ibv_ah_attr *attr);
    int                 (*destroy_ah)(struct ibv_ah *ah);

    /* Memory to which this provider's devices have a shorter way, as
     * ibv_alloc_buf() and ibv_free_buf(); it is registered as any other, and
     * not inherited by fork(). NULL: there is none. */
    void               *(*alloc_buf)(struct ibv_pd *pd, size_t size,
                                     struct ibv_buf **buf);
    void                (*free_buf)(struct ibv_buf *buf);
    /* A wire whose rate the attributes of the port do not tell exactly:
     * bytes/s, ns, and whether processes of the node share it. 0, or NULL:
     * there is none. */
    uint64_t            (*query_link)(struct ibv_context *context,
                                      uint64_t *latency_ns, int *is_shared);
    /* Whether there is a queue pair of this number, which a peer of the same
     * fabric has told. NULL: the device cannot know. */
    int                 (*has_qp)(struct ibv_context *context, uint32_t qp_num);
    /* On-demand paging; 0 or an errno value. NULL: there is none. */
    int                 (*query_odp)(struct ibv_context *context,
                                     struct ibv_odp_caps *caps);
    /* NULL: no views, and so no memory monitor */
    struct ibv_mr      *(*register_dmabuf_mr)(struct ibv_pd *pd,
                                              uint64_t offset, size_t length,
                                              uint64_t iova, int fd,
                                              int access);
    /* Owners of page states and views for devices of this provider: the
     * kernel module, and its emulation. NULL: not for this provider. Without
     * any, and without on-demand paging, all data goes through bounce buffers
     * (ARCHITECTURE 5, copy mode). */
    const struct nprdma_backend *kernel_backend;
    const struct nprdma_backend *emulated_backend;
    /* Called in memory hooks: wait until all DMA that was in progress has
     * ended. NULL: the back end does it, because the device's DMA goes through
     * views. */
    void                (*drain)(struct ibv_context *context);
    /* Evict pages at random; 0, or an errno value after a message. NULL: not
     * supported. */
    int                 (*set_fault_plan)(struct ibv_context *context,
                                          const char *plan);
} uct_nprdma_verbs_t;


/* UCX_NPRDMA_EMULATION */
typedef enum uct_nprdma_emulation {
    UCT_NPRDMA_EMULATION_AUTO,  /* only where no real device is usable */
    UCT_NPRDMA_EMULATION_YES,
    UCT_NPRDMA_EMULATION_NO,
    UCT_NPRDMA_EMULATION_LAST
} uct_nprdma_emulation_t;


#define UCT_NPRDMA_MAX_PROVIDERS  2

/* Fill the providers that the user allows, in order of preference, and return
 * their number: UCT_NPRDMA_MAX_PROVIDERS at most */
unsigned uct_nprdma_verbs_providers(uct_nprdma_emulation_t emulation,
                                    const uct_nprdma_verbs_t **providers);

#endif
