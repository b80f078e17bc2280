/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "kmod_test.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KMOD_SKIPPED 77
#define KMOD_ALIGN   ((size_t)2 << 20)

void kmod_fail(const char *file, int line, const char *what, const char *format,
               ...)
{
    va_list args;

    printf("%s:%d: failed: %s;", file, line, what);
    if (format[1] != '\0') {
        va_start(args, format);
        vprintf(format, args);
        va_end(args);
    }
    printf("\n");
    fflush(stdout);
    _exit(1);
}

void kmod_skip(const char *format, ...)
{
    va_list args;

    printf("SKIPPED: ");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    _exit(KMOD_SKIPPED);
}

int kmod_call(int fd, unsigned long nr, void *arg)
{
    return (ioctl(fd, nr, arg) < 0) ? errno : 0;
}

int kmod_open(void)
{
    int fd = open(NPRDMA_DEVICE_PATH, O_RDWR | O_CLOEXEC);

    CHECK(fd >= 0, "%s: %m", NPRDMA_DEVICE_PATH);
    return fd;
}

uint8_t *kmod_map(size_t length)
{
    uint8_t *memory = mmap(NULL, length + KMOD_ALIGN, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t head;

    CHECK(memory != MAP_FAILED, "%m");
    head = -(uintptr_t)memory & (KMOD_ALIGN - 1);
    if (head > 0) {
        munmap(memory, head);
    }
    memory += head;
    munmap(memory + length, KMOD_ALIGN - head);
    CHECK(madvise(memory, length, MADV_NOHUGEPAGE) == 0, "%m");
    return memory;
}

void kmod_region_create(kmod_region_t *region, int ctx, void *memory,
                        size_t length)
{
    struct nprdma_ioc_region_create create = {
        .size = sizeof(create), .address = (uintptr_t)memory, .length = length
    };
    struct nprdma_ioc_register reg = {
        .size = sizeof(reg), .address = (uintptr_t)memory, .length = length
    };
    void *states;

    CHECK_CALL(ctx, NPRDMA_IOC_REGION_CREATE, &create, 0);
    states = mmap(NULL, create.states_size, PROT_READ, MAP_SHARED,
                  create.states_fd, 0);
    CHECK(states != MAP_FAILED, "%m");
    reg.region = create.region;
    CHECK_CALL(ctx, NPRDMA_IOC_REGISTER, &reg, 0);

    region->ctx          = ctx;
    region->id           = create.region;
    region->registration = reg.registration;
    region->memory       = memory;
    region->length       = length;
    region->num_pages    = length / PAGE;
    region->states_fd    = create.states_fd;
    region->states_size  = create.states_size;
    region->header       = states;
    region->words        = (void*)((uint8_t*)states + create.states_offset);
}

void kmod_region_destroy(kmod_region_t *region)
{
    struct nprdma_ioc_region_destroy destroy = {
        .size = sizeof(destroy), .region = region->id
    };

    CHECK_CALL(region->ctx, NPRDMA_IOC_REGION_DESTROY, &destroy, 0);
    CHECK_EQ(region->header->dead, 1);
    munmap(region->header, region->states_size);
    close(region->states_fd);
}

int kmod_populate(kmod_region_t *region, size_t first, size_t count,
                  unsigned flags, struct nprdma_ioc_populate *arg)
{
    struct nprdma_ioc_populate populate = {
        .size    = sizeof(populate),
        .flags   = flags,
        .region  = region->id,
        .address = (uintptr_t)region->memory + first * PAGE,
        .length  = count * PAGE
    };
    int ret;

    ret = kmod_call(region->ctx, NPRDMA_IOC_POPULATE, &populate);
    if (arg != NULL) {
        *arg = populate;
    }
    return ret;
}

void kmod_populate_all(kmod_region_t *region, size_t first, size_t count,
                       unsigned flags)
{
    uint32_t bits = (flags & NPRDMA_IOC_POPULATE_WRITE) ? NPRDMA_PAGE_BITS :
                    NPRDMA_PAGE_R;
    size_t i;

    CHECK_EQ(kmod_populate(region, first, count, flags, NULL), 0);
    for (i = first; i < first + count; ++i) {
        CHECK((region->words[i] & bits) == bits, "page %zu: %#x", i,
              region->words[i]);
    }
}

size_t kmod_count(const kmod_region_t *region, size_t first, size_t count,
                  uint32_t bits)
{
    size_t sum = 0;
    size_t i;

    for (i = first; i < first + count; ++i) {
        sum += (region->words[i] & NPRDMA_PAGE_BITS) == bits;
    }
    return sum;
}

void kmod_stats(int ctx, uint32_t region, struct nprdma_ioc_stats *stats)
{
    memset(stats, 0, sizeof(*stats));
    stats->size   = sizeof(*stats);
    stats->region = region;
    CHECK_CALL(ctx, NPRDMA_IOC_STATS, stats, 0);
}

int kmod_write_file(const char *path, const char *text)
{
    /* Truncation is what empties a trace */
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    int ret = 0;

    if (fd < 0) {
        return errno;
    }
    if (write(fd, text, strlen(text)) < 0) {
        ret = errno;
    }
    close(fd);
    return ret;
}

long long kmod_read_number(const char *path, const char *word)
{
    FILE *file = fopen(path, "r");
    long long value = -1;
    size_t length = strlen(word);
    char line[256];

    CHECK(file != NULL, "%s: %m", path);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, word, length) == 0) {
            value = strtoll(line + length, NULL, 0);
            break;
        }
    }
    fclose(file);
    CHECK(value >= 0, "%s: no %s", path, word);
    return value;
}

#define KMOD_TRACING "/sys/kernel/tracing/"

int kmod_trace_start(void)
{
    return (kmod_write_file(KMOD_TRACING "trace", "") == 0) &&
           (kmod_write_file(KMOD_TRACING "events/nprdma/enable", "1") == 0);
}

int kmod_traced(const char *format, ...)
{
    FILE *file = fopen(KMOD_TRACING "trace", "r");
    char line[1024], text[512];
    int found = 0;
    va_list args;

    CHECK(file != NULL, KMOD_TRACING "trace: %m");
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    while (!found && (fgets(line, sizeof(line), file) != NULL)) {
        found = strstr(line, text) != NULL;
    }
    fclose(file);
    if (!found) {
        printf("not traced: %s\n", text);
    }
    return found;
}

static void kmod_force_set(const char *path, unsigned value)
{
    char text[16];

    snprintf(text, sizeof(text), "%u", value);
    CHECK_EQ(kmod_write_file(path, text), 0);
}

void kmod_force(unsigned at)
{
    kmod_force_set(KMOD_FORCE "at", 0);
    kmod_force_set(KMOD_FORCE "tgid", getpid());
    kmod_force_set(KMOD_FORCE "calls", 0);
    kmod_force_set(KMOD_FORCE "at", at);
}

int kmod_forced(char *name, int size)
{
    long long at = kmod_read_number(KMOD_FORCE "at", "");
    FILE *file;

    if ((at == 0) || (kmod_read_number(KMOD_FORCE "calls", "") < at)) {
        return 0;
    }
    file = fopen(KMOD_FORCE "forced", "r");
    CHECK((file != NULL) && (fgets(name, size, file) != NULL), "%m");
    fclose(file);
    name[strcspn(name, "\n")] = '\0';
    return 1;
}

void kmod_force_needed(void)
{
    if (access(KMOD_FORCE, F_OK) != 0) {
        kmod_skip("nprdma_force.ko is not loaded: no kprobes in this kernel");
    }
}

int kmod_count_fds(void)
{
    int count = 0;
    int fd;

    for (fd = 0; fd < 256; ++fd) {
        count += fcntl(fd, F_GETFD) >= 0;
    }
    return count;
}

int kmod_wait(pid_t pid)
{
    int status;

    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

uint64_t kmod_time_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ull + now.tv_nsec / 1000000;
}

uint64_t kmod_deadline(void)
{
    const char *patience = getenv("GUEST_PATIENCE");

    /* The rig's limit counts from the guest's boot. Outside of the rig a user
     * waits. */
    return (patience != NULL) ? strtoull(patience, NULL, 0) * 1000 :
                                kmod_time_ms() + 60000;
}

int kmod_await(int (*done)(void *arg), void *arg)
{
    uint64_t end = kmod_deadline();

    while (!done(arg)) {
        if (kmod_time_ms() > end) {
            return 0;
        }
        usleep(1000);
    }
    return 1;
}

static int kmod_run(const kmod_case_t *test)
{
    int status;
    pid_t pid;

    printf("RUN  %s\n", test->name);
    fflush(stdout);
    pid = fork();
    CHECK(pid >= 0, "%m");
    if (pid == 0) {
        test->run();
        fflush(stdout);
        _exit(0);
    }

    status = kmod_wait(pid);
    if (status >= 1000) {
        printf("killed by signal %d\n", status - 1000);
    }
    printf("%s %s\n", (status == 0) ? "OK  " :
           (status == KMOD_SKIPPED) ? "SKIP" : "FAIL", test->name);
    fflush(stdout);
    return (status != 0) && (status != KMOD_SKIPPED);
}

int kmod_main(const kmod_case_t *cases, int argc, char **argv)
{
    int failed = 0, count = 0;
    int i;

    /* These would disturb all tests where there are several memory nodes or
     * fragmented memory */
    kmod_write_file("/proc/sys/kernel/numa_balancing", "0");
    kmod_write_file("/proc/sys/vm/compaction_proactiveness", "0");
    for (; cases->name != NULL; ++cases) {
        for (i = 1; (i < argc) && strcmp(cases->name, argv[i]); ++i) {
        }
        if ((argc == 1) || (i < argc)) {
            failed += kmod_run(cases);
            ++count;
        }
    }

    if (count == 0) {
        printf("no such test\n");
    }
    return (failed > 0) || (count == 0);
}
