/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#undef TRACE_SYSTEM
#define TRACE_SYSTEM nprdma

#if !defined(NPRDMA_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define NPRDMA_TRACE_H

#include <linux/tracepoint.h>

/* A region is named by the process of its context, tgid, and its id */

/* The kernel is about to take pages; event is an enum mmu_notifier_event */
TRACE_EVENT(nprdma_invalidate,
	TP_PROTO(pid_t tgid, u32 region, unsigned long start,
		 unsigned long end, int event, unsigned long lost),
	TP_ARGS(tgid, region, start, end, event, lost),
	TP_STRUCT__entry(
		__field(pid_t, tgid)
		__field(u32, region)
		__field(unsigned long, start)
		__field(unsigned long, end)
		__field(int, event)
		__field(unsigned long, lost)
	),
	TP_fast_assign(
		__entry->tgid = tgid;
		__entry->region = region;
		__entry->start = start;
		__entry->end = end;
		__entry->event = event;
		__entry->lost = lost;
	),
	TP_printk("tgid=%d region=%u start=%#lx end=%#lx event=%d lost=%lu",
		  __entry->tgid, __entry->region, __entry->start,
		  __entry->end, __entry->event, __entry->lost)
);

/* A call of NPRDMA_IOC_POPULATE has ended */
TRACE_EVENT(nprdma_populate,
	TP_PROTO(pid_t tgid, u32 region, unsigned long first, unsigned long n,
		 bool write, bool resident, unsigned long done, u64 populated,
		 u64 retries, int ret),
	TP_ARGS(tgid, region, first, n, write, resident, done, populated,
		retries, ret),
	TP_STRUCT__entry(
		__field(pid_t, tgid)
		__field(u32, region)
		__field(unsigned long, first)
		__field(unsigned long, n)
		__field(bool, write)
		__field(bool, resident)
		__field(unsigned long, done)
		__field(u64, populated)
		__field(u64, retries)
		__field(int, ret)
	),
	TP_fast_assign(
		__entry->tgid = tgid;
		__entry->region = region;
		__entry->first = first;
		__entry->n = n;
		__entry->write = write;
		__entry->resident = resident;
		__entry->done = done;
		__entry->populated = populated;
		__entry->retries = retries;
		__entry->ret = ret;
	),
	TP_printk("tgid=%d region=%u first=%lu pages=%lu write=%d resident=%d done=%lu populated=%llu retries=%llu ret=%d",
		  __entry->tgid, __entry->region, __entry->first, __entry->n,
		  __entry->write, __entry->resident, __entry->done,
		  __entry->populated, __entry->retries, __entry->ret)
);

/* A page cannot be populated: the target's software serves the operation */
TRACE_EVENT(nprdma_miss,
	TP_PROTO(pid_t tgid, u32 region, unsigned long page, int ret),
	TP_ARGS(tgid, region, page, ret),
	TP_STRUCT__entry(
		__field(pid_t, tgid)
		__field(u32, region)
		__field(unsigned long, page)
		__field(int, ret)
	),
	TP_fast_assign(
		__entry->tgid = tgid;
		__entry->region = region;
		__entry->page = page;
		__entry->ret = ret;
	),
	TP_printk("tgid=%d region=%u page=%lu ret=%d",
		  __entry->tgid, __entry->region, __entry->page, __entry->ret)
);

/* Views of devices were re-pointed: at frames, or away from them */
TRACE_EVENT(nprdma_repoint,
	TP_PROTO(pid_t tgid, u32 region, u32 bits, unsigned long first,
		 unsigned long n, bool present),
	TP_ARGS(tgid, region, bits, first, n, present),
	TP_STRUCT__entry(
		__field(pid_t, tgid)
		__field(u32, region)
		__field(u32, bits)
		__field(unsigned long, first)
		__field(unsigned long, n)
		__field(bool, present)
	),
	TP_fast_assign(
		__entry->tgid = tgid;
		__entry->region = region;
		__entry->bits = bits;
		__entry->first = first;
		__entry->n = n;
		__entry->present = present;
	),
	TP_printk("tgid=%d region=%u bits=%u first=%lu pages=%lu present=%d",
		  __entry->tgid, __entry->region, __entry->bits,
		  __entry->first, __entry->n, __entry->present)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE nprdma_trace
#include <trace/define_trace.h>
