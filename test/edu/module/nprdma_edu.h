/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR BSD-3-Clause */
/* Copyright (c) 2026 The nprdma authors. */

/*
 * /dev/nprdma_edu: what the tests have a device do. An open file has one target
 * at a time, a dma-buf that was imported or a window that was made for the test
 * alone; DMA goes to offsets in it.
 */

#ifndef NPRDMA_EDU_H
#define NPRDMA_EDU_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define NPRDMA_EDU_PATH "/dev/nprdma_edu"

/* QEMU's edu has a buffer of 4096 bytes, but QEMU 7.2 refuses to use it all */
#define NPRDMA_EDU_MAX_DMA 2048

/* Pages of the driver that a window can be pointed at; mmap() shows them */
#define NPRDMA_EDU_PAGES 16

/* Instead of a page's number: where the window rests */
#define NPRDMA_EDU_REST (~0u)

#define NPRDMA_EDU_WHY 256

struct nprdma_edu_info {
    char  name[32]; /* out: PCI address */
    __u64 dma_mask; /* out */
};

/* As an RDMA driver imports what it was given for a memory region */
struct nprdma_edu_import {
    __s32 fd;
    __u32 segments; /* out: of contiguous addresses */
    __u64 size;     /* out */
};

struct nprdma_edu_window {
    __u64 npages;
    __u64 pattern; /* of the pages it rests on */
    __u32 writable;
    __u32 reserved;
    char  why[NPRDMA_EDU_WHY]; /* out, if it fails */
};

/* Point pages of the window. Without flush the device need not notice. */
struct nprdma_edu_point {
    __u64 index;
    __u32 count; /* of pages, all flushed at once */
    __u32 page;  /* the first of as many, or NPRDMA_EDU_REST for all */
    __u32 flush;
    __u32 reserved;
};

/* The device reads from the target, or writes to it; within one page */
struct nprdma_edu_dma {
    __u64 offset;
    __u64 data; /* address of length bytes */
    __u32 length;
    __u32 write;
};

/* Point a page of the window forth and back, from one page to the next */
struct nprdma_edu_flip {
    __u64 index;
    __u32 page;  /* first of two neighbours */
    __u32 unmap; /* with iommu_unmap() and iommu_map(), as a control */
    __u64 count;
    __u64 nsec;  /* out: for all of it */
};

/* Where the device sees an offset of the target */
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
 * What vfio_edu.py has beyond QEMU's edu: a burst of DMA that goes on while the
 * processor does something else. Operation i writes its number, base + i, all
 * over line i of the first half of a page, and reads the second half, which is
 * to consist of one word. A count of operations begins it; there it can be seen
 * how many are left.
 */
#define NPRDMA_EDU_BURST_MAGIC   0xf8 /* reads as NPRDMA_EDU_BURST */
#define NPRDMA_EDU_BURST_ADDRESS 0x100
#define NPRDMA_EDU_BURST_BASE    0x108
#define NPRDMA_EDU_BURST_COUNT   0x110
#define NPRDMA_EDU_BURST_FAULTS  0x118 /* from here on, since the beginning */
#define NPRDMA_EDU_BURST_TORN    0x120
#define NPRDMA_EDU_BURST_FIRST   0x128 /* reads of NPRDMA_EDU_BURST_WORD */
#define NPRDMA_EDU_BURST_SECOND  0x130 /* of the word after that */

#define NPRDMA_EDU_BURST         0x74737275626d6f72ull
#define NPRDMA_EDU_BURST_LINES   32
#define NPRDMA_EDU_BURST_WORD    0x1111111111111111ull

#endif
