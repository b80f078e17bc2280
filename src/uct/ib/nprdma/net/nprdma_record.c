/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_record.h"

#include <ucm/access/nprdma_file.h>
#include <nprdma_counters_page.h>
#include <nprdma_record_text.h>

#include <ucs/debug/log.h>

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define UCT_NPRDMA_RECORD_FLAGS \
    (O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC)

/* Bytes of messages after which a record takes no more warnings, and no more
 * errors, and the longest message. So there is room for what a record begins
 * with, and for the lines of its state. */
#define UCT_NPRDMA_RECORD_WARNINGS  700
#define UCT_NPRDMA_RECORD_ERRORS    1400
#define UCT_NPRDMA_RECORD_MESSAGE   400


/* With the process id it makes names that no other process in the directory
 * has: neither a child made by fork() nor a process on another host */
static uint64_t uct_nprdma_record_key;

/* The first messages of UCX in this process, and what its last record said */
static struct {
    pthread_mutex_t      lock; /* of the messages; no thread waits */
    nprdma_record_text_t messages;
    _Atomic(const char*) state;
    _Atomic(pid_t)       pid;
} uct_nprdma_record = {
    .lock  = PTHREAD_MUTEX_INITIALIZER,
    .state = ""
};

void uct_nprdma_record_init(void)
{
    /* If this fails, names are less random and O_EXCL refuses a second one */
    if (getrandom(&uct_nprdma_record_key, sizeof(uct_nprdma_record_key),
                  GRND_NONBLOCK) < 0) {
        uct_nprdma_record_key = (uintptr_t)&uct_nprdma_record_key;
    }
}

/* The path of a file of this process. @return 0 if there is no directory. */
static int uct_nprdma_record_path(char *path, size_t size, const char *suffix)
{
    const char *directory = nprdma_record_directory();

    return (directory != NULL) &&
           ((size_t)snprintf(path, size, "%s/%016" PRIx64 "-%d%s", directory,
                             uct_nprdma_record_key, (int)getpid(), suffix) <
            size);
}

/* If another thread adds a message now, it writes a record after this one */
void uct_nprdma_record_write(const char *state, const char *lines)
{
    nprdma_record_text_t record;
    char path[PATH_MAX];

    uct_nprdma_record.state = state;
    uct_nprdma_record.pid   = getpid();
    if (!uct_nprdma_record_path(path, sizeof(path), "")) {
        return;
    }

    nprdma_record_begin(&record, state);
    if (pthread_mutex_trylock(&uct_nprdma_record.lock) == 0) {
        record.length += sprintf(record.text + record.length, "%s",
                                 uct_nprdma_record.messages.text);
        pthread_mutex_unlock(&uct_nprdma_record.lock);
    }
    record.length += sprintf(record.text + record.length, "%.600s", lines);
    nprdma_record_put(&record, path);
}

/* UCX calls this for each message that it prints, from any thread */
static ucs_log_func_rc_t
uct_nprdma_record_log(const char *file, unsigned line, const char *function,
                      ucs_log_level_t level,
                      const ucs_log_component_config_t *comp_conf,
                      const char *message, va_list args)
{
    int is_error = (level <= UCS_LOG_LEVEL_ERROR);
    char text[UCT_NPRDMA_RECORD_MESSAGE];

    /* A child made by fork() has no record, and one that is closed says more
     * than these messages */
    if ((level > UCS_LOG_LEVEL_WARN) || (uct_nprdma_record.pid != getpid()) ||
        !strcmp(uct_nprdma_record.state, UCT_NPRDMA_RECORD_CLOSED) ||
        pthread_mutex_trylock(&uct_nprdma_record.lock)) {
        return UCS_LOG_FUNC_RC_CONTINUE;
    }

    if (uct_nprdma_record.messages.length <
        (is_error ? UCT_NPRDMA_RECORD_ERRORS : UCT_NPRDMA_RECORD_WARNINGS)) {
        vsnprintf(text, sizeof(text), message, args);
        nprdma_record_add(&uct_nprdma_record.messages,
                          is_error ? "error" : "warning", "%s", text);
    }
    pthread_mutex_unlock(&uct_nprdma_record.lock);
    uct_nprdma_record_write(uct_nprdma_record.state, "");
    return UCS_LOG_FUNC_RC_CONTINUE;
}

void uct_nprdma_record_listen(void)
{
    if (nprdma_record_directory() != NULL) {
        ucs_log_push_handler(uct_nprdma_record_log);
    }
}

int uct_nprdma_record_page(void)
{
    static const char zeros[NPRDMA_COUNTERS_SIZE];
    char path[PATH_MAX], suffix[32];
    int fd = -1;
    unsigned i;

    for (i = 0; (fd < 0) && ((i == 0) || (errno == EEXIST)); ++i) {
        snprintf(suffix, sizeof(suffix), ".%u.page", i);
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
