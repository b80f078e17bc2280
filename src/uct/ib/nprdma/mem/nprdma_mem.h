/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_MEM_H_
#define UCT_NPRDMA_MEM_H_

#include "nprdma_mem_md.h"
#include "uct/ib/nprdma/net/nprdma_counters.h"
#include "uct/ib/nprdma/wire/nprdma_key.h"

#include "ucm/regions/nprdma_reg.h"

#include <stdatomic.h>

/*
 * Memory registration, in shapes that do not depend on the UCX version.
 * Registering pins nothing and asks no device: it records a range against
 * which every request of a peer is checked.
 */

/* Whether peers may have a key of a registration */
enum {
    UCT_NPRDMA_MEM_PRIVATE,     /* Never packed: nothing lets a peer in */
    UCT_NPRDMA_MEM_EXPORTING,   /* A thread is about to let them in */
    UCT_NPRDMA_MEM_EXPORTED
};


/*
 * A registration, what uct_mem_h points to. It lives in the record of the table
 * of registrations: making one allocates nothing.
 */
typedef struct uct_nprdma_mem {
    nprdma_reg_t   *reg;        /* The record; its key is what peers get */
    atomic_int     state;       /* UCT_NPRDMA_MEM_xx */
    nprdma_range_t range;       /* Exported: where the device finds it, */
    int            has_region;  /* if at all */
} uct_nprdma_mem_t;


/** @return What an operation's uct_rkey_t stands for. */
static inline const uct_nprdma_rkey_t *uct_nprdma_rkey(uct_rkey_t rkey)
{
    return (const uct_nprdma_rkey_t*)rkey;
}


/**
 * Give an MD its table of registrations.
 *
 * @param [in] md  MD; md->regs is filled.
 *
 * @return UCS_OK, UCS_ERR_NO_MEMORY, or UCS_ERR_UNSUPPORTED with a logged
 *         reason when this process cannot serve requests of peers.
 */
ucs_status_t uct_nprdma_mem_init(uct_nprdma_mem_md_t *md);

/**
 * Undo @ref uct_nprdma_mem_init. Registrations that the user has leaked end,
 * after one warning that tells how many they were.
 *
 * @param [in] md  MD whose service is destroyed, and whose monitor is not.
 */
void uct_nprdma_mem_cleanup(uct_nprdma_mem_md_t *md);


/**
 * Count what an MD knows of the process's memory.
 *
 * @param [in]  md     MD.
 * @param [out] stats  Filled, but for what the service counts; the numbers need
 *                     not be of one moment.
 */
void uct_nprdma_mem_query(uct_nprdma_mem_md_t *md,
                          uct_nprdma_mem_stats_t *stats);


/**
 * Record a range that peers may access once its key has been packed. Touches no
 * page, and tells nobody of it.
 *
 * @param [in]  md       MD.
 * @param [in]  address  First byte; need not be mapped.
 * @param [in]  length   Bytes.
 * @param [in]  flags    UCT_MD_MEM_ACCESS_xx; without any of them, everything
 *                       is allowed.
 * @param [out] memh_p   Handle of the registration.
 *
 * @return UCS_OK, UCS_ERR_NO_MEMORY, or UCS_ERR_UNSUPPORTED in a child made by
 *         fork().
 */
ucs_status_t uct_nprdma_mem_reg(uct_md_h md, void *address, size_t length,
                                uint64_t flags, uct_mem_h *memh_p);


/**
 * End a registration. When it returns, no request touches the range on its
 * behalf any more. The device may still do so, as long as peers have keys of
 * the region: with UCT_MD_MEM_DEREG_FLAG_INVALIDATE it has lost every page that
 * no other registration covers, also when this returns, so that an invalidation
 * is complete at once.
 *
 * @param [in] md      MD.
 * @param [in] params  As for uct_md_mem_dereg_v2().
 *
 * @return UCS_OK or UCS_ERR_INVALID_PARAM.
 */
ucs_status_t
uct_nprdma_mem_dereg(uct_md_h md, const uct_md_mem_dereg_params_t *params);


/**
 * Report memory that the device cannot be told of, so that its data is copied:
 * the first time as a warning, later for debugging only.
 *
 * @param [in] md       MD.
 * @param [in] address  First byte.
 * @param [in] length   Bytes.
 * @param [in] status   Why there is no region.
 */
void uct_nprdma_mem_no_region(uct_nprdma_mem_md_t *md, uintptr_t address,
                              size_t length, ucs_status_t status);


/**
 * Pack the key of a registration for peers. With the first one it becomes
 * accessible at all: to the service, and, where it has a region, to the device.
 * If the device cannot be told of it, its software copies the data. What is
 * resident is made accessible to the device by the way: the beginning at once,
 * the rest of a large range later, by a thread of the service. What is not
 * resident stays so.
 *
 * @param [in]  md       MD.
 * @param [in]  memh     Registration.
 * @param [in]  address  First byte that the peer is going to use,
 * @param [in]  length   and bytes; a hint. Length 0: all of it.
 * @param [out] rkey     sizeof(uct_nprdma_packed_rkey_t) bytes.
 *
 * @return UCS_OK; or UCS_ERR_UNSUPPORTED, with a logged reason, for the first
 *         key of a registration in a child made by fork().
 */
ucs_status_t uct_nprdma_mkey_pack(uct_md_h md, uct_mem_h memh, void *address,
                                  size_t length, void *rkey);


/**
 * Make a peer's packed key usable.
 *
 * @param [in]  component  Not used.
 * @param [in]  rkey       Packed key.
 * @param [out] rkey_p     Key for operations, see @ref uct_nprdma_rkey.
 * @param [out] handle_p   NULL: the key itself is what has to be released.
 *
 * @return UCS_OK; UCS_ERR_NO_MEMORY; or UCS_ERR_INVALID_PARAM, with a logged
 *         reason, for what cannot be a key of ours.
 */
ucs_status_t
uct_nprdma_rkey_unpack(uct_component_t *component, const void *rkey,
                       uct_rkey_t *rkey_p, void **handle_p);


/** Release a key that @ref uct_nprdma_rkey_unpack made. */
ucs_status_t uct_nprdma_rkey_release(uct_component_t *component,
                                     uct_rkey_t rkey, void *handle);


/** @return Order of two keys: 0 if they reach the same memory the same way. */
int uct_nprdma_rkey_order(uct_rkey_t rkey1, uct_rkey_t rkey2);

#endif
