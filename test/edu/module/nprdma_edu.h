/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR BSD-3-Clause */
/* Copyright (c) 2026 The nprdma authors. */

/*
 * /dev/nprdma_edu: lets tests control the device. An open file has one target
 * at a time: an imported dma-buf, or a window made for the test alone. DMA goes
 * to offsets in the target.
 */

#ifndef NPRDMA_EDU_H
#define NPRDMA_EDU_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define NPRDMA_EDU_PATH "/dev/nprdma_edu"

/* QEMU's edu has a buffer of 4096 bytes, of which QEMU 7.2 refuses to use
 * all */
#define NPRDMA_EDU_MAX_DMA 2048

/* Pages of the driver that windows can be pointed at; mmap() maps them */
#define NPRDMA_EDU_PAGES 16

/* Instead of a page's number: the page that absent entries point at */
#define NPRDMA_EDU_REST (~0u)

#define NPRDMA_EDU_WHY 256

struct nprdma_edu_info {
    char  name[32]; /* out: PCI address */
    __u64 dma_mask; /* out */
};

/* Import a dma-buf, like an RDMA driver for a memory region */
struct nprdma_edu_import {
    __s32 fd;
    __u32 segments; /* out: number of contiguous ranges of addresses */
    __u64 size;     /* out */
};

struct nprdma_edu_window {
    __u64 npages;
    __u64 pattern; /* contents of the page that absent entries point at */
    __u32 writable;
    __u32 reserved;
    char  why[NPRDMA_EDU_WHY]; /* out, if it fails */
};

/* Point pages of the window. Without flush the device may use old entries. */
struct nprdma_edu_point {
    __u64 index;
    __u32 count; /* number of pages, all flushed at once */
    __u32 page;  /* the first of count pages, or NPRDMA_EDU_REST for all */
    __u32 flush;
    __u32 reserved;
};

/* Let the device read from the target, or write to it, within one page */
struct nprdma_edu_dma {
    __u64 offset;
    __u64 data; /* address of length bytes */
    __u32 length;
    __u32 write;
};

/* Point a page of the window alternately at two adjacent pages */
struct nprdma_edu_flip {
    __u64 index;
    __u32 page;  /* first of the two pages */
    __u32 unmap; /* with iommu_unmap() and iommu_map(), as a control */
    __u64 count;
    __u64 nsec;  /* out: total time */
};

/* Address of an offset of the target for the device */
struct nprdma_edu_address {
    __u64 offset;
    __u64 address; /* out */
};

/* A register of the device, 64 bits */
struct nprdma_edu_register {
    __u32 offset;
    __u32 write;
    __u64 value;
};

#define NPRDMA_EDU_IOC_INFO     _IOR(0xf6, 0, struct nprdma_edu_info)
#define NPRDMA_EDU_IOC_IMPORT   _IOWR(0xf6, 1, struct nprdma_edu_import)
#define NPRDMA_EDU_IOC_WINDOW   _IOWR(0xf6, 2, struct nprdma_edu_window)
#define NPRDMA_EDU_IOC_RELEASE  _IO(0xf6, 3)
#define NPRDMA_EDU_IOC_POINT    _IOW(0xf6, 4, struct nprdma_edu_point)
#define NPRDMA_EDU_IOC_DMA      _IOW(0xf6, 5, struct nprdma_edu_dma)
#define NPRDMA_EDU_IOC_FLIP     _IOWR(0xf6, 6, struct nprdma_edu_flip)
#define NPRDMA_EDU_IOC_REGISTER _IOWR(0xf6, 7, struct nprdma_edu_register)
#define NPRDMA_EDU_IOC_ADDRESS  _IOWR(0xf6, 8, struct nprdma_edu_address)

/*
 * vfio_edu.py's addition to QEMU's edu: a burst of DMA that runs while the
 * processor does something else. Operation i fills line i of the first half of
 * a page with its number, base + i, and reads the second half, in which all
 * words must be equal. Writing the count starts the burst. Reading it returns
 * the number of operations left.
 */
#define NPRDMA_EDU_BURST_MAGIC   0xf8 /* reads as NPRDMA_EDU_BURST */
#define NPRDMA_EDU_BURST_ADDRESS 0x100
#define NPRDMA_EDU_BURST_BASE    0x108
#define NPRDMA_EDU_BURST_COUNT   0x110
#define NPRDMA_EDU_BURST_FAULTS  0x118 /* this burst, like the following */
#define NPRDMA_EDU_BURST_TORN    0x120
#define NPRDMA_EDU_BURST_FIRST   0x128 /* reads of NPRDMA_EDU_BURST_WORD */
#define NPRDMA_EDU_BURST_SECOND  0x130 /* of the word after that */

#define NPRDMA_EDU_BURST         0x74737275626d6f72ull
#define NPRDMA_EDU_BURST_LINES   32
#define NPRDMA_EDU_BURST_WORD    0x1111111111111111ull

#endif
