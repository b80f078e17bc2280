/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "kmod_test.h"

#include <stdarg.h>
#include <sys/ioctl.h>
#include <time.h>

#define KMOD_ALIGN (2 * MIB)

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

int kmod_call_unwritable(int fd, unsigned long nr, const void *arg, size_t size)
{
    uint8_t *page = kmod_map(PAGE);
    int ret;

    memcpy(page, arg, size);
    CHECK_OK(mprotect(page, PAGE, PROT_READ));
    ret = kmod_call(fd, nr, page);
    munmap(page, PAGE);
    return ret;
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
    CHECK_OK(madvise(memory, length, MADV_NOHUGEPAGE));
    return memory;
}

int kmod_create(int ctx, uint64_t address, uint64_t length, uint32_t flags,
                struct nprdma_ioc_region_create *create)
{
    memset(create, 0, sizeof(*create));
    create->size    = sizeof(*create);
    create->flags   = flags;
    create->address = address;
    create->length  = length;
    return kmod_call(ctx, NPRDMA_IOC_REGION_CREATE, create);
}

int kmod_try_create(int ctx, uint64_t address, uint64_t length)
{
    struct nprdma_ioc_region_create create;
    int ret = kmod_create(ctx, address, length, 0, &create);

    if (ret == 0) {
        close(create.states_fd);
    }
    return ret;
}

int kmod_register_as(kmod_region_t *region, size_t offset, size_t length,
                     uint32_t flags, uint32_t *id)
{
    struct nprdma_ioc_register reg = {
        .size    = sizeof(reg),
        .flags   = flags,
        .region  = region->id,
        .address = (uintptr_t)region->memory + offset,
        .length  = length
    };
    int ret = kmod_call(region->ctx, NPRDMA_IOC_REGISTER, &reg);

    *id = reg.registration;
    return ret;
}

int kmod_register(kmod_region_t *region, size_t offset, size_t length,
                  uint32_t *id)
{
    return kmod_register_as(region, offset, length, 0, id);
}

void kmod_region_create_as(kmod_region_t *region, int ctx, void *memory,
                           size_t length, uint32_t flags)
{
    struct nprdma_ioc_region_create create;
    void *states;

    CHECK_EQ(kmod_create(ctx, (uintptr_t)memory, length, flags, &create), 0);
    states = mmap(NULL, create.states_size, PROT_READ, MAP_SHARED,
                  create.states_fd, 0);
    CHECK(states != MAP_FAILED, "%m");
    region->ctx         = ctx;
    region->id          = create.region;
    region->memory      = memory;
    region->length      = length;
    region->num_pages   = length / PAGE;
    region->states_fd   = create.states_fd;
    region->states_size = create.states_size;
    region->header      = states;
    region->words       = (void*)((uint8_t*)states + create.states_offset);
    CHECK_EQ(kmod_register(region, 0, length, &region->registration), 0);
}

void kmod_region_create(kmod_region_t *region, int ctx, void *memory,
                        size_t length)
{
    kmod_region_create_as(region, ctx, memory, length, 0);
}

void kmod_region(kmod_region_t *region, size_t num_pages)
{
    kmod_region_create(region, kmod_open(), kmod_map(num_pages * PAGE),
                       num_pages * PAGE);
}

int kmod_destroy(int ctx, uint32_t region)
{
    struct nprdma_ioc_region_destroy destroy = {
        .size = sizeof(destroy), .region = region
    };

    return kmod_call(ctx, NPRDMA_IOC_REGION_DESTROY, &destroy);
}

void kmod_region_destroy(kmod_region_t *region)
{
    CHECK_EQ(kmod_destroy(region->ctx, region->id), 0);
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
    uint32_t bits = (flags & WRITE) ? NPRDMA_PAGE_BITS : NPRDMA_PAGE_R;
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

void kmod_take(const kmod_region_t *region, size_t first, size_t count)
{
    CHECK_OK(madvise(region->memory + first * PAGE, count * PAGE,
                     MADV_DONTNEED));
}

static uint32_t kmod_value(size_t page, unsigned seed)
{
    return (uint32_t)page * 2654435761u + seed;
}

void kmod_put_values(kmod_region_t *region, size_t first, size_t count,
                     unsigned seed)
{
    size_t i;

    for (i = first; i < first + count; ++i) {
        *(volatile uint32_t*)(region->memory + i * PAGE) = kmod_value(i, seed);
    }
}

void kmod_check_values(kmod_region_t *region, size_t first, size_t count,
                       unsigned seed)
{
    size_t i;

    for (i = first; i < first + count; ++i) {
        CHECK_EQ(*(volatile uint32_t*)(region->memory + i * PAGE),
                 kmod_value(i, seed));
    }
}

struct nprdma_ioc_stats kmod_stats(int ctx, uint32_t region)
{
    struct nprdma_ioc_stats stats = {.size = sizeof(stats), .region = region};

    CHECK_CALL(ctx, NPRDMA_IOC_STATS, &stats, 0);
    return stats;
}

struct nprdma_ioc_query kmod_query(int ctx)
{
    struct nprdma_ioc_query query = {.size = sizeof(query)};

    CHECK_CALL(ctx, NPRDMA_IOC_QUERY, &query, 0);
    return query;
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

void kmod_write_number(const char *path, unsigned long long value)
{
    char text[32];

    snprintf(text, sizeof(text), "%llu", value);
    CHECK_EQ(kmod_write_file(path, text), 0);
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

kmod_limit_t kmod_limit(const char *parameter, int expected)
{
    kmod_limit_t limit = {open(parameter, O_RDWR), expected};

    CHECK(limit.fd >= 0, "%s: %m", parameter);
    return limit;
}

void kmod_set_limit(const kmod_limit_t *limit, uint64_t bytes)
{
    char text[32];
    int length = snprintf(text, sizeof(text), "%lld", (long long)bytes);

    CHECK_EQ(pwrite(limit->fd, text, length, 0), length);
}

void kmod_enter_memcg(const char *name, unsigned mib)
{
    char path[128];

    kmod_write_file(CGROUP "cgroup.subtree_control", "+memory");
    snprintf(path, sizeof(path), CGROUP "%s", name);
    CHECK((mkdir(path, 0755) == 0) || (errno == EEXIST), "%s: %m", path);
    snprintf(path, sizeof(path), CGROUP "%s/memory.max", name);
    kmod_write_number(path, mib * MIB);
    snprintf(path, sizeof(path), CGROUP "%s/cgroup.procs", name);
    kmod_write_number(path, 0);
}

int kmod_has_line(const char *path, const char *format, ...)
{
    FILE *file = fopen(path, "r");
    char line[1024], text[512];
    int found = 0;
    va_list args;

    CHECK(file != NULL, "%s: %m", path);
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    while (!found && (fgets(line, sizeof(line), file) != NULL)) {
        found = strstr(line, text) != NULL;
    }
    fclose(file);
    if (!found) {
        printf("not in %s: %s\n", path, text);
    }
    return found;
}

void kmod_force(unsigned at)
{
    kmod_write_number(KMOD_FORCE "at", 0);
    kmod_write_number(KMOD_FORCE "tgid", getpid());
    kmod_write_number(KMOD_FORCE "calls", 0);
    kmod_write_number(KMOD_FORCE "at", at);
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

static int kmod_force_error(const char *name)
{
    return !strcmp(name, "get_unused_fd_flags") ? EMFILE :
           !strcmp(name, "anon_inode_getfile") ? ENFILE :
           !strcmp(name, "dma_buf_export") ? ENFILE :
           !strcmp(name, "mmu_interval_notifier_insert") ? EINTR : ENOMEM;
}

/* Resources that a failed call must not change */
typedef struct holdings {
    uint64_t bytes, regions, registrations, present;
    uint64_t fds;
} holdings_t;

static holdings_t kmod_take_stock(int ctx)
{
    struct nprdma_ioc_query query = kmod_query(ctx);
    struct nprdma_ioc_stats stats = kmod_stats(ctx, 0);

    return (holdings_t){query.user_bytes, query.user_regions,
                        stats.registrations, stats.present, kmod_count_fds()};
}

int kmod_fail_once(int ctx, int (*call)(void *arg), void *arg, unsigned at)
{
    holdings_t before = kmod_take_stock(ctx), after;
    char name[64];
    int ret, forced;

    kmod_force(at);
    ret    = call(arg);
    forced = kmod_forced(name, sizeof(name));
    kmod_force(0);
    if (!forced) {
        CHECK_EQ(ret, 0);
        return 0;
    }
    printf("  %s: %s\n", name, strerror(ret));
    CHECK_EQ(ret, kmod_force_error(name));
    after = kmod_take_stock(ctx);
    CHECK(!memcmp(&before, &after, sizeof(before)), "something is left");
    return 1;
}

unsigned kmod_fail_each(int ctx, int (*call)(void *arg), void *arg)
{
    unsigned at = 1;

    while (kmod_fail_once(ctx, call, arg, at)) {
        ++at;
    }
    return at - 1;
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

pid_t kmod_fork(void (*run)(void *arg), void *arg)
{
    pid_t pid;

    fflush(stdout);
    pid = fork();
    CHECK(pid >= 0, "%m");
    if (pid == 0) {
        run(arg);
        fflush(stdout);
        _exit(0);
    }
    return pid;
}

void kmod_in_child(void (*run)(void *arg), void *arg)
{
    CHECK_EQ(kmod_wait(kmod_fork(run, arg)), 0);
}

typedef struct kmod_user {
    uid_t user;
    void  (*run)(void *arg);
    void  *arg;
} kmod_user_t;

static void kmod_be_user(void *arg)
{
    kmod_user_t *self = arg;

    CHECK_OK(setresuid(self->user, self->user, self->user));
    self->run(self->arg);
}

void kmod_as_user(uid_t user, void (*run)(void *arg), void *arg)
{
    kmod_user_t self = {user, run, arg};

    CHECK_OK(chmod(NPRDMA_DEVICE_PATH, 0666));
    kmod_in_child(kmod_be_user, &self);
}

int kmod_wait(pid_t pid)
{
    int status;

    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int kmod_get_fd(pid_t pid, int fd)
{
    int pidfd = syscall(SYS_pidfd_open, pid, 0);
    int copy  = syscall(SYS_pidfd_getfd, pidfd, fd, 0);

    CHECK(copy >= 0, "%m");
    close(pidfd);
    return copy;
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
