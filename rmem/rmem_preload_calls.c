/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * R3: the kernel cannot bring pages of the window, so a system call that is
 * given some of it holds them. If there are more than it may hold, it gets the
 * first ones, which is a short transfer; where programs do not expect that,
 * for files and for the functions of <stdio.h>, the rest follows. A call that
 * has failed with EFAULT is never repeated: a datagram would be lost.
 */

#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#include "rmem_preload.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/param.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Macros of some libc */
#undef fread_unlocked
#undef fwrite_unlocked

/* Two more pages than the bytes need, at both ends */
#define RMEM_PRELOAD_ENDS 8192


/* The length is at most a part. Returns false when other threads hold all that
 * can be held: they are in system calls, which end. */
static bool rmem_preload_try_hold(const void *ptr, size_t length, bool is_write)
{
    return !rmem_preload_is_window(ptr) ||
           (rmem_preload.hold(rmem_preload.rmem, ptr, length, is_write) !=
            RMEM_ERR_NOMEM);
}

static void rmem_preload_wait(unsigned turn)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    if (turn == 1000) {
        rmem_preload_say("waits: system calls hold all of the cache that they "
                         "may (--cache)");
    }
    nanosleep(&pause, NULL);
}

static void rmem_preload_hold(const void *ptr, size_t length, bool is_write)
{
    unsigned turn;

    for (turn = 0; !rmem_preload_try_hold(ptr, length, is_write); ++turn) {
        rmem_preload_wait(turn);
    }
}

static void rmem_preload_release(const void *ptr, size_t length)
{
    int error = errno;

    if (rmem_preload_is_window(ptr)) {
        rmem_preload.release(rmem_preload.rmem, ptr, length);
        errno = error;
    }
}

static size_t rmem_preload_part(const void *ptr, size_t length)
{
    return rmem_preload_is_window(ptr) ? MIN(length, rmem_preload.part) :
           length;
}

/* Whether more of a file follows at once */
static bool rmem_preload_is_file(int fd)
{
    struct stat info;

    return (fstat(fd, &info) == 0) && S_ISREG(info.st_mode);
}

/* One call with a buffer. is_write: to the buffer */
#define RMEM_PRELOAD_HELD(ptr, length, is_write, call) \
    ({ \
        __typeof__(call) ret_; \
        rmem_preload_hold(ptr, length, is_write); \
        ret_ = call; \
        rmem_preload_release(ptr, length); \
        ret_; \
    })

/* A transfer in parts. The call uses at, part and total. is_all: the rest
 * follows. */
#define RMEM_PRELOAD_PARTS(buffer, length, is_write, is_all, call) \
    ({ \
        size_t total = 0; \
        size_t part; \
        ssize_t done; \
        do { \
            char *at = (char*)(buffer) + total; \
            part     = rmem_preload_part(at, (length) - total); \
            done     = RMEM_PRELOAD_HELD(at, part, is_write, call); \
            total   += (done > 0) ? done : 0; \
        } while ((total < (length)) && (done == (ssize_t)part) && (is_all)); \
        ((done < 0) && (total == 0)) ? -1 : (ssize_t)total; \
    })

/* Defines a function that transfers `length` bytes of `buffer`. The last
 * arguments are those of the real one. */
#define RMEM_PRELOAD_CALL(name, params, is_write, is_all, ...) \
    RMEM_PRELOAD_EXPORT ssize_t name params; \
    ssize_t name params \
    { \
        RMEM_PRELOAD_REAL(name); \
        return RMEM_PRELOAD_PARTS(buffer, length, is_write, is_all, \
                                  real(__VA_ARGS__)); \
    }

RMEM_PRELOAD_CALL(read, (int fd, void *buffer, size_t length), true,
                  rmem_preload_is_file(fd), fd, at, part)
RMEM_PRELOAD_CALL(write, (int fd, const void *buffer, size_t length), false,
                  true, fd, at, part)
RMEM_PRELOAD_CALL(pread, (int fd, void *buffer, size_t length, off_t offset),
                  true, true, fd, at, part, offset + total)
RMEM_PRELOAD_CALL(pread64,
                  (int fd, void *buffer, size_t length, off64_t offset), true,
                  true, fd, at, part, offset + total)
RMEM_PRELOAD_CALL(pwrite,
                  (int fd, const void *buffer, size_t length, off_t offset),
                  false, true, fd, at, part, offset + total)
RMEM_PRELOAD_CALL(pwrite64,
                  (int fd, const void *buffer, size_t length, off64_t offset),
                  false, true, fd, at, part, offset + total)
RMEM_PRELOAD_CALL(recv, (int fd, void *buffer, size_t length, int flags), true,
                  false, fd, at, part, flags)
RMEM_PRELOAD_CALL(send, (int fd, const void *buffer, size_t length, int flags),
                  false, false, fd, at, part, flags)
RMEM_PRELOAD_CALL(getrandom, (void *buffer, size_t length, unsigned flags),
                  true, true, at, part, flags)

/* What _FORTIFY_SOURCE makes of these */
RMEM_PRELOAD_CALL(__read_chk,
                  (int fd, void *buffer, size_t length, size_t room), true,
                  rmem_preload_is_file(fd), fd, at, part, room - total)
RMEM_PRELOAD_CALL(__pread_chk, (int fd, void *buffer, size_t length,
                                off_t offset, size_t room), true, true, fd, at,
                  part, offset + total, room - total)
RMEM_PRELOAD_CALL(__pread64_chk, (int fd, void *buffer, size_t length,
                                  off64_t offset, size_t room), true, true, fd,
                  at, part, offset + total, room - total)
RMEM_PRELOAD_CALL(__recv_chk, (int fd, void *buffer, size_t length,
                               size_t room, int flags), true, false, fd, at,
                  part, room, flags)


/* ---- addresses and several buffers ---- */

RMEM_PRELOAD_EXPORT
ssize_t sendto(int fd, const void *buffer, size_t length, int flags,
               __CONST_SOCKADDR_ARG address, socklen_t address_length)
{
    const void *name = *(const void**)&address;

    RMEM_PRELOAD_REAL(sendto);
    length = rmem_preload_part(buffer, length);
    return RMEM_PRELOAD_HELD(name, address_length, false,
                             RMEM_PRELOAD_HELD(buffer, length, false,
                                               real(fd, buffer, length, flags,
                                                    address, address_length)));
}

/* The kernel gets a length of the caller's stack */
#define RMEM_PRELOAD_RECVFROM(name, params, ...) \
    RMEM_PRELOAD_EXPORT ssize_t name params; \
    ssize_t name params \
    { \
        void *from     = *(void**)&address; \
        socklen_t room = (from == NULL) ? 0 : *address_length; \
        socklen_t size = room; \
        ssize_t ret; \
        RMEM_PRELOAD_REAL(name); \
        length = rmem_preload_part(buffer, length); \
        ret    = RMEM_PRELOAD_HELD(from, room, true, \
                                   RMEM_PRELOAD_HELD(buffer, length, true, \
                                                     real(__VA_ARGS__, address,\
                                                          &size))); \
        if ((ret >= 0) && (from != NULL)) { \
            *address_length = size; \
        } \
        return ret; \
    }

RMEM_PRELOAD_RECVFROM(recvfrom,
                      (int fd, void *buffer, size_t length, int flags,
                       __SOCKADDR_ARG address, socklen_t *address_length),
                      fd, buffer, length, flags)
RMEM_PRELOAD_RECVFROM(__recvfrom_chk,
                      (int fd, void *buffer, size_t length, size_t bytes,
                       int flags, __SOCKADDR_ARG address,
                       socklen_t *address_length),
                      fd, buffer, length, bytes, flags)

/* A copy of the first of some buffers, held; threads may have small stacks */
typedef struct {
    struct iovec iov[256];
    int          count; /* 0: none is in the window */
} rmem_preload_iov_t;

static void rmem_preload_release_iov(const rmem_preload_iov_t *held)
{
    int i;

    for (i = 0; i < held->count; ++i) {
        rmem_preload_release(held->iov[i].iov_base, held->iov[i].iov_len);
    }
}

/* Returns false, with nothing held, if there is not enough to hold: a thread
 * that waited with some of them held could wait for one that does the same. */
static bool rmem_preload_try_iov(rmem_preload_iov_t *held,
                                 const struct iovec *iov, size_t count,
                                 bool is_write)
{
    size_t left = rmem_preload.part, max = MIN(count, 256);
    size_t length;
    bool is_cut = false;

    held->count = 0;
    while (((size_t)held->count < max) && !is_cut &&
           (left > RMEM_PRELOAD_ENDS)) {
        length = iov[held->count].iov_len;
        if (rmem_preload_is_window(iov[held->count].iov_base)) {
            is_cut = (length > left - RMEM_PRELOAD_ENDS);
            length = is_cut ? left - RMEM_PRELOAD_ENDS : length;
            left  -= length + RMEM_PRELOAD_ENDS;
            if (!rmem_preload_try_hold(iov[held->count].iov_base, length,
                                       is_write)) {
                rmem_preload_release_iov(held);
                return false;
            }
        }
        held->iov[held->count] = (struct iovec){iov[held->count].iov_base,
                                                length};
        ++held->count;
    }
    return true;
}

/* Returns whether one of them, or their list, is in the window */
static bool rmem_preload_hold_iov(rmem_preload_iov_t *held,
                                  const struct iovec *iov, size_t count,
                                  bool is_write)
{
    bool is_used  = rmem_preload_is_window(iov);
    unsigned turn = 0;
    size_t i;

    for (i = 0; (i < count) && (i < IOV_MAX) && rmem_preload.is_used; ++i) {
        is_used |= rmem_preload_is_window(iov[i].iov_base);
    }
    held->count = 0;
    while (is_used && !rmem_preload_try_iov(held, iov, count, is_write)) {
        rmem_preload_wait(turn++);
    }
    return is_used;
}

/* The last argument is what follows fd and the buffers */
#define RMEM_PRELOAD_CALLV(name, params, is_write, ...) \
    RMEM_PRELOAD_EXPORT ssize_t name params; \
    ssize_t name params \
    { \
        rmem_preload_iov_t held; \
        ssize_t ret; \
        RMEM_PRELOAD_REAL(name); \
        if ((count < 0) || \
            !rmem_preload_hold_iov(&held, iov, count, is_write)) { \
            return real(fd, iov, count __VA_ARGS__); \
        } \
        ret = real(fd, held.iov, held.count __VA_ARGS__); \
        rmem_preload_release_iov(&held); \
        return ret; \
    }

RMEM_PRELOAD_CALLV(readv, (int fd, const struct iovec *iov, int count), true)
RMEM_PRELOAD_CALLV(writev, (int fd, const struct iovec *iov, int count), false)
RMEM_PRELOAD_CALLV(preadv, (int fd, const struct iovec *iov, int count,
                            off_t offset), true, , offset)
RMEM_PRELOAD_CALLV(preadv64, (int fd, const struct iovec *iov, int count,
                              off64_t offset), true, , offset)
RMEM_PRELOAD_CALLV(pwritev, (int fd, const struct iovec *iov, int count,
                             off_t offset), false, , offset)
RMEM_PRELOAD_CALLV(pwritev64, (int fd, const struct iovec *iov, int count,
                               off64_t offset), false, , offset)

/* Name and control data are short. `copy` is what the kernel gets. */
#define RMEM_PRELOAD_MSG(msg, is_write) \
    ({ \
        rmem_preload_iov_t held; \
        ssize_t ret_; \
        rmem_preload_hold((msg)->msg_name, (msg)->msg_namelen, is_write); \
        rmem_preload_hold((msg)->msg_control, (msg)->msg_controllen, \
                          is_write); \
        if (rmem_preload_hold_iov(&held, (msg)->msg_iov, (msg)->msg_iovlen, \
                                  is_write)) { \
            copy.msg_iov    = held.iov; \
            copy.msg_iovlen = held.count; \
        } \
        ret_ = real(fd, &copy, flags); \
        rmem_preload_release_iov(&held); \
        rmem_preload_release((msg)->msg_control, (msg)->msg_controllen); \
        rmem_preload_release((msg)->msg_name, (msg)->msg_namelen); \
        ret_; \
    })

RMEM_PRELOAD_EXPORT
ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
    struct msghdr copy = *msg;

    RMEM_PRELOAD_REAL(sendmsg);
    return RMEM_PRELOAD_MSG(msg, false);
}

RMEM_PRELOAD_EXPORT
ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
    struct msghdr copy = *msg;
    ssize_t ret;

    RMEM_PRELOAD_REAL(recvmsg);
    ret = RMEM_PRELOAD_MSG(msg, true);
    if (ret >= 0) {
        msg->msg_namelen    = copy.msg_namelen;
        msg->msg_controllen = copy.msg_controllen;
        msg->msg_flags      = copy.msg_flags;
    }
    return ret;
}


/* ---- events ---- */

RMEM_PRELOAD_EXPORT
int epoll_wait(int fd, struct epoll_event *events, int max, int timeout)
{
    size_t length = MAX(max, 0) * sizeof(*events);

    RMEM_PRELOAD_REAL(epoll_wait);
    if (length > rmem_preload_part(events, length)) {
        length = rmem_preload_part(events, length);
        max    = length / sizeof(*events);
    }
    return RMEM_PRELOAD_HELD(events, length, true,
                             real(fd, events, max, timeout));
}


/* ---- <stdio.h>, which reads and writes large buffers where they are ---- */

/* plain: arguments of the whole call; the last ones are those of a part */
#define RMEM_PRELOAD_STDIO(name, params, is_write, plain, ...) \
    RMEM_PRELOAD_EXPORT size_t name params; \
    size_t name params \
    { \
        size_t length = size * count; \
        RMEM_PRELOAD_REAL(name); \
        if (!rmem_preload_is_window(buffer) || (length == 0)) { \
            return real plain; \
        } \
        return RMEM_PRELOAD_PARTS(buffer, length, is_write, true, \
                                  (ssize_t)real(__VA_ARGS__)) / size; \
    }

RMEM_PRELOAD_STDIO(fread, (void *buffer, size_t size, size_t count, FILE *file),
                   true, (buffer, size, count, file), at, 1, part, file)
RMEM_PRELOAD_STDIO(fread_unlocked,
                   (void *buffer, size_t size, size_t count, FILE *file),
                   true, (buffer, size, count, file), at, 1, part, file)
RMEM_PRELOAD_STDIO(fwrite,
                   (const void *buffer, size_t size, size_t count, FILE *file),
                   false, (buffer, size, count, file), at, 1, part, file)
RMEM_PRELOAD_STDIO(fwrite_unlocked,
                   (const void *buffer, size_t size, size_t count, FILE *file),
                   false, (buffer, size, count, file), at, 1, part, file)
RMEM_PRELOAD_STDIO(__fread_chk, (void *buffer, size_t room, size_t size,
                                 size_t count, FILE *file),
                   true, (buffer, room, size, count, file), at, room - total,
                   1, part, file)
RMEM_PRELOAD_STDIO(__fread_unlocked_chk, (void *buffer, size_t room,
                                          size_t size, size_t count,
                                          FILE *file),
                   true, (buffer, room, size, count, file), at, room - total,
                   1, part, file)
