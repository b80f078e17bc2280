/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_DEVICE_H_
#define UCT_NPRDMA_DEVICE_H_

#include "nprdma_verbs.h"

#include "uct/ib/nprdma/compat/nprdma_compat.h"
#include "uct/ib/nprdma/wire/nprdma_wire.h"

/*
 * A verbs device: how it is found and opened, and what its ports are called by
 * peers.
 */

typedef struct uct_nprdma_device_config {
    unsigned gid_index;
    double   timeout;       /* of the RC transport, seconds */
    unsigned retry_count;
    double   rnr_timeout;   /* seconds */
} uct_nprdma_device_config_t;


/* An opened device with its protection domain; a memory domain begins with
 * it */
typedef struct uct_nprdma_device {
    uct_md_t                   super;
    const uct_nprdma_verbs_t   *verbs;
    struct ibv_context         *context;
    struct ibv_pd              *pd;
    struct ibv_device_attr     attr;
    uct_nprdma_device_config_t config;
    pid_t                      owner;      /* a forked child may not use it */
    unsigned                   generation; /* uct_nprdma_fork_generation then */
    char                       name[UCT_MD_NAME_MAX];
} uct_nprdma_device_t;


/* How many fork() there were on the way to this process */
extern unsigned uct_nprdma_fork_generation;


/** @return Nonzero unless this is a forked child. Makes no system call. */
static inline int uct_nprdma_device_is_owner(const uct_nprdma_device_t *dev)
{
    return dev->generation == uct_nprdma_fork_generation;
}


/**
 * Called for a device that can be used.
 *
 * @param [in] verbs   Provider of the device.
 * @param [in] device  The device, not opened.
 * @param [in] arg     Argument of uct_nprdma_device_foreach().
 *
 * @return Nonzero: no more devices.
 */
typedef int (*uct_nprdma_device_func_t)(const uct_nprdma_verbs_t *verbs,
                                        struct ibv_device *device, void *arg);

/** Call a function with the usable devices, until it returns nonzero. */
void uct_nprdma_device_foreach(uct_nprdma_emulation_t emulation,
                               uct_nprdma_device_func_t func, void *arg);


/**
 * Open a device, and allocate its protection domain.
 *
 * @param [in] dev        Filled, but for super. To be closed with
 *                        uct_nprdma_device_close().
 * @param [in] name       Name of the device.
 * @param [in] emulation  Which providers the user allows.
 * @param [in] config     Configuration, copied.
 *
 * @return UCS_OK, or UCS_ERR_NO_DEVICE or UCS_ERR_IO_ERROR with a logged
 *         reason.
 */
ucs_status_t
uct_nprdma_device_open(uct_nprdma_device_t *dev, const char *name,
                       uct_nprdma_emulation_t emulation,
                       const uct_nprdma_device_config_t *config);

/** Undo uct_nprdma_device_open(). Nothing of the device is in use any more. */
void uct_nprdma_device_close(uct_nprdma_device_t *dev);


/**
 * Address of a port, as peers need it.
 *
 * @param [in]  dev       Device.
 * @param [in]  port_num  Port.
 * @param [out] addr      Filled on success.
 *
 * @return UCS_OK, or UCS_ERR_IO_ERROR with a logged reason.
 */
ucs_status_t
uct_nprdma_device_port_addr(uct_nprdma_device_t *dev, uint8_t port_num,
                            uct_nprdma_dev_addr_t *addr);

/** @return Nonzero if a port of a device is in state ACTIVE. */
int uct_nprdma_device_port_is_active(const uct_nprdma_device_t *dev,
                                     uint8_t port_num);

/** Address vector to reach a port of a peer from a port of ours. */
void uct_nprdma_device_fill_ah_attr(const uct_nprdma_device_t *dev,
                                    uint8_t port_num,
                                    const uct_nprdma_dev_addr_t *dev_addr,
                                    struct ibv_ah_attr *ah_attr);

#endif
