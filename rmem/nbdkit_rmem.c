/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* A plugin of nbdkit: a block device in a server's memory. See
 * nbdkit-rmem-plugin(1). */

#define NBDKIT_API_VERSION 2
#include "rmem.h"

#include <dlfcn.h>
#include <errno.h>
#include <nbdkit-plugin.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define THREAD_MODEL NBDKIT_THREAD_MODEL_SERIALIZE_ALL_REQUESTS

/* Of <linux/prctl.h> since 5.6 */
#ifndef PR_SET_IO_FLUSHER
#define PR_SET_IO_FLUSHER 57
#endif

enum { BLOCK = 4096 };

static const char    *server;
static rmem_params_t params = {.size = sizeof(params)};
static rmem_t        *rmem; /* Of all connections */

/* Of librmem. UCX, which it needs, starts a thread when it is loaded. nbdkit
 * would lose this thread when it forks, and without a fork the thread may get
 * the descriptor that nbdkit expects for its standard input. */
static struct {
    __typeof__(&rmem_open)     open;
    __typeof__(&rmem_close)    close;
    __typeof__(&rmem_read)     read;
    __typeof__(&rmem_write)    write;
    __typeof__(&rmem_flush)    flush;
    __typeof__(&rmem_discard)  discard;
    __typeof__(&rmem_strerror) strerror;
} calls;

static int check(int status, const char *what)
{
    if (status == RMEM_OK) {
        return 0;
    }

    nbdkit_error("%s: %s", what, calls.strerror(status));
    nbdkit_set_error(EIO);
    return -1;
}


/* ---- start and end ---- */

static int set_parameter(const char *key, const char *value)
{
    int64_t size;

    if (!strcmp(key, "server")) {
        server = value;
    } else if (!strcmp(key, "token")) {
        /* nbdkit changes its directory */
        params.token_file = nbdkit_realpath(value);
        return (params.token_file != NULL) ? 0 : -1;
    } else if (!strcmp(key, "size")) {
        size = nbdkit_parse_size(value);
        if ((size <= 0) || (size % BLOCK != 0)) {
            nbdkit_error("size=%s is no size of whole blocks of %d bytes",
                         value, BLOCK);
            return -1;
        }
        params.bytes = size;
    } else if (!strcmp(key, "timeout")) {
        return nbdkit_parse_unsigned(key, value, &params.timeout_ms);
    } else {
        nbdkit_error("unknown parameter '%s'", key);
        return -1;
    }
    return 0;
}

static int check_parameters(void)
{
    const char *missing = (server == NULL)            ? "server" :
                          (params.token_file == NULL) ? "token" :
                          (params.bytes == 0)         ? "size" : NULL;

    if (missing != NULL) {
        nbdkit_error("%s= is missing", missing);
        return -1;
    }
    return 0;
}

#define LOAD(name) \
    ((calls.name = (__typeof__(calls.name))dlsym(library, "rmem_" #name)) != \
     NULL)

/* It stays: UCX has hooks */
static int load_library(void)
{
    void *library = dlopen(RMEM_LIBRARY, RTLD_NOW | RTLD_NODELETE);

    if ((library == NULL) || !LOAD(open) || !LOAD(close) || !LOAD(read) ||
        !LOAD(write) || !LOAD(flush) || !LOAD(discard) || !LOAD(strerror)) {
        nbdkit_error("%s", dlerror());
        return -1;
    }
    return 0;
}

/* Memory of this process must not need the device to which the kernel swaps, or
 * writes, to get memory. Only a part of it is in use, so the rest stays out. */
static int open_session(void)
{
    if (load_library() != 0) {
        return -1;
    }
    if (mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) != 0) {
        nbdkit_error("do not swap to this device: mlockall: %s",
                     strerror(errno));
    }
    if (prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) != 0) {
        nbdkit_error("do not swap to this device: PR_SET_IO_FLUSHER: %s",
                     strerror(errno));
    }
    return check(calls.open(server, &params, &rmem), server);
}

static void close_session(void)
{
    if (rmem != NULL) {
        calls.close(rmem);
    }
    free((char*)params.token_file);
}


/* ---- requests ---- */

static void *open_connection(int is_readonly)
{
    return NBDKIT_HANDLE_NOT_NEEDED;
}

static int64_t get_size(void *handle)
{
    return params.bytes;
}

/* A flush is for all connections */
static int can_multi_conn(void *handle)
{
    return 1;
}

static int read_blocks(void *handle, void *buffer, uint32_t count,
                       uint64_t offset, uint32_t flags)
{
    return check(calls.read(rmem, offset, buffer, count), "read");
}

static int write_blocks(void *handle, const void *buffer, uint32_t count,
                        uint64_t offset, uint32_t flags)
{
    return check(calls.write(rmem, offset, buffer, count), "write");
}

static int flush(void *handle, uint32_t flags)
{
    return check(calls.flush(rmem), "flush");
}

static int trim(void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
    return check(calls.discard(rmem, (void*)offset, count), "trim");
}

/* Of whole blocks; nbdkit writes other zeros itself */
static int zero(void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
    if ((offset % BLOCK != 0) || (count % BLOCK != 0)) {
        nbdkit_set_error(EOPNOTSUPP);
        return -1;
    }
    return trim(handle, count, offset, flags);
}

static struct nbdkit_plugin plugin = {
    .name            = "rmem",
    .longname        = "memory of nprdma-memd",
    .version         = VERSION_TEXT,
    .config          = set_parameter,
    .config_complete = check_parameters,
    .config_help     = "server=ADDRESS:PORT  of nprdma-memd\n"
                       "token=FILE           the server's token\n"
                       "size=SIZE            of the device\n"
                       "timeout=MS           for an answer; else 5000",
    .after_fork      = open_session,
    .unload          = close_session,
    .open            = open_connection,
    .get_size        = get_size,
    .can_multi_conn  = can_multi_conn,
    .pread           = read_blocks,
    .pwrite          = write_blocks,
    .flush           = flush,
    .trim            = trim,
    .zero            = zero
};

NBDKIT_REGISTER_PLUGIN(plugin)
