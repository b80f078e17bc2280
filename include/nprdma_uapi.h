/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR BSD-3-Clause */
/* Copyright (c) 2026 The nprdma authors. */

/*
 * The binary interface between nprdma.ko and its users (ARCHITECTURE 5 and 7).
 * I/O addresses that stay while the pages behind them change are the idea of
 * NP-RDMA (arXiv 2310.11062).
 *
 * /dev/nprdma is opened once per process that has memory to offer: the open
 * file is a *context*, tied for good to the address space of the process that
 * opened it. In a context there are *regions*, page-aligned ranges of that
 * address space; in a region there are *registrations*, and only pages under a
 * registration are ever populated. All calls are ioctls on the open file, and
 * all of them fail with EPERM in every other address space: in a child made by
 * fork(), in the process itself after execve(), and in a process that received
 * the descriptor.
 *
 * Each region has a *states descriptor*. Mapping it, read-only, gives one
 * 32-bit word per page, which says if a NIC may read or write the page now. It
 * may be passed to other processes, which can map the states and do nothing
 * else.
 *
 * Every structure begins with its size and with flags, and only ever grows at
 * its end. A caller sets `size` to the size it was compiled with, and all
 * fields that it does not use to zero. The kernel accepts smaller structures of
 * older callers as if the rest were zero, and larger ones of newer callers if
 * the part that it does not know is zero. Layouts are the same for 32-bit and
 * 64-bit callers.
 *
 * Errors of every call on /dev/nprdma, besides its own:
 *
 *   EFAULT The argument does not point to accessible memory. The effects of the
 *           call remain, unless it would have returned a descriptor or an id.
 *   EINVAL  `size` is smaller than the first version of the structure, or a
 *           flag that is not defined, or a reserved field, is not zero.
 *   E2BIG `size` is larger than in this kernel, and the additional part is not
 *           zero; or it is larger than a page.
 *   EPERM   Not the address space that opened the device.
 *   ENOTTY  No such call.
 */

#ifndef NPRDMA_UAPI_H
#define NPRDMA_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* NPRDMA_IOC_QUERY returns this in `abi`. It changes only with a change that is
 * not compatible; `features` shows additions. */
#define NPRDMA_ABI_VERSION 1

#define NPRDMA_DEVICE_PATH "/dev/nprdma"

/*
 * A state word, ARCHITECTURE 2. A NIC may read the page if bit 0 is set (the R
 * view points at it), and write it if bit 1 is set (the write view does). The
 * other bits count the changes of the word, modulo 2^30; the count never goes
 * back. A word of 0 means that the page has never been present. A bit is set
 * after the translation for the NIC points at the page, and cleared before the
 * translation points away from it.
 */
#define NPRDMA_PAGE_R     1u
#define NPRDMA_PAGE_W     2u
#define NPRDMA_PAGE_BITS  (NPRDMA_PAGE_R | NPRDMA_PAGE_W)
#define NPRDMA_PAGE_COUNT 4u

/* The page that a state word stands for has 4096 bytes, on every machine */
#define NPRDMA_PAGE_SHIFT 12
#define NPRDMA_PAGE_SIZE  (1ul << NPRDMA_PAGE_SHIFT)

/* _IO() only: the size is in the structure, where it can grow */
#define NPRDMA_IOC_TYPE 0xf7

#define NPRDMA_IOC_QUERY          _IO(NPRDMA_IOC_TYPE, 0)
#define NPRDMA_IOC_CHECK_DEVICE   _IO(NPRDMA_IOC_TYPE, 1)
#define NPRDMA_IOC_REGION_CREATE  _IO(NPRDMA_IOC_TYPE, 2)
#define NPRDMA_IOC_REGION_DESTROY _IO(NPRDMA_IOC_TYPE, 3)
#define NPRDMA_IOC_EXPORT         _IO(NPRDMA_IOC_TYPE, 4)
#define NPRDMA_IOC_REGISTER       _IO(NPRDMA_IOC_TYPE, 5)
#define NPRDMA_IOC_UNREGISTER     _IO(NPRDMA_IOC_TYPE, 6)
#define NPRDMA_IOC_POPULATE       _IO(NPRDMA_IOC_TYPE, 7)
#define NPRDMA_IOC_INVALIDATE     _IO(NPRDMA_IOC_TYPE, 8)
#define NPRDMA_IOC_STATS          _IO(NPRDMA_IOC_TYPE, 9)
/* On a states descriptor, in any process */
#define NPRDMA_IOC_STATES_INFO    _IO(NPRDMA_IOC_TYPE, 16)

/* Bytes of a reason in words, terminating zero included */
#define NPRDMA_WHY_SIZE 256


/**
 * NPRDMA_IOC_QUERY: what this kernel offers.
 *
 * No errors of its own.
 */
struct nprdma_ioc_query {
    __u32         size;
    __u32         flags;            /* 0 */
    __u32         abi;              /* out: NPRDMA_ABI_VERSION of the module */
    __u32         reserved;         /* out: 0 */
    __aligned_u64 features;         /* out: NPRDMA_IOC_FEATURE_xx */
    __aligned_u64 signature;        /* out: 64-bit word that an absent page of
                                     * this context reads as, everywhere */
    __aligned_u64 max_region_bytes; /* out: longest region */
    __aligned_u64 user_bytes;       /* out: kernel memory that this user's
                                     * contexts hold */
    __aligned_u64 max_user_bytes;   /* out: what they may hold */
    __aligned_u64 user_regions;     /* out: regions they hold */
    __aligned_u64 max_user_regions; /* out: what they may hold */
    char          why[NPRDMA_WHY_SIZE]; /* out: without FEATURE_DEVICES, why no
                                     * device can have views; else empty */
};

/* Views of devices can be re-pointed on this machine, as far as is known
 * without a device: NPRDMA_IOC_CHECK_DEVICE and _EXPORT may work */
#define NPRDMA_IOC_FEATURE_DEVICES (1ull << 0)
/* NPRDMA_IOC_REGION_RETIRE */
#define NPRDMA_IOC_FEATURE_RETIRE  (1ull << 1)


/**
 * NPRDMA_IOC_CHECK_DEVICE: check whether a device can import regions, with a
 * trial view unless it has passed before, and describe it. An import makes the
 * same checks, and fails without a reason in words. The name of a subfunction's
 * RDMA device stands for the PCI function that it is a part of.
 *
 *   EINVAL      `name` is not terminated, or empty; `reserved` is not zero.
 *   ENODEV      There is no such device on a PCI bus, or it has no driver.
 *   EOPNOTSUPP  It is not for RDMA, or its views cannot be re-pointed safely;
 *               see `why`.
 *   ENOMEM      No memory.
 *   EINTR       A signal came first. One call of a user is executed at a time,
 *               and waits for the device if that is just bound, unbound or
 *               reset.
 *
 * `why` is filled with all of these but EINVAL.
 */
struct nprdma_ioc_check_device {
    __u32 size;
    __u32 flags;                /* 0 */
    char  name[64];             /* "0000:03:00.0", or an RDMA device's name */
    char  why[NPRDMA_WHY_SIZE]; /* out: its description, or why it is refused */
    __u32 device;               /* out: NPRDMA_DEVICE_xx */
    __u32 max_order;            /* out: the largest invalidation of the IOMMU
                                 * has 2^max_order pages (MAMV of VT-d) */
    __aligned_u64 page_sizes;   /* out: of the IOMMU: 2^n if bit n is set */
    __aligned_u64 iova_bytes;   /* out: I/O addresses that regions of this user
                                 * have on the device */
    __aligned_u64 max_iova_bytes; /* out: what they may have */
    __aligned_u64 reserved[4];  /* 0 */
};

/* The fields behind `why` are valid. Also of a device that is refused, if it
 * was examined that far. */
#define NPRDMA_DEVICE_KNOWN            (1u << 0)
/* VT-d translates in scalable mode, and by first-stage tables */
#define NPRDMA_DEVICE_SCALABLE         (1u << 1)
#define NPRDMA_DEVICE_FIRST_STAGE      (1u << 2)
/* VT-d is in caching mode, so a hypervisor shadows its tables */
#define NPRDMA_DEVICE_CACHING_MODE     (1u << 3)
/* The device caches translations itself */
#define NPRDMA_DEVICE_ATS              (1u << 4)
/* The device may set the attribute of PCIe that lets its writes overtake */
#define NPRDMA_DEVICE_RELAXED_ORDERING (1u << 5)


/**
 * NPRDMA_IOC_REGION_CREATE: watch a range of the address space. Nothing is
 * touched, and memory need not be mapped there. Regions may overlap, up to a
 * number: for each of them the kernel needs time when it takes a page.
 *
 *   EINVAL      `address` or `length` is not a multiple of the page size,
 *               `length` is 0, or the range leaves the address space.
 *   EFBIG       `length` is more than the module parameter max_region_bytes.
 *   EDQUOT      One more than the user's limits (max_user_regions,
 *               max_user_bytes) allow; not with CAP_SYS_RESOURCE. Or
 *               NPRDMA_MAX_OVERLAP regions of this address space, of whatever
 *               context, have a page of it already.
 *   ENOSPC      One more than max_total_bytes allows all users together.
 *   ENOMEM      No memory, or the cgroup may not have more.
 *   EMFILE, ENFILE  No file descriptor.
 *   EINTR       A signal came first.
 */
struct nprdma_ioc_region_create {
    __u32         size;
    __u32         flags;         /* NPRDMA_IOC_REGION_xx */
    __aligned_u64 address;
    __aligned_u64 length;        /* bytes */
    __u32         region;        /* out: id in this context, never 0 */
    __s32         states_fd;     /* out: states descriptor, close-on-exec */
    __aligned_u64 signature;     /* out: as in struct nprdma_ioc_query */
    __aligned_u64 states_offset; /* out: of the first word in states_fd */
    __aligned_u64 states_size;   /* out: bytes that can be mapped from offset
                                  * 0, header included; whole pages */
};

/* Pages that the process unmaps, also by mapping or moving other memory over
 * them, are retired: they are not populated any more, whatever is mapped there
 * later, until NPRDMA_IOC_REGISTER readmits them. A bit per page says so, bit 0
 * of the first byte for the first page. These bits follow the words in the
 * states descriptor, from the next multiple of the page size on. */
#define NPRDMA_IOC_REGION_RETIRE (1u << 0)

/* Most regions of an address space that have the same page */
#define NPRDMA_MAX_OVERLAP 16


/**
 * NPRDMA_IOC_REGION_DESTROY: end a region. When it returns all its pages are
 * absent, for devices that still have views on it too, and its registrations
 * are gone. Its states descriptor and mappings stay valid; the header says
 * `dead`. Closing the device, or the end of the process, does the same to all
 * regions.
 *
 *   ENOENT      No such region.
 */
struct nprdma_ioc_region_destroy {
    __u32 size;
    __u32 flags;    /* 0 */
    __u32 region;
    __u32 reserved; /* 0 */
};


/**
 * NPRDMA_IOC_EXPORT: get a dma-buf descriptor of a region, close-on-exec. Its
 * offsets [0, length) are the read view, [length, 2 length) the write view, and
 * the state words follow, read-only. Only the address space of the context can
 * have a device import it, and only devices that pass NPRDMA_IOC_CHECK_DEVICE.
 *
 *   ENOENT      No such region.
 *   EOPNOTSUPP  Without NPRDMA_IOC_FEATURE_DEVICES.
 *   EDQUOT, ENOSPC  As for NPRDMA_IOC_REGION_CREATE.
 *   ENOMEM      No memory.
 *   EMFILE, ENFILE  No file descriptor.
 */
struct nprdma_ioc_export {
    __u32 size;
    __u32 flags;  /* 0 */
    __u32 region;
    __s32 fd;     /* out */
};


/**
 * NPRDMA_IOC_REGISTER: allow the pages that a range of bytes lies in to be
 * populated. Touches and populates nothing. Registrations may overlap.
 *
 *   EINVAL      `length` is 0.
 *   ENOENT      No such region.
 *   ERANGE      Not inside of the region.
 *   EDQUOT, ENOSPC  As for NPRDMA_IOC_REGION_CREATE.
 *   ENOMEM      No memory.
 */
struct nprdma_ioc_register {
    __u32         size;
    __u32         flags;        /* NPRDMA_IOC_REGISTER_xx */
    __u32         region;
    __u32         registration; /* out: id in the region, never 0 */
    __aligned_u64 address;      /* first byte, of the address space */
    __aligned_u64 length;       /* bytes */
};

/* The pages are not retired any more: what is mapped there now is what the
 * caller means */
#define NPRDMA_IOC_REGISTER_READMIT (1u << 0)


/**
 * NPRDMA_IOC_UNREGISTER: end a registration. Its pages stay as they are, ready
 * for the next one, but are not populated again before.
 *
 *   ENOENT      No such region or registration.
 */
struct nprdma_ioc_unregister {
    __u32 size;
    __u32 flags;        /* 0 */
    __u32 region;
    __u32 registration;
};


/**
 * NPRDMA_IOC_POPULATE: make pages accessible to devices, in the order of their
 * addresses, bringing them in where they are not. Pages that have the bits
 * already keep their state. The pages count as accessed now, which reclaim asks
 * for. A page may be taken away again at any time; its state shows that.
 *
 * Anonymous memory, shared memory (shmem, memfd, tmpfs, System V) and hugetlb
 * memory only: no other pages are ever given to a device, not for reading
 * either. Pages that a private mapping of a file has copied are anonymous.
 *
 *   EINVAL      `length` is 0.
 *   ENOENT      No such region, or it was destroyed meanwhile.
 *   ERANGE      Not inside of the region.
 *   EACCES      The page at `done` is not registered (any more), or is
 *               retired.
 *   EFAULT      The process itself could not access the page at `done` in this
 *               way: not mapped, protected, behind the end of its file.
 *   ENODATA     The page at `done` is missing or protected, and a userfaultfd
 *               has to resolve that. An access by the process waits for it;
 *               then the page can be populated.
 *   EOPNOTSUPP  The page at `done` is of a kind that is refused.
 *   EBUSY       The page at `done` was taken away repeatedly, for more than a
 *               second.
 *   ESTALE      With UNLESS_REVOKED: the page at `done` was revoked, or one of
 *               the other pages of its group of 64, which are counted together.
 *   EINTR       A signal came first. The call may be repeated from `done` on.
 *   EDQUOT, ENOSPC, ENOMEM  As for NPRDMA_IOC_REGION_CREATE: memory to keep
 *               track of 2 MiB more.
 *
 * With all of these but the first three, all pages before `done` have been
 * processed and the output is filled.
 */
struct nprdma_ioc_populate {
    __u32         size;
    __u32         flags;     /* NPRDMA_IOC_POPULATE_xx */
    __u32         region;
    __u32         revocations; /* with UNLESS_REVOKED; else 0 */
    __aligned_u64 address;   /* first byte; whole pages are populated */
    __aligned_u64 length;    /* bytes */
    __aligned_u64 done;      /* out: address behind the last processed page */
    __aligned_u64 populated; /* out: pages that got a bit */
    __aligned_u64 retries;   /* out: batches of pages done again, because one
                              * was taken away meanwhile */
};

/* For reading and writing, else for reading only. Only this breaks
 * copy-on-write. */
#define NPRDMA_IOC_POPULATE_WRITE    (1u << 0)
/* Only pages that the process has mapped; with WRITE, only those that it could
 * write without a page fault. Others are skipped: no EFAULT, no EOPNOTSUPP, and
 * no page is brought in. */
#define NPRDMA_IOC_POPULATE_RESIDENT (1u << 1)
/* Only pages that were not revoked since `revocations` of struct
 * nprdma_states_header had this value. For a thread that revokes pages before
 * it unmaps them, and must be sure that another thread does not populate them
 * again before they are unmapped. The other thread reads the number, then
 * checks that no thread is unmapping them, then populates. */
#define NPRDMA_IOC_POPULATE_UNLESS_REVOKED (1u << 2)


/**
 * NPRDMA_IOC_INVALIDATE: take pages away from devices. When it returns no
 * device accesses them any more. They can be populated again at once, but not
 * with frames that a call of POPULATE looked up before.
 *
 *   EINVAL      `length` is 0, or `bits` has none or unknown bits.
 *   ENOENT      No such region.
 *   ERANGE      Not inside of the region.
 */
struct nprdma_ioc_invalidate {
    __u32         size;
    __u32         flags;       /* NPRDMA_IOC_INVALIDATE_xx */
    __u32         region;
    __u32         bits;        /* NPRDMA_PAGE_R, NPRDMA_PAGE_W or both. R
                                * implies W. */
    __aligned_u64 address;     /* first byte; whole pages are invalidated */
    __aligned_u64 length;      /* bytes */
    __aligned_u64 invalidated; /* out: pages that lost a bit */
};

/* Also advance the count of pages that lose no bit */
#define NPRDMA_IOC_INVALIDATE_TOUCH (1u << 0)


/**
 * NPRDMA_IOC_STATS: counters of a region, or of the context since it was
 * opened. They need not be of one moment.
 *
 *   ENOENT      No such region.
 */
struct nprdma_ioc_stats {
    __u32         size;
    __u32         flags;         /* 0 */
    __u32         region;        /* id, or 0: the context */
    __u32         reserved;      /* 0 */
    __aligned_u64 bytes;         /* out: kernel memory accounted for now */
    __aligned_u64 regions;       /* out: now */
    __aligned_u64 registrations; /* out: now */
    __aligned_u64 present;       /* out: pages that have a bit now */
    __aligned_u64 populated;     /* out: pages that got a bit */
    __aligned_u64 retries;       /* out: as in struct nprdma_ioc_populate */
    __aligned_u64 misses;        /* out: calls of POPULATE that met a page that
                                  * cannot be populated */
    __aligned_u64 events;        /* out: notifications from the kernel's memory
                                  * management that concerned the region */
    __aligned_u64 invalidated;   /* out: pages that lost a bit by them */
    __aligned_u64 revoked;       /* out: by INVALIDATE, DESTROY */
};


/**
 * NPRDMA_IOC_STATES_INFO, on a states descriptor: describe its region. Any
 * process that has the descriptor may call it. Descriptors of other kinds fail,
 * usually with ENOTTY.
 *
 * Only the errors of every call, and never EPERM.
 */
struct nprdma_ioc_states_info {
    __u32         size;
    __u32         flags;         /* 0 */
    __u32         abi;           /* out: NPRDMA_ABI_VERSION of the module */
    __u32         owner;         /* out: 1 if the region is of the caller's
                                  * address space, else 0 */
    __aligned_u64 address;       /* out: of the region, in its owner */
    __aligned_u64 length;        /* out: bytes */
    __aligned_u64 signature;     /* out: as in struct nprdma_ioc_query */
    __aligned_u64 states_offset; /* out: as in struct
                                  * nprdma_ioc_region_create */
    __aligned_u64 states_size;   /* out: likewise */
    __aligned_u64 id;            /* out: never 0, and of no other region since
                                  * the module was loaded */
};


/*
 * Contents of the first page of a states descriptor; nothing else is in that
 * page. The descriptor can be mapped with PROT_READ and MAP_SHARED, from any of
 * its pages on. mmap() fails with EACCES or EPERM for write or execute
 * permission, and with EINVAL for MAP_PRIVATE and for a range behind the end. A
 * mapping cannot be made writable later, and a child does not inherit it by
 * fork().
 */
struct nprdma_states_header {
    __aligned_u64 magic;         /* NPRDMA_STATES_MAGIC */
    __u32         abi;           /* NPRDMA_ABI_VERSION */
    __u32         dead;          /* nonzero: the region has ended, and all
                                  * its pages stay absent. Set after the last
                                  * state was cleared. */
    __aligned_u64 address;
    __aligned_u64 length;
    __aligned_u64 signature;
    __aligned_u64 states_offset;
    __aligned_u64 states_size;
    __aligned_u64 id;            /* as in struct nprdma_ioc_states_info */
    __u32         revocations;   /* +1 before pages are revoked on request, by
                                  * INVALIDATE. Once for each part of a call;
                                  * wraps around. */
    __u32         reserved;      /* 0 */
};

#define NPRDMA_STATES_MAGIC 0x6574617473706e31ull

#endif
