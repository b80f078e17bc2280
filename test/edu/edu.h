/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * DMA by QEMU's edu device, driven by a test module, to a region of this
 * process.
 */

#ifndef NPRDMA_TEST_EDU_H
#define NPRDMA_TEST_EDU_H

#include "../kmod/kmod_test.h"
#include "module/nprdma_edu.h"

/* Bytes of a DMA: less than the device can do; all of them are compared */
#define EDU_DMA 512

/* Pages of a region: several leaf tables, and no multiple of a power of two */
#define NPAGES 1203

typedef struct {
    kmod_region_t     region;
    int               edu;
    int               dmabuf;
    uint64_t          signature;
    volatile uint64_t *words; /* the memory */
} fixture_t;

/* Open the device, or skip the case */
int edu_open(void);

/* Its PCI address */
void edu_name(int edu, char *name, size_t size);

/* A context, a device, and an exported region with this many pages */
void setup_region(fixture_t *f, size_t num_pages);

/* The same with NPAGES, and the device has imported it */
void setup(fixture_t *f);

/* @return 0 or the errno value; *@a arg is what the call returned. */
int check_named(int ctx, const char *name, struct nprdma_ioc_check_device *arg);

/* Of the edu */
int check_edu(int ctx, int edu, struct nprdma_ioc_check_device *arg);

/* @return The dma-buf's descriptor. */
int export(kmod_region_t *region);

/* @return 0 or the errno value; *@a size, if not NULL, is the dma-buf's. */
int import(int edu, int dmabuf, uint64_t *size);

void edu_release(int edu);

/* Let the device read EDU_DMA bytes at an offset of what it has imported.
 * Returns the word that they consist of; fails the test if the words differ. */
uint64_t edu_read(int edu, uint64_t offset);

void edu_read_bytes(int edu, uint64_t offset, void *data, uint32_t length);

/* Let the device fill EDU_DMA bytes with a word */
void edu_write(int edu, uint64_t offset, uint64_t word);

/* Offsets of a page in the views, and of its state */
uint64_t in_r(size_t page);
uint64_t in_w(const fixture_t *f, size_t page);
uint64_t in_states(const fixture_t *f, size_t page);

/* A page's memory */
void *at(const fixture_t *f, size_t page);

/* Fill a page of memory with a word, or check that all of it is that word */
void edu_fill(const fixture_t *f, size_t page, uint64_t word);
int edu_holds(const fixture_t *f, size_t page, uint64_t word);

/* Each dma-buf and each import holds a reference of the module */
int is_unused(void *unused);

#endif
