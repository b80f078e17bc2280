/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* emlx5_counts DEVICE: prints the counters of the model behind an RDMA device
 * as lines "NAME: VALUE". firmware/emlx5_monitor.h has their places. */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MONITOR = 0x6000, SIZE = 0x1000, STATS = 0x100 / 8, DMA = 0x400 / 8 };

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

static void print_all(const volatile uint64_t *values, const char *const *names,
                      size_t count)
{
    size_t i;

    for (i = 0; i < count; ++i) {
        printf("%s: %" PRIu64 "\n", names[i], values[i]);
    }
}

int main(int argc, char **argv)
{
    const volatile uint64_t *page;
    char path[300];
    void *mapped;
    int fd;

    if (argc != 2) {
        fprintf(stderr, "usage: emlx5_counts DEVICE\n");
        return 2;
    }
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device/resource0",
             argv[1]);
    fd     = open(path, O_RDWR);
    mapped = (fd < 0) ? MAP_FAILED :
             mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, MONITOR);
    if (mapped == MAP_FAILED) {
        fprintf(stderr, "%s: %s (iomem=relaxed?)\n", path, strerror(errno));
        return 1;
    }
    page = mapped;
    if (page[0] != UINT64_C(0x35786c6d65)) {
        fprintf(stderr, "%s: not emulated\n", argv[1]);
        return 1;
    }
    print_all(page + STATS, stats, sizeof(stats) / sizeof(stats[0]));
    print_all(page + DMA, dma, sizeof(dma) / sizeof(dma[0]));
    return 0;
}
