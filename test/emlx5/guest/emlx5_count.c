/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * emlx5_count DEVICE COUNTER [VALUE]: prints what the model has counted for a
 * function, with VALUE as soon as it is as much. Scripts wait so for something
 * that no program reports. COUNTER: commands, writes or umrs.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* firmware/emlx5_monitor.h; positions in emlx5_hca_stats_t */
enum { MONITOR = 0x6000, SIZE = 0x1000, STATS = 0x100 / 8, SECONDS = 60 };

static const struct {
    const char *name;
    int        index;
} counters[] = {{"commands", 0}, {"writes", 5}, {"umrs", 9}};

static int index_of(const char *name)
{
    size_t i;

    for (i = 0; i < sizeof(counters) / sizeof(counters[0]); ++i) {
        if (!strcmp(name, counters[i].name)) {
            return counters[i].index;
        }
    }
    fprintf(stderr, "emlx5_count: no counter %s\n", name);
    exit(2);
}

static const volatile uint64_t *map_monitor(const char *device)
{
    const volatile uint64_t *page;
    char path[300];
    int fd;

    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device/resource0",
             device);
    fd   = open(path, O_RDWR);
    page = (fd < 0) ? MAP_FAILED :
                      mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, MONITOR);
    if (page == MAP_FAILED) {
        fprintf(stderr, "emlx5_count: %s: %s (iomem=relaxed?)\n", path,
                strerror(errno));
        exit(1);
    }
    close(fd);
    return page;
}

int main(int argc, char **argv)
{
    const volatile uint64_t *counter;
    uint64_t value;
    time_t end = time(NULL) + SECONDS;

    if ((argc != 3) && (argc != 4)) {
        fprintf(stderr, "usage: emlx5_count DEVICE COUNTER [VALUE]\n");
        return 2;
    }
    value   = (argc == 4) ? strtoull(argv[3], NULL, 0) : 0;
    counter = map_monitor(argv[1]) + STATS + index_of(argv[2]);
    while (*counter < value) {
        if (time(NULL) > end) {
            fprintf(stderr, "emlx5_count: %s of %s: %llu, not %llu\n", argv[2],
                    argv[1], (unsigned long long)*counter,
                    (unsigned long long)value);
            return 1;
        }
        usleep(1000);
    }
    printf("%llu\n", (unsigned long long)*counter);
    return 0;
}
