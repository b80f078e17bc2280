/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_MEM_H_
#define UCT_NPRDMA_MEM_H_

#include "nprdma_mem_md.h"
#include "nprdma_odp.h"
#include "uct/ib/nprdma/net/nprdma_counters.h"
#include "uct/ib/nprdma/wire/nprdma_key.h"

#include "ucm/regions/nprdma_reg.h"

#include <stdatomic.h>

/* Memory registration, with types that do not depend on the UCX version.
 * Registering pins nothing and does not call the device. It records a range
 * against which every request of a peer is checked. */

/* Whether peers may have a key of a registration */
enum {
    UCT_NPRDMA_MEM_PRIVATE,     /* Never packed: not accessible to peers */
    UCT_NPRDMA_MEM_EXPORTING,   /* A thread is making it accessible */
    UCT_NPRDMA_MEM_EXPORTED
};


/* A registration; uct_mem_h points to it. It is part of an entry of the table
 * of registrations, so that registering allocates nothing. */
typedef struct uct_nprdma_mem {
    nprdma_reg_t   *reg;        /* The entry; its key travels in the packed
                                 * key */
    atomic_int     state;       /* UCT_NPRDMA_MEM_xx */
    nprdma_range_t range;       /* Exported: range in a region, if */
    int            has_region;  /* this is nonzero */
    uint64_t       ends;        /* Exported: md->ends at that time */
    uct_nprdma_odp_mrs_t odp;   /* Exported, with on-demand paging: its own
                                 * memory regions */
} uct_nprdma_mem_t;


/* The key that an operation's uct_rkey_t points to */
static inline const uct_nprdma_rkey_t *uct_nprdma_rkey(uct_rkey_t rkey)
{
    return (const uct_nprdma_rkey_t*)rkey;
}


/* Create the table of registrations; md->regs is filled. UCS_ERR_UNSUPPORTED:
 * this process cannot serve requests of peers. */
ucs_status_t uct_nprdma_mem_init(uct_nprdma_mem_md_t *md);

/* Registrations that the user has leaked end, after one warning with their
 * number. The service has been destroyed, and the monitor has not. */
void uct_nprdma_mem_cleanup(uct_nprdma_mem_md_t *md);


/* Fill all but the counters of the service. The numbers need not be of the same
 * moment. */
void uct_nprdma_mem_query(uct_nprdma_mem_md_t *md,
                          uct_nprdma_mem_stats_t *stats);


/* Record a range that peers may access once its key has been packed. Touches no
 * page and calls neither device nor monitor. Without UCT_MD_MEM_ACCESS_xx, all
 * access is allowed. UCS_ERR_UNSUPPORTED in a child made by fork(). */
ucs_status_t uct_nprdma_mem_reg(uct_md_h md, void *address, size_t length,
                                uint64_t flags, uct_mem_h *memh_p);


/* End a registration: from then on no request accesses the range for it. The
 * device may still access it with keys of the region that peers have. With
 * UCT_MD_MEM_DEREG_FLAG_INVALIDATE the device has lost all pages that no other
 * registration covers when the call returns, and the completion is called
 * (ARCHITECTURE 5, revocation). Without a completion, or a key if this UCX
 * demands one (UCT_MD_MKEY_PACK_FLAG_INVALIDATE_RMA), that is
 * UCS_ERR_INVALID_PARAM, and the registration remains. */
ucs_status_t
uct_nprdma_mem_dereg(uct_md_h md, const uct_md_mem_dereg_params_t *params);


/* Advice that peers will access a part of a registration: its pages are read
 * from the disk, and populated if there is a key. Waits for neither: what is
 * resident at the beginning is populated at once, the rest by a thread of the
 * service. UCS_ERR_INVALID_PARAM: the part is not within the registration. */
ucs_status_t uct_nprdma_mem_advise(uct_md_h md, uct_mem_h memh, void *address,
                                   size_t length, unsigned advice);


/* Report memory that has no region, so that its data is copied: the first time
 * as a warning, later for debugging only */
void uct_nprdma_mem_no_region(uct_nprdma_mem_md_t *md, uintptr_t address,
                              size_t length, ucs_status_t status);


/* Pack the key of a registration for peers. The first key makes it accessible
 * to the service, and to the device if there is a region for it. Without a
 * region the target's software copies the data. Also populates resident pages
 * of the range, which is a hint (length 0: all): the beginning at once, the
 * rest later in a thread of the service. UCS_ERR_UNSUPPORTED for the first key
 * in a child made by fork(). */
ucs_status_t uct_nprdma_mkey_pack(uct_md_h md, uct_mem_h memh, void *address,
                                  size_t length, void *rkey);


/* Unpack a peer's key, of any alignment. UCS_ERR_INVALID_PARAM for data that is
 * no key of this version. */
ucs_status_t
uct_nprdma_rkey_unpack(uct_component_t *component, const void *rkey,
                       uct_rkey_t *rkey_p, void **handle_p);


ucs_status_t uct_nprdma_rkey_release(uct_component_t *component,
                                     uct_rkey_t rkey, void *handle);


/* Order of two keys; 0 if they reach the same memory in the same way */
int uct_nprdma_rkey_order(uct_rkey_t rkey1, uct_rkey_t rkey2);

#endif
