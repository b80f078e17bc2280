/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_odp_check.h"
#include "nprdma_loop.h"

#include "ucm/regions/nprdma_reg.h"

#include <nprdma_uapi.h>

#include <ucs/debug/log.h>
#include <ucs/time/time.h>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Bytes of each of the two ranges, and their number */
#define UCT_NPRDMA_ODP_CHECK_RANGE   (8 * NPRDMA_PAGE_SIZE)
#define UCT_NPRDMA_ODP_CHECK_LENGTH  (2 * UCT_NPRDMA_ODP_CHECK_RANGE)


/* Places of a transfer within the two ranges, and its bytes: packets begin and
 * end anywhere, and cross pages */
#define UCT_NPRDMA_ODP_CHECK_LOCAL   100
#define UCT_NPRDMA_ODP_CHECK_REMOTE  (NPRDMA_PAGE_SIZE - 7)
#define UCT_NPRDMA_ODP_CHECK_MOVED   (3 * NPRDMA_PAGE_SIZE + 50)


typedef struct uct_nprdma_odp_check {
    uct_nprdma_loop_t    loop;
    uct_nprdma_odp_t     *odp;
    uct_nprdma_odp_mrs_t mrs;        /* Of the memory, with remote rights */
    uint8_t              *memory;    /* Local range, remote range */
} uct_nprdma_odp_check_t;


/* ---- transfers ---- */

static uint8_t uct_nprdma_odp_check_byte(unsigned round, size_t pos)
{
    return 1 + ((pos * 7 + (pos >> 8) * 13 + round * 101) % 250);
}

/* New pages with new contents: translations of the old ones are wrong */
static int
uct_nprdma_odp_check_fill(uct_nprdma_odp_check_t *check, unsigned round)
{
    size_t i;

    if (madvise(check->memory, UCT_NPRDMA_ODP_CHECK_LENGTH,
                MADV_DONTNEED) != 0) {
        return 0;
    }

    for (i = 0; i < UCT_NPRDMA_ODP_CHECK_RANGE; ++i) {
        check->memory[i] = uct_nprdma_odp_check_byte(round, i);
    }
    return 1;
}

static enum ibv_wc_status
uct_nprdma_odp_check_move(uct_nprdma_odp_check_t *check,
                          enum ibv_wr_opcode opcode, uint8_t *local,
                          uint8_t *remote, uint32_t rkey)
{
    uint32_t lkey;

    local  += UCT_NPRDMA_ODP_CHECK_LOCAL;
    remote += UCT_NPRDMA_ODP_CHECK_REMOTE;
    lkey    = uct_nprdma_odp_lkey(check->odp, (uintptr_t)local,
                                  UCT_NPRDMA_ODP_CHECK_MOVED,
                                  opcode == IBV_WR_RDMA_READ);
    uct_nprdma_loop_post(&check->loop, opcode, local, lkey,
                         UCT_NPRDMA_ODP_CHECK_MOVED, (uintptr_t)remote, rkey);
    return uct_nprdma_loop_wait(&check->loop);
}

/* Exactly the transferred bytes are in the other range, and zeros around
 * them */
static int uct_nprdma_odp_check_is_right(const uint8_t *to, int is_read,
                                         unsigned round)
{
    size_t from_begin = is_read ? UCT_NPRDMA_ODP_CHECK_REMOTE :
                                  UCT_NPRDMA_ODP_CHECK_LOCAL;
    size_t to_begin   = is_read ? UCT_NPRDMA_ODP_CHECK_LOCAL :
                                  UCT_NPRDMA_ODP_CHECK_REMOTE;
    uint8_t expected;
    size_t i;

    for (i = 0; i < UCT_NPRDMA_ODP_CHECK_RANGE; ++i) {
        expected = ((i < to_begin) ||
                    (i >= to_begin + UCT_NPRDMA_ODP_CHECK_MOVED)) ?
                   0 : uct_nprdma_odp_check_byte(round,
                                                 from_begin + i - to_begin);
        if (to[i] != expected) {
            ucs_debug("on-demand paging: byte %zu is 0x%02x, not 0x%02x", i,
                      to[i], expected);
            return 0;
        }
    }
    return 1;
}

/* The first range is the source; a READ has its local side in the second */
static const char *
uct_nprdma_odp_check_round(uct_nprdma_odp_check_t *check, unsigned round)
{
    uint8_t *source = check->memory;
    uint8_t *target = check->memory + UCT_NPRDMA_ODP_CHECK_RANGE;
    int is_read     = round % 2;
    enum ibv_wc_status status;

    if (!uct_nprdma_odp_check_fill(check, round)) {
        return "no memory for the check of its on-demand paging";
    }

    status = is_read ?
             uct_nprdma_odp_check_move(check, IBV_WR_RDMA_READ, target, source,
                                       check->mrs.r->rkey) :
             uct_nprdma_odp_check_move(check, IBV_WR_RDMA_WRITE, source, target,
                                       check->mrs.w->rkey);
    if (status != IBV_WC_SUCCESS) {
        ucs_debug("%s: the check of on-demand paging failed with status %d",
                  check->loop.dev->name, (int)status);
        return "its on-demand paging does not work";
    }

    return uct_nprdma_odp_check_is_right(target, is_read, round) ?
           NULL : "its on-demand paging moves wrong data";
}

/* WRITE to pages that the process shares and has to copy before, as it shares
 * pages after fork(), or the kernel's page of zeros. Here it shares those of a
 * file, so that a wrong WRITE does no harm. They are mapped read-only when the
 * memory is registered. */
static const char *
uct_nprdma_odp_check_write_shared(uct_nprdma_odp_check_t *check, int fd,
                                  uint8_t *target, uint32_t rkey)
{
    uint8_t file[UCT_NPRDMA_ODP_CHECK_RANGE];
    size_t i;

    if (!uct_nprdma_odp_check_fill(check, 0) ||
        (uct_nprdma_odp_check_move(check, IBV_WR_RDMA_WRITE, check->memory,
                                   target, rkey) != IBV_WC_SUCCESS)) {
        return "its on-demand paging does not work with shared pages";
    }

    if ((pread(fd, file, sizeof(file), 0) != (ssize_t)sizeof(file)) ||
        !uct_nprdma_odp_check_is_right(target, 0, 0)) {
        return "its on-demand paging moves wrong data to shared pages";
    }

    for (i = 0; i < sizeof(file); ++i) {
        if (file[i] != 0) {
            return "its on-demand paging writes to shared pages";
        }
    }
    return NULL;
}

static const char *
uct_nprdma_odp_check_shared_at(uct_nprdma_odp_check_t *check, int fd,
                               uint8_t *target)
{
    uct_nprdma_odp_mrs_t mrs;
    const char *why;
    size_t i;

    for (i = 0; i < UCT_NPRDMA_ODP_CHECK_RANGE; i += NPRDMA_PAGE_SIZE) {
        (void)*(volatile uint8_t*)&target[i];
    }

    if (uct_nprdma_odp_export(check->odp, (uintptr_t)target,
                              UCT_NPRDMA_ODP_CHECK_RANGE,
                              NPRDMA_REG_ACCESS_PUT, &mrs) != UCS_OK) {
        return "it registers no shared pages with on-demand paging";
    }

    why = uct_nprdma_odp_check_write_shared(check, fd, target, mrs.w->rkey);
    uct_nprdma_odp_unexport(check->odp, &mrs);
    return why;
}

static const char *uct_nprdma_odp_check_shared(uct_nprdma_odp_check_t *check)
{
    const char *why = "no memory for the check of its on-demand paging";
    uint8_t *target;
    int fd;

    fd = syscall(SYS_memfd_create, "nprdma-odp", MFD_CLOEXEC);
    if (fd < 0) {
        return why;
    }

    if (ftruncate(fd, UCT_NPRDMA_ODP_CHECK_RANGE) == 0) {
        target = mmap(NULL, UCT_NPRDMA_ODP_CHECK_RANGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE, fd, 0);
        if (target != MAP_FAILED) {
            why = uct_nprdma_odp_check_shared_at(check, fd, target);
            munmap(target, UCT_NPRDMA_ODP_CHECK_RANGE);
        }
    }
    close(fd);
    return why;
}

static const char *uct_nprdma_odp_check_run(uct_nprdma_odp_check_t *check)
{
    const char *why = uct_nprdma_odp_check_shared(check);
    unsigned round;

    for (round = 0; (round < 4) && (why == NULL); ++round) {
        why = uct_nprdma_odp_check_round(check, round);
    }
    return why;
}


/* ---- the check ---- */

/* Register for peers as registrations do, and measure that */
static int uct_nprdma_odp_check_reg(uct_nprdma_odp_check_t *check)
{
    ucs_time_t start = ucs_get_time();
    int i;

    for (i = 0; i < 2; ++i) {
        uct_nprdma_odp_unexport(check->odp, &check->mrs);
        if (uct_nprdma_odp_export(check->odp, (uintptr_t)check->memory,
                                  UCT_NPRDMA_ODP_CHECK_LENGTH,
                                  NPRDMA_REG_ACCESS_ALL,
                                  &check->mrs) != UCS_OK) {
            return 0;
        }
    }
    check->odp->reg_cost = ucs_time_to_sec(ucs_get_time() - start) / 2;
    return 1;
}

const char *uct_nprdma_odp_check(uct_nprdma_device_t *dev,
                                 uct_nprdma_odp_t *odp)
{
    uct_nprdma_odp_check_t check = { .odp = odp };
    const char *why;

    if (!uct_nprdma_loop_init(&check.loop, dev)) {
        return "no port is active, so its on-demand paging cannot be checked";
    }

    check.memory = mmap(NULL, UCT_NPRDMA_ODP_CHECK_LENGTH,
                        PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                        0);
    if (check.memory == MAP_FAILED) {
        return "no memory for the check of its on-demand paging";
    }

    if (!uct_nprdma_odp_check_reg(&check)) {
        why = "it registers no memory with on-demand paging";
    } else if (!uct_nprdma_loop_open(&check.loop)) {
        why = "no connection for the check of its on-demand paging";
    } else {
        why = uct_nprdma_odp_check_run(&check);
    }

    uct_nprdma_loop_close(&check.loop);
    uct_nprdma_odp_unexport(odp, &check.mrs);
    munmap(check.memory, UCT_NPRDMA_ODP_CHECK_LENGTH);
    return why;
}
