/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Changes that the process itself makes to its memory. When such a call
 * returns, it must have taken exactly the affected pages from devices. A thread
 * watches the states all the time.
 */

#include "watch.h"

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/shm.h>

#define NUM_PAGES 2048
#define ROUNDS    5

/* The range of an event: the middle half, the size of two huge pages. If a
 * mapping is split within a huge page, the whole 2 MiB are taken from
 * devices. */
#define FIRST     (NUM_PAGES / 4)
#define COUNT     (NUM_PAGES / 2)

/* All pages of the middle are absent, and all others are unchanged */
static void check_middle(kmod_region_t *region)
{
    CHECK_EQ(kmod_count(region, FIRST, COUNT, 0), COUNT);
    CHECK_EQ(kmod_count(region, 0, FIRST, NPRDMA_PAGE_BITS), FIRST);
    CHECK_EQ(kmod_count(region, FIRST + COUNT, NUM_PAGES - FIRST - COUNT,
                        NPRDMA_PAGE_BITS), NUM_PAGES - FIRST - COUNT);
}

/* Rounds: populate all pages, cause the event, write all pages again */
static void run_event(void *memory,
                      void (*event)(kmod_region_t *region, uint8_t *middle,
                                    size_t length))
{
    kmod_region_t region;
    kmod_watch_t watch;
    unsigned round;

    kmod_region_create(&region, kmod_open(), memory, NUM_PAGES * PAGE);
    kmod_watch_start(&watch, &region, getpid());
    for (round = 0; round < ROUNDS; ++round) {
        kmod_put_values(&region, 0, NUM_PAGES, round);
        kmod_populate_all(&region, 0, NUM_PAGES, WRITE);
        kmod_watch_await(&watch);
        event(&region, region.memory + FIRST * PAGE, COUNT * PAGE);
        check_middle(&region);
        kmod_check_values(&region, 0, FIRST, round);
    }
    kmod_watch_stop(&watch);
    kmod_region_destroy(&region);
}

/* A case whose event is the block that follows, on private memory */
#define EVENT_CASE(_name)                                                  \
    static void event_##_name(kmod_region_t *region, uint8_t *middle,      \
                              size_t length);                              \
    KMOD_CASE(notifier, _name)                                             \
    {                                                                      \
        run_event(kmod_map(NUM_PAGES * PAGE), event_##_name);              \
    }                                                                      \
    static void event_##_name(kmod_region_t *region, uint8_t *middle,      \
                              size_t length)

static void map_again(uint8_t *middle, size_t length)
{
    CHECK(mmap(middle, length, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == middle, "%m");
}

EVENT_CASE(munmap)
{
    CHECK_OK(munmap(middle, length));
    check_middle(region);
    CHECK_EQ(kmod_populate(region, FIRST, 1, 0, NULL), EFAULT);
    map_again(middle, length);
}

EVENT_CASE(free)
{
    (void)region;
    CHECK_OK(madvise(middle, length, MADV_FREE));
}

EVENT_CASE(protect)
{
    CHECK_OK(mprotect(middle, length, PROT_READ));
    check_middle(region);
    kmod_populate_all(region, FIRST, COUNT, 0);
    CHECK_EQ(kmod_populate(region, FIRST, COUNT, WRITE, NULL), EFAULT);
    CHECK_EQ(kmod_count(region, FIRST, COUNT, NPRDMA_PAGE_R), COUNT);
    CHECK_OK(mprotect(middle, length, PROT_NONE));
    check_middle(region);
    CHECK_EQ(kmod_populate(region, FIRST, 1, 0, NULL), EFAULT);
    CHECK_OK(mprotect(middle, length, PROT_READ | PROT_WRITE));
}

EVENT_CASE(mremap)
{
    uint32_t first = *(uint32_t*)middle;
    uint8_t *moved;

    moved = mremap(middle, length, length, MREMAP_MAYMOVE | MREMAP_FIXED,
                   kmod_map(length));
    CHECK(moved != MAP_FAILED, "%m");
    check_middle(region);
    CHECK_EQ(*(uint32_t*)moved, first);
    CHECK_EQ(kmod_populate(region, FIRST, 1, 0, NULL), EFAULT);
    CHECK(mremap(moved, length, length, MREMAP_MAYMOVE | MREMAP_FIXED,
                 middle) == middle, "%m");
    CHECK_EQ(*(uint32_t*)middle, first);
}

static void wait_for_end(void *arg)
{
    int *pipes = arg;
    char byte;

    close(pipes[1]);
    CHECK_EQ(read(pipes[0], &byte, 1), 0);
}

/* The parent's pages become read-only; its next write copies them */
EVENT_CASE(fork)
{
    uint32_t first = *(volatile uint32_t*)middle;
    int pipes[2];
    pid_t pid;

    CHECK_OK(pipe(pipes));
    pid = kmod_fork(wait_for_end, pipes);
    CHECK_EQ(kmod_count(region, 0, NUM_PAGES, 0), NUM_PAGES);
    /* Populating for reading copies no page */
    kmod_populate_all(region, FIRST, COUNT, 0);
    *(volatile uint32_t*)middle = first + 1;
    CHECK_EQ(kmod_count(region, FIRST, 1, 0), 1);
    kmod_populate_all(region, 0, NUM_PAGES, WRITE);
    *(volatile uint32_t*)middle = first + 2;
    CHECK_EQ(kmod_count(region, FIRST, 1, NPRDMA_PAGE_BITS), 1);
    close(pipes[0]);
    close(pipes[1]);
    CHECK_EQ(kmod_wait(pid), 0);
    CHECK_OK(madvise(middle, length, MADV_DONTNEED));
}

/* Soft-dirty bits */
EVENT_CASE(clear_refs)
{
    CHECK_EQ(kmod_write_file("/proc/self/clear_refs", "4"), 0);
    CHECK_EQ(kmod_count(region, 0, NUM_PAGES, 0), NUM_PAGES);
    kmod_populate_all(region, 0, NUM_PAGES, WRITE);
    CHECK_OK(madvise(middle, length, MADV_DONTNEED));
}

/*
 * Huge pages are formed and split under a region. The kernel skips pages that
 * are in use at that moment, whatever uses them.
 */
EVENT_CASE(collapse_and_split)
{
    uint64_t end = kmod_deadline();
    char text[128];

    CHECK_OK(madvise(middle, length, MADV_HUGEPAGE));
    while (madvise(middle, length, MADV_COLLAPSE) != 0) {
        CHECK(((errno == EAGAIN) || (errno == EBUSY)) && (kmod_time_ms() < end),
              "%m");
    }
    check_middle(region);
    /* khugepaged must not make one again, of which the next round would not
     * learn */
    CHECK_OK(madvise(middle, length, MADV_NOHUGEPAGE));
    kmod_populate_all(region, 0, NUM_PAGES, WRITE);
    snprintf(text, sizeof(text), "%d,%#lx,%#lx", getpid(), (long)middle,
             (long)middle + length);
    while (kmod_count(region, FIRST, COUNT, 0) < COUNT) {
        CHECK(kmod_time_ms() < end);
        CHECK_EQ(kmod_write_file("/sys/kernel/debug/split_huge_pages", text),
                 0);
    }
}

static int shared_fd;

static void *map_shared(unsigned flags)
{
    void *memory;

    shared_fd = memfd_create("kmod", MFD_CLOEXEC | flags);
    CHECK(shared_fd >= 0, "%m");
    CHECK_OK(ftruncate(shared_fd, NUM_PAGES * PAGE));
    memory = mmap(NULL, NUM_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED,
                  shared_fd, 0);
    CHECK(memory != MAP_FAILED, "%m");
    return memory;
}

static void event_remove(kmod_region_t *region, uint8_t *middle, size_t length)
{
    (void)region;
    CHECK_OK(madvise(middle, length, MADV_REMOVE));
}

/* The file loses all pages from the middle on, and has new ones afterwards */
static void event_truncate(kmod_region_t *region, uint8_t *middle,
                           size_t length)
{
    CHECK_OK(ftruncate(shared_fd, FIRST * PAGE));
    CHECK_EQ(kmod_count(region, FIRST, NUM_PAGES - FIRST, 0),
             NUM_PAGES - FIRST);
    CHECK_EQ(kmod_count(region, 0, FIRST, NPRDMA_PAGE_BITS), FIRST);
    CHECK_EQ(kmod_populate(region, FIRST, 1, 0, NULL), EFAULT);
    CHECK_OK(ftruncate(shared_fd, NUM_PAGES * PAGE));
    kmod_populate_all(region, 0, NUM_PAGES, WRITE);
    event_remove(region, middle, length);
}

static void map_over(uint8_t *middle, size_t length)
{
    uint8_t *other = kmod_map(length);

    CHECK(mremap(other, length, length, MREMAP_MAYMOVE | MREMAP_FIXED,
                 middle) == middle, "%m");
}

static void unmap_and_map(uint8_t *middle, size_t length)
{
    CHECK_OK(munmap(middle, length));
    map_again(middle, length);
}

static void move_and_map(uint8_t *middle, size_t length)
{
    CHECK(mremap(middle, length, length, MREMAP_MAYMOVE | MREMAP_FIXED,
                 kmod_map(length)) != MAP_FAILED, "%m");
    map_again(middle, length);
}

static void attach_and_detach(uint8_t *middle, size_t length)
{
    int id = shmget(IPC_PRIVATE, length, IPC_CREAT | 0600);

    CHECK(shmat(id, middle, SHM_REMAP) == middle, "%m");
    CHECK_OK(shmctl(id, IPC_RMID, NULL));
    CHECK_OK(shmdt(middle));
    map_again(middle, length);
}

static void keep(uint8_t *middle, size_t length)
{
    CHECK_OK(madvise(middle, length, MADV_DONTNEED));
    CHECK_OK(mprotect(middle, length, PROT_NONE));
    CHECK_OK(mprotect(middle, length, PROT_READ | PROT_WRITE));
    CHECK_OK(madvise(middle, length, MADV_FREE));
}

/* How many of a region's pages are retired, as its user reads it */
static size_t count_retired(const kmod_region_t *region)
{
    const uint8_t *bits = (const uint8_t*)region->words +
                          (region->num_pages * 4 + PAGE - 1) / PAGE * PAGE;
    size_t i, count     = 0;

    for (i = 0; i < region->num_pages; ++i) {
        count += (bits[i / 8] >> (i % 8)) & 1;
    }
    return count;
}

/* What replaces memory is for the next registration only, page by page */
KMOD_CASE(notifier, retired)
{
    static void (*const ways[])(uint8_t *middle, size_t length) = {
        unmap_and_map, map_again, map_over, move_and_map, attach_and_detach
    };
    kmod_region_t region;
    uint32_t id;
    size_t i;

    kmod_region_create_as(&region, kmod_open(), kmod_map(NUM_PAGES * PAGE),
                          NUM_PAGES * PAGE, NPRDMA_IOC_REGION_RETIRE);
    for (i = 0; i < sizeof(ways) / sizeof(*ways); ++i) {
        kmod_populate_all(&region, 0, NUM_PAGES, WRITE);
        keep(region.memory + FIRST * PAGE, COUNT * PAGE);
        CHECK_EQ(count_retired(&region), 0);
        kmod_populate_all(&region, 0, NUM_PAGES, WRITE);
        ways[i](region.memory + FIRST * PAGE, COUNT * PAGE);
        check_middle(&region);
        CHECK_EQ(count_retired(&region), COUNT);
        CHECK_EQ(kmod_populate(&region, FIRST, 1, 0, NULL), EACCES);
        CHECK_EQ(kmod_populate(&region, FIRST + COUNT - 1, 1, WRITE, NULL),
                 EACCES);
        CHECK_EQ(kmod_register(&region, FIRST * PAGE, COUNT * PAGE, &id), 0);
        CHECK_EQ(kmod_populate(&region, FIRST, COUNT, RESIDENT, NULL), EACCES);
        check_middle(&region);

        CHECK_EQ(kmod_register_as(&region, (FIRST + 1) * PAGE, PAGE,
                                  NPRDMA_IOC_REGISTER_READMIT, &id), 0);
        CHECK_EQ(kmod_populate(&region, FIRST + 1, 2, WRITE, NULL), EACCES);
        CHECK_EQ(kmod_count(&region, FIRST, COUNT, NPRDMA_PAGE_BITS), 1);
        CHECK_EQ(kmod_register_as(&region, 0, NUM_PAGES * PAGE,
                                  NPRDMA_IOC_REGISTER_READMIT, &id), 0);
        CHECK_EQ(count_retired(&region), 0);
    }
}

/* A page is taken when the file loses it, by whatever process */
KMOD_CASE(notifier, shmem)
{
    run_event(map_shared(0), event_truncate);
}

#define NR_HUGEPAGES "/proc/sys/vm/nr_hugepages"

/* Memory may be fragmented, and each attempt defragments more of it */
static int has_huge_pages(void *unused)
{
    (void)unused;
    kmod_write_number(NR_HUGEPAGES, 8);
    return kmod_read_number(NR_HUGEPAGES, "") == 8;
}

KMOD_CASE(notifier, hugetlb)
{
    CHECK(kmod_await(has_huge_pages, NULL));
    run_event(map_shared(MFD_HUGETLB), event_truncate);
    kmod_write_number(NR_HUGEPAGES, 0);
}

/* --- userfaultfd --------------------------------------------------------- */

#define WORD 0x1234567812345678ull

/* Answers one fault with a page of WORD, and returns the address */
static void *supply_page(void *arg)
{
    int uffd = *(int*)arg;
    uint64_t page[PAGE / sizeof(uint64_t)];
    struct uffdio_copy copy = {
        .src = (uintptr_t)page, .len = PAGE
    };
    struct uffd_msg msg;
    size_t i;

    for (i = 0; i < PAGE / sizeof(uint64_t); ++i) {
        page[i] = WORD;
    }
    CHECK_EQ(read(uffd, &msg, sizeof(msg)), sizeof(msg));
    CHECK_EQ(msg.event, UFFD_EVENT_PAGEFAULT);
    copy.dst = msg.arg.pagefault.address & ~(PAGE - 1);
    CHECK_OK(ioctl(uffd, UFFDIO_COPY, &copy));
    return (void*)(uintptr_t)copy.dst;
}

static int watch_missing(uint8_t *memory, size_t length)
{
    struct uffdio_api api               = {.api = UFFD_API};
    struct uffdio_register registration = {
        .range = {.start = (uintptr_t)memory, .len = length},
        .mode  = UFFDIO_REGISTER_MODE_MISSING
    };
    int uffd = syscall(SYS_userfaultfd, O_CLOEXEC);

    CHECK(uffd >= 0, "%m");
    CHECK_OK(ioctl(uffd, UFFDIO_API, &api));
    CHECK_OK(ioctl(uffd, UFFDIO_REGISTER, &registration));
    return uffd;
}

/* POPULATE says that a userfaultfd has to supply a page, an access by the
 * process succeeds, and then the page can be populated */
KMOD_CASE(notifier, userfaultfd)
{
    enum { PAGES = 8, MISSING = 5 };
    struct nprdma_ioc_populate arg;
    kmod_region_t region;
    pthread_t thread;
    uint8_t *memory;
    unsigned flags;
    void *address;
    int uffd;

    kmod_region(&region, PAGES);
    memory = region.memory;
    kmod_put_values(&region, 0, MISSING, 1);
    uffd = watch_missing(memory, PAGES * PAGE);
    for (flags = 0; flags <= WRITE; flags += WRITE) {
        CHECK_EQ(kmod_populate(&region, 0, PAGES, flags, &arg), ENODATA);
        CHECK_EQ(arg.done, (uintptr_t)memory + MISSING * PAGE);
        CHECK_EQ(kmod_count(&region, MISSING, 1, 0), 1);
    }
    /* Those that are there are populated, and the others are skipped */
    CHECK_EQ(kmod_populate(&region, 0, PAGES, RESIDENT, NULL), 0);
    CHECK_EQ(kmod_count(&region, 0, MISSING, NPRDMA_PAGE_BITS), MISSING);

    /* The process waits for the page, as in a copy of the data */
    CHECK_EQ(pthread_create(&thread, NULL, supply_page, &uffd), 0);
    CHECK_EQ(*(volatile uint64_t*)(memory + MISSING * PAGE), WORD);
    CHECK_EQ(pthread_join(thread, &address), 0);
    CHECK(address == memory + MISSING * PAGE, "%p", address);
    kmod_populate_all(&region, 0, MISSING + 1, WRITE);

    /* Other errors are still told apart */
    CHECK_OK(mprotect(memory, PAGE, PROT_NONE));
    CHECK_EQ(kmod_populate(&region, 0, 1, 0, NULL), EFAULT);
    CHECK_OK(munmap(memory, PAGE));
    CHECK_EQ(kmod_populate(&region, 0, 1, 0, NULL), EFAULT);
}
