/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR BSD-3-Clause */
/* Copyright (c) 2026 The nprdma authors. */

/*
 * /dev/nprdma_edu: lets tests control the device. An open file may have imported
 * a dma-buf. DMA goes to offsets in it.
 */

#ifndef NPRDMA_EDU_H
#define NPRDMA_EDU_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define NPRDMA_EDU_PATH "/dev/nprdma_edu"

/* QEMU's edu has a buffer of 4096 bytes, of which QEMU 7.2 refuses to use
 * all */
#define NPRDMA_EDU_MAX_DMA 2048

struct nprdma_edu_info {
    char name[32]; /* out: PCI address */
};

/* Import a dma-buf, like an RDMA driver for a memory region */
struct nprdma_edu_import {
    __s32 fd;
    __u32 segments; /* out: number of contiguous ranges of addresses */
    __u64 size;     /* out */
};

/* Let the device read what was imported, or write to it, within one page */
struct nprdma_edu_dma {
    __u64 offset;
    __u64 data; /* address of length bytes */
    __u32 length;
    __u32 write;
};

#define NPRDMA_EDU_IOC_INFO    _IOR(0xf6, 0, struct nprdma_edu_info)
#define NPRDMA_EDU_IOC_IMPORT  _IOWR(0xf6, 1, struct nprdma_edu_import)
#define NPRDMA_EDU_IOC_RELEASE _IO(0xf6, 2)
#define NPRDMA_EDU_IOC_DMA     _IOW(0xf6, 3, struct nprdma_edu_dma)

#endif
