/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The text of a record: what a process leaves for nprdma-run, in the directory
 * that NPRDMA_RUN names. The component leaves one (nprdma_record.h), and before
 * that the preload library. It consists of lines "KEY VALUE", and is the target
 * of a symbolic link: that appears as a whole, and no limit of open files or of
 * their size refuses it. Errors are ignored: the job matters more.
 */

#ifndef NPRDMA_RECORD_TEXT_H
#define NPRDMA_RECORD_TEXT_H

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* First and last line, without the newlines */
#define NPRDMA_RECORD_BEGIN  "nprdma record 1"
#define NPRDMA_RECORD_END    "end"

/* Longest record in bytes, with a zero: that of the target of a link */
#define NPRDMA_RECORD_MAX    4096

typedef struct nprdma_record_text {
    size_t length;
    char   text[NPRDMA_RECORD_MAX];
} nprdma_record_text_t;

/* Launchers say rank, size and job in different variables. A record has the
 * first one of each line that is set. */
static const struct {
    const char *key;
    const char *names[4];
} nprdma_record_env[] = {
    {"rank", {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}},
    {"size", {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}},
    {"job", {"PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid", "SLURM_STEP_ID"}},
    {"tls", {"UCX_TLS"}}
};

#define NPRDMA_RECORD_NUM_ENV \
    (sizeof(nprdma_record_env) / sizeof(nprdma_record_env[0]))

/* Value of a line, or NULL. Line 0 is the rank. */
static inline const char *nprdma_record_getenv(unsigned line)
{
    const char *value = NULL;
    unsigned i;

    for (i = 0; (i < 4) && (value == NULL); ++i) {
        if (nprdma_record_env[line].names[i] != NULL) {
            value = getenv(nprdma_record_env[line].names[i]);
        }
    }
    return value;
}

/* The directory, or NULL */
static inline const char *nprdma_record_directory(void)
{
    const char *directory = secure_getenv("NPRDMA_RUN");

    return ((directory != NULL) && (directory[0] == '/')) ? directory : NULL;
}

/* A line without room is left out. Control characters become '?'. */
__attribute__((format(printf, 3, 4)))
static inline void nprdma_record_add(nprdma_record_text_t *record,
                                     const char *key, const char *format, ...)
{
    size_t room = sizeof(record->text) - record->length -
                  sizeof(NPRDMA_RECORD_END "\n");
    char *line  = record->text + record->length;
    char *c;
    char value[512];
    va_list args;
    int length;

    va_start(args, format);
    vsnprintf(value, sizeof(value), format, args);
    va_end(args);
    for (c = value; *c != '\0'; ++c) {
        if (((unsigned char)*c < ' ') || (*c == 0x7f)) {
            *c = '?';
        }
    }

    length = snprintf(line, room, "%s %s\n", key, value);
    if ((size_t)length < room) {
        record->length += length;
    }
}

/* Begin a record of this process */
static inline void
nprdma_record_begin(nprdma_record_text_t *record, const char *state)
{
    const char *value;
    unsigned i;

    record->length = sprintf(record->text, NPRDMA_RECORD_BEGIN "\n");
    nprdma_record_add(record, "state", "%s", state);
    nprdma_record_add(record, "pid", "%d", (int)getpid());
    nprdma_record_add(record, "program", "%s", program_invocation_short_name);
    for (i = 0; i < NPRDMA_RECORD_NUM_ENV; ++i) {
        value = nprdma_record_getenv(i);
        if (value != NULL) {
            nprdma_record_add(record, nprdma_record_env[i].key, "%.200s",
                              value);
        }
    }
}

/* End a record, and put it in the place of the one before. The path is without
 * its suffix. Preserves errno. */
static inline void
nprdma_record_put(nprdma_record_text_t *record, const char *path)
{
    int error = errno;
    char old_path[PATH_MAX + 8], new_path[PATH_MAX + 8];

    sprintf(record->text + record->length, NPRDMA_RECORD_END "\n");
    snprintf(old_path, sizeof(old_path), "%s.record", path);
    snprintf(new_path, sizeof(new_path), "%s.new", path);
    if (symlink(record->text, new_path) == 0) {
        rename(new_path, old_path);
    }
    errno = error;
}

#endif
