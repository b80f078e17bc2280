/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_odp.h"
#include "nprdma_odp_check.h"

#include "ucm/regions/nprdma_reg.h"

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>
#include <ucs/sys/math.h>

#include <errno.h>
#include <string.h>


static struct ibv_mr *uct_nprdma_odp_reg(uct_nprdma_odp_t *odp,
                                         uintptr_t address, size_t length,
                                         int access)
{
    const uct_nprdma_device_t *dev = odp->dev;
    struct ibv_mr *mr;

    mr = dev->verbs->register_mr(dev->pd, (void*)address, length,
                                 access | IBV_ACCESS_ON_DEMAND);
    if (mr == NULL) {
        ucs_debug("%s: failed to register %zu bytes at 0x%" PRIxPTR " with "
                  "on-demand paging, access 0x%x: %m", dev->name, length,
                  address, access);
        return NULL;
    }

    atomic_fetch_add(&odp->regions, 1);
    atomic_fetch_add(&odp->created, 1);
    return mr;
}

static void uct_nprdma_odp_dereg(uct_nprdma_odp_t *odp, struct ibv_mr *mr)
{
    int ret;

    if (mr == NULL) {
        return;
    }

    ret = odp->dev->verbs->dereg_mr(mr);
    if (ret != 0) {
        ucs_warn("%s: failed to deregister a region with on-demand paging: %s",
                 odp->dev->name, strerror(ret));
    }
    atomic_fetch_sub(&odp->regions, 1);
}


/* ---- memory for peers ---- */

ucs_status_t uct_nprdma_odp_export(uct_nprdma_odp_t *odp, uintptr_t address,
                                   size_t length, uint32_t access,
                                   uct_nprdma_odp_mrs_t *mrs)
{
    int error;

    memset(mrs, 0, sizeof(*mrs));
    if (access & NPRDMA_REG_ACCESS_GET) {
        mrs->r = uct_nprdma_odp_reg(odp, address, length,
                                    IBV_ACCESS_REMOTE_READ);
        if (mrs->r == NULL) {
            goto err;
        }
    }

    if (access & NPRDMA_REG_ACCESS_PUT) {
        mrs->w = uct_nprdma_odp_reg(odp, address, length,
                                    IBV_ACCESS_LOCAL_WRITE |
                                    IBV_ACCESS_REMOTE_WRITE);
        if (mrs->w == NULL) {
            goto err;
        }
    }

    return UCS_OK;

err:
    error = errno;
    uct_nprdma_odp_unexport(odp, mrs);
    return ((error == ENOMEM) || (error == ENOSPC)) ? UCS_ERR_EXCEEDS_LIMIT :
                                                      UCS_ERR_IO_ERROR;
}

void uct_nprdma_odp_unexport(uct_nprdma_odp_t *odp, uct_nprdma_odp_mrs_t *mrs)
{
    uct_nprdma_odp_dereg(odp, mrs->r);
    uct_nprdma_odp_dereg(odp, mrs->w);
    memset(mrs, 0, sizeof(*mrs));
}

void uct_nprdma_odp_fill_key(const uct_nprdma_odp_mrs_t *mrs,
                             uct_nprdma_rkey_t *rkey)
{
    rkey->r_rkey = (mrs->r != NULL) ? mrs->r->rkey : 0;
    rkey->w_rkey = (mrs->w != NULL) ? mrs->w->rkey : 0;
    rkey->flags  = UCT_NPRDMA_KEY_FLAG_ON_DEMAND;
}


/* ---- memory for operations of this process ---- */

/* The entry of a part, or the free one that it would get. Entries are never
 * freed, and a quarter always is free, so this needs no lock. */
static uct_nprdma_odp_part_t *
uct_nprdma_odp_find(uct_nprdma_odp_t *odp, uintptr_t number)
{
    uct_nprdma_odp_part_t *part;
    uintptr_t i, there;

    for (i = number;; ++i) {
        part  = &odp->parts[i % UCT_NPRDMA_ODP_TABLE_SIZE];
        there = atomic_load_explicit(&part->number, memory_order_acquire);
        if ((there == number) || (there == 0)) {
            return part;
        }
    }
}

/* A region is longer than its part, so that every access that begins in the
 * part is inside. The last one ends with the address space. */
static uint32_t uct_nprdma_odp_part_reg(uct_nprdma_odp_t *odp,
                                        uct_nprdma_odp_part_t *part,
                                        uintptr_t number, int is_write)
{
    uintptr_t address = (number - 1) << odp->shift;
    size_t length     = ((size_t)1 << odp->shift) + UCT_NPRDMA_ODP_MAX_ACCESS;
    struct ibv_mr *mr;

    length = ucs_min(length, UINTPTR_MAX - address);
    mr     = uct_nprdma_odp_reg(odp, address, length,
                                is_write ? IBV_ACCESS_LOCAL_WRITE : 0);
    if (is_write) {
        part->mrs.w = mr;
    } else {
        part->mrs.r = mr;
    }
    return (mr == NULL) ? 0 : mr->lkey;
}

static uint64_t uct_nprdma_odp_part_add(uct_nprdma_odp_t *odp,
                                        uintptr_t number, int is_write)
{
    uct_nprdma_odp_part_t *part = uct_nprdma_odp_find(odp, number);
    int is_new                  = (atomic_load(&part->number) == 0);
    uint64_t lkey;

    if (is_new && (odp->num_parts == UCT_NPRDMA_ODP_MAX_PARTS)) {
        return 0;
    }

    lkey = atomic_load(&part->lkeys[is_write]);
    if (!(lkey & UCT_NPRDMA_ODP_IS_SET)) {
        lkey = UCT_NPRDMA_ODP_IS_SET |
               uct_nprdma_odp_part_reg(odp, part, number, is_write);
        atomic_store_explicit(&part->lkeys[is_write], lkey,
                              memory_order_release);
    }

    odp->num_parts += is_new;
    atomic_store_explicit(&part->number, number, memory_order_release);
    return lkey;
}

uint32_t uct_nprdma_odp_lkey(uct_nprdma_odp_t *odp, uintptr_t address,
                             size_t length, int is_write)
{
    uintptr_t number = (address >> odp->shift) + 1;
    uct_nprdma_odp_part_t *part;
    uint64_t lkey;

    if (ucs_unlikely(length > UCT_NPRDMA_ODP_MAX_ACCESS)) {
        return 0;
    }

    if (odp->implicit.r != NULL) {
        return is_write ? odp->implicit.w->lkey : odp->implicit.r->lkey;
    }

    is_write = !!is_write;
    part     = uct_nprdma_odp_find(odp, number);
    if (ucs_likely(atomic_load_explicit(&part->number, memory_order_acquire) ==
                   number)) {
        lkey = atomic_load_explicit(&part->lkeys[is_write],
                                    memory_order_acquire);
        if (ucs_likely(lkey & UCT_NPRDMA_ODP_IS_SET)) {
            return (uint32_t)lkey;
        }
    }

    pthread_mutex_lock(&odp->lock);
    lkey = uct_nprdma_odp_part_add(odp, number, is_write);
    pthread_mutex_unlock(&odp->lock);
    return (uint32_t)lkey;
}


/* ---- life ---- */

static const char *
uct_nprdma_odp_obstacle(const uct_nprdma_device_t *dev,
                        struct ibv_odp_caps *caps)
{
    const uint32_t needed = IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_WRITE;
    int ret;

    if (dev->verbs->query_odp == NULL) {
        return "the library of the device does not tell whether it has "
               "on-demand paging";
    }

    ret = dev->verbs->query_odp(dev->context, caps);
    if (ret != 0) {
        ucs_debug("%s: failed to query on-demand paging: %s", dev->name,
                  strerror(ret));
        return "the device does not tell whether it has on-demand paging";
    }

    if (!(caps->general_caps & IBV_ODP_SUPPORT)) {
        return "the device has no on-demand paging";
    }

    if (needed & ~caps->per_transport_caps.rc_odp_caps) {
        return "the device has no on-demand paging for RDMA READ and WRITE";
    }

    return NULL;
}

/* A device that cannot do what it reports gets explicit regions */
static void uct_nprdma_odp_reg_implicit(uct_nprdma_odp_t *odp)
{
    odp->implicit.r = uct_nprdma_odp_reg(odp, 0, SIZE_MAX, 0);
    if (odp->implicit.r == NULL) {
        return;
    }

    odp->implicit.w = uct_nprdma_odp_reg(odp, 0, SIZE_MAX,
                                         IBV_ACCESS_LOCAL_WRITE);
    if (odp->implicit.w == NULL) {
        uct_nprdma_odp_unexport(odp, &odp->implicit);
    }
}

ucs_status_t uct_nprdma_odp_open(uct_nprdma_device_t *dev, size_t part_size,
                                 uct_nprdma_odp_t **odp_p, const char **why_p)
{
    struct ibv_odp_caps caps = {};
    uct_nprdma_odp_t *odp;

    *why_p = uct_nprdma_odp_obstacle(dev, &caps);
    if (*why_p != NULL) {
        return UCS_ERR_NO_DEVICE;
    }

    odp = ucs_calloc(1, sizeof(*odp), "nprdma_odp");
    if (odp == NULL) {
        *why_p = "out of memory";
        return UCS_ERR_NO_MEMORY;
    }

    odp->dev   = dev;
    odp->shift = ucs_ilog2(part_size);
    pthread_mutex_init(&odp->lock, NULL);
    if (caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT) {
        uct_nprdma_odp_reg_implicit(odp);
    }

    *why_p = uct_nprdma_odp_check(dev, odp);
    if (*why_p != NULL) {
        uct_nprdma_odp_close(odp);
        return UCS_ERR_IO_ERROR;
    }

    *odp_p = odp;
    return UCS_OK;
}

void uct_nprdma_odp_close(uct_nprdma_odp_t *odp)
{
    unsigned i;

    for (i = 0; i < UCT_NPRDMA_ODP_TABLE_SIZE; ++i) {
        uct_nprdma_odp_unexport(odp, &odp->parts[i].mrs);
    }
    uct_nprdma_odp_unexport(odp, &odp->implicit);
    pthread_mutex_destroy(&odp->lock);
    ucs_free(odp);
}
