/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_record.h"

#include <ucm/access/nprdma_file.h>
#include <nprdma_counters_page.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#define UCT_NPRDMA_RECORD_FLAGS \
    (O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC)

/* A record that is being made */
typedef struct uct_nprdma_record {
    size_t length;
    char   text[UCT_NPRDMA_RECORD_MAX];
} uct_nprdma_record_t;


/* With the process id it makes names that no other process in the directory
 * has: neither a child made by fork() nor a process on another host */
static uint64_t uct_nprdma_record_key;

/* Launchers say rank, size and job in different variables. The record has the
 * first one of each line that is set. */
static const struct {
    const char *key;
    const char *names[4];
} uct_nprdma_record_env[] = {
    {"rank", {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}},
    {"size", {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}},
    {"job", {"PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid", "SLURM_STEP_ID"}},
    {"tls", {"UCX_TLS"}}
};

void uct_nprdma_record_init(void)
{
    /* If this fails, names are less random and O_EXCL refuses a second one */
    if (getrandom(&uct_nprdma_record_key, sizeof(uct_nprdma_record_key),
                  GRND_NONBLOCK) < 0) {
        uct_nprdma_record_key = (uintptr_t)&uct_nprdma_record_key;
    }
}

static const char *uct_nprdma_record_getenv(unsigned line)
{
    const char *value = NULL;
    unsigned i;

    for (i = 0; (i < 4) && (value == NULL); ++i) {
        if (uct_nprdma_record_env[line].names[i] != NULL) {
            value = getenv(uct_nprdma_record_env[line].names[i]);
        }
    }
    return value;
}

const char *uct_nprdma_record_rank(void)
{
    return uct_nprdma_record_getenv(0);
}

/* The path of a file of this process. @return 0 if there is no directory. */
static int uct_nprdma_record_path(char *path, size_t size, const char *suffix)
{
    const char *directory = secure_getenv("NPRDMA_RUN");

    return (directory != NULL) && (directory[0] == '/') &&
           ((size_t)snprintf(path, size, "%s/%016" PRIx64 "-%d.%s", directory,
                             uct_nprdma_record_key, (int)getpid(), suffix) <
            size);
}

/* A line without room is left out. Control characters become '?'. */
__attribute__((format(printf, 3, 4)))
static void uct_nprdma_record_add(uct_nprdma_record_t *record, const char *key,
                                  const char *format, ...)
{
    size_t room = sizeof(record->text) - record->length -
                  sizeof(UCT_NPRDMA_RECORD_END "\n");
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

static void uct_nprdma_record_fill(uct_nprdma_record_t *record,
                                   const char *state, const char *lines)
{
    const unsigned num_env = sizeof(uct_nprdma_record_env) /
                             sizeof(uct_nprdma_record_env[0]);
    const char *value;
    unsigned i;

    record->length = sprintf(record->text, UCT_NPRDMA_RECORD_BEGIN "\n");
    uct_nprdma_record_add(record, "state", "%s", state);
    uct_nprdma_record_add(record, "pid", "%d", (int)getpid());
    uct_nprdma_record_add(record, "program", "%s",
                          program_invocation_short_name);
    for (i = 0; i < num_env; ++i) {
        value = uct_nprdma_record_getenv(i);
        if (value != NULL) {
            uct_nprdma_record_add(record, uct_nprdma_record_env[i].key,
                                  "%.200s", value);
        }
    }
    record->length += sprintf(record->text + record->length, "%.1000s"
                              UCT_NPRDMA_RECORD_END "\n", lines);
}

/* One that could not be written takes its place all the same: nprdma-run must
 * know that there was a process. */
void uct_nprdma_record_write(const char *state, const char *lines)
{
    int error = errno;
    char path[PATH_MAX], new_path[PATH_MAX];
    uct_nprdma_record_t record;
    int fd;

    if (uct_nprdma_record_path(path, sizeof(path), "record") &&
        uct_nprdma_record_path(new_path, sizeof(new_path), "new")) {
        uct_nprdma_record_fill(&record, state, lines);
        fd = open(new_path, UCT_NPRDMA_RECORD_FLAGS, 0600);
        if (fd >= 0) {
            nprdma_file_write(fd, record.text, record.length);
            close(fd);
            rename(new_path, path);
        }
    }
    errno = error;
}

int uct_nprdma_record_page(void)
{
    static const char zeros[NPRDMA_COUNTERS_SIZE];
    char path[PATH_MAX], suffix[32];
    int fd = -1;
    unsigned i;

    for (i = 0; (fd < 0) && ((i == 0) || (errno == EEXIST)); ++i) {
        snprintf(suffix, sizeof(suffix), "%u.page", i);
        if (!uct_nprdma_record_path(path, sizeof(path), suffix)) {
            return -1;
        }
        fd = open(path, UCT_NPRDMA_RECORD_FLAGS, 0600);
    }
    if ((fd >= 0) &&
        (nprdma_file_write(fd, zeros, sizeof(zeros)) != sizeof(zeros))) {
        close(fd);
        return -1;
    }
    return fd;
}
