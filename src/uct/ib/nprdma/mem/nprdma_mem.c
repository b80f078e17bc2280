/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_mem.h"
#include "nprdma_mrs.h"
#include "uct/ib/nprdma/compat/nprdma_compat.h"
#include "uct/ib/nprdma/net/nprdma_bounce.h"

#include "ucm/access/nprdma_access.h"
#include "ucm/access/nprdma_pagein.h"

#include "nprdma_assert.h"

#include <ucs/debug/memtrack_int.h>

#include <sched.h>

/* Maximum number of bytes that the thread that packs a key populates itself: to
 * look for the resident pages of them and to set their states takes 6 us (huge
 * pages) to 11 us. To wake another thread takes as long, and more where that
 * needs the CPU of one that polls. The other thread populates the rest while
 * the peer works on the beginning. */
#define UCT_NPRDMA_MEM_POPULATE_MAX  (2 * UCS_MBYTE)

/* Longest rest in bytes for which page states are checked before another thread
 * is woken: one word per page, a few microseconds in all */
#define UCT_NPRDMA_MEM_CHECK_MAX     (64 * UCS_MBYTE)


ucs_status_t uct_nprdma_mem_init(uct_nprdma_mem_md_t *md)
{
    ucs_status_t status;

    status = nprdma_access_init();
    if (status != UCS_OK) {
        ucs_error("%s: process_vm_readv() or process_vm_writev() to this"
                  " process itself is refused: cannot access memory for peers."
                  " Allow both in the seccomp profile, or start the container"
                  " with --cap-add=SYS_PTRACE", md->super.name);
        return status;
    }

    if (!nprdma_access_is_direct()) {
        ucs_diag("%s: the fault handler cannot be installed, atomics are not"
                 " atomic towards this process's own", md->super.name);
    }

    status = nprdma_reg_table_create(sizeof(uct_nprdma_mem_t),
                                     &md->super.stats->registered, &md->regs);
    if (status != UCS_OK) {
        ucs_error("%s: failed to allocate the table of registrations",
                  md->super.name);
        nprdma_access_cleanup();
        return status;
    }

    return UCS_OK;
}

/* An endpoint that fails or is canceled does not end the operations of its
 * peer. UCP deregisters the buffers of its requests after that, and without the
 * flag, and then completes them (ARCHITECTURE 3, failure of a peer). It may be
 * any registration that was exported at that time. */
static void uct_nprdma_mem_end(uct_nprdma_mem_md_t *md, uct_nprdma_mem_t *mem,
                               int invalidate)
{
    if (atomic_load(&mem->state) == UCT_NPRDMA_MEM_EXPORTED) {
        nprdma_reg_retire(mem->reg);
    }
    if (mem->has_region) {
        nprdma_monitor_unregister(md->monitor, &mem->range,
                                  invalidate ||
                                  (mem->ends != atomic_load(&md->ends)));
    }
    if (uct_nprdma_odp_is_exported(&mem->odp)) {
        uct_nprdma_odp_unexport(md->odp, &mem->odp);
    }
    nprdma_reg_free(md->regs, mem->reg);
}

void uct_nprdma_mem_cleanup(uct_nprdma_mem_md_t *md)
{
    unsigned count = nprdma_reg_table_count(md->regs);
    nprdma_reg_t *reg;

    if (count > 0) {
        ucs_warn("%s: closed with %u live registrations: they end now, their "
                 "handles must not be used any more", md->super.name, count);
    }

    while ((reg = nprdma_reg_table_first(md->regs)) != NULL) {
        uct_nprdma_mem_end(md, nprdma_reg_extra(reg), 0);
    }

    nprdma_reg_table_destroy(md->regs);
    md->regs = NULL;
    nprdma_access_cleanup();
}

void uct_nprdma_mem_query(uct_nprdma_mem_md_t *md,
                          uct_nprdma_mem_stats_t *stats)
{
    nprdma_monitor_stats_t monitor = {};
    nprdma_reg_sums_t sums;

    if (md->monitor != NULL) {
        nprdma_monitor_query(md->monitor, &monitor);
    }

    memset(stats, 0, sizeof(*stats));
    stats->pinned_bytes          = uct_nprdma_bounce_pinned();
    stats->registrations         = nprdma_reg_table_count(md->regs);
    nprdma_reg_table_query(md->regs, &sums);
    stats->registered_bytes      = sums.bytes;
    stats->registered_peak       = sums.peak;
    stats->regions               = monitor.regions;
    stats->state_bytes           = monitor.state_bytes;
    if (md->odp != NULL) {
        stats->odp_regions         = atomic_load(&md->odp->regions);
        stats->odp_regions_created = atomic_load(&md->odp->created);
    }
    stats->regions_created       = monitor.created;
    stats->pages_populated       = monitor.populated;
    stats->populate_faults       = monitor.pageins;
    stats->pages_revoked         = monitor.revoked;
    stats->pages_reclaimed       = monitor.reclaimed;
    stats->memory_events         = monitor.events;
    stats->kernel_events         = monitor.kernel_events;
    stats->kernel_pages          = monitor.kernel_invalidated;
    stats->lazy_reused           = monitor.lazy.reused;
    stats->lazy_dropped          = monitor.lazy.dropped;
}

static uint32_t uct_nprdma_mem_access(uint64_t flags)
{
    uint32_t access = 0;

    if (!(flags & UCT_MD_MEM_ACCESS_ALL) ||
        (flags & UCT_NPRDMA_MEM_ANY_ACCESS)) {
        return NPRDMA_REG_ACCESS_ALL;
    }

    if (flags & UCT_MD_MEM_ACCESS_REMOTE_PUT) {
        access |= NPRDMA_REG_ACCESS_PUT;
    }
    if (flags & UCT_MD_MEM_ACCESS_REMOTE_GET) {
        access |= NPRDMA_REG_ACCESS_GET;
    }
    if (flags & UCT_MD_MEM_ACCESS_REMOTE_ATOMIC) {
        access |= NPRDMA_REG_ACCESS_ATOMIC;
    }
    return access;
}

/* @return Reason in words why there is no region. */
static const char *uct_nprdma_mem_why_no_region(ucs_status_t status)
{
    switch (status) {
    case UCS_ERR_EXCEEDS_LIMIT:
        return "each region has a descriptor, and all regions have at most a "
               "quarter of RLIMIT_NOFILE, see ulimit -n; or the device has no "
               "resources left";
    case UCS_ERR_INVALID_PARAM:
        return "the device takes no region of this size";
    case UCS_ERR_OUT_OF_RANGE:
        return "RLIMIT_FSIZE, see ulimit -f, allows no file that describes it";
    default:
        return ucs_status_string(status);
    }
}

void uct_nprdma_mem_no_region(uct_nprdma_mem_md_t *md, uintptr_t address,
                              size_t length, ucs_status_t status)
{
    ucs_log_level_t level;

    level = atomic_exchange(&md->copy_reported, 1) ? UCS_LOG_LEVEL_DEBUG :
                                                     UCS_LOG_LEVEL_WARN;
    ucs_log(level,
            "%s: no region for %zu bytes at 0x%" PRIxPTR " (%s): operations on "
            "such memory go through bounce buffers",
            md->super.name, length, address,
            uct_nprdma_mem_why_no_region(status));
}

/* If the device cannot reach the memory, only the target's software can use the
 * registration */
static int
uct_nprdma_mem_find_region(uct_nprdma_mem_md_t *md, uintptr_t address,
                           size_t length, nprdma_range_t *range)
{
    ucs_status_t status;

    if ((md->monitor == NULL) || (length == 0)) {
        return 0;
    }

    status = nprdma_monitor_register(md->monitor, address, length, range);
    if (ucs_unlikely(status != UCS_OK)) {
        uct_nprdma_mem_no_region(md, address, length, status);
        return 0;
    }

    return 1;
}

ucs_status_t uct_nprdma_mem_reg(uct_md_h tl_md, void *address, size_t length,
                                uint64_t flags, uct_mem_h *memh_p)
{
    uct_nprdma_mem_md_t *md = ucs_derived_of(tl_md, uct_nprdma_mem_md_t);
    ucs_log_level_t level;
    uct_nprdma_mem_t *mem;
    ucs_status_t status;
    nprdma_reg_t *reg;

    ucs_trace_func("md=%p address=%p length=%zu flags=0x%" PRIx64, md, address,
                   length, flags);
    level = (flags & UCT_MD_MEM_FLAG_HIDE_ERRORS) ? UCS_LOG_LEVEL_DEBUG :
                                                    UCS_LOG_LEVEL_ERROR;
    if (ucs_unlikely(!uct_nprdma_device_is_owner(&md->super))) {
        ucs_log(level, "%s: was opened before fork(), a child cannot register"
                " memory with it", md->super.name);
        return UCS_ERR_UNSUPPORTED;
    }

    status = nprdma_reg_alloc(md->regs, (uintptr_t)address, length,
                              uct_nprdma_mem_access(flags), &reg);
    if (status != UCS_OK) {
        ucs_log(level, "%s: failed to register %zu bytes at %p (%u are"
                " registered): %s", md->super.name, length, address,
                nprdma_reg_table_count(md->regs), ucs_status_string(status));
        return status;
    }

    mem             = nprdma_reg_extra(reg);
    mem->reg        = reg;
    mem->has_region = 0;
    memset(&mem->odp, 0, sizeof(mem->odp));
    atomic_store_explicit(&mem->state, UCT_NPRDMA_MEM_PRIVATE,
                          memory_order_relaxed);
    *memh_p         = mem;
    return UCS_OK;
}

static int uct_nprdma_mem_has_key(const uct_nprdma_mem_t *mem)
{
    return atomic_load(&mem->state) == UCT_NPRDMA_MEM_EXPORTED;
}

ucs_status_t
uct_nprdma_mem_dereg(uct_md_h tl_md, const uct_md_mem_dereg_params_t *params)
{
    uct_nprdma_mem_md_t *md = ucs_derived_of(tl_md, uct_nprdma_mem_md_t);
    int invalidate;

    if (!(params->field_mask & UCT_MD_MEM_DEREG_FIELD_MEMH) ||
        (params->memh == NULL)) {
        return UCS_ERR_INVALID_PARAM;
    }

    invalidate = (params->field_mask & UCT_MD_MEM_DEREG_FIELD_FLAGS) &&
                 (params->flags & UCT_MD_MEM_DEREG_FLAG_INVALIDATE);
    if (invalidate &&
        (!(params->field_mask & UCT_MD_MEM_DEREG_FIELD_COMPLETION) ||
         (params->comp == NULL))) {
        return UCS_ERR_INVALID_PARAM;
    }

    if (invalidate && UCT_NPRDMA_INVALIDATE_NEEDS_KEY &&
        !uct_nprdma_mem_has_key(params->memh)) {
        ucs_debug("%s: cannot invalidate memory handle %p, it has no key",
                  md->super.name, params->memh);
        return UCS_ERR_INVALID_PARAM;
    }

    ucs_trace_func("md=%p memh=%p invalidate=%d", md, params->memh, invalidate);
    /* In a child no service runs that accesses memory, and no thread would end
     * a wait for such an access */
    if (uct_nprdma_device_is_owner(&md->super)) {
        uct_nprdma_mem_end(md, params->memh, invalidate);
    }

    if (invalidate) {
        uct_invoke_completion(params->comp, UCS_OK);
    }

    return UCS_OK;
}

/* With on-demand paging a registration has memory regions of its own, to the
 * byte. A larger one, shared with others, would reach everything that is mapped
 * there (ARCHITECTURE 3, reach of a key). */
static void uct_nprdma_mem_export_odp(uct_nprdma_mem_md_t *md,
                                      uct_nprdma_mem_t *mem)
{
    uintptr_t address = nprdma_reg_address(mem->reg);
    size_t length     = nprdma_reg_length(mem->reg);
    ucs_status_t status;

    if ((md->odp == NULL) || (length == 0)) {
        return;
    }

    status = uct_nprdma_odp_export(md->odp, address, length,
                                   nprdma_reg_access(mem->reg), &mem->odp);
    if (status != UCS_OK) {
        uct_nprdma_mem_no_region(md, address, length, status);
    }
}

/* Make a registration accessible. Before its first key is packed, neither the
 * NIC nor the service knows it. Therefore a guessed key cannot open a buffer
 * that only operations of this process use (ARCHITECTURE 3, reach of a key).
 * Threads may pack the key of one registration at the same time. */
static ucs_status_t
uct_nprdma_mem_export(uct_nprdma_mem_md_t *md, uct_nprdma_mem_t *mem)
{
    int state = UCT_NPRDMA_MEM_PRIVATE;

    if (ucs_likely(atomic_load(&mem->state) == UCT_NPRDMA_MEM_EXPORTED)) {
        return UCS_OK;
    }

    if (!uct_nprdma_device_is_owner(&md->super)) {
        ucs_error("%s: was opened before fork(), a child cannot pack the first"
                  " key of a registration", md->super.name);
        return UCS_ERR_UNSUPPORTED;
    }

    if (atomic_compare_exchange_strong(&mem->state, &state,
                                       UCT_NPRDMA_MEM_EXPORTING)) {
        mem->ends       = atomic_load(&md->ends);
        mem->has_region = uct_nprdma_mem_find_region(
                md, nprdma_reg_address(mem->reg), nprdma_reg_length(mem->reg),
                &mem->range);
        uct_nprdma_mem_export_odp(md, mem);
        nprdma_reg_publish(mem->reg);
        atomic_store(&mem->state, UCT_NPRDMA_MEM_EXPORTED);
    }

    while (atomic_load(&mem->state) != UCT_NPRDMA_MEM_EXPORTED) {
        sched_yield();
    }

    return UCS_OK;
}

/* Atomics only: nothing for the device */
static void uct_nprdma_mem_clear_region(uct_nprdma_rkey_t *rkey)
{
    rkey->flags          = 0;
    rkey->region_address = 0;
    rkey->region_id      = 0;
    rkey->signature      = 0;
}

static void
uct_nprdma_mem_fill_region(const uct_nprdma_mem_t *mem, uint32_t access,
                           uct_nprdma_rkey_t *rkey)
{
    const nprdma_region_t *region = mem->range.region;
    const uct_nprdma_mrs_t *mrs   = uct_nprdma_mrs(region);

    rkey->flags          = UCT_NPRDMA_KEY_FLAG_REGION;
    rkey->region_address = region->address;
    rkey->region_id      = mrs->id;
    rkey->signature      = region->signature;
    /* An access that is not allowed gets no key, so it goes to the target's
     * software, which refuses it */
    rkey->r_rkey = (access & NPRDMA_REG_ACCESS_GET) ? mrs->r->rkey : 0;
    rkey->w_rkey = (access & NPRDMA_REG_ACCESS_PUT) ? mrs->w->rkey : 0;
    rkey->s_rkey = (rkey->r_rkey | rkey->w_rkey) ? mrs->s->rkey : 0;
    if (rkey->s_rkey == 0) {
        uct_nprdma_mem_clear_region(rkey);
    }
}

static int uct_nprdma_mem_is_inside(const uct_nprdma_mem_t *mem,
                                    uintptr_t address, size_t length)
{
    uintptr_t offset = address - nprdma_reg_address(mem->reg);
    size_t all       = nprdma_reg_length(mem->reg);

    return (offset <= all) && (length <= (all - offset));
}

/* Populate the resident pages of the beginning, and the rest in the background
 * with `flags` */
static void uct_nprdma_mem_populate(uct_nprdma_mem_md_t *md,
                                    uct_nprdma_mem_t *mem, uintptr_t address,
                                    size_t length, unsigned flags)
{
    nprdma_range_t *range = &mem->range;
    uint32_t bit          = (flags & NPRDMA_POPULATE_WRITE) ? NPRDMA_PAGE_W :
                                                              NPRDMA_PAGE_R;
    size_t head           = ucs_min(length, UCT_NPRDMA_MEM_POPULATE_MAX);

    nprdma_monitor_populate(md->monitor, range, address, head,
                            flags | NPRDMA_POPULATE_RESIDENT);
    if (flags & NPRDMA_POPULATE_RESIDENT) {
        address += head;
        length  -= head;
    }
    if ((length > UCT_NPRDMA_MEM_CHECK_MAX) ||
        ((length > 0) &&
         !uct_nprdma_mrs_is_valid(range->region, address, length, bit))) {
        md->populate_async(md, mem, address, length, flags);
    }
}

/* For a source, any page of the process will do. Populating for writing may
 * copy the page first. Therefore only a key that does not allow get populates
 * for writing. */
static unsigned uct_nprdma_mem_populate_flags(const uct_nprdma_mem_t *mem)
{
    return (nprdma_reg_access(mem->reg) & NPRDMA_REG_ACCESS_GET) ?
           0 : NPRDMA_POPULATE_WRITE;
}

/* A key is packed because a peer is about to use it, and each absent page would
 * cost an assist (ARCHITECTURE 5, populate policy) */
static void uct_nprdma_mem_populate_packed(uct_nprdma_mem_md_t *md,
                                           uct_nprdma_mem_t *mem,
                                           uintptr_t address, size_t length)
{
    /* A range outside of the registration is only a wrong hint */
    if ((length == 0) || !uct_nprdma_mem_is_inside(mem, address, length)) {
        address = nprdma_reg_address(mem->reg);
        length  = nprdma_reg_length(mem->reg);
    }

    uct_nprdma_mem_populate(md, mem, address, length,
                            uct_nprdma_mem_populate_flags(mem) |
                            NPRDMA_POPULATE_RESIDENT);
}

ucs_status_t uct_nprdma_mem_advise(uct_md_h tl_md, uct_mem_h memh,
                                   void *address, size_t length,
                                   unsigned advice)
{
    uct_nprdma_mem_md_t *md = ucs_derived_of(tl_md, uct_nprdma_mem_md_t);
    uct_nprdma_mem_t *mem   = memh;
    uintptr_t start         = (uintptr_t)address;
    size_t head;

    ucs_trace_func("md=%p memh=%p address=%p length=%zu advice=%u", md, memh,
                   address, length, advice);
    if (!uct_nprdma_mem_is_inside(mem, start, length)) {
        return UCS_ERR_INVALID_PARAM;
    }

    if (advice == UCT_MADV_WILLNEED) {
        head  = ucs_min(length, UCT_NPRDMA_MEM_POPULATE_MAX);
        head += start & (NPRDMA_PAGE_SIZE - 1);
        nprdma_pagein_read_ahead(start & ~(uintptr_t)(NPRDMA_PAGE_SIZE - 1),
                                 ucs_div_round_up(head, NPRDMA_PAGE_SIZE));
        if (uct_nprdma_mem_has_key(mem) && mem->has_region &&
            uct_nprdma_device_is_owner(&md->super)) {
            uct_nprdma_mem_populate(md, mem, start, length,
                                    uct_nprdma_mem_populate_flags(mem));
        }
    }
    return UCS_OK;
}

ucs_status_t uct_nprdma_mkey_pack(uct_md_h tl_md, uct_mem_h memh, void *address,
                                  size_t length, void *buffer)
{
    uct_nprdma_mem_md_t *md = ucs_derived_of(tl_md, uct_nprdma_mem_md_t);
    uct_nprdma_mem_t *mem   = memh;
    uint32_t access         = nprdma_reg_access(mem->reg);
    uct_nprdma_rkey_t rkey  = {
        .version = UCT_NPRDMA_KEY_VERSION,
        .address = nprdma_reg_address(mem->reg),
        .length  = nprdma_reg_length(mem->reg)
    };
    ucs_status_t status;

    ucs_trace_func("md=%p memh=%p", md, memh);
    status = uct_nprdma_mem_export(md, mem);
    if (ucs_unlikely(status != UCS_OK)) {
        return status;
    }

    /* Rule "reach of a key" */
    nprdma_assert(atomic_load(&mem->state) == UCT_NPRDMA_MEM_EXPORTED);
    nprdma_assert(!mem->has_region || !mem->range.region->is_local);
    rkey.key = nprdma_reg_key(mem->reg);
    if (mem->has_region) {
        uct_nprdma_mem_fill_region(mem, access, &rkey);
        if (ucs_likely(uct_nprdma_device_is_owner(&md->super))) {
            uct_nprdma_mem_populate_packed(md, mem, (uintptr_t)address, length);
        }
    } else if (uct_nprdma_odp_is_exported(&mem->odp)) {
        uct_nprdma_odp_fill_key(&mem->odp, &rkey);
    }

    memcpy(buffer, &rkey, sizeof(rkey));
    return UCS_OK;
}

ucs_status_t
uct_nprdma_rkey_unpack(uct_component_t *component, const void *packed,
                       uct_rkey_t *rkey_p, void **handle_p)
{
    uct_nprdma_rkey_t *rkey;

    rkey = ucs_malloc(sizeof(*rkey), "nprdma_rkey");
    if (rkey == NULL) {
        ucs_error("failed to allocate a remote key");
        return UCS_ERR_NO_MEMORY;
    }

    if (!uct_nprdma_key_unpack(packed, rkey)) {
        ucs_error("not a key of this version of nprdma: it begins with 0x%x, "
                  "not 0x%x, or its fields contradict each other",
                  *(const uint8_t*)packed, UCT_NPRDMA_KEY_VERSION);
        ucs_free(rkey);
        return UCS_ERR_INVALID_PARAM;
    }

    *rkey_p   = (uct_rkey_t)rkey;
    *handle_p = NULL;
    return UCS_OK;
}

ucs_status_t uct_nprdma_rkey_release(uct_component_t *component,
                                     uct_rkey_t rkey, void *handle)
{
    ucs_free((void*)rkey);
    return UCS_OK;
}

int uct_nprdma_rkey_order(uct_rkey_t rkey1, uct_rkey_t rkey2)
{
    return memcmp(uct_nprdma_rkey(rkey1), uct_nprdma_rkey(rkey2),
                  sizeof(uct_nprdma_rkey_t));
}
