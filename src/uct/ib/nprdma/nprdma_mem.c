/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_mem.h"

#include "ucm/nprdma_access.h"

#include <unistd.h>


ucs_status_t uct_nprdma_mem_init(uct_nprdma_md_t *md)
{
    ucs_status_t status;

    status = nprdma_access_init();
    if (status != UCS_OK) {
        ucs_error("%s: process_vm_writev() to this process itself is refused"
                  " (seccomp?): cannot access memory for peers", md->name);
        return status;
    }

    if (!nprdma_access_is_direct()) {
        ucs_diag("%s: no UCM memory events or no MADV_POPULATE_WRITE, atomics"
                 " are not atomic towards this process's own", md->name);
    }

    status = nprdma_reg_table_create(&md->regs);
    if (status != UCS_OK) {
        ucs_error("%s: failed to allocate the table of registrations",
                  md->name);
        nprdma_access_cleanup();
        return status;
    }

    return UCS_OK;
}

void uct_nprdma_mem_cleanup(uct_nprdma_md_t *md)
{
    nprdma_reg_table_destroy(md->regs);
    md->regs = NULL;
    nprdma_access_cleanup();
}

static uint32_t uct_nprdma_mem_access(uint64_t flags)
{
    uint32_t access = 0;

    if (!(flags & UCT_MD_MEM_ACCESS_ALL)) {
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

ucs_status_t uct_nprdma_mem_reg(uct_md_h tl_md, void *address, size_t length,
                                uint64_t flags, uct_mem_h *memh_p)
{
    uct_nprdma_md_t *md = ucs_derived_of(tl_md, uct_nprdma_md_t);
    ucs_log_level_t level;
    ucs_status_t status;
    nprdma_reg_t *reg;

    level = (flags & UCT_MD_MEM_FLAG_HIDE_ERRORS) ? UCS_LOG_LEVEL_DEBUG :
                                                    UCS_LOG_LEVEL_ERROR;
    if (getpid() != md->owner) {
        ucs_log(level, "%s: was opened before fork(), a child cannot register"
                " memory with it", md->name);
        return UCS_ERR_UNSUPPORTED;
    }

    status = nprdma_reg_add(md->regs, (uintptr_t)address, length,
                            uct_nprdma_mem_access(flags), &reg);
    if (status != UCS_OK) {
        ucs_log(level, "%s: failed to register %zu bytes at %p (%u are"
                " registered): %s", md->name, length, address,
                nprdma_reg_table_count(md->regs), ucs_status_string(status));
        return status;
    }

    *memh_p = reg;
    return UCS_OK;
}

ucs_status_t
uct_nprdma_mem_dereg(uct_md_h tl_md, const uct_md_mem_dereg_params_t *params)
{
    uct_nprdma_md_t *md = ucs_derived_of(tl_md, uct_nprdma_md_t);
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

    /* In a child nobody serves peers, and nobody would wake us up */
    if (getpid() == md->owner) {
        nprdma_reg_remove(md->regs, params->memh);
    }

    if (invalidate) {
        uct_invoke_completion(params->comp, UCS_OK);
    }

    return UCS_OK;
}

ucs_status_t uct_nprdma_mkey_pack(uct_md_h md, uct_mem_h memh, void *rkey)
{
    uct_nprdma_packed_rkey_t *packed = rkey;

    packed->key = nprdma_reg_key(memh);
    return UCS_OK;
}

ucs_status_t
uct_nprdma_rkey_unpack(uct_component_t *component, const void *rkey,
                       uct_rkey_t *rkey_p, void **handle_p)
{
    const uct_nprdma_packed_rkey_t *packed = rkey;

    UCS_STATIC_ASSERT(sizeof(uct_rkey_t) == sizeof(packed->key));

    if (!nprdma_reg_key_is_valid(packed->key)) {
        ucs_error("0x%" PRIx64 " is not a key of nprdma", packed->key);
        return UCS_ERR_INVALID_PARAM;
    }

    *rkey_p   = packed->key;
    *handle_p = NULL;
    return UCS_OK;
}

ucs_status_t uct_nprdma_rkey_release(uct_component_t *component,
                                     uct_rkey_t rkey, void *handle)
{
    return UCS_OK;
}
