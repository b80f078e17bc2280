/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The DMA engine for memory that IOMMU tables cover. It reads the states and
 * obeys them chunk by chunk, on both sides. It accesses such memory, also that
 * of this process, by process_vm_readv() and process_vm_writev() only: they
 * report a page that the kernel does not have.
 */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "engine/npemu_dma.h"
#include "fabric/npemu_epoch.h"
#include "inject/npemu_fault.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* A chunk that starts within a page covers one more. */
#define NPEMU_CHUNK_PAGES (NPEMU_DMA_CHUNK / NPRDMA_PAGE_SIZE + 1)

/* States that are copied at a time. */
#define NPEMU_STATES_BATCH 256

/* One side of a transfer, and its position. */
typedef struct {
    const npemu_dma_list_t *list;
    npemu_peer_t           *peer;      /* owner of the memory */
    int                    is_local;
    unsigned               index;      /* in the list */
    uint64_t               offset;     /* in that element */

    /* Fault plan: end of the page that is accessed */
    uint64_t               page_end;
    npemu_fault_ticket_t   ticket;

    /* The chunk */
    uint64_t               addr;
    uint64_t               left;       /* of the element */
    uint32_t               view;     /* npemu_view_t */
    npemu_table_t          *table;
    uint64_t               first_page;
    uint32_t               present;    /* bit by page */
    uint32_t               words[NPEMU_CHUNK_PAGES]; /* states as read */
    int                    all_present; /* all pages are present */
    uint64_t               absent_end;  /* pages below it gave EFAULT */
} npemu_side_t;

typedef struct {
    npemu_peer_t *peer;
    int          to_remote;
    npemu_side_t src;
    npemu_side_t dst;
    int          in_line;      /* the last chunk ended within a line of the
                                * source, because of the destination */
    uint32_t     line_present; /* the line's page was present, */
    uint32_t     line_word;    /* with this state */
} npemu_xfer_t;

/* --- one side --------------------------------------------------------------*/

static void npemu_side_init(npemu_side_t *side, const npemu_dma_list_t *list,
                            npemu_peer_t *peer, int is_local, uint64_t offset)
{
    side->list       = list;
    side->peer       = peer;
    side->is_local   = is_local;
    side->index      = 0;
    side->offset     = offset;
    side->page_end   = 0;
    side->absent_end = 0;
}

/* Does a table decide whether pages are present? */
static inline int npemu_side_is_paged(const npemu_side_t *side)
{
    return side->view & NPRDMA_PAGE_BITS;
}

/* Are its states the kernel module's? */
static inline int npemu_side_is_kernel(const npemu_side_t *side)
{
    return npemu_side_is_paged(side) && (side->table->kernel != NULL);
}

/* Take the position from the list. */
static inline void npemu_side_load(npemu_side_t *side)
{
    const struct iovec *iov = &side->list->iov[side->index];

    side->addr   = (uintptr_t)iov->iov_base + side->offset;
    side->left   = iov->iov_len - side->offset;
    side->view = side->list->view[side->index];
    side->table  = side->list->table[side->index];
}

static inline uint64_t npemu_side_page(const npemu_side_t *side, uint64_t addr)
{
    return (addr - side->table->address) / NPRDMA_PAGE_SIZE;
}

static inline uint64_t npemu_page_end(uint64_t addr)
{
    return (addr | (NPRDMA_PAGE_SIZE - 1)) + 1;
}

static inline uint64_t npemu_min(uint64_t a, uint64_t b)
{
    return (a < b) ? a : b;
}

/* A fault plan handles single pages. Returns how many of `length` bytes can be
 * accessed before the next step of the plan. */
static uint64_t npemu_side_cut_fault(npemu_side_t *side, uint64_t length)
{
    npemu_fault_ticket_t *ticket = &side->ticket;
    uint64_t tear;

    if (side->page_end == 0) {
        side->page_end = npemu_page_end(side->addr);
        npemu_fault_begin(side->table, side->addr - side->table->address,
                          side->view, ticket);
    }

    length = npemu_min(length, side->page_end - side->addr);
    if (ticket->evict) {
        tear = side->page_end - NPRDMA_PAGE_SIZE + ticket->tear;
        if (side->addr < tear) {
            length = npemu_min(length, tear - side->addr);
        } else {
            npemu_fault_evict(side->table, ticket);
        }
    }
    return length;
}

/* Returns how many of `length` bytes are one chunk. */
static inline uint64_t npemu_side_cut(npemu_side_t *side, uint64_t length)
{
    uint32_t granule = atomic_load_explicit(&npemu_dma_granule,
                                            memory_order_relaxed);

    length = npemu_min(length, side->left);
    if (!npemu_side_is_paged(side)) {
        return length;
    }

    if (npemu_unlikely(granule != 0)) {
        length = npemu_min(length, granule - (side->addr & (granule - 1)));
    }
    if (npemu_unlikely(side->table->kernel != NULL)) {
        return length; /* no fault plans: the kernel evicts pages */
    }
    if (npemu_unlikely((side->page_end != 0) ||
                       (atomic_load(&side->table->header->hooks) &
                        NPEMU_HOOK_FAULTS) ||
                       atomic_load(&npemu_random_active))) {
        length = npemu_side_cut_fault(side, length);
    }
    return length;
}

static inline void npemu_side_advance(npemu_side_t *side, uint64_t length)
{
    side->offset += length;
    if (npemu_unlikely(side->page_end != 0) &&
        ((side->addr + length == side->page_end) || (length == side->left))) {
        npemu_fault_end(side->table, &side->ticket);
        side->page_end = 0;
    }
    if (length == side->left) {
        ++side->index;
        side->offset     = 0;
        side->absent_end = 0;
    }
}

static inline void npemu_side_gate(npemu_side_t *side,
                                   npemu_gate_point_t point, uint64_t length)
{
    uint64_t first;

    if (!npemu_side_is_paged(side) ||
        npemu_likely(!(atomic_load_explicit(&side->table->header->hooks,
                                            memory_order_acquire) &
                       (1u << point)))) {
        return;
    }

    first = npemu_side_page(side, side->addr);
    npemu_gate_hold(side->table->header, point, first,
                    npemu_side_page(side, side->addr + length - 1) - first +
                            1);
}

/* The state says present, but the kernel does not have the page. Correct the
 * state, so that a verification of the access sees a change. */
static void npemu_side_mark(npemu_side_t *side, uint64_t addr)
{
    _Atomic uint64_t *counter = &side->table->header->efault;
    uint64_t page             = npemu_side_page(side, addr);

    if (side->table->kernel != NULL) {
        atomic_fetch_add(counter, 1); /* the kernel has changed the state */
    } else {
        /* Before the state: see npemu_iommu_invalidate() */
        atomic_store(&side->table->header->marked, 1);
        if (nprdma_page_clear(&side->table->states[page], NPRDMA_PAGE_BITS) &
            NPRDMA_PAGE_BITS) {
            atomic_fetch_add(counter, 1);
        }
    }
    side->present    &= ~(1u << (page - side->first_page));
    side->all_present = 0;
}

/* Read the states of a chunk. */
static inline void npemu_side_check(npemu_side_t *side, uint64_t length)
{
    const nprdma_page_state_t *states;
    uint64_t first, last;
    unsigned i, count;

    side->all_present = 1;
    if (!npemu_side_is_paged(side)) {
        return;
    }

    first            = npemu_side_page(side, side->addr);
    last             = npemu_side_page(side, side->addr + length - 1);
    count            = last - first + 1;
    states           = &side->table->states[first];
    side->first_page = first;
    side->present    = 0;
    for (i = 0; i < count; ++i) {
        side->words[i] = nprdma_page_load(&states[i]);
        side->present |= !!(side->words[i] & side->view) << i;
    }

    if (npemu_unlikely(side->addr < side->absent_end)) {
        side->present &= ~1u;
    }
    side->all_present = (side->present == (1u << count) - 1);
}

/* Has the state of the page at an address of the chunk changed? */
static int npemu_side_has_changed(const npemu_side_t *side, uint64_t addr)
{
    uint64_t page = npemu_side_page(side, addr);

    return nprdma_page_load(&side->table->states[page]) !=
           side->words[page - side->first_page];
}

/* Is the byte at `done` present? Returns how many of the following `length`
 * bytes are the same in this. */
static uint64_t npemu_side_run(const npemu_side_t *side, uint64_t done,
                               uint64_t length, int *present)
{
    uint64_t addr, end, page;

    if (npemu_likely(side->all_present)) {
        *present = 1;
        return length;
    }

    addr     = side->addr + done;
    end      = addr + length;
    page     = npemu_side_page(side, addr) - side->first_page;
    *present = (side->present >> page) & 1;
    addr     = npemu_page_end(addr);
    while ((addr < end) && (((side->present >> ++page) & 1) ==
                            (unsigned)*present)) {
        addr += NPRDMA_PAGE_SIZE;
    }
    return npemu_min(addr, end) - (side->addr + done);
}

/* Can a byte be read? */
static int npemu_side_probe(const npemu_side_t *side, uint64_t done)
{
    struct iovec remote = {(void*)(uintptr_t)(side->addr + done), 1};
    char c;
    struct iovec local  = {&c, 1};

    return process_vm_readv(side->peer->pid, &local, 1, &remote, 1, 0) == 1;
}

/* Write from this process into the side. Returns bytes, or -1 with errno. */
static ssize_t npemu_side_put(const npemu_side_t *side, uint64_t done,
                              const struct iovec *iov, unsigned count,
                              uint64_t length)
{
    struct iovec remote = {(void*)(uintptr_t)(side->addr + done), length};
    uint8_t *ptr        = remote.iov_base;
    unsigned i;

    if (!side->is_local || npemu_side_is_paged(side)) {
        return npemu_epoch_copy(side->peer->pid, iov, count, &remote, 1, 1);
    }

    for (i = 0; i < count; ++i) {
        memcpy(ptr, iov[i].iov_base, iov[i].iov_len);
        ptr += iov[i].iov_len;
    }
    return length;
}

/* --- moving ----------------------------------------------------------------*/

/* Which side ended a copy after `done` bytes? The page may have become present
 * again since, so it is the side that a table covers, unless a byte of the
 * other one cannot be read. */
static npemu_side_t *npemu_xfer_failed_side(npemu_xfer_t *xfer,
                                            uint64_t done)
{
    if (!npemu_side_is_paged(&xfer->src)) {
        return npemu_side_probe(&xfer->src, done) ? &xfer->dst : &xfer->src;
    }
    if (!npemu_side_is_paged(&xfer->dst)) {
        return npemu_side_probe(&xfer->dst, done) ? &xfer->src : &xfer->dst;
    }
    if (npemu_side_is_kernel(&xfer->src) &&
        npemu_side_has_changed(&xfer->src, xfer->src.addr + done)) {
        return &xfer->src;
    }
    return npemu_side_probe(&xfer->src, done) ? &xfer->dst : &xfer->src;
}

/* The kernel changes the state before it takes a page. A page that cannot be
 * accessed for another reason does not count as absent: else an operation that
 * did nothing would succeed. */
static int npemu_side_may_lack(const npemu_side_t *side, uint64_t done)
{
    return !npemu_side_is_kernel(side) ||
           npemu_side_has_changed(side, side->addr + done);
}

/* A copy ended early, after `done` bytes of the chunk. Returns NPEMU_DMA_OK if
 * the page there is marked absent now and the transfer goes on. */
static npemu_dma_status_t npemu_xfer_stopped(npemu_xfer_t *xfer,
                                             npemu_side_t *side, uint64_t done,
                                             int error)
{
    if ((error == ESRCH) || !npemu_peer_is_alive(xfer->peer)) {
        return NPEMU_DMA_GONE;
    }

    if ((error != 0) && (error != EFAULT)) {
        npemu_peer_denied(xfer->peer, "process_vm_readv or _writev", error);
        return NPEMU_DMA_DENIED;
    }

    if (side == NULL) {
        side = npemu_xfer_failed_side(xfer, done);
    }
    if (npemu_side_is_paged(side) && npemu_side_may_lack(side, done)) {
        npemu_side_mark(side, side->addr + done);
        side->absent_end = npemu_page_end(side->addr + done);
        return NPEMU_DMA_OK;
    }
    return side->is_local ? NPEMU_DMA_LOCAL : NPEMU_DMA_REMOTE;
}

/* Both sides are present. Returns bytes, or -1 with errno. */
static ssize_t npemu_xfer_move(npemu_xfer_t *xfer, uint64_t done,
                               uint64_t length)
{
    struct iovec src = {(void*)(uintptr_t)(xfer->src.addr + done), length};
    struct iovec dst = {(void*)(uintptr_t)(xfer->dst.addr + done), length};

    return xfer->to_remote ?
                   npemu_epoch_copy(xfer->peer->pid, &src, 1, &dst, 1, 1) :
                   npemu_epoch_copy(xfer->peer->pid, &dst, 1, &src, 1, 0);
}

/* The source is absent: the destination gets the signature, as 64-bit words
 * that are aligned like the source. */
static ssize_t npemu_xfer_fill(npemu_xfer_t *xfer, uint64_t done,
                               uint64_t length)
{
    const uint64_t whole = NPRDMA_PAGE_SIZE - sizeof(uint64_t);
    const uint8_t *from  = xfer->src.table->signature +
                           ((xfer->src.addr + done) % sizeof(uint64_t));
    struct iovec iov[NPEMU_DMA_CHUNK / NPRDMA_PAGE_SIZE + 2];
    unsigned count = 0;
    uint64_t size, left;

    for (left = length; left > 0; left -= size) {
        size         = npemu_min(left, whole);
        iov[count++] = (struct iovec){(void*)(uintptr_t)from, size};
    }
    atomic_fetch_add(&xfer->src.table->header->absent_reads,
                     (length + NPRDMA_PAGE_SIZE - 1) / NPRDMA_PAGE_SIZE);
    return npemu_side_put(&xfer->dst, done, iov, count, length);
}

/* Returns how many of `length` bytes of states are copied at a time. */
static uint64_t npemu_states_run(const npemu_xfer_t *xfer, uint64_t done,
                                 uint64_t length)
{
    uint64_t skip = (xfer->src.addr + done) % sizeof(uint32_t);

    return npemu_min(length, NPEMU_STATES_BATCH * sizeof(uint32_t) - skip);
}

/* The source is the array of states. Each word is read whole. */
static ssize_t npemu_xfer_states(npemu_xfer_t *xfer, uint64_t done,
                                 uint64_t length)
{
    uint64_t offset  = xfer->src.addr + done;
    uint64_t first   = offset / sizeof(uint32_t);
    unsigned skip    = offset % sizeof(uint32_t);
    uint32_t words[NPEMU_STATES_BATCH];
    struct iovec iov = {(uint8_t*)words + skip, length};
    unsigned count;

    count = (skip + length + sizeof(*words) - 1) / sizeof(*words);
    nprdma_page_load_all(&xfer->src.table->states[first], count, words);
    return npemu_side_put(&xfer->dst, done, &iov, 1, length);
}

/* Move the first bytes of `length` that are equal in presence on each side.
 * Sets *moved to the number that were moved or discarded; it is smaller if the
 * next page is now marked absent. */
static npemu_dma_status_t npemu_xfer_piece(npemu_xfer_t *xfer, uint64_t done,
                                           uint64_t length, uint64_t *moved)
{
    npemu_side_t *failed = &xfer->dst;
    int src_present, dst_present;
    ssize_t ret;

    length = npemu_side_run(&xfer->src, done, length, &src_present);
    length = npemu_side_run(&xfer->dst, done, length, &dst_present);
    if (!dst_present) {
        atomic_fetch_add(&xfer->dst.table->header->absent_writes,
                         (length + NPRDMA_PAGE_SIZE - 1) / NPRDMA_PAGE_SIZE);
        *moved = length;
        return NPEMU_DMA_OK;
    }

    if (!src_present) {
        ret = npemu_xfer_fill(xfer, done, length);
    } else if (xfer->src.view == NPEMU_VIEW_STATES) {
        length = npemu_states_run(xfer, done, length);
        ret    = npemu_xfer_states(xfer, done, length);
    } else {
        ret    = npemu_xfer_move(xfer, done, length);
        failed = NULL; /* it may be either side */
    }

    *moved = (ret < 0) ? 0 : ret;
    return npemu_likely(*moved == length) ?
                   NPEMU_DMA_OK :
                   npemu_xfer_stopped(xfer, failed, done + *moved,
                                      (ret < 0) ? errno : 0);
}

/* A source is read line by line, wherever the chunks of the destination end:
 * the rest of a line is as present as its beginning. */
static inline void npemu_xfer_check(npemu_xfer_t *xfer, uint64_t length)
{
    npemu_side_t *src = &xfer->src;

    if (npemu_unlikely(xfer->in_line)) {
        src->first_page  = npemu_side_page(src, src->addr);
        src->words[0]    = xfer->line_word;
        src->present     = xfer->line_present;
        src->all_present = xfer->line_present;
    } else {
        npemu_side_check(src, length);
    }
    npemu_side_check(&xfer->dst, length);
}

/* Note whether the chunk ends within a line of the source because the
 * destination cut it. */
static inline void npemu_xfer_end_line(npemu_xfer_t *xfer, uint64_t length,
                                       uint64_t src_length)
{
    npemu_side_t *src = &xfer->src;
    uint64_t page;

    xfer->in_line = (length < src_length) && npemu_side_is_paged(src) &&
                    ((src->addr + length) % NPRDMA_LINE_SIZE != 0);
    if (npemu_unlikely(xfer->in_line)) {
        /* Not the first byte of a line: the one before is on the same page */
        page             = npemu_side_page(src, src->addr + length) -
                           src->first_page;
        xfer->line_word  = src->words[page];
        xfer->line_present = (src->present >> page) & 1;
    }
}

/* Move a chunk, or part of it. */
static npemu_dma_status_t npemu_xfer_range(npemu_xfer_t *xfer, uint64_t done,
                                           uint64_t end)
{
    npemu_dma_status_t status = NPEMU_DMA_OK;
    uint64_t moved;

    for (; (done < end) && (status == NPEMU_DMA_OK); done += moved) {
        status = npemu_xfer_piece(xfer, done, end - done, &moved);
    }
    return status;
}

/*
 * The kernel does not wait for the NIC. Pages of a source that it has begun to
 * take since their states were read count as absent from the start: what was
 * read of them is replaced by the signature. What was written to a destination
 * stays: it went to the memory of the process, wherever the kernel moved that,
 * as if it had come just before the page was taken.
 */
static npemu_dma_status_t npemu_xfer_recheck(npemu_xfer_t *xfer,
                                             uint64_t length)
{
    npemu_dma_status_t status = NPEMU_DMA_OK;
    npemu_side_t *src         = &xfer->src;
    uint64_t done, end;
    uint32_t page;

    /* The states are not read before the data */
    atomic_thread_fence(memory_order_acquire);
    for (done = 0; (done < length) && (status == NPEMU_DMA_OK); done = end) {
        end  = npemu_min(npemu_page_end(src->addr + done) - src->addr, length);
        page = npemu_side_page(src, src->addr + done) - src->first_page;
        if ((src->present & (1u << page)) &&
            npemu_unlikely(npemu_side_has_changed(src, src->addr + done))) {
            src->present    &= ~(1u << page);
            src->all_present = 0;
            status           = npemu_xfer_range(xfer, done, end);
        }
    }
    return status;
}

/* One chunk. An IOTLB flush waits for one chunk and the line at its end at
 * most. */
static npemu_dma_status_t npemu_xfer_chunk(npemu_xfer_t *xfer, uint64_t length,
                                           uint64_t src_length)
{
    int is_rest = xfer->in_line;
    npemu_dma_status_t status;

    if (npemu_likely(!is_rest)) {
        npemu_side_gate(&xfer->src, NPEMU_GATE_CHUNK_BEGIN, length);
        npemu_side_gate(&xfer->dst, NPEMU_GATE_CHUNK_BEGIN, length);
        npemu_epoch_dma_enter();
    }
    npemu_xfer_check(xfer, length);
    npemu_side_gate(&xfer->src, NPEMU_GATE_CHUNK_CHECKED, length);
    npemu_side_gate(&xfer->dst, NPEMU_GATE_CHUNK_CHECKED, length);
    status = npemu_xfer_range(xfer, 0, length);
    if (npemu_unlikely(npemu_side_is_kernel(&xfer->src)) && !is_rest &&
        (status == NPEMU_DMA_OK)) {
        status = npemu_xfer_recheck(xfer, length);
    }
    npemu_xfer_end_line(xfer, length, src_length);
    if (npemu_unlikely(xfer->in_line) && (status == NPEMU_DMA_OK)) {
        return status;
    }
    npemu_epoch_dma_exit();

    npemu_side_gate(&xfer->src, NPEMU_GATE_CHUNK_END, length);
    npemu_side_gate(&xfer->dst, NPEMU_GATE_CHUNK_END, length);
    return status;
}

/* Returns how many of `left` bytes may be one chunk. If more follow, the chunk
 * ends with a page of the source, and so with a line. */
static inline uint64_t npemu_dma_chunk_length(uint64_t src_addr, uint64_t left)
{
    return npemu_likely(left <= NPEMU_DMA_CHUNK) ?
                   left : NPEMU_DMA_CHUNK - src_addr % NPRDMA_PAGE_SIZE;
}

/* Copy what follows the first `done` bytes. `done` is 0 unless each list has
 * one element. */
static __attribute__((noinline)) npemu_dma_status_t
npemu_dma_copy_stepwise(npemu_peer_t *peer, const npemu_dma_list_t *local,
                        const npemu_dma_list_t *remote, int to_remote,
                        uint64_t done)
{
    npemu_proc_t *proc = npemu_self();
    npemu_xfer_t xfer  = {.peer = peer, .to_remote = to_remote};
    npemu_dma_status_t status;
    uint64_t left, length, src_length;

    npemu_side_init(to_remote ? &xfer.src : &xfer.dst, local,
                    npemu_peer_self(proc), 1, done);
    npemu_side_init(to_remote ? &xfer.dst : &xfer.src, remote, peer, 0, done);
    for (left = local->length - done; left > 0; left -= length) {
        /* The kernel reuses pids: another process may have this one */
        if (npemu_unlikely(!npemu_peer_is_alive(peer))) {
            if (xfer.in_line) {
                npemu_epoch_dma_exit();
            }
            return NPEMU_DMA_GONE;
        }

        npemu_side_load(&xfer.src);
        npemu_side_load(&xfer.dst);
        length = npemu_unlikely(xfer.in_line) ?
                         npemu_min(left, NPRDMA_LINE_SIZE -
                                         xfer.src.addr % NPRDMA_LINE_SIZE) :
                         npemu_dma_chunk_length(xfer.src.addr, left);
        src_length = npemu_side_cut(&xfer.src, length);
        length     = npemu_side_cut(&xfer.dst, src_length);
        status     = npemu_xfer_chunk(&xfer, length, src_length);
        if (npemu_unlikely(status != NPEMU_DMA_OK)) {
            return status;
        }

        npemu_side_advance(&xfer.src, length);
        npemu_side_advance(&xfer.dst, length);
    }
    return NPEMU_DMA_OK;
}

/* --- fast path -------------------------------------------------------------*/

/* Are all pages of `length` bytes of one side present, without gates or plans
 * that handle single pages? */
static inline int npemu_side_is_fast(const npemu_dma_list_t *list,
                                     uint64_t done, uint64_t length)
{
    uint32_t view = list->view[0];
    const npemu_table_t *table;
    uint64_t offset, first, last;

    if (view == NPEMU_VIEW_NONE) {
        return 1;
    }

    table = list->table[0];
    if (npemu_unlikely((view == NPEMU_VIEW_STATES) ||
                       (table->kernel != NULL) ||
                       (atomic_load_explicit(&table->header->hooks,
                                             memory_order_relaxed) != 0))) {
        return 0;
    }

    offset = (uintptr_t)list->iov[0].iov_base + done - table->address;
    first  = offset / NPRDMA_PAGE_SIZE;
    last   = (offset + length - 1) / NPRDMA_PAGE_SIZE;
    return nprdma_page_load_all(&table->states[first], last - first + 1,
                                NULL) & view;
}

/*
 * The most common case: one range of memory on each side, with all pages
 * present. Returns how many bytes were copied, chunk by chunk, before a chunk
 * was not of this case or failed. The caller copies the rest step by step,
 * which finds the reason; it may write the same bytes again.
 */
static inline uint64_t npemu_dma_copy_fast(npemu_peer_t *peer,
                                           const npemu_dma_list_t *local,
                                           const npemu_dma_list_t *remote,
                                           int to_remote)
{
    const npemu_dma_list_t *src = to_remote ? local : remote;
    uint64_t src_addr, done, length;
    struct iovec local_iov, remote_iov;
    ssize_t moved;

    if (npemu_unlikely((local->count != 1) || (remote->count != 1) ||
                       (atomic_load_explicit(&npemu_dma_granule,
                                             memory_order_relaxed) != 0) ||
                       atomic_load_explicit(&npemu_random_active,
                                            memory_order_relaxed))) {
        return 0;
    }

    for (done = 0; done < local->length; done += length) {
        src_addr            = (uintptr_t)src->iov[0].iov_base + done;
        length              = npemu_dma_chunk_length(src_addr,
                                                     local->length - done);
        local_iov.iov_base  = (uint8_t*)local->iov[0].iov_base + done;
        remote_iov.iov_base = (uint8_t*)remote->iov[0].iov_base + done;
        local_iov.iov_len   = remote_iov.iov_len = length;
        moved               = -1;
        if (npemu_unlikely(!npemu_peer_is_alive(peer))) {
            break;
        }

        npemu_epoch_dma_enter();
        if (npemu_likely(npemu_side_is_fast(local, done, length) &&
                         npemu_side_is_fast(remote, done, length))) {
            moved = npemu_epoch_copy(peer->pid, &local_iov, 1, &remote_iov, 1,
                                     to_remote);
        }
        npemu_epoch_dma_exit();
        if (npemu_unlikely(moved != (ssize_t)length)) {
            break;
        }
    }
    return done;
}

npemu_dma_status_t npemu_dma_copy_tabled(npemu_peer_t *peer,
                                         const npemu_dma_list_t *local,
                                         const npemu_dma_list_t *remote,
                                         int to_remote)
{
    uint64_t done = npemu_dma_copy_fast(peer, local, remote, to_remote);

    return npemu_likely(done == local->length) ?
                   NPEMU_DMA_OK :
                   npemu_dma_copy_stepwise(peer, local, remote, to_remote,
                                           done);
}
