/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "fabric/npemu_cut.h"
#include "base/npemu_log.h"
#include "fabric/npemu_shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NPEMU_CUT_DEFAULT_MS 2000

uint64_t npemu_cut_limit_ns(void)
{
    const char *value = getenv("NPEMU_CUT_OFF_MS");
    unsigned long ms  = NPEMU_CUT_DEFAULT_MS;
    char *end;

    if ((value != NULL) && (value[0] != '\0')) {
        errno = 0;
        ms    = strtoul(value, &end, 10);
        if ((value[0] < '0') || (value[0] > '9') || (*end != '\0') ||
            (errno != 0) || (ms > UINT32_MAX)) {
            npemu_warn("NPEMU_CUT_OFF_MS=%s is not a number of milliseconds; "
                       "using %d", value, NPEMU_CUT_DEFAULT_MS);
            ms = NPEMU_CUT_DEFAULT_MS;
        }
    }
    return (ms == 0) ? UINT64_MAX : ms * 1000000ull;
}

/* Does /proc show the thread as stopped by a signal or a debugger? */
NPEMU_HOOK
static int npemu_cut_is_stopped(int pid, int tid)
{
    char path[64], text[512];
    const char *state;
    long fd, len;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", pid, tid);
    fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }

    len = syscall(SYS_read, fd, text, sizeof(text) - 1);
    syscall(SYS_close, fd);
    if (len <= 0) {
        return 0;
    }

    /* The name of the program may contain any character, ')' as well */
    text[len] = '\0';
    state     = strrchr(text, ')');
    return (state != NULL) && (state[1] == ' ') &&
           ((state[2] == 'T') || (state[2] == 't'));
}

/* Will the thread access nothing of our memory when it continues? The guard
 * must be set. */
NPEMU_HOOK
static int npemu_cut_is_harmless(npemu_thread_seq_t *rec, int pid, int tid)
{
    return npemu_cut_is_stopped(pid, tid) && !atomic_load(&rec->copying);
}

/* Our queue pairs that are connected to the process in a slot. The npemu thread
 * finishes them. */
NPEMU_HOOK
static void npemu_cut_fail_qps(npemu_proc_t *proc, unsigned index)
{
    const uint64_t one = 1;
    unsigned i, count  = 0;
    npemu_qp_shm_t *qp;

    for (i = 0; i < NPEMU_MAX_QPS; ++i) {
        qp = &proc->shm->qps[i];
        if ((qp->type == IBV_QPT_RC) &&
            (npemu_qpn_slot(qp->dest_qpn) == index)) {
            count += npemu_qp_shm_fail(proc->shm, i, NPEMU_EV_QP_FATAL);
        }
    }
    if (count > 0) {
        /* Several events; the thread takes all */
        syscall(SYS_write, proc->wake.signal_fd, &one, sizeof(one));
    }
}

NPEMU_HOOK
int npemu_cut_off(npemu_proc_t *proc, unsigned index, npemu_thread_seq_t *rec,
                  int force)
{
    int pid      = proc->fabric->slots[index].pid;
    int tid      = atomic_load(&rec->tid);
    uint64_t seq = atomic_load(&rec->seq);
    int harmless = npemu_cut_is_harmless(rec, pid, tid);

    if (!(seq & 1) || (!harmless && !force)) {
        return 0;
    }

    npemu_cut_fail_qps(proc, index);
    /* Before the state of the thread is read; npemu_cut.h says why */
    __atomic_store_n(&rec->remote[0].iov_len, NPEMU_GUARD_SET,
                     __ATOMIC_SEQ_CST);
    harmless = npemu_cut_is_harmless(rec, pid, tid);
    if ((atomic_load(&rec->seq) != seq) || (!harmless && !force)) {
        return 0;
    }

    atomic_fetch_add(&proc->arena.cuts, 1);
    atomic_store(&rec->cut, seq);
    if (harmless) {
        npemu_warn("process %d is stopped in the middle of a work request on "
                   "memory of this process: it is cut off, its connections to "
                   "this process have failed", pid);
    } else {
        npemu_error("process %d does not end a work request on memory of this "
                    "process, and is not stopped, or stopped while it copies: "
                    "it is cut off, but it may still write", pid);
    }
    return 1;
}
