/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What a process leaves for nprdma-run, in the directory that NPRDMA_RUN names:
 * one record (nprdma_record_text.h) and its pages of counters
 * (nprdma_counters.h). The script reads them when its command has ended,
 * however the process ended. Errors are ignored, because the job matters more
 * than its statistics. Without NPRDMA_RUN nothing here makes a system call, and
 * programs with the rights of two users ignore it. */

#ifndef UCT_NPRDMA_RECORD_H_
#define UCT_NPRDMA_RECORD_H_

/* Values of the key "state" */
#define UCT_NPRDMA_RECORD_REFUSED  "refused" /* The component does not load */
#define UCT_NPRDMA_RECORD_LOADED   "loaded"
#define UCT_NPRDMA_RECORD_OPENED   "opened"  /* The first interface is open */
#define UCT_NPRDMA_RECORD_CLOSED   "closed"  /* No memory domain is open */


/* Choose the names of the files: called once, before the other functions */
void uct_nprdma_record_init(void);


/* Write the record of this process, with further lines "KEY VALUE", in place of
 * the one before. Preserves errno. */
void uct_nprdma_record_write(const char *state, const char *lines);


/* From now on the record has the first errors and warnings that UCX prints, as
 * they say why there is no interface. Only for a UCX that this was built for.
 */
void uct_nprdma_record_listen(void);


/* Make a file for a page of counters, filled with zeros: without its memory, a
 * write to the page would be SIGBUS later. The caller closes it; -1 after an
 * error. */
int uct_nprdma_record_page(void);

#endif
