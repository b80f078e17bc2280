/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* nprdma-check DEVICE...: asks the kernel module whether devices can have
 * views. For nprdma-env --check. */

#include <nprdma_uapi.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

/* Returns whether the device can be used */
static int check_device(int ctx, const char *name)
{
    struct nprdma_ioc_check_device arg = { .size = sizeof(arg) };
    int ret;

    if (strlen(name) >= sizeof(arg.name)) {
        printf("%s: no device has such a long name\n", name);
        return 0;
    }
    strcpy(arg.name, name);
    ret = ioctl(ctx, NPRDMA_IOC_CHECK_DEVICE, &arg);
    if (ret == 0) {
        printf("%s: zero copy, %s\n", name, arg.why);
    } else {
        printf("%s: copy mode, %s\n", name,
               arg.why[0] ? arg.why : strerror(errno));
    }
    if (arg.device & NPRDMA_DEVICE_KNOWN) {
        printf("%s: I/O addresses: %llu of %llu bytes in use\n", name,
               (unsigned long long)arg.iova_bytes,
               (unsigned long long)arg.max_iova_bytes);
    }
    return ret == 0;
}

int main(int argc, char **argv)
{
    int ctx    = open(NPRDMA_DEVICE_PATH, O_RDWR | O_CLOEXEC);
    int status = 0;
    int i;

    if (ctx < 0) {
        printf("%s: %s\n", NPRDMA_DEVICE_PATH, strerror(errno));
        return 1;
    }
    for (i = 1; i < argc; ++i) {
        if (!check_device(ctx, argv[i])) {
            status = 1;
        }
    }
    return status;
}
