/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCP_COMMON_H_
#define UCP_COMMON_H_

/*
 * What the UCP programs share: checks, memory with known contents, and waiting
 * for a request.
 */

#include <ucp/api/ucp.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(_condition, ...) \
    do { \
        if (!(_condition)) { \
            fprintf(stderr, "%s:%d: process %d: ", __FILE__, __LINE__, \
                    getpid()); \
            fprintf(stderr, __VA_ARGS__); \
            fprintf(stderr, "\n"); \
            exit(1); \
        } \
    } while (0)

#define CHECK_OK(_call) \
    do { \
        ucs_status_t _status = (_call); \
        CHECK(_status == UCS_OK, "%s: %s", #_call, \
              ucs_status_string(_status)); \
    } while (0)


static inline char *new_memory(size_t size)
{
    char *ptr = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(ptr != MAP_FAILED, "mmap: %m");
    return ptr;
}

/* The byte at an offset of the stream, or of the message with a number */
static inline char byte_at(uint64_t place)
{
    return (char)((place * 0x9e3779b97f4a7c15ull) >> 56);
}

static inline void fill(char *ptr, size_t size, uint64_t place)
{
    size_t i;

    for (i = 0; i < size; ++i) {
        ptr[i] = byte_at(place + i);
    }
}

static inline void expect(const char *ptr, size_t size, uint64_t place)
{
    size_t i;

    for (i = 0; i < size; ++i) {
        CHECK(ptr[i] == byte_at(place + i), "byte %zu of %zu at %lu is wrong",
              i, size, (unsigned long)place);
    }
}

static inline int is_done(ucs_status_ptr_t request)
{
    return !UCS_PTR_IS_PTR(request) ||
           (ucp_request_check_status(request) != UCS_INPROGRESS);
}

/* @return Status of the request, which is freed. */
static inline ucs_status_t
wait_for(ucp_worker_h worker, ucs_status_ptr_t request)
{
    ucs_status_t status;

    while (!is_done(request)) {
        ucp_worker_progress(worker);
    }

    if (!UCS_PTR_IS_PTR(request)) {
        return UCS_PTR_STATUS(request);
    }
    status = ucp_request_check_status(request);
    ucp_request_free(request);
    return status;
}

#endif
