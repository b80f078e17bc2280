/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * npemu: an RDMA NIC in user space.
 *
 * Every function below has the signature, the return convention and the meaning
 * of the libibverbs function of the same name with `ibv_` instead of `npemu_`.
 * The manual page of that function documents it; comments here describe
 * differences. Objects are `struct ibv_*` objects: the inline functions of
 * <infiniband/verbs.h> (ibv_poll_cq, ibv_post_send, ...) work on
 * them, so there are no npemu_ functions for those.
 *
 * There is one device, `npemu0`, with one port. All processes of one user in
 * one IPC and PID namespace form one fabric. All functions are thread-safe.
 */

#ifndef NPEMU_H
#define NPEMU_H

#include <infiniband/verbs.h>
#include <stdint.h>
#include <sys/types.h>

#define NPEMU_DEVICE_NAME "npemu0"

struct ibv_buf; /* since rdma-core 65 */

/* --- device ------------------------------------------------------------- */

/**
 * The list always contains the one device. Only @ref npemu_open_device finds or
 * creates the fabric, so listing fails for lack of memory only.
 */
struct ibv_device **npemu_get_device_list(int *num_devices);
void npemu_free_device_list(struct ibv_device **list);
const char *npemu_get_device_name(struct ibv_device *device);

/** The GUID identifies the fabric; equal in all its processes. */
__be64 npemu_get_device_guid(struct ibv_device *device);

/**
 * Attaches the process to the fabric (the first time) and opens the device.
 * NULL with errno and one line on stderr on failure: ENODEV (no SysV shared
 * memory, damaged or foreign fabric), ENOSPC (no free process slot), ENOMEM.
 */
struct ibv_context *npemu_open_device(struct ibv_device *device);
int npemu_close_device(struct ibv_context *context);

/**
 * How often this process has called process_vm_readv() or process_vm_writev()
 * to copy memory. Only differences mean something. There is no such verb.
 */
uint64_t npemu_copy_calls(struct ibv_context *context);

/** 1 if @a device is the emulated one, else 0. Reads only the pointer. */
int npemu_is_device(const struct ibv_device *device);

int npemu_query_device(struct ibv_context *context,
                       struct ibv_device_attr *device_attr);

/** As the function (not the macro) ibv_query_port: fills all of @a attr. With
 * NPEMU_LINK, width and speed are those nearest to its rate. */
int npemu_query_port(struct ibv_context *context, uint8_t port_num,
                     struct ibv_port_attr *attr);

/**
 * The wire of NPEMU_LINK, of which the steps of width and speed say little.
 * There is no such verb.
 *
 * @param [in]  context     Open device.
 * @param [out] latency_ns  From side to side, besides the rate; not set if
 *                          there is no wire.
 * @param [out] is_shared   Whether other processes may have the same port; not
 *                          set if there is no wire.
 *
 * @return Bytes per second; 0: there is no wire.
 */
uint64_t npemu_query_link(struct ibv_context *context, uint64_t *latency_ns,
                          int *is_shared);

int npemu_query_gid(struct ibv_context *context, uint8_t port_num, int index,
                    union ibv_gid *gid);
int npemu_query_gid_ex(struct ibv_context *context, uint32_t port_num,
                       uint32_t gid_index, struct ibv_gid_entry *entry,
                       uint32_t flags, size_t entry_size);
ssize_t npemu_query_gid_table(struct ibv_context *context,
                              struct ibv_gid_entry *entries,
                              size_t max_entries, uint32_t flags,
                              size_t entry_size);

/** The GID type as in sysfs: 0, "IB/RoCE v1". */
int npemu_query_gid_type(struct ibv_context *context, uint8_t port_num,
                         unsigned index, unsigned *type);
int npemu_query_pkey(struct ibv_context *context, uint8_t port_num, int index,
                     __be16 *pkey);
int npemu_get_pkey_index(struct ibv_context *context, uint8_t port_num,
                         __be16 pkey);

/* --- asynchronous events ------------------------------------------------ */

int npemu_get_async_event(struct ibv_context *context,
                          struct ibv_async_event *event);
void npemu_ack_async_event(struct ibv_async_event *event);

/* --- protection domain, memory ------------------------------------------ */

struct ibv_pd *npemu_alloc_pd(struct ibv_context *context);
int npemu_dealloc_pd(struct ibv_pd *pd);

/**
 * Populates the pages, as the kernel does for a NIC (writable if
 * IBV_ACCESS_LOCAL_WRITE), and counts them. With NPEMU_PIN=mlock they are
 * mlock()ed, once for all overlapping MRs: ENOMEM at RLIMIT_MEMLOCK. EFAULT
 * where nothing is mapped, or where the memory is the device's own and not of
 * one npemu_alloc_buf().
 *
 * With IBV_ACCESS_ON_DEMAND nothing is pinned or populated, and the range need
 * not be mapped: an access to it brings pages in, or fails. NPEMU_ODP=explicit
 * or implicit in the environment allows this, for RDMA READ and WRITE only.
 * EOPNOTSUPP without it, or with IBV_ACCESS_REMOTE_ATOMIC; EINVAL for a length
 * of SIZE_MAX, the whole address space, unless it is implicit.
 */
struct ibv_mr *npemu_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
                            int access);
struct ibv_mr *npemu_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length,
                                 uint64_t iova, int access);
struct ibv_mr *npemu_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,
                                  uint64_t iova, unsigned access);

/** Bytes that a NIC would pin for this process: all pages of each MR */
size_t npemu_pinned(void);

/**
 * Memory in the arena of this process, whole pages of zeros, which every peer
 * has mapped. The CPU copies what peers send there, and RDMA to and from it;
 * memory of other kinds costs a system call for each 64 KiB. Register it by
 * npemu_reg_buf_mr() or npemu_reg_mr().
 *
 * A forked child does not inherit the memory, and it must not be unmapped.
 * NULL with errno: EINVAL for a size of 0, ENOMEM, EPERM in a forked child.
 */
void *npemu_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);

/** Frees the memory, or lets the last MR of it do so. Handles of other
 * libraries are ignored. */
void npemu_free_buf(struct ibv_buf *buf);

/** 1 if npemu_alloc_buf() has returned @a buf and it has not been freed, else
 * 0. Reads only the pointer. */
int npemu_is_buf(const struct ibv_buf *buf);

/** As npemu_reg_mr(). EINVAL if the range is not within the buffer, or @a pd is
 * not that of the buffer. */
struct ibv_mr *npemu_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf,
                                void *addr, size_t length, int access);

/**
 * Takes the descriptor of a region of this process (npemu_iommu.h), and pins no
 * memory. EBADF if it is not open, EINVAL with one line for any other
 * descriptor, EINVAL if the range is not within one view, EACCES for rights
 * to write through a view that is read-only, ENOSPC, EMFILE or ENOMEM.
 */
struct ibv_mr *npemu_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset,
                                   size_t length, uint64_t iova, int fd,
                                   int access);

/** After it returns there is no access through the keys any more. */
int npemu_dereg_mr(struct ibv_mr *mr);

/* --- completion --------------------------------------------------------- */

struct ibv_comp_channel *
npemu_create_comp_channel(struct ibv_context *context);
int npemu_destroy_comp_channel(struct ibv_comp_channel *channel);
struct ibv_cq *npemu_create_cq(struct ibv_context *context, int cqe,
                               void *cq_context,
                               struct ibv_comp_channel *channel,
                               int comp_vector);
int npemu_destroy_cq(struct ibv_cq *cq);

/**
 * How often a request that had to wait has been retried, in all send queues
 * that complete in this CQ, since the CQ was created. To wait for the wire of
 * NPEMU_LINK is no try. There is no such verb.
 */
uint64_t npemu_cq_retries(struct ibv_cq *cq);

/**
 * How often the npemu thread has slept for a time although one of those send
 * queues had a reason to retry, because another thread had it locked. There is
 * no such verb.
 */
uint64_t npemu_cq_pauses(struct ibv_cq *cq);

int npemu_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq,
                       void **cq_context);
void npemu_ack_cq_events(struct ibv_cq *cq, unsigned nevents);

/* --- queue pairs -------------------------------------------------------- */

struct ibv_srq *npemu_create_srq(struct ibv_pd *pd,
                                 struct ibv_srq_init_attr *init_attr);
int npemu_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask);
int npemu_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr);
int npemu_destroy_srq(struct ibv_srq *srq);

struct ibv_qp *npemu_create_qp(struct ibv_pd *pd,
                               struct ibv_qp_init_attr *init_attr);
struct ibv_qp *npemu_create_qp_ex(struct ibv_context *context,
                                  struct ibv_qp_init_attr_ex *init_attr);
int npemu_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int npemu_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                   struct ibv_qp_init_attr *init_attr);
int npemu_destroy_qp(struct ibv_qp *qp);

/**
 * Whether a process of the fabric has a queue pair of this number, in any
 * state. Where that is not known, because the process cannot be mapped, it is
 * 1. There is no such verb: a network knows nothing of queue pairs.
 */
int npemu_has_qp(struct ibv_context *context, uint32_t qp_num);

/* --- address handles ---------------------------------------------------- */

struct ibv_ah *npemu_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
int npemu_destroy_ah(struct ibv_ah *ah);

#endif
