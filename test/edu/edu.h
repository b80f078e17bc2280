/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * What a device does to memory: QEMU's edu, driven by a module of the tests.
 */

#ifndef NPRDMA_TEST_EDU_H
#define NPRDMA_TEST_EDU_H

#include "../kmod/kmod_test.h"
#include "module/nprdma_edu.h"

/* Bytes of a DMA: less than the device can do, all of them compared */
#define EDU_DMA 512

/* Open the device, or end the case as not run */
int edu_open(void);

/* Its PCI address */
void edu_name(int edu, char *name, size_t size);

/* Have the device read a word again and again at an offset of its target:
 * fails the test if it is not the same everywhere */
uint64_t edu_read(int edu, uint64_t offset);

void edu_read_bytes(int edu, uint64_t offset, void *data, uint32_t length);

/* Have the device write a word again and again */
void edu_write(int edu, uint64_t offset, uint64_t word);

void edu_release(int edu);

/* Fill a page of memory with a word, or ask whether all of it is that word */
void edu_fill(void *page, uint64_t word);
int edu_holds(const void *page, uint64_t word);

#endif
