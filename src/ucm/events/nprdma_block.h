/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_BLOCK_H_
#define NPRDMA_BLOCK_H_

#include "nprdma_hook.h"
#include "nprdma_lazy.h"

BEGIN_C_DECLS

/**
 * What lazy unmapping does to the memory of a block, by raw system calls: for
 * memory hooks. A block is private anonymous memory of whole pages. Memory that
 * is mapped anew has no lock, no policy, no protection key, no name, no seal
 * and no userfaultfd. So a block with a lock, a name or a seal, one that a
 * userfaultfd of the application watches, or one with parts that differ, is not
 * kept. Policy and key are reset, since no call tells whether there is one.
 *
 * Functions but @ref nprdma_block_init and @ref nprdma_block_cleanup may change
 * errno.
 */


/** Find out what the kernel has: PROCMAP_QUERY of Linux 6.11, PAGEMAP_SCAN of
 * 6.7, keys, userfaultfd. */
void nprdma_block_init(void);


/** Close the descriptors that @ref nprdma_block_init has opened. */
void nprdma_block_cleanup(void);


/**
 * Try with a page of its own whether memory can be closed, opened again and
 * unmapped. Behind @ref nprdma_block_init.
 *
 * @return Nonzero if so. Else the kernel refuses it, or locks new memory.
 */
int nprdma_block_works(void);


/**
 * Make a block inaccessible, if it is in all its bytes as mmap() makes memory
 * that may be read and written. From then on the kernel may take its pages when
 * memory is short, as free ones.
 *
 * @param [in] block  Whole pages.
 *
 * @return NPRDMA_LAZY_DONE, or NPRDMA_LAZY_REFUSED: it is to be unmapped.
 */
nprdma_lazy_result_t nprdma_block_close(nprdma_span_t block);


/**
 * Make a block that was closed accessible, with zeros in every byte. Pages that
 * are not present stay so.
 *
 * @param [in] block  As closed.
 *
 * @return NPRDMA_LAZY_DONE. NPRDMA_LAZY_REFUSED if the kernel refuses, or if
 *         new memory would be locked (mlockall). NPRDMA_LAZY_LOST if another
 *         mapping is there.
 */
nprdma_lazy_result_t nprdma_block_open(nprdma_span_t block);


/**
 * Unmap a block that was closed.
 *
 * @return NPRDMA_LAZY_DONE; NPRDMA_LAZY_REFUSED if the kernel refuses for now;
 *         NPRDMA_LAZY_LOST if another mapping is there, or one that the kernel
 *         will never unmap, because it is sealed.
 */
nprdma_lazy_result_t nprdma_block_unmap(nprdma_span_t block);

END_C_DECLS

#endif
