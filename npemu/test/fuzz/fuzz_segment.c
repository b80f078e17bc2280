/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The search for the fabric examines every shared memory segment of the user
 * that has the fabric's size, whatever its contents. Runs in an IPC namespace
 * of its own, so that it neither sees nor disturbs the user's fabric.
 */

#include "fuzz.h"

#include "fabric/npemu_fabric.h"
#include "base/npemu_log.h"
#include "fabric/npemu_segment.h"

#include <errno.h>
#include <sched.h>
#include <sys/ipc.h>
#include <sys/shm.h>

/* Stands for exit code 77 of ctest: cannot be tested here */
#define FUZZ_SKIP 77

enum {
    FUZZ_SIZE_MASK = 3,         /* size of the segment */
    FUZZ_GOOD      = 1 << 2,    /* begin with a valid header */
    FUZZ_LIVE      = 1 << 3     /* not marked for destruction */
};

int npemu_log_level = NPEMU_LOG_WARN;

static unsigned fuzz_error_lines;

/* Replaces the log function, because errors are expected, and many. */
void npemu_log_write(npemu_log_level_t level, const char *fmt, ...)
{
    FUZZ_CHECK(fmt != NULL);
    fuzz_error_lines += (level == NPEMU_LOG_ERROR);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    if ((unshare(CLONE_NEWIPC) != 0) &&
        (unshare(CLONE_NEWUSER | CLONE_NEWIPC) != 0)) {
        fprintf(stderr, "SKIP: no IPC namespace of one's own: %s\n",
                strerror(errno));
        exit(FUZZ_SKIP);
    }
    return 0;
}

/* Header of a fabric that this process would create */
static void fuzz_good_header(npemu_fabric_shm_t *header)
{
    npemu_fabric_shm_t *fabric = npemu_fabric_attach();

    FUZZ_CHECK(fabric != NULL);
    memcpy(header, fabric, offsetof(npemu_fabric_shm_t, slots));
    npemu_fabric_detach(fabric);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static npemu_fabric_shm_t good;
    const size_t header = offsetof(npemu_fabric_shm_t, num_slots) +
                          sizeof(good.num_slots);
    const size_t sizes[] = {sizeof(good) + NPEMU_SEGMENT_FABRIC,
                            2 * NPRDMA_PAGE_SIZE + NPEMU_SEGMENT_FABRIC,
                            sizeof(good) + NPRDMA_PAGE_SIZE +
                                    NPEMU_SEGMENT_FABRIC,
                            NPEMU_SEGMENT_FABRIC};
    fuzz_reader_t reader = {data, size};
    npemu_fabric_shm_t *fabric;
    uint8_t control;
    uint8_t *foreign;
    size_t i;
    int id;

    if (good.version == 0) {
        fuzz_good_header(&good);
    }

    control = fuzz_read_u8(&reader);
    id      = shmget(IPC_PRIVATE, sizes[control & FUZZ_SIZE_MASK],
                     IPC_CREAT | 0600);
    FUZZ_CHECK(id >= 0);
    foreign = shmat(id, NULL, 0);
    FUZZ_CHECK(foreign != (void*)-1);
    for (i = 0; (i < header) && (i < 100); ++i) {
        /* A valid header with changes, or the input's bytes */
        foreign[i] = fuzz_read_u8(&reader) ^
                     ((control & FUZZ_GOOD) ? ((uint8_t*)&good)[i] : 0);
    }
    if (!(control & FUZZ_LIVE)) {
        shmctl(id, IPC_RMID, NULL);
    }

    fuzz_error_lines = 0;
    errno            = 0;
    fabric           = npemu_fabric_attach();
    if (fabric == NULL) {
        FUZZ_CHECK(errno == ENODEV);
        FUZZ_CHECK(fuzz_error_lines == 1);
        FUZZ_CHECK(!(control & FUZZ_LIVE));
    } else {
        /* Its own fabric, or a foreign one without errors */
        FUZZ_CHECK(fuzz_error_lines == 0);
        FUZZ_CHECK(!memcmp(fabric, &good,
                           offsetof(npemu_fabric_shm_t, num_slots)));
        FUZZ_CHECK(atomic_load(&fabric->num_slots) <= NPEMU_MAX_PROCS);
        npemu_fabric_detach(fabric);
    }

    shmdt(foreign);
    if (control & FUZZ_LIVE) {
        shmctl(id, IPC_RMID, NULL);
    }
    return 0;
}
