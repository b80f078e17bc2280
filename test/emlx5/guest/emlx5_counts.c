/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * emlx5_counts DEVICE: prints the counters of the model behind an RDMA device,
 * as lines "NAME: VALUE". firmware/emlx5_monitor.h has their places.
 *
 * emlx5_counts DEVICE NAME [VALUE]: prints the value of one; with VALUE as soon
 * as it is as much. Scripts wait so for something that no program reports.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    MONITOR = 0x6000,
    SIZE    = 0x1000,
    STATS   = 0x100 / 8,
    DMA     = 0x400 / 8,
    SECONDS = 60 /* to wait for a value */
};

/* In their order */
static const char *const stats[] = {
    "commands", "failed commands", "doorbells", "bad doorbells", "sends",
    "writes", "reads", "atomics", "datagrams", "umrs", "failed requests",
    "dropped datagrams", "cqes", "eqes", "interrupts", "sent packets",
    "sent bytes", "received packets", "received bytes", "maps", "unmaps"
};
static const char *const dma[] = {
    "dma reads", "dma read bytes", "dma writes", "dma write bytes",
    "dma refused"
};

enum {
    NUM_STATS = sizeof(stats) / sizeof(stats[0]),
    NUM_DMA   = sizeof(dma) / sizeof(dma[0])
};

static const volatile uint64_t *map_monitor(const char *device)
{
    const volatile uint64_t *page;
    char path[300];
    void *mapped;
    int fd;

    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device/resource0",
             device);
    fd     = open(path, O_RDWR);
    mapped = (fd < 0) ? MAP_FAILED :
             mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, MONITOR);
    if (mapped == MAP_FAILED) {
        fprintf(stderr, "emlx5_counts: %s: %s (iomem=relaxed?)\n", path,
                strerror(errno));
        exit(1);
    }
    page = mapped;
    if (page[0] != UINT64_C(0x35786c6d65)) {
        fprintf(stderr, "emlx5_counts: %s: not emulated\n", device);
        exit(1);
    }
    return page;
}

static void print_all(const volatile uint64_t *values, const char *const *names,
                      size_t count)
{
    size_t i;

    for (i = 0; i < count; ++i) {
        printf("%s: %" PRIu64 "\n", names[i], values[i]);
    }
}

static const volatile uint64_t *
find_in(const volatile uint64_t *values, const char *const *names, size_t count,
        const char *name)
{
    size_t i;

    for (i = 0; i < count; ++i) {
        if (!strcmp(name, names[i])) {
            return &values[i];
        }
    }
    return NULL;
}

static int await(const volatile uint64_t *counter, uint64_t value,
                 const char *name)
{
    time_t end = time(NULL) + SECONDS;

    while (*counter < value) {
        if (time(NULL) > end) {
            fprintf(stderr, "emlx5_counts: %s: %" PRIu64 ", not %" PRIu64 "\n",
                    name, *counter, value);
            return 1;
        }
        usleep(1000);
    }
    printf("%" PRIu64 "\n", *counter);
    return 0;
}

int main(int argc, char **argv)
{
    const volatile uint64_t *page, *counter;

    if ((argc < 2) || (argc > 4)) {
        fprintf(stderr, "usage: emlx5_counts DEVICE [NAME [VALUE]]\n");
        return 2;
    }
    page = map_monitor(argv[1]);
    if (argc == 2) {
        print_all(page + STATS, stats, NUM_STATS);
        print_all(page + DMA, dma, NUM_DMA);
        return 0;
    }
    counter = find_in(page + STATS, stats, NUM_STATS, argv[2]);
    if (counter == NULL) {
        counter = find_in(page + DMA, dma, NUM_DMA, argv[2]);
    }
    if (counter == NULL) {
        fprintf(stderr, "emlx5_counts: no counter %s\n", argv[2]);
        return 2;
    }
    return await(counter, (argc == 4) ? strtoull(argv[3], NULL, 0) : 0,
                 argv[2]);
}
