// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

#include <linux/mm.h>

/* 6.3: flags of a mapping are changed by a function, not by assignment */
void nprdma_probe(struct vm_area_struct *vma);
void nprdma_probe(struct vm_area_struct *vma)
{
	vm_flags_mod(vma, VM_DONTCOPY, VM_MAYWRITE);
}
