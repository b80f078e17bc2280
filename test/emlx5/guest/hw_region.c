/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "hw_region.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

static void call(const hw_region_t *r, unsigned long nr, void *arg,
                 const char *name)
{
    int ret;

    do {
        ret = ioctl(r->module, nr, arg);
    } while ((ret != 0) && (errno == EINTR));
    CHECK(ret == 0, "%s: %s", name, strerror(errno));
}

#define CALL(_r, _nr, _arg) call(_r, _nr, _arg, #_nr)

/* --- regions ---------------------------------------------------------------*/

struct nprdma_ioc_check_device hw_attach(hw_region_t *r, const char *device)
{
    struct nprdma_ioc_check_device arg = {.size = sizeof(arg)};
    struct nprdma_ioc_query query       = {.size = sizeof(query)};
    size_t length                       = strcspn(device, "/");

    CHECK(length < sizeof(arg.name), "%s: the name is too long", device);
    r->module = open(NPRDMA_DEVICE_PATH, O_RDWR | O_CLOEXEC);
    CHECK(r->module >= 0, "%s: %s", NPRDMA_DEVICE_PATH, strerror(errno));
    CALL(r, NPRDMA_IOC_QUERY, &query);
    r->signature = query.signature;
    memcpy(arg.name, device, length);
    if (ioctl(r->module, NPRDMA_IOC_CHECK_DEVICE, &arg) != 0) {
        CHECK(0, "the module refuses the device: %s",
              arg.why[0] ? arg.why : strerror(errno));
    }
    return arg;
}

static void create_region(hw_region_t *r)
{
    struct nprdma_ioc_region_create create = {
        .size = sizeof(create), .address = (uintptr_t)r->memory,
        .length = r->length
    };
    struct nprdma_ioc_register reg = {
        .size = sizeof(reg), .address = (uintptr_t)r->memory,
        .length = r->length
    };

    CALL(r, NPRDMA_IOC_REGION_CREATE, &create);
    r->id = reg.region = create.region;
    CALL(r, NPRDMA_IOC_REGISTER, &reg);
    r->mapped_size = create.states_size;
    r->mapped      = mmap(NULL, create.states_size, PROT_READ, MAP_SHARED,
                          create.states_fd, 0);
    CHECK(r->mapped != MAP_FAILED, "states: %s", strerror(errno));
    r->states = (const uint32_t*)((const char*)r->mapped +
                                  create.states_offset);
    close(create.states_fd);
}

/* One of the three parts of a region, which begins at this offset */
static struct ibv_mr *
import_part(hw_region_t *r, int fd, uint64_t offset, size_t length,
            uint64_t address, int access)
{
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(r->pair.b.pd, offset, length, address,
                                          fd, access);

    CHECK(mr != NULL, "ibv_reg_dmabuf_mr of %zu bytes: %s", length,
          strerror(errno));
    return mr;
}

void hw_import(hw_region_t *r)
{
    struct nprdma_ioc_export view = {.size = sizeof(view), .region = r->id};
    uint64_t address              = (uintptr_t)r->memory;

    CALL(r, NPRDMA_IOC_EXPORT, &view);
    r->read = import_part(r, view.fd, 0, r->length, address,
                          IBV_ACCESS_REMOTE_READ);
    r->write = import_part(r, view.fd, r->length, r->length, address,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    r->state_mr = import_part(r, view.fd, 2 * r->length,
                              r->length / HW_PAGE * sizeof(uint32_t), 0,
                              IBV_ACCESS_REMOTE_READ);
    close(view.fd);
}

void hw_open(hw_region_t *r, const char *from, const char *to, size_t length)
{
    pair_open(&r->pair, from, to);
    pair_connect(&r->pair);
    (void)hw_attach(r, to);
    r->length = length;
    r->memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(r->memory != MAP_FAILED, "no memory");
    create_region(r);
    hw_import(r);
}

void hw_close(hw_region_t *r)
{
    CHECK(ibv_dereg_mr(r->read) == 0, "deregistration");
    CHECK(ibv_dereg_mr(r->write) == 0, "deregistration");
    CHECK(ibv_dereg_mr(r->state_mr) == 0, "deregistration");
    munmap(r->mapped, r->mapped_size);
    close(r->module);
    munmap(r->memory, r->length);
    pair_close(&r->pair);
}

void hw_populate(const hw_region_t *r, size_t page, size_t count,
                 unsigned flags)
{
    struct nprdma_ioc_populate arg = {
        .size = sizeof(arg), .flags = flags, .region = r->id,
        .address = (uintptr_t)r->memory + (page * HW_PAGE),
        .length = count * HW_PAGE
    };

    CALL(r, NPRDMA_IOC_POPULATE, &arg);
}

void hw_invalidate(const hw_region_t *r, size_t page, size_t count)
{
    struct nprdma_ioc_invalidate arg = {
        .size = sizeof(arg), .region = r->id,
        .bits = NPRDMA_PAGE_R | NPRDMA_PAGE_W,
        .address = (uintptr_t)r->memory + (page * HW_PAGE),
        .length = count * HW_PAGE
    };

    CALL(r, NPRDMA_IOC_INVALIDATE, &arg);
}

unsigned long hw_taken_by_kernel(const hw_region_t *r)
{
    struct nprdma_ioc_stats arg = {.size = sizeof(arg), .region = r->id};

    CALL(r, NPRDMA_IOC_STATS, &arg);
    return arg.invalidated;
}

/* --- accesses --------------------------------------------------------------*/

void hw_post(hw_region_t *r, int is_put, size_t offset, size_t length)
{
    request_t request = {
        .opcode = is_put ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
        .length = (uint32_t)length, .remote = (uintptr_t)r->memory + offset,
        .rkey = is_put ? r->write->rkey : r->read->rkey
    };

    side_post(&r->pair.a, &request);
}

void hw_post_states(hw_region_t *r, size_t page, size_t count)
{
    request_t request = {
        .opcode = IBV_WR_RDMA_READ, .from = HW_STATES_AT,
        .length = (uint32_t)(count * sizeof(uint32_t)),
        .remote = page * sizeof(uint32_t), .rkey = r->state_mr->rkey
    };

    side_post(&r->pair.a, &request);
}

void hw_wait(hw_region_t *r, int count)
{
    while (count-- > 0) {
        (void)side_wait_ok(&r->pair.a);
    }
}
