/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_VERBS_H_
#define UCT_NPRDMA_VERBS_H_

#include "nprdma_perf.h"

#include <infiniband/verbs.h>

struct ibv_buf; /* since rdma-core 65 */
struct nprdma_backend;

/* X(member, verb): the entries of uct_nprdma_verbs_t that every provider has,
 * and the names of the functions, without the prefix ibv_ or npemu_. Some verbs
 * are macros as well, so their entries have other names. */
#define UCT_NPRDMA_FOREACH_VERB(X)              \
    X(get_device_list,      get_device_list)    \
    X(free_device_list,     free_device_list)   \
    X(get_device_name,      get_device_name)    \
    X(open_device,          open_device)        \
    X(close_device,         close_device)       \
    X(query_device,         query_device)       \
    X(query_gid,            query_gid)          \
    X(alloc_pd,             alloc_pd)           \
    X(dealloc_pd,           dealloc_pd)         \
    X(register_mr,          reg_mr)             \
    X(dereg_mr,             dereg_mr)           \
    X(create_comp_channel,  create_comp_channel) \
    X(destroy_comp_channel, destroy_comp_channel) \
    X(create_cq,            create_cq)          \
    X(destroy_cq,           destroy_cq)         \
    X(get_cq_event,         get_cq_event)       \
    X(ack_cq_events,        ack_cq_events)      \
    X(create_srq,           create_srq)         \
    X(destroy_srq,          destroy_srq)        \
    X(create_qp,            create_qp)          \
    X(modify_qp,            modify_qp)          \
    X(destroy_qp,           destroy_qp)         \
    X(create_ah,            create_ah)          \
    X(destroy_ah,           destroy_ah)


/* Control verbs of one provider. The data path (post, poll, req_notify) needs
 * no entry here: the inlines of verbs.h dispatch through the objects. */
typedef struct uct_nprdma_verbs {
    const char           *name;
    /* Costs of its devices, unless UCX_NPRDMA_PERF tells others */
    const uct_nprdma_perf_t *perf;
#define UCT_NPRDMA_VERB_ENTRY(_member, _verb) __typeof__(ibv_##_verb) *_member;
    UCT_NPRDMA_FOREACH_VERB(UCT_NPRDMA_VERB_ENTRY)
#undef UCT_NPRDMA_VERB_ENTRY
    /* The function ibv_query_port() has an older structure */
    int                 (*query_port_attr)(struct ibv_context *context,
                                           uint8_t port_num,
                                           struct ibv_port_attr *attr);

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
    /* Evict pages on accesses with a probability; 0, or an errno value. NULL:
     * not supported. */
    int                 (*set_faults)(struct ibv_context *context, double rate,
                                      uint64_t seed);
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
