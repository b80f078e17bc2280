/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* UCX's internal headers need this one */
#include "config.h"

#include "odp_device.h"

#include "uct/ib/nprdma/mem/nprdma_odp.h"

#include <npemu.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PAGE         ((uint64_t)4096)

/* What a shifted or stuck device does not get right */
#define SHIFT        64
#define PART_SIZE    (4 * UCS_MBYTE)

static struct {
    odp_fault_t          fault;
    int                  error;
    unsigned             live, registrations;
    unsigned             refuse_after; /* Registrations left */
    int                  refuse_error; /* 0: none is refused */
    uct_nprdma_device_t  dev;
    uct_nprdma_verbs_t   verbs;        /* Of dev */
    uct_nprdma_odp_t     *odp;
    uct_nprdma_odp_mrs_t mrs;
    int                  (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr,
                                      struct ibv_send_wr **bad);
    const uct_nprdma_verbs_t *real;
} fake;


static int query_odp(struct ibv_context *context, struct ibv_odp_caps *caps)
{
    (void)context;
    memset(caps, 0, sizeof(*caps));
    if (fake.fault == ODP_FAULT_QUERY) {
        return fake.error;
    }

    caps->general_caps = IBV_ODP_SUPPORT;
    if (fake.fault == ODP_FAULT_NOT_THERE) {
        caps->general_caps = 0;
    } else if (fake.fault == ODP_FAULT_NO_IMPLICIT) {
        caps->general_caps |= IBV_ODP_SUPPORT_IMPLICIT;
    }
    caps->per_transport_caps.rc_odp_caps =
            IBV_ODP_SUPPORT_READ |
            ((fake.fault == ODP_FAULT_NO_WRITE) ? 0 : IBV_ODP_SUPPORT_WRITE);
    return 0;
}

static struct ibv_mr *refuse(int error)
{
    errno = error;
    return NULL;
}

static struct ibv_mr *
register_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    struct ibv_mr *mr;

    if ((fake.fault == ODP_FAULT_REFUSES) ||
        ((fake.fault == ODP_FAULT_NO_IMPLICIT) && (length == SIZE_MAX))) {
        return refuse(fake.error);
    }

    if (fake.refuse_error != 0) {
        if (fake.refuse_after == 0) {
            return refuse(fake.refuse_error);
        }
        --fake.refuse_after;
    }

    /* Where a request names an address, other bytes are */
    mr = (fake.fault == ODP_FAULT_SHIFTED) ?
         npemu_reg_mr_iova(pd, (char*)address + SHIFT, length,
                           (uintptr_t)address, access) :
         npemu_reg_mr(pd, address, length, access);
    fake.live          += (mr != NULL);
    fake.registrations += (mr != NULL);
    return mr;
}

static int dereg_mr(struct ibv_mr *mr)
{
    --fake.live;
    return npemu_dereg_mr(mr);
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    return ((fake.fault == ODP_FAULT_NO_RTS) &&
            (attr->qp_state == IBV_QPS_RTS)) ?
           EIO : npemu_modify_qp(qp, attr, mask);
}

/* @return The open file of a private mapping, and the offset of an address in
 *         it; -1 if the address is in no mapping of the check's file. */
static int find_file(uint64_t address, uint64_t *offset)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[256], path[64], name[64];
    uint64_t begin, end;
    int is_there = 0, fd;
    ssize_t length;

    while (!is_there && (fgets(line, sizeof(line), maps) != NULL)) {
        is_there = (strstr(line, "memfd:nprdma-odp") != NULL) &&
                   (sscanf(line, "%" SCNx64 "-%" SCNx64, &begin, &end) == 2) &&
                   (address >= begin) && (address < end);
    }
    fclose(maps);
    for (fd = 0; is_there && (fd < 1024); ++fd) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        length = readlink(path, name, sizeof(name) - 1);
        name[(length < 0) ? 0 : length] = '\0';
        if (strstr(name, "memfd:nprdma-odp") != NULL) {
            *offset = address - begin;
            return fd;
        }
    }
    return -1;
}

/* What the file has, all that map it see */
static int post_to_shared(struct ibv_qp *qp, struct ibv_send_wr *wr,
                          struct ibv_send_wr **bad)
{
    struct ibv_send_wr changed = *wr;
    uint64_t offset;
    int fd = find_file(wr->wr.rdma.remote_addr, &offset);

    if ((fd >= 0) &&
        (pwrite(fd, (void*)(uintptr_t)wr->sg_list[0].addr,
                wr->sg_list[0].length, offset) > 0)) {
        changed.num_sge = 0; /* Only the completion */
    }
    return fake.post_send(qp, &changed, bad);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
                     struct ibv_send_wr **bad)
{
    struct ibv_sge sge         = wr->sg_list[0];
    struct ibv_send_wr changed = *wr;

    if (fake.fault == ODP_FAULT_SHARED) {
        return post_to_shared(qp, wr, bad);
    }

    if (fake.fault == ODP_FAULT_STUCK) {
        /* The first page of the source, again and again */
        if (wr->opcode == IBV_WR_RDMA_WRITE) {
            static char kept[64 * PAGE];
            static int is_kept;

            if (!is_kept) {
                memcpy(kept, (void*)(uintptr_t)sge.addr, sge.length);
                is_kept = 1;
            }
            memcpy((void*)(uintptr_t)sge.addr, kept, sge.length);
        }
        return fake.post_send(qp, wr, bad);
    }

    sge.addr                    -= sge.addr % PAGE;
    changed.wr.rdma.remote_addr -= changed.wr.rdma.remote_addr % PAGE;
    changed.sg_list              = &sge;
    return fake.post_send(qp, &changed, bad);
}

static void set_fault(odp_fault_t fault, int error)
{
    fake.fault             = fault;
    fake.error             = error;
    fake.refuse_error      = 0;
    fake.registrations     = 0;
    fake.real              = fake.dev.verbs;
    fake.verbs             = *fake.dev.verbs;
    fake.verbs.query_odp   = query_odp;
    fake.verbs.register_mr = register_mr;
    fake.verbs.dereg_mr    = dereg_mr;
    fake.verbs.modify_qp   = modify_qp;
    fake.dev.verbs         = &fake.verbs;
    fake.post_send         = fake.dev.context->ops.post_send;
    if ((fault == ODP_FAULT_PAGE_STARTS) || (fault == ODP_FAULT_STUCK) ||
        (fault == ODP_FAULT_SHARED)) {
        fake.dev.context->ops.post_send = post_send;
    }
}

static void close_device(void)
{
    fake.dev.context->ops.post_send = fake.post_send;
    fake.dev.verbs                  = fake.real;
    uct_nprdma_device_close(&fake.dev);
}

void odp_device_open(odp_fault_t fault, int error, odp_open_result_t *result)
{
    static const uct_nprdma_device_config_t config = {
        .timeout     = 1,
        .retry_count = 6,
        .rnr_timeout = 20e-6
    };
    const char *why = NULL;

    memset(result, 0, sizeof(*result));
    result->status = uct_nprdma_device_open(&fake.dev, "npemu0",
                                            UCT_NPRDMA_EMULATION_YES, &config);
    if (result->status != UCS_OK) {
        return;
    }

    set_fault(fault, error);
    result->status = uct_nprdma_odp_open(&fake.dev, PART_SIZE, &fake.odp, &why);
    snprintf(result->why, sizeof(result->why), "%s", (why == NULL) ? "" : why);
    if (result->status != UCS_OK) {
        close_device();
        return;
    }

    result->is_implicit = (fake.odp->implicit.r != NULL);
    result->reg_cost    = fake.odp->reg_cost;
}

void odp_device_close(void)
{
    uct_nprdma_odp_close(fake.odp);
    close_device();
}

unsigned odp_device_live(void)
{
    return fake.live;
}

unsigned odp_device_registrations(void)
{
    return fake.registrations;
}

void odp_device_refuse(unsigned after, int error)
{
    fake.refuse_after = after;
    fake.refuse_error = error;
}

ucs_status_t odp_device_export(uintptr_t address, size_t length,
                               uint32_t access)
{
    return uct_nprdma_odp_export(fake.odp, address, length, access, &fake.mrs);
}

void odp_device_unexport(void)
{
    uct_nprdma_odp_unexport(fake.odp, &fake.mrs);
}

uint32_t odp_device_lkey(uintptr_t address, size_t length, int is_write)
{
    return uct_nprdma_odp_lkey(fake.odp, address, length, is_write);
}

size_t odp_device_part_size(void)
{
    return PART_SIZE;
}

unsigned odp_device_max_parts(void)
{
    return UCT_NPRDMA_ODP_MAX_PARTS;
}
