/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_PRESSURE_H_
#define NPRDMA_PRESSURE_H_

#include "nprdma_psi.h"
#include "nprdma_room.h"

#include <ucm/api/ucm.h>
#include <ucs/datastruct/list.h>
#include <ucs/type/status.h>

BEGIN_C_DECLS

/**
 * Tells its clients, which keep memory for later use, that memory is short.
 * They give it back then.
 *
 * One thread of the process does this for all clients. It exists while there is
 * a client, and sleeps without a wake-up while none is *armed*, that is, while
 * none keeps anything. A client is armed in a memory hook, when it begins to
 * keep something. It is disarmed in one of its own functions, when it has given
 * everything back. So what it keeps and takes again and again costs one system
 * call in all. Its functions run on the thread, never in a hook, and no lock is
 * held that a hook takes.
 *
 * A child made by fork() has no thread and no clients. It adds its own.
 */


/** Percent of the limit of a cgroup that memory is taken up to, at most. The
 * kernel counts pages in batches, and its own tables. */
#define NPRDMA_PRESSURE_ROOM_TO_TAKE 95


/** Memory of the client, valid from adding to removing. */
typedef struct nprdma_pressure_client {
    /** Memory is short: give back everything. At most once a second. */
    void (*give_back)(void *arg);

    /** Or NULL: called every @a tick_seconds while the client is armed; with 0,
     *  at once, and it has to disarm. */
    void (*tick)(void *arg);

    void           *arg;          /* Of both */
    double          tick_seconds;

    /* Zero at first; for nprdma_pressure.c only */
    uint32_t        armed;        /* Atomic, also for C++ */
    uint32_t        round;        /* Last round in which it was told */
    double          due;          /* Time of the next tick; 0: not known */
    ucs_list_link_t list;
} nprdma_pressure_client_t;


/**
 * Install handlers of fork() that hold the locks of this file meanwhile. @ref
 * nprdma_pressure_add does so. A caller of it or of @ref nprdma_pressure_remove
 * that holds a lock, which handlers of its own hold during fork(), calls this
 * before it installs those: handlers of later callers run first, so that locks
 * are always taken in the same order.
 *
 * @return 0, or ENOMEM.
 */
int nprdma_pressure_init(void);


/**
 * Add a client, which is not armed. The first one starts the thread.
 *
 * @param [in] client  Memory of the caller, valid until it is removed.
 *
 * @return UCS_OK; UCS_ERR_NO_RESOURCE after a line in the log if the thread
 *         cannot be started: nothing will tell the client to give memory back,
 *         so it keeps none.
 */
ucs_status_t nprdma_pressure_add(nprdma_pressure_client_t *client);


/**
 * Remove a client. None of its functions runs any more when this returns. The
 * last one stops the thread. Not to be called by functions of clients, or in
 * memory hooks, and no hook may arm the client any more.
 *
 * @param [in] client  As added. A client that was added before fork(), in the
 *                     parent, is ignored.
 */
void nprdma_pressure_remove(nprdma_pressure_client_t *client);


/**
 * The client keeps something now. For memory hooks. A system call is made only
 * if it was not armed. Keeps errno.
 */
void nprdma_pressure_arm(nprdma_pressure_client_t *client);


/**
 * The client keeps nothing. Called by its own functions @a give_back and @a
 * tick. A hook may keep something at the same time. So the client disarms
 * first, looks then whether it keeps anything, and if so is armed again.
 */
void nprdma_pressure_disarm(nprdma_pressure_client_t *client);


/**
 * For memory hooks, while there is a client: whether the cgroups of the process
 * have room, see @ref nprdma_room_has. Keeps errno.
 *
 * @param [in] length   Bytes that are about to be taken; may be 0.
 * @param [in] percent  Of the limit, up to which memory may be used.
 *
 * @return Nonzero if there is room, or no limit.
 */
int nprdma_pressure_has_room(size_t length, unsigned percent);


/**
 * For memory hooks. The dynamic linker maps memory by calls that no hook sees.
 * They fail at a limit of the process (RLIMIT_AS, RLIMIT_DATA): nothing gives
 * back what is kept then.
 *
 * @return Nonzero if there is such a limit, however high: nothing may be kept.
 */
int nprdma_pressure_is_limited(void);


/**
 * For memory hooks. Memory that is only reserved does not count, and pages of
 * files can be taken back.
 *
 * @param [in] event  Of UCM_EVENT_MMAP.
 *
 * @return Bytes that the call is about to take; 0 if it has been made, or takes
 *         nothing that counts.
 */
size_t nprdma_pressure_mapped(const ucm_event_t *event);


/**
 * For memory hooks, as nprdma_pressure_has_room().
 *
 * @param [in] percent  Of the limit, up to which memory may be used.
 *
 * @return Bytes that may still be taken; SIZE_MAX: there is no limit.
 */
size_t nprdma_pressure_left(unsigned percent);


/**
 * Not for memory hooks: the part of this process in what the cgroups have left,
 * see @ref nprdma_room_left. While there is a client.
 *
 * @param [in]  percent  Of the limit, up to which memory may be used.
 * @param [out] left_p   Bytes that all may still take; SIZE_MAX: no limit.
 *
 * @return Bytes; SIZE_MAX: there is no limit.
 */
size_t nprdma_pressure_part(unsigned percent, size_t *left_p);


/**
 * For memory hooks: there is no room, and this process keeps nothing more. Tell
 * other processes of the cgroup, and wait until there is room, for some 10 ms
 * at most, and once in 2 s at most. Keeps errno.
 *
 * @param [in] length, percent  As for @ref nprdma_pressure_has_room.
 */
void nprdma_pressure_await_room(size_t length, unsigned percent);


typedef struct nprdma_pressure_params {
    nprdma_psi_params_t psi;
    double              sample_seconds;  /* Between two samples */
    double              holdoff_seconds; /* From one call of give_back to the
                                          * next */
} nprdma_pressure_params_t;


/**
 * For tests: set or restore the parameters, while there is no client.
 *
 * @param [in] params  Copied; the strings are not. NULL: as at first.
 */
void nprdma_pressure_set_params(const nprdma_pressure_params_t *params);

END_C_DECLS

#endif
