/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * DMA by QEMU's edu device, driven by a test module.
 */

#ifndef NPRDMA_TEST_EDU_H
#define NPRDMA_TEST_EDU_H

#include "../kmod/kmod_test.h"
#include "module/nprdma_edu.h"

/* Bytes of a DMA: less than the device can do; all of them are compared */
#define EDU_DMA 512

/* Open the device, or skip the case */
int edu_open(void);

/* Its PCI address */
void edu_name(int edu, char *name, size_t size);

/* Let the device read EDU_DMA bytes at an offset of its target. Returns the
 * word that they consist of; fails the test if the words differ. */
uint64_t edu_read(int edu, uint64_t offset);

void edu_read_bytes(int edu, uint64_t offset, void *data, uint32_t length);

/* Let the device fill EDU_DMA bytes with a word */
void edu_write(int edu, uint64_t offset, uint64_t word);

void edu_release(int edu);

/* Fill a page of memory with a word, or check that all of it is that word */
void edu_fill(void *page, uint64_t word);
int edu_holds(const void *page, uint64_t word);

#endif
