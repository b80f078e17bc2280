/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Records that the processes of a job send to nprdma-run. A record is text,
 * lines "KEY VALUE". Each record has a connection of its own, which ends before
 * the sender continues, so neither fork() nor exec() nor a closed descriptor
 * matters. Without nprdma-run nothing here makes a system call.
 *
 * NPRDMA_RUN names the run: PROOF/TOKEN/BOOT/NAME/PORT/ADDRESS,ADDRESS...
 * PROOF is what nprdma-run sends first, before the sender sends the TOKEN.
 * Therefore no other service that has the address gets the token. BOOT is the
 * boot id of nprdma-run's machine; there the sender uses the abstract Unix
 * socket NAME. Elsewhere, and from other network namespaces, it uses TCP.
 */

#ifndef NPRDMA_RECORD_H_
#define NPRDMA_RECORD_H_

#include <stddef.h>
#include <stdint.h>

/* Longest record, with its end, in bytes */
#define NPRDMA_RECORD_MAX        4096

/* First and last line of a connection, without the newlines */
#define NPRDMA_RECORD_GREETING   "nprdma-run 1 "
#define NPRDMA_RECORD_END        "end"
#define NPRDMA_RECORD_ACK        "ok\n"

/* Where NAME is a folder as well: of files that outlive their processes */
#define NPRDMA_RECORD_DIR        "/dev/shm/"

/* Longest value of the key "process", with its end, in bytes */
#define NPRDMA_RECORD_ID_MAX     192

/* Characters of PROOF and of TOKEN */
#define NPRDMA_RECORD_SECRET_LEN 32

/* Values of the key "kind" */
#define NPRDMA_RECORD_STARTED    "started" /* a rank has started, or execs */
#define NPRDMA_RECORD_ENDED      "ended"   /* a process ends by exit() */
#define NPRDMA_RECORD_REFUSED    "refused" /* the component does not load */
#define NPRDMA_RECORD_OPENED     "opened"  /* the first interface is open */
#define NPRDMA_RECORD_COUNTED    "counted" /* sums of all interfaces so far */

/*
 * Numbers of a record of kind "counted". All are of one process.
 */
#define NPRDMA_RECORD_FOREACH_SUM(_macro) \
    _macro(operations)       \
    _macro(bytes_sent)       \
    _macro(bytes_received)   \
    _macro(slices)           \
    _macro(hits)             \
    _macro(absent_lines)     \
    _macro(absent_states)    \
    _macro(absent_local)     \
    _macro(absent_small)     \
    _macro(repair_us)        \
    _macro(registered_bytes) \
    _macro(populated_bytes)  \
    _macro(app_pinned_bytes) \
    _macro(pinned_bytes)

typedef struct nprdma_record_sums {
#define NPRDMA_RECORD_SUM_FIELD(_name) uint64_t _name;
    NPRDMA_RECORD_FOREACH_SUM(NPRDMA_RECORD_SUM_FIELD)
#undef NPRDMA_RECORD_SUM_FIELD
} nprdma_record_sums_t;


/* Parts of NPRDMA_RUN */
typedef struct nprdma_record_run {
    char     proof[NPRDMA_RECORD_SECRET_LEN + 1];
    char     token[NPRDMA_RECORD_SECRET_LEN + 1];
    char     boot[40];
    char     name[64];
    unsigned port;
    char     addresses[1024];
} nprdma_record_run_t;


/* A record that is being written */
typedef struct nprdma_record {
    nprdma_record_run_t run;
    size_t              length;
    char                text[NPRDMA_RECORD_MAX];
} nprdma_record_t;


/**
 * Parse a value of NPRDMA_RUN.
 *
 * @param [in]  value  The value.
 * @param [out] run    Its parts.
 *
 * @return Nonzero if the value is valid.
 */
int nprdma_record_parse_run(const char *value, nprdma_record_run_t *run);


/**
 * Read the boot id of this machine, which is unique to a boot.
 *
 * @param [out] boot  Buffer; "unknown" if the kernel does not tell.
 * @param [in]  size  Its bytes.
 */
void nprdma_record_boot_id(char *boot, size_t size);


/**
 * Begin a record: its kind, and the identity of this process, its host, its
 * rank and its job.
 *
 * @param [out] record  Record.
 * @param [in]  kind    NPRDMA_RECORD_xx.
 *
 * @return Nonzero if the process belongs to a run; else nothing is filled.
 */
int nprdma_record_begin(nprdma_record_t *record, const char *kind);


/**
 * Append a line to a record. A line that has no room is left out.
 *
 * @param [in] record  Record.
 * @param [in] key     Word.
 * @param [in] format  As for printf(); control characters become '?'.
 */
void nprdma_record_add(nprdma_record_t *record, const char *key,
                       const char *format, ...)
        __attribute__((format(printf, 3, 4)));


/**
 * Append all sums.
 *
 * @param [in] record  Record.
 * @param [in] sums    Numbers.
 */
void nprdma_record_add_sums(nprdma_record_t *record,
                            const nprdma_record_sums_t *sums);


/**
 * Write sums as one line of text for people, without a newline.
 *
 * @param [in]  sums  Numbers.
 * @param [out] line  Buffer.
 * @param [in]  size  Its bytes; 512 are enough.
 */
void nprdma_record_line(const nprdma_record_sums_t *sums, char *line,
                        size_t size);


/**
 * Make a file that nprdma-run reads when its command has ended: a page of
 * counters, which is there however the process ends. Only on nprdma-run's
 * machine, and where the user of the process may write what nprdma-run's may.
 *
 * @return Descriptor of an empty file, which the caller closes, or -1.
 */
int nprdma_record_file(void);


/**
 * Send a record, and wait until nprdma-run has it; some seconds at most. Errors
 * are ignored, because the job matters more than its statistics: nprdma-run
 * reports records that are missing. Preserves errno.
 *
 * @param [in] record  Record.
 */
void nprdma_record_send(nprdma_record_t *record);


/** @return Rank of this process in its job as text, or NULL. */
const char *nprdma_record_rank(void);

#endif
