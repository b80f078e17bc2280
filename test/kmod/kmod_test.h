/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Shared by the tests of the kernel module. They run as root in a guest, each
 * case in a process of its own, which ends at the first failure.
 */

#ifndef KMOD_TEST_H
#define KMOD_TEST_H

#include <nprdma_uapi.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Headers may be older than the kernels */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define PAGE      ((size_t)NPRDMA_PAGE_SIZE)
#define MIB       ((size_t)1 << 20)

/** For POPULATE */
#define WRITE     NPRDMA_IOC_POPULATE_WRITE
#define RESIDENT  NPRDMA_IOC_POPULATE_RESIDENT

/** Files of the module and of the kernel. */
#define PARAMETER "/sys/module/nprdma/parameters/"
#define CGROUP    "/sys/fs/cgroup/"

/** An ordinary user. */
#define NOBODY    65534

/** End the test as failed unless @a _condition holds; print a message. */
#define CHECK(_condition, ...)                                             \
    do {                                                                   \
        if (!(_condition)) {                                               \
            kmod_fail(__FILE__, __LINE__, #_condition, " " __VA_ARGS__);   \
        }                                                                  \
    } while (0)

/** The same for a call that sets errno. */
#define CHECK_OK(_call) CHECK((_call) == 0, "%m")

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

/* A test case, in the order of their definitions */
typedef struct kmod_case {
    const char       *group, *name;
    void             (*run)(void);
    struct kmod_case *next;
} kmod_case_t;

/** Define a case. On the command line its group selects it, or GROUP.NAME. */
#define KMOD_CASE(_group, _name)                                           \
    static void case_##_group##_##_name(void);                             \
    __attribute__((constructor)) static void add_##_group##_##_name(void)  \
    {                                                                      \
        static kmod_case_t self = {#_group, #_name,                        \
                                   case_##_group##_##_name, NULL};         \
                                                                           \
        kmod_add_case(&self);                                              \
    }                                                                      \
    static void case_##_group##_##_name(void)

void kmod_add_case(kmod_case_t *self);

/** Exit status of a case that was skipped. */
#define KMOD_SKIPPED 77

/** End this case as skipped, and print the reason. */
void kmod_skip(const char *format, ...)
    __attribute__((noreturn, format(printf, 1, 2)));

/** ioctl(): returns 0 or the errno value. */
int kmod_call(int fd, unsigned long nr, void *arg);

/** The same with memory that the module cannot write. */
int kmod_call_unwritable(int fd, unsigned long nr, const void *arg,
                         size_t size);

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

/** A region without registration. @return 0 or the errno value. */
int kmod_create(int ctx, uint64_t address, uint64_t length, uint32_t flags,
                struct nprdma_ioc_region_create *create);

/** The same without the descriptor. */
int kmod_try_create(int ctx, uint64_t address, uint64_t length);

/** @return 0 or the errno value; *@a id is that of the registration. */
int kmod_register(kmod_region_t *region, size_t offset, size_t length,
                  uint32_t *id);

/** With flags NPRDMA_IOC_REGISTER_xx, NPRDMA_IOC_REGION_xx. */
int kmod_register_as(kmod_region_t *region, size_t offset, size_t length,
                     uint32_t flags, uint32_t *id);
void kmod_region_create_as(kmod_region_t *region, int ctx, void *memory,
                           size_t length, uint32_t flags);

void kmod_region_create(kmod_region_t *region, int ctx, void *memory,
                        size_t length);

/** The same with a new context and new memory. */
void kmod_region(kmod_region_t *region, size_t num_pages);

/** Without freeing its memory. */
void kmod_region_destroy(kmod_region_t *region);

/** End a region, with the same errno values as the call. */
int kmod_destroy(int ctx, uint32_t region);

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

/** Let the kernel take pages away. */
void kmod_take(const kmod_region_t *region, size_t first, size_t count);

/** Fill each page with a value of its own, or check the values. */
void kmod_put_values(kmod_region_t *region, size_t first, size_t count,
                     unsigned seed);
void kmod_check_values(kmod_region_t *region, size_t first, size_t count,
                       unsigned seed);

struct nprdma_ioc_stats kmod_stats(int ctx, uint32_t region);

struct nprdma_ioc_query kmod_query(int ctx);

/** Write a string to a file. @return 0 or the errno value. */
int kmod_write_file(const char *path, const char *text);

/** Write a number; failure ends the test. */
void kmod_write_number(const char *path, unsigned long long value);

/** The number in a file, or behind a word at the beginning of a line of it. */
long long kmod_read_number(const char *path, const char *word);

/* A limit of memory that a child may write although it is another user */
typedef struct kmod_limit {
    int fd;       /* of the parameter */
    int expected; /* error of what exceeds it */
} kmod_limit_t;

kmod_limit_t kmod_limit(const char *parameter, int expected);
void kmod_set_limit(const kmod_limit_t *limit, uint64_t bytes);

/** Move this process into a cgroup, with this much memory. */
void kmod_enter_memcg(const char *name, unsigned mib);

/** @return Whether a line of a file contains this text. */
int kmod_has_line(const char *path, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

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

/**
 * Call with a failure of a kernel function, as for kmod_force(). The call must
 * return its error, and take nothing from a context's resources.
 *
 * @return 0 if fewer of them are called, and then the call must succeed.
 */
int kmod_fail_once(int ctx, int (*call)(void *arg), void *arg, unsigned at);

/** Let each of them fail. @return Their number. */
unsigned kmod_fail_each(int ctx, int (*call)(void *arg), void *arg);

/** Skip the case if nprdma_force.ko is not loaded. */
void kmod_force_needed(void);

/** @return Number of the process's descriptors, of the first 256. */
int kmod_count_fds(void);

/** Run in a child, which must succeed; with a user ID of its own. */
void kmod_in_child(void (*run)(void *arg), void *arg);
void kmod_as_user(uid_t user, void (*run)(void *arg), void *arg);

/** A child that runs. */
pid_t kmod_fork(void (*run)(void *arg), void *arg);

/** Wait for a child. @return Its exit status, or 1000 + its signal. */
int kmod_wait(pid_t pid);

/** A copy of another process's descriptor. */
int kmod_get_fd(pid_t pid, int fd);

/** Milliseconds of a clock. */
uint64_t kmod_time_ms(void);

/**
 * When to give up waiting, on the clock of kmod_time_ms(). Not earlier than the
 * rig, because the speed of a machine is unknown. Call it once, before waiting.
 */
uint64_t kmod_deadline(void);

/** Call until the result is nonzero. @return 0 after kmod_deadline(). */
int kmod_await(int (*done)(void *arg), void *arg);

#endif
