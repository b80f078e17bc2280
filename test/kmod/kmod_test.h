/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Shared by the tests of the kernel module. They run as root in a guest, and
 * stop at the first failure.
 */

#ifndef KMOD_TEST_H
#define KMOD_TEST_H

#include <nprdma_uapi.h>

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define PAGE ((size_t)NPRDMA_PAGE_SIZE)

/** End the test as failed unless @a _condition holds; print a message. */
#define CHECK(_condition, ...)                                             \
    do {                                                                   \
        if (!(_condition)) {                                               \
            kmod_fail(__FILE__, __LINE__, #_condition, " " __VA_ARGS__);   \
        }                                                                  \
    } while (0)

/** The same for two integers. */
#define CHECK_EQ(_value, _expected)                                        \
    do {                                                                   \
        long long _v = (long long)(_value), _e = (long long)(_expected);   \
        if (_v != _e) {                                                    \
            kmod_fail(__FILE__, __LINE__, #_value " == " #_expected,       \
                      " %lld, not %lld", _v, _e);                          \
        }                                                                  \
    } while (0)

/** Call, and expect this errno value; 0 is success. */
#define CHECK_CALL(_fd, _nr, _arg, _errno)                                 \
    CHECK_EQ(kmod_call(_fd, _nr, _arg), _errno)

void kmod_fail(const char *file, int line, const char *what, const char *format,
               ...) __attribute__((noreturn, format(printf, 4, 5)));

/** ioctl(): returns 0 or the errno value. */
int kmod_call(int fd, unsigned long nr, void *arg);

/** Open a context of this process. */
int kmod_open(void);


/* A region over memory of this process, registered as a whole */
typedef struct kmod_region {
    int                          ctx;
    uint32_t                     id;
    uint32_t                     registration;
    uint8_t                      *memory;
    size_t                       length;    /* bytes */
    size_t                       num_pages;
    int                          states_fd;
    size_t                       states_size;
    struct nprdma_states_header  *header;
    const volatile uint32_t      *words;
} kmod_region_t;


/** Anonymous private memory, 2 MiB aligned, without huge pages. */
uint8_t *kmod_map(size_t length);

void kmod_region_create(kmod_region_t *region, int ctx, void *memory,
                        size_t length);

/** Without freeing its memory. */
void kmod_region_destroy(kmod_region_t *region);

/**
 * Populate pages.
 *
 * @param [in] flags  NPRDMA_IOC_POPULATE_xx
 *
 * @return 0 or the errno value; *@a arg, if not NULL, is the structure that the
 *         call returned.
 */
int kmod_populate(kmod_region_t *region, size_t first, size_t count,
                  unsigned flags, struct nprdma_ioc_populate *arg);

/** Populate pages, and check that all have the bits. */
void kmod_populate_all(kmod_region_t *region, size_t first, size_t count,
                       unsigned flags);

/** @return Pages of the range that have exactly these bits. */
size_t kmod_count(const kmod_region_t *region, size_t first, size_t count,
                  uint32_t bits);

void kmod_stats(int ctx, uint32_t region, struct nprdma_ioc_stats *stats);

/** Write a string to a file. @return 0 or the errno value. */
int kmod_write_file(const char *path, const char *text);

/** The number in a file, or behind a word at the beginning of a line of it. */
long long kmod_read_number(const char *path, const char *word);

/**
 * Enable the module's tracepoints from now on. @return 0 if this kernel has
 * none.
 */
int kmod_trace_start(void);

/** @return Whether a line of the trace contains this text. */
int kmod_traced(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Parameters of nprdma_force.ko. */
#define KMOD_FORCE "/sys/module/nprdma_force/parameters/"

/**
 * Let a call fail that nprdma.ko makes into the kernel for this process, by
 * nprdma_force.ko.
 *
 * @param [in] at  Which call: 1 is the first from now on, 0 is none.
 */
void kmod_force(unsigned at);

/**
 * @return Whether the call was made, and so has failed; @a name is its
 *         function.
 */
int kmod_forced(char *name, int size);

/** Skip the case if nprdma_force.ko is not loaded. */
void kmod_force_needed(void);

/** @return Number of the process's descriptors, of the first 256. */
int kmod_count_fds(void);

/** Wait for a child. @return Its exit status, or 1000 + its signal. */
int kmod_wait(pid_t pid);

/** Milliseconds of a clock. */
uint64_t kmod_time_ms(void);

/**
 * When to give up waiting, on the clock of kmod_time_ms(). Not earlier than the
 * rig, because the speed of a machine is unknown. Call it once, before waiting.
 */
uint64_t kmod_deadline(void);

/** Call until the result is nonzero. @return 0 after kmod_deadline(). */
int kmod_await(int (*done)(void *arg), void *arg);


/* A test case; its name selects it on the command line */
typedef struct kmod_case {
    const char *name;
    void (*run)(void);
} kmod_case_t;

/** Run the named cases, or all, each in a process of its own. */
int kmod_main(const kmod_case_t *cases, int argc, char **argv);

/** End this case as skipped, and print the reason. */
void kmod_skip(const char *format, ...)
    __attribute__((noreturn, format(printf, 1, 2)));

#endif
