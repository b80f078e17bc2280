/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Memory whose pages a userfaultfd supplies: POPULATE says so, an access by the
 * process succeeds, and then the page can be populated.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "kmod_test.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NUM_PAGES 8
#define MISSING   5
#define WORD      0x1234567812345678ull

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
    CHECK(ioctl(uffd, UFFDIO_COPY, &copy) == 0, "%m");
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
    CHECK(ioctl(uffd, UFFDIO_API, &api) == 0, "%m");
    CHECK(ioctl(uffd, UFFDIO_REGISTER, &registration) == 0, "%m");
    return uffd;
}

static void test_missing(void)
{
    uint8_t *memory = kmod_map(NUM_PAGES * PAGE);
    struct nprdma_ioc_populate arg;
    kmod_region_t region;
    pthread_t thread;
    unsigned flags;
    void *address;
    size_t i;
    int uffd;

    for (i = 0; i < MISSING; ++i) {
        memory[i * PAGE] = 1;
    }
    uffd = watch_missing(memory, NUM_PAGES * PAGE);
    kmod_region_create(&region, kmod_open(), memory, NUM_PAGES * PAGE);
    for (flags = 0; flags <= NPRDMA_IOC_POPULATE_WRITE;
         flags += NPRDMA_IOC_POPULATE_WRITE) {
        CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES, flags, &arg), ENODATA);
        CHECK_EQ(arg.done, (uintptr_t)memory + MISSING * PAGE);
        CHECK_EQ(kmod_count(&region, MISSING, 1, 0), 1);
    }
    /* Those that are there are populated, and the others are skipped */
    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES, NPRDMA_IOC_POPULATE_RESIDENT,
                           NULL), 0);
    CHECK_EQ(kmod_count(&region, 0, MISSING, NPRDMA_PAGE_BITS), MISSING);

    /* The process waits for the page, as in a copy of the data */
    CHECK_EQ(pthread_create(&thread, NULL, supply_page, &uffd), 0);
    CHECK_EQ(*(volatile uint64_t*)(memory + MISSING * PAGE), WORD);
    CHECK_EQ(pthread_join(thread, &address), 0);
    CHECK(address == memory + MISSING * PAGE, "%p", address);
    kmod_populate_all(&region, 0, MISSING + 1, NPRDMA_IOC_POPULATE_WRITE);

    /* Other errors are still told apart */
    CHECK(mprotect(memory, PAGE, PROT_NONE) == 0, "%m");
    CHECK_EQ(kmod_populate(&region, 0, 1, 0, NULL), EFAULT);
    CHECK(munmap(memory, PAGE) == 0, "%m");
    CHECK_EQ(kmod_populate(&region, 0, 1, 0, NULL), EFAULT);
    close(uffd);
}

int main(int argc, char **argv)
{
    static const kmod_case_t cases[] = {
        {"missing", test_missing},
        {NULL,      NULL}
    };

    return kmod_main(cases, argc, argv);
}
