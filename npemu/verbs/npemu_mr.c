/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "verbs/npemu_mr.h"
#include "base/npemu_log.h"
#include "fabric/npemu_epoch.h"
#include "iommu/npemu_table.h"
#include "npemu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A key is `generation << NPEMU_MR_BITS | index`; generation 0 is not used, so
 * that no key is 0. */
#define NPEMU_MR_GENS (1u << (32 - NPEMU_MR_BITS))

#define NPEMU_MR_ACCESS \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | \
     IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | \
     IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB | \
     IBV_ACCESS_OPTIONAL_RANGE)

typedef struct npemu_mr_table {
    pthread_mutex_t  lock;
    int              is_locked;             /* NPEMU_PIN */
    npemu_odp_mode_t odp;                   /* NPEMU_ODP */
    uint32_t         next;                  /* where the search starts */
    uint16_t         gens[NPEMU_MAX_MRS];   /* generation of the last use */
    uint8_t          is_used[NPEMU_MAX_MRS];
} npemu_mr_table_t;

static npemu_odp_mode_t npemu_mr_read_odp(void)
{
    static const char *names[] = {"no", "explicit", "implicit"};
    const char *odp            = getenv("NPEMU_ODP");
    npemu_odp_mode_t mode      = NPEMU_ODP_NO;

    if ((odp == NULL) || (odp[0] == '\0')) {
        return NPEMU_ODP_NO;
    }

    while ((mode <= NPEMU_ODP_IMPLICIT) && strcmp(odp, names[mode])) {
        ++mode;
    }
    if (mode > NPEMU_ODP_IMPLICIT) {
        npemu_warn("NPEMU_ODP=%s is neither no, explicit nor implicit; using "
                   "explicit", odp);
        mode = NPEMU_ODP_EXPLICIT;
    }
    return mode;
}

int npemu_mr_table_init(npemu_proc_t *proc)
{
    const char *pin = getenv("NPEMU_PIN");

    proc->mrs = calloc(1, sizeof(*proc->mrs));
    if (proc->mrs == NULL) {
        return ENOMEM;
    }

    pthread_mutex_init(&proc->mrs->lock, NULL);
    proc->mrs->odp       = npemu_mr_read_odp();
    proc->mrs->is_locked = (pin != NULL) && !strcmp(pin, "mlock");
    if (!proc->mrs->is_locked && (pin != NULL) && (pin[0] != '\0') &&
        strcmp(pin, "none")) {
        npemu_warn("NPEMU_PIN=%s is neither mlock nor none; using none", pin);
    }
    return 0;
}

void npemu_mr_table_cleanup(npemu_proc_t *proc)
{
    pthread_mutex_destroy(&proc->mrs->lock);
    free(proc->mrs);
}

npemu_odp_mode_t npemu_mr_odp(const npemu_proc_t *proc)
{
    return proc->mrs->odp;
}

/* Returns a new key, or 0 if all are in use. The search goes round, so that a
 * stale key stays invalid for long. */
static uint32_t npemu_mr_key_alloc(npemu_mr_table_t *table)
{
    uint32_t i, index, key = 0;

    pthread_mutex_lock(&table->lock);
    for (i = 0; (i < NPEMU_MAX_MRS) && (key == 0); ++i) {
        index = table->next++ % NPEMU_MAX_MRS;
        if ((index != 0) && !table->is_used[index]) {
            table->is_used[index] = 1;
            table->gens[index]    = 1 + table->gens[index] %
                                                (NPEMU_MR_GENS - 1);
            key = ((uint32_t)table->gens[index] << NPEMU_MR_BITS) | index;
        }
    }
    pthread_mutex_unlock(&table->lock);
    return key;
}

static void npemu_mr_key_free(npemu_mr_table_t *table, uint32_t key)
{
    pthread_mutex_lock(&table->lock);
    table->is_used[key & (NPEMU_MAX_MRS - 1)] = 0;
    pthread_mutex_unlock(&table->lock);
}

static int npemu_mr_check_args(uint64_t addr, size_t length, uint64_t iova,
                               unsigned access)
{
    if ((access & ~(unsigned)NPEMU_MR_ACCESS) || (length == 0) ||
        (addr + length < addr) || (iova + length < iova)) {
        return EINVAL;
    }

    /* IBA 10.6.3.1: remote write and atomic rights imply local write */
    if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
        !(access & IBV_ACCESS_LOCAL_WRITE)) {
        return EINVAL;
    }

    return 0;
}

/* On-demand paging: rights that the device gives with it, and the length by
 * which a program asks for the whole address space. */
static int npemu_mr_check_odp(npemu_odp_mode_t odp, size_t length,
                              unsigned access)
{
    if (!(access & IBV_ACCESS_ON_DEMAND)) {
        return 0;
    }

    if ((odp == NPEMU_ODP_NO) || (access & IBV_ACCESS_REMOTE_ATOMIC)) {
        return EOPNOTSUPP;
    }

    return ((length == SIZE_MAX) && (odp != NPEMU_ODP_IMPLICIT)) ? EINVAL : 0;
}

/* Create the object and its key, but do not publish it. */
static npemu_mr_t *npemu_mr_create(npemu_proc_t *proc, struct ibv_pd *ibpd,
                                   uint64_t addr, size_t length)
{
    npemu_mr_t *mr = calloc(1, sizeof(*mr));
    uint32_t key;

    if (mr == NULL) {
        return NULL;
    }

    key = npemu_mr_key_alloc(proc->mrs);
    if (key == 0) {
        free(mr);
        return NULL;
    }

    mr->super.context = ibpd->context;
    mr->super.pd      = ibpd;
    mr->super.addr    = (void*)(uintptr_t)addr;
    mr->super.length  = length;
    mr->super.handle  = key & (NPEMU_MAX_MRS - 1);
    mr->super.lkey    = key;
    mr->super.rkey    = key;
    mr->table         = -1;
    return mr;
}

static void npemu_mr_free(npemu_proc_t *proc, npemu_mr_t *mr)
{
    npemu_mr_key_free(proc->mrs, mr->super.lkey);
    free(mr);
}

/* Make the MR usable. `addr`, `view` and the table are set. */
static void npemu_mr_publish(npemu_proc_t *proc, const npemu_mr_t *mr,
                             uint64_t iova, unsigned access)
{
    npemu_mr_shm_t *shm = &proc->shm->mrs[mr->super.handle];
    npemu_pd_t *pd      = npemu_pd(mr->super.pd);

    atomic_fetch_add(&pd->refcount, 1);
    shm->pd     = pd->id;
    shm->access = access;
    shm->iova   = (access & IBV_ACCESS_ZERO_BASED) ? 0 : iova;
    shm->length = mr->super.length;
    atomic_store(&shm->key, mr->super.lkey);
}

/* Keep the memory where it is: the buffer, if it is in one, and the pages. With
 * on-demand paging neither. */
static int npemu_mr_hold(npemu_proc_t *proc, npemu_mr_t *mr, unsigned access)
{
    uint64_t start = (uintptr_t)mr->super.addr;
    int ret;

    if (access & IBV_ACCESS_ON_DEMAND) {
        return 0;
    }

    ret = npemu_buf_get(proc, start, mr->super.length, &mr->buf);
    if (ret != 0) {
        return ret;
    }

    ret = npemu_pin(&mr->pin, start & ~(NPRDMA_PAGE_SIZE - 1),
                    (start + mr->super.length + NPRDMA_PAGE_SIZE - 1) &
                            ~(NPRDMA_PAGE_SIZE - 1),
                    access & IBV_ACCESS_LOCAL_WRITE, proc->mrs->is_locked);
    if (ret != 0) {
        npemu_buf_put(mr->buf);
    }
    return ret;
}

static struct ibv_mr *npemu_mr_reg(struct ibv_pd *ibpd, void *addr,
                                   size_t length, uint64_t iova,
                                   unsigned access)
{
    npemu_proc_t *proc = npemu_context_proc(ibpd->context);
    uint64_t start     = (uintptr_t)addr;
    npemu_mr_shm_t *shm;
    npemu_mr_t *mr;
    int ret;

    ret = (proc == NULL) ? NPEMU_ERR_FORKED :
                           npemu_mr_check_odp(proc->mrs->odp, length, access);
    if (ret == 0) {
        ret = npemu_mr_check_args(start, length, iova,
                                  access & ~IBV_ACCESS_ON_DEMAND);
    }
    if (ret != 0) {
        errno = ret;
        return NULL;
    }

    mr = npemu_mr_create(proc, ibpd, start, length);
    if (mr == NULL) {
        errno = ENOMEM;
        return NULL;
    }

    ret = npemu_mr_hold(proc, mr, access);
    if (ret != 0) {
        npemu_mr_free(proc, mr);
        errno = ret;
        return NULL;
    }

    shm         = &proc->shm->mrs[mr->super.handle];
    shm->addr   = start;
    shm->view = NPEMU_VIEW_NONE;
    npemu_mr_publish(proc, mr, iova, access);
    return &mr->super;
}

/* The view of a region that contains a range of its descriptor, and the
 * address of the range (npemu_mr_shm_t::addr); NPEMU_VIEW_NONE if none
 * contains it. */
static npemu_view_t npemu_mr_view(const npemu_table_t *table,
                                  uint64_t offset, uint64_t length,
                                  uint64_t *addr)
{
    uint64_t size = table->num_pages * NPRDMA_PAGE_SIZE;
    const struct {
        npemu_view_t view;
        uint64_t       length;
        uint64_t       addr;
    } ranges[] = {
        {NPEMU_VIEW_R,      size, table->address},
        {NPEMU_VIEW_W,      size, table->address},
        {NPEMU_VIEW_STATES, table->num_pages * sizeof(uint32_t), 0}
    };
    unsigned i;

    for (i = 0; i < sizeof(ranges) / sizeof(ranges[0]); ++i) {
        if (offset < ranges[i].length) {
            *addr = ranges[i].addr + offset;
            return (length <= ranges[i].length - offset) ? ranges[i].view :
                                                           NPEMU_VIEW_NONE;
        }
        offset -= ranges[i].length;
    }
    return NPEMU_VIEW_NONE;
}

/* Find the view, check the rights, and fill in the record. */
static int npemu_mr_set_view(npemu_mr_shm_t *shm, const npemu_table_t *table,
                             uint64_t offset, uint64_t length,
                             unsigned access)
{
    const unsigned writes = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                            IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

    shm->view = npemu_mr_view(table, offset, length, &shm->addr);
    if (shm->view == NPEMU_VIEW_NONE) {
        npemu_error("cannot register %lu bytes at offset %lu of a region of "
                    "%lu pages: they are not within one view",
                    (unsigned long)length, (unsigned long)offset,
                    (unsigned long)table->num_pages);
        return EINVAL;
    }

    return ((shm->view != NPEMU_VIEW_W) && (access & writes)) ? EACCES : 0;
}

struct ibv_mr *npemu_reg_dmabuf_mr(struct ibv_pd *ibpd, uint64_t offset,
                                   size_t length, uint64_t iova, int fd,
                                   int access)
{
    npemu_proc_t *proc = npemu_context_proc(ibpd->context);
    npemu_table_t *table;
    npemu_mr_shm_t *shm;
    npemu_mr_t *mr;
    uint32_t index;
    int ret;

    ret = (proc == NULL) ? NPEMU_ERR_FORKED :
                           npemu_mr_check_args(offset, length, iova, access);
    if (ret != 0) {
        goto err;
    }

    ret = npemu_table_get(proc, fd, &index, &table);
    if (ret != 0) {
        goto err;
    }

    mr = npemu_mr_create(proc, ibpd, offset, length);
    if (mr == NULL) {
        ret = ENOMEM;
        goto err_table;
    }

    shm = &proc->shm->mrs[mr->super.handle];
    ret = npemu_mr_set_view(shm, table, offset, length, access);
    if (ret != 0) {
        goto err_mr;
    }

    mr->table      = index;
    shm->table     = index;
    shm->table_gen = atomic_load(&table->gen);
    npemu_mr_publish(proc, mr, iova, access);
    return &mr->super;

err_mr:
    npemu_mr_free(proc, mr);
err_table:
    npemu_table_put(proc, index);
err:
    errno = ret;
    return NULL;
}

struct ibv_mr *npemu_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
                            int access)
{
    return npemu_mr_reg(pd, addr, length, (uintptr_t)addr, access);
}

struct ibv_mr *npemu_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length,
                                 uint64_t iova, int access)
{
    return npemu_mr_reg(pd, addr, length, iova, access);
}

struct ibv_mr *npemu_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,
                                  uint64_t iova, unsigned access)
{
    return npemu_mr_reg(pd, addr, length, iova, access);
}

int npemu_dereg_mr(struct ibv_mr *ibmr)
{
    npemu_mr_t *mr     = npemu_container_of(ibmr, npemu_mr_t, super);
    npemu_proc_t *proc = npemu_context_proc(ibmr->context);

    if (proc == NULL) {
        return NPEMU_ERR_FORKED;
    }

    atomic_store(&proc->shm->mrs[ibmr->handle].key, 0);
    npemu_epoch_quiesce(proc, NPEMU_QUIESCE_ALL);
    if (mr->pin.end != 0) {
        npemu_unpin(&mr->pin);
    }
    npemu_buf_put(mr->buf);
    if (mr->table >= 0) {
        npemu_table_put(proc, mr->table);
    }
    atomic_fetch_sub(&npemu_pd(ibmr->pd)->refcount, 1);
    npemu_mr_free(proc, mr);
    return 0;
}
