/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_DEVICE_H_
#define UCT_NPRDMA_DEVICE_H_

#include "nprdma_counters.h"
#include "nprdma_verbs.h"

#include "uct/ib/nprdma/compat/nprdma_compat.h"
#include "uct/ib/nprdma/wire/nprdma_wire.h"

/* A verbs device: how it is found and opened, and the addresses of its ports */

/* How packets are marked for the network */
typedef struct uct_nprdma_path_config {
    unsigned sl;            /* service level; on RoCE the priority */
    /* Of the global route header; on RoCE the type of service */
    unsigned traffic_class;
} uct_nprdma_path_config_t;

/* Service levels: 4 bits in InfiniBand, 3 as the priority of IEEE 802.1Q */
#define UCT_NPRDMA_MAX_SL      15
#define UCT_NPRDMA_MAX_ETH_SL  7

typedef struct uct_nprdma_device_config {
    unsigned gid_index;
    double   timeout;       /* of the RC transport, seconds */
    unsigned retry_count;
    double   rnr_timeout;   /* seconds */
    /* Longest payload of a request to the service or of its reply, bytes */
    uint32_t max_piece;
    uct_nprdma_path_config_t path;
    uct_nprdma_path_config_t bulk_path; /* of connections of kind BULK */
} uct_nprdma_device_config_t;


/* An open device with its protection domain; the first part of a memory
 * domain */
typedef struct uct_nprdma_device {
    uct_md_t                   super;
    const uct_nprdma_verbs_t   *verbs;
    struct ibv_context         *context;
    struct ibv_pd              *pd;
    struct ibv_device_attr     attr;
    uct_nprdma_device_config_t config;
    pid_t                      owner;      /* a child must not use it */
    /* *uct_nprdma_fork_generation at the open */
    unsigned                   generation;
    char                       name[UCT_MD_NAME_MAX];
    uct_nprdma_counters_t      counters;
    uct_nprdma_device_stats_t  *stats;     /* values of the counters */
} uct_nprdma_device_t;


/* Value of the following in a process that no other one with nprdma has
 * forked */
#define UCT_NPRDMA_FORK_FIRST  1u

/* Number of fork() calls between the first process and this one, from 1 on. In
 * memory that is all zeros in a child: so it is 0 in a child by clone(), where
 * no handler of fork() has run. */
extern unsigned *uct_nprdma_fork_generation;


/* Nonzero unless this is a forked child. Makes no system call. */
static inline int uct_nprdma_device_is_owner(const uct_nprdma_device_t *dev)
{
    return dev->generation == *uct_nprdma_fork_generation;
}


/* Called for a device that may be used, and is not open; nonzero ends the
 * iteration */
typedef int (*uct_nprdma_device_func_t)(const uct_nprdma_verbs_t *verbs,
                                        struct ibv_device *device, void *arg);

void uct_nprdma_device_foreach(uct_nprdma_emulation_t emulation,
                               uct_nprdma_device_func_t func, void *arg);


/* Open a device and fill all but super. UCS_ERR_NO_DEVICE: there is none, or it
 * cannot be opened. */
ucs_status_t
uct_nprdma_device_open(uct_nprdma_device_t *dev, const char *name,
                       uct_nprdma_emulation_t emulation,
                       const uct_nprdma_device_config_t *config);

/* The caller has released all objects of the device */
void uct_nprdma_device_close(uct_nprdma_device_t *dev);

/* A channel whose reader does not block, or NULL after a message */
struct ibv_comp_channel *
uct_nprdma_device_create_channel(const uct_nprdma_device_t *dev);

/* Take all events of a channel, and return their number */
unsigned uct_nprdma_device_take_events(const uct_nprdma_device_t *dev,
                                       struct ibv_comp_channel *channel);


/* Address of a port that peers use */
ucs_status_t
uct_nprdma_device_port_addr(uct_nprdma_device_t *dev, uint8_t port_num,
                            uct_nprdma_dev_addr_t *addr);

/* The PCI function by its place in sysfs, because the name of an RDMA device
 * can be changed at any time. For a subfunction it is the function that it is a
 * part of. NULL if the device is not on a PCI bus. */
const char *uct_nprdma_device_pci_address(const uct_nprdma_device_t *dev,
                                          char *address, size_t max);

int uct_nprdma_device_port_is_active(const uct_nprdma_device_t *dev,
                                     uint8_t port_num);

/* Costs that the provider names, with its wire if there is one; where it names
 * no bandwidth, that of the port */
void uct_nprdma_device_port_perf(const uct_nprdma_device_t *dev,
                                 uint8_t port_num, uct_nprdma_perf_t *perf);

/* Whether packets can be marked in the network of a port: a service level must
 * be a priority of Ethernet */
ucs_status_t uct_nprdma_device_check_path(const uct_nprdma_path_config_t *path,
                                          const uct_nprdma_dev_addr_t *local);

/* Fill the address vector to a port of a peer. A traffic class other than 0 has
 * a place in a global route header only, so that it requests one in an
 * InfiniBand subnet as well. */
void uct_nprdma_device_fill_ah_attr(const uct_nprdma_device_t *dev,
                                    uint8_t port_num,
                                    const uct_nprdma_dev_addr_t *dev_addr,
                                    const uct_nprdma_path_config_t *path,
                                    struct ibv_ah_attr *ah_attr);

#endif
