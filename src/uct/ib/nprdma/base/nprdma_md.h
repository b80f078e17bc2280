/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_MD_H_
#define UCT_NPRDMA_MD_H_

#include "uct/ib/nprdma/compat/nprdma_compat.h"
#include "uct/ib/nprdma/net/nprdma_verbs.h"
#include "uct/ib/nprdma/wire/nprdma_wire.h"

#include "ucm/nprdma_monitor.h"

#include <stdatomic.h>

struct uct_nprdma_service;
struct nprdma_reg_table;

/* Limits of UCX_NPRDMA_SLICE; buffers for page states are made for the
 * largest */
#define UCT_NPRDMA_MIN_SLICE  4096
#define UCT_NPRDMA_MAX_SLICE  (1024 * 1024)


/* UCX_NPRDMA_ZCOPY */
typedef enum uct_nprdma_zcopy {
    UCT_NPRDMA_ZCOPY_AUTO,      /* where device and monitor can */
    UCT_NPRDMA_ZCOPY_NO,        /* copy mode */
    UCT_NPRDMA_ZCOPY_LAST
} uct_nprdma_zcopy_t;


/* UCX_NPRDMA_MONITOR */
typedef enum uct_nprdma_monitor_kind {
    UCT_NPRDMA_MONITOR_AUTO,     /* the kernel module, where there is one */
    UCT_NPRDMA_MONITOR_KERNEL,
    UCT_NPRDMA_MONITOR_EMULATED,
    UCT_NPRDMA_MONITOR_LAST
} uct_nprdma_monitor_kind_t;


typedef struct uct_nprdma_md_config {
    uct_md_config_t        super;
    uct_nprdma_emulation_t emulation;
    size_t                 max_pinned;     /* process-wide, bytes */
    unsigned               svc_slots;      /* receives of the service */
    unsigned               gid_index;
    double                 timeout;        /* of the RC transport, seconds */
    unsigned               retry_count;
    double                 rnr_timeout;    /* seconds */
    uct_nprdma_zcopy_t     zcopy;
    uct_nprdma_monitor_kind_t monitor;
    size_t                 region_size;    /* granule, bytes */
    nprdma_revoke_mode_t   revoke;
    size_t                 region_cache;   /* state of idle regions, bytes */
    size_t                 slice;          /* of an operation, bytes */
    size_t                 scan_max;       /* gets up to this are scanned */
    unsigned               max_tries;      /* optimistic ones of a slice */
    int                    atomic_order;   /* atomics wait for puts and gets */
    size_t                 state_cache;    /* of peers' page states, bytes */
    int                    prereg;
    int                    uffd;
    nprdma_reclaim_mode_t  reclaim;
    double                 reclaim_rate;   /* pages per second */
    unsigned long          seed;           /* of all that is random */
    char                   *fault;         /* valid in md_open only */
} uct_nprdma_md_config_t;


/* A memory domain: one opened device with its protection domain. */
typedef struct uct_nprdma_md {
    uct_md_t                   super;
    const uct_nprdma_verbs_t   *verbs;
    struct ibv_context         *context;
    struct ibv_pd              *pd;
    struct ibv_device_attr     dev_attr;
    pid_t                      owner;      /* a forked child may not use it */
    unsigned                   generation; /* uct_nprdma_fork_generation then */
    atomic_uint                refs;       /* interfaces, and 1 until it is
                                              closed */
    uct_nprdma_md_config_t     config;
    char                       name[UCT_MD_NAME_MAX];
    struct nprdma_reg_table    *regs;      /* registrations; nprdma_mem */
    nprdma_monitor_t           *monitor;   /* regions; NULL: copy mode */
    atomic_uint_fast64_t       region_id;  /* of the next region */
    atomic_int                 copy_told;  /* a region could not be made */
    struct uct_nprdma_service  *service;   /* nprdma_service */
} uct_nprdma_md_t;


/* Version-neutral MD attributes; nprdma_compat.h puts them into UCX's. */
typedef struct uct_nprdma_md_caps {
    uint64_t          flags;
    uint64_t          reg_mem_types;
    uint64_t          reg_nonblock_mem_types;
    uint64_t          cache_mem_types;
    uint64_t          access_mem_types;
    size_t            rkey_packed_size;
    ucs_linear_func_t reg_cost;
} uct_nprdma_md_caps_t;


/* In nprdma_config.c */
extern ucs_config_field_t uct_nprdma_md_config_table[];

/**
 * Check values that UCX has parsed.
 *
 * @param [in] config  Configuration of an MD.
 *
 * @return UCS_OK, or UCS_ERR_INVALID_PARAM with a logged reason that names the
 *         variable.
 */
ucs_status_t uct_nprdma_md_check_config(const uct_nprdma_md_config_t *config);

/* In nprdma_component.c, like all tables of UCX's making */
extern uct_md_ops_t uct_nprdma_md_ops;

/** Devices that may be used here, as MD resources. */
ucs_status_t
uct_nprdma_query_md_resources(uct_component_t *component,
                              uct_md_resource_desc_t **resources_p,
                              unsigned *num_resources_p);

/** Open the device named md_name. */
ucs_status_t
uct_nprdma_md_open(uct_component_t *component, const char *md_name,
                   const uct_md_config_t *config, uct_md_h *md_p);

/**
 * Close what uct_nprdma_md_open() opened; does nothing in a forked child.
 *
 * @param [in] md  MD. Registrations that are still live end, and with
 *                 interfaces that are still open it stays until the last of
 *                 them is closed: their handlers and the service's thread use
 *                 it. Each is told in one warning.
 */
void uct_nprdma_md_close(uct_md_h md);

/** Keep an MD for one more interface, until @ref uct_nprdma_md_put. */
void uct_nprdma_md_get(uct_nprdma_md_t *md);

/**
 * An interface does not use its MD any more.
 *
 * @param [in] md  MD, invalid afterwards if it was closed before.
 */
void uct_nprdma_md_put(uct_nprdma_md_t *md);

/* In nprdma_fork.c: how many fork() there were on the way to this process */
extern unsigned uct_nprdma_fork_generation;

/** @return Nonzero unless this is a forked child. Makes no system call. */
static inline int uct_nprdma_md_is_owner(const uct_nprdma_md_t *md)
{
    return md->generation == uct_nprdma_fork_generation;
}

/**
 * @return UCS_OK, or UCS_ERR_UNSUPPORTED with a logged reason in a forked child
 *         of the process that opened the MD.
 */
ucs_status_t uct_nprdma_md_check_owner(const uct_nprdma_md_t *md);

/** Fill the version-neutral attributes. */
void uct_nprdma_md_caps(uct_nprdma_md_t *md, uct_nprdma_md_caps_t *caps);

/**
 * Address of a port, as peers need it.
 *
 * @param [in]  md        MD.
 * @param [in]  port_num  Port.
 * @param [out] addr      Filled on success.
 *
 * @return UCS_OK, or UCS_ERR_IO_ERROR with a logged reason.
 */
ucs_status_t uct_nprdma_md_port_addr(uct_nprdma_md_t *md, uint8_t port_num,
                                     uct_nprdma_dev_addr_t *addr);

/**
 * Address vector to reach a port of a peer from a port of ours.
 */
void uct_nprdma_md_fill_ah_attr(const uct_nprdma_md_t *md, uint8_t port_num,
                                const uct_nprdma_dev_addr_t *dev_addr,
                                struct ibv_ah_attr *ah_attr);

/** Ports in state ACTIVE, as transport resources "device:port". */
ucs_status_t
uct_nprdma_query_tl_devices(uct_md_h md,
                            uct_tl_device_resource_t **tl_devices_p,
                            unsigned *num_tl_devices_p);

#endif
