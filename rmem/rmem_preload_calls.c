/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * R3: the kernel cannot bring pages of the window, so a system call gets local
 * memory instead of them. This file copies to it before the call, or from it
 * afterwards, where faults are served as everywhere. Long transfers are made in
 * parts; a message never is. A call that has failed is never repeated: a
 * datagram would be lost.
 */

#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#include "rmem_preload.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Macros of some libc */
#undef fread_unlocked
#undef fwrite_unlocked

enum {
    PAGE   = 4096,    /* Buffers begin at one: O_DIRECT needs it */
    LITTLE = 32768,   /* Of the window */
    SMALL  = LITTLE + PAGE, /* With addresses of buffers: is on the stack */
    PART   = 1 << 20, /* Of the window, in one call */
    EVENTS = 256
};

/* Functions that get memory of the window; others are made of them */
typedef enum {
    CALL_READV,
    CALL_PREADV,
    CALL_RECVMSG,
    CALL_FREAD,
    CALL_GETRANDOM,
    CALL_WRITEV, /* From here on the kernel only reads the buffers */
    CALL_PWRITEV,
    CALL_SENDMSG,
    CALL_FWRITE
} call_kind_t;

typedef struct {
    call_kind_t        kind;
    int                fd;
    const struct iovec *iov;     /* What the program has given */
    size_t             count;
    int                flags;
    off_t              offset;
    FILE               *file;    /* NULL: none */
    struct msghdr      *msg;     /* NULL: none */
    size_t             done;     /* Bytes */
    bool               is_all;   /* Another part follows a whole one */
    char               *data;    /* Local memory: for buffers of the window */
    size_t             room;     /* Of it */
    void               *control; /* For control data of msg */
    size_t             length;   /* All of it */
} call_t;

/* A buffer as others are given */
#define IOV(buffer, length) ((struct iovec[]){{(void*)(buffer), length}}), 1

static bool is_input(const call_t *call)
{
    return call->kind < CALL_WRITEV;
}

static bool is_any_window(const struct iovec *iov, size_t count)
{
    size_t i;

    if ((rmem_preload.bytes == 0) || (count > IOV_MAX)) {
        return false;
    }
    for (i = 0; (i < count) && !rmem_preload_owns(iov[i].iov_base); ++i) {
    }
    return (i < count) || rmem_preload_owns(iov);
}

/* Bytes of the window in a call */
static size_t window_bytes(const call_t *call)
{
    size_t sum = 0, i;

    for (i = 0; i < call->count; ++i) {
        if (rmem_preload_owns(call->iov[i].iov_base)) {
            sum = MIN(sum + call->iov[i].iov_len, SIZE_MAX / 2);
        }
    }
    return sum;
}

/* How long a part is. A message is not divided. A read gets all that is there:
 * if it returned less, the program might believe that nothing is left, see
 * epoll(7). What is ready tells how much local memory a stream needs. A pipe's
 * size does: what a writer adds before it waits for room is not reported. */
static size_t part_length(call_t *call)
{
    int ready      = -1;
    socklen_t size = sizeof(int);
    struct stat info;
    bool is_stream = false;
    int type;

    call->is_all = true;
    if (getsockopt(call->fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0) {
        is_stream    = (type == SOCK_STREAM) && !(call->flags & MSG_PEEK) &&
                       ((call->msg == NULL) ||
                        (call->msg->msg_controllen == 0));
        call->is_all = is_stream &&
                       (!is_input(call) || (call->flags & MSG_WAITALL));
    } else if (fstat(call->fd, &info) == 0) {
        call->is_all = !is_input(call) || S_ISREG(info.st_mode) ||
                       S_ISBLK(info.st_mode);
        ready        = fcntl(call->fd, F_GETPIPE_SZ); /* Fails for others */
    }
    if (call->is_all) {
        return PART;
    }
    if (is_stream && (ioctl(call->fd, FIONREAD, &ready) == 0)) {
        ready = MAX(ready, LITTLE);
    }
    return (ready < 0) ? SIZE_MAX / 2 : (size_t)ready;
}

/* What the kernel gets next: buffers of the window are replaced by some of the
 * local memory. places: where the buffers of the program are. Returns their
 * number; the last one may be cut. */
static int next_part(const call_t *call, struct iovec *list, char **places,
                     size_t *length_p)
{
    char *data  = call->data;
    size_t room = call->room;
    size_t skip = call->done;
    int num     = 0;
    size_t i, begin, length, most;

    *length_p = 0;
    for (i = 0; i < call->count; ++i) {
        begin       = MIN(skip, call->iov[i].iov_len);
        skip       -= begin;
        length      = call->iov[i].iov_len - begin;
        places[num] = (char*)call->iov[i].iov_base + begin;
        list[num]   = (struct iovec){places[num], length};
        most        = SIZE_MAX;
        if (rmem_preload_owns(places[num])) {
            most      = rmem_preload.base + rmem_preload.bytes - places[num];
            most      = MIN(most, room);
            list[num] = (struct iovec){data, MIN(length, most)};
            /* With MSG_TRUNC the kernel may leave a buffer as it is */
            if (!is_input(call) || (call->flags & MSG_TRUNC)) {
                memcpy(data, places[num], list[num].iov_len);
            }
            data += list[num].iov_len;
            room -= list[num].iov_len;
        }
        *length_p += list[num++].iov_len;
        if (length > most) {
            break;
        }
    }
    return num;
}

/* Copies what the kernel has written to buffers that are not the program's */
static void scatter(const struct iovec *list, char *const *places, int num,
                    size_t length)
{
    size_t part;
    int i;

    for (i = 0; (i < num) && (length > 0); ++i) {
        part = MIN(length, list[i].iov_len);
        if (list[i].iov_base != places[i]) {
            memcpy(places[i], list[i].iov_base, part);
        }
        length -= part;
    }
}

/* Name and control data of the window are replaced as well */
static ssize_t call_msg(const call_t *call, struct iovec *iov, int count)
{
    struct msghdr *msg = call->msg;
    struct msghdr copy = *msg;
    struct sockaddr_storage name;
    ssize_t ret;

    copy.msg_iov    = iov;
    copy.msg_iovlen = count;
    if (rmem_preload_owns(msg->msg_name)) {
        copy.msg_name    = &name;
        copy.msg_namelen = MIN(msg->msg_namelen, sizeof(name));
        memcpy(&name, msg->msg_name, copy.msg_namelen);
    }
    if (rmem_preload_owns(msg->msg_control)) {
        copy.msg_control = call->control;
        memcpy(copy.msg_control, msg->msg_control, msg->msg_controllen);
    }
    if (!is_input(call)) {
        return RMEM_PRELOAD_REAL(sendmsg)(call->fd, &copy, call->flags);
    }

    ret = RMEM_PRELOAD_REAL(recvmsg)(call->fd, &copy, call->flags);
    if (ret >= 0) {
        if (copy.msg_name == &name) {
            memcpy(msg->msg_name, &name,
                   MIN(msg->msg_namelen, copy.msg_namelen));
        }
        if (copy.msg_control == call->control) {
            memcpy(msg->msg_control, copy.msg_control, copy.msg_controllen);
        }
        msg->msg_namelen    = copy.msg_namelen;
        msg->msg_controllen = copy.msg_controllen;
        msg->msg_flags      = copy.msg_flags;
    }
    return ret;
}

static ssize_t call_real(const call_t *call, struct iovec *iov, int count)
{
    off_t offset = (call->offset < 0) ? -1 : call->offset + (off_t)call->done;

    switch (call->kind) {
    case CALL_READV:
        return RMEM_PRELOAD_REAL(readv)(call->fd, iov, count);
    case CALL_WRITEV:
        return RMEM_PRELOAD_REAL(writev)(call->fd, iov, count);
    case CALL_PREADV:
        return RMEM_PRELOAD_REAL(preadv2)(call->fd, iov, count, offset,
                                          call->flags);
    case CALL_PWRITEV:
        return RMEM_PRELOAD_REAL(pwritev2)(call->fd, iov, count, offset,
                                           call->flags);
    case CALL_FREAD:
        return RMEM_PRELOAD_REAL(fread)(iov->iov_base, 1, iov->iov_len,
                                        call->file);
    case CALL_FWRITE:
        return RMEM_PRELOAD_REAL(fwrite)(iov->iov_base, 1, iov->iov_len,
                                         call->file);
    case CALL_GETRANDOM:
        return RMEM_PRELOAD_REAL(getrandom)(iov->iov_base, iov->iov_len,
                                            call->flags);
    default:
        return call_msg(call, iov, count);
    }
}

/* Not inlined: pthread_cleanup_push() may lose variables of its function */
__attribute__((noinline))
static ssize_t transfer(call_t *call)
{
    char **places      = (char**)(call->data +
                                  roundup(call->room, sizeof(void*)));
    struct iovec *list = (struct iovec*)(places + call->count);
    size_t length;
    ssize_t ret;
    int num;

    call->control = list + call->count;
    do {
        num = next_part(call, list, places, &length);
        if ((length == 0) && (call->done > 0)) {
            break;
        }
        ret = call_real(call, list, num);
        if (ret < 0) {
            return (call->done > 0) ? (ssize_t)call->done : ret;
        }
        if (is_input(call)) {
            scatter(list, places, num, ret);
        }
        call->done += ret;
    } while (call->is_all && (ret > 0) && ((size_t)ret == length));
    return call->done;
}

/* Also if the thread is cancelled. These are system calls, because hooks of
 * memory events are not for signal handlers, where read() may be called. */
static void unmap(void *arg)
{
    call_t *call = arg;
    int error    = errno;

    syscall(SYS_munmap, call->data, call->length);
    errno = error;
}

__attribute__((noinline))
static ssize_t transfer_mapped(call_t *call)
{
    ssize_t ret;

    call->data = (char*)syscall(SYS_mmap, NULL, call->length,
                                PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                -1, 0);
    if (call->data == MAP_FAILED) {
        return -1;
    }
    pthread_cleanup_push(unmap, call);
    ret = transfer(call);
    pthread_cleanup_pop(1);
    return ret;
}

__attribute__((noinline))
static ssize_t transfer_on_stack(call_t *call)
{
    char memory[call->length + PAGE];

    call->data = (char*)roundup((uintptr_t)memory, PAGE);
    return transfer(call);
}

/* Makes a call with local memory in place of that of the window. The buffers of
 * MSG_ZEROCOPY are used for longer than the call. */
static ssize_t bounce(call_t call)
{
    size_t window = window_bytes(&call);
    size_t part   = (window > LITTLE) ? part_length(&call) : window;

    call.room   = MIN(window, part);
    call.length = roundup(call.room, sizeof(void*)) +
                  call.count * (sizeof(struct iovec) + sizeof(char*)) +
                  (call.msg ? call.msg->msg_controllen : 0);
    return ((call.length > SMALL) || (call.flags & MSG_ZEROCOPY)) ?
           transfer_mapped(&call) : transfer_on_stack(&call);
}


/* ---- functions that are made of others ---- */

/* is_window: whether a buffer is. Arguments of the real function, and what is
 * called in its place. */
#define RMEM_PRELOAD_CALL(type, name, params, is_window, args, other) \
    RMEM_PRELOAD_EXPORT type name params; \
    type name params \
    { \
        return (is_window) ? other : RMEM_PRELOAD_REAL(name) args; \
    }

/* Of these offsets are the same */
#define RMEM_PRELOAD_ALIAS(name, other) \
    RMEM_PRELOAD_EXPORT __typeof__(other) name __attribute__((alias(#other)));

#define IS_WINDOW rmem_preload_owns(buffer)
#define FD_BUFFER int fd, void *buffer, size_t length

/* Of _FORTIFY_SOURCE: the real function ends the program */
#define IS_RIGHT  (IS_WINDOW && (length <= room))

RMEM_PRELOAD_CALL(ssize_t, readv, (int fd, const struct iovec *iov, int count),
                  is_any_window(iov, count), (fd, iov, count),
                  bounce((call_t){CALL_READV, fd, iov, count}))
RMEM_PRELOAD_CALL(ssize_t, writev, (int fd, const struct iovec *iov, int count),
                  is_any_window(iov, count), (fd, iov, count),
                  bounce((call_t){CALL_WRITEV, fd, iov, count}))
/* They allow an offset of -1, by which the others fail */
RMEM_PRELOAD_CALL(ssize_t, preadv2,
                  (int fd, const struct iovec *iov, int count, off_t offset,
                   int flags), is_any_window(iov, count),
                  (fd, iov, count, offset, flags),
                  bounce((call_t){CALL_PREADV, fd, iov, count, flags, offset}))
RMEM_PRELOAD_CALL(ssize_t, pwritev2,
                  (int fd, const struct iovec *iov, int count, off_t offset,
                   int flags), is_any_window(iov, count),
                  (fd, iov, count, offset, flags),
                  bounce((call_t){CALL_PWRITEV, fd, iov, count, flags, offset}))
RMEM_PRELOAD_CALL(ssize_t, preadv,
                  (int fd, const struct iovec *iov, int count, off_t offset),
                  (offset >= 0) && is_any_window(iov, count),
                  (fd, iov, count, offset), preadv2(fd, iov, count, offset, 0))
RMEM_PRELOAD_CALL(ssize_t, pwritev,
                  (int fd, const struct iovec *iov, int count, off_t offset),
                  (offset >= 0) && is_any_window(iov, count),
                  (fd, iov, count, offset), pwritev2(fd, iov, count, offset, 0))
RMEM_PRELOAD_CALL(ssize_t, read, (FD_BUFFER), IS_WINDOW, (fd, buffer, length),
                  readv(fd, IOV(buffer, length)))
RMEM_PRELOAD_CALL(ssize_t, __read_chk, (FD_BUFFER, size_t room), IS_RIGHT,
                  (fd, buffer, length, room), readv(fd, IOV(buffer, length)))
RMEM_PRELOAD_CALL(ssize_t, write, (int fd, const void *buffer, size_t length),
                  IS_WINDOW, (fd, buffer, length),
                  writev(fd, IOV(buffer, length)))
RMEM_PRELOAD_CALL(ssize_t, pread, (FD_BUFFER, off_t offset), IS_WINDOW,
                  (fd, buffer, length, offset),
                  preadv(fd, IOV(buffer, length), offset))
RMEM_PRELOAD_CALL(ssize_t, __pread_chk,
                  (FD_BUFFER, off_t offset, size_t room), IS_RIGHT,
                  (fd, buffer, length, offset, room),
                  preadv(fd, IOV(buffer, length), offset))
RMEM_PRELOAD_CALL(ssize_t, pwrite,
                  (int fd, const void *buffer, size_t length, off_t offset),
                  IS_WINDOW, (fd, buffer, length, offset),
                  pwritev(fd, IOV(buffer, length), offset))
RMEM_PRELOAD_ALIAS(preadv64v2, preadv2)
RMEM_PRELOAD_ALIAS(pwritev64v2, pwritev2)
RMEM_PRELOAD_ALIAS(preadv64, preadv)
RMEM_PRELOAD_ALIAS(pwritev64, pwritev)
RMEM_PRELOAD_ALIAS(pread64, pread)
RMEM_PRELOAD_ALIAS(__pread64_chk, __pread_chk)
RMEM_PRELOAD_ALIAS(pwrite64, pwrite)

static bool is_msg_window(const struct msghdr *msg)
{
    return is_any_window(msg->msg_iov, msg->msg_iovlen) ||
           ((msg->msg_iovlen <= IOV_MAX) &&
            (rmem_preload_owns(msg) ||
             rmem_preload_owns(msg->msg_name) ||
             rmem_preload_owns(msg->msg_control)));
}

static ssize_t bounce_msg(call_kind_t kind, int fd, const struct msghdr *msg,
                          int flags)
{
    return bounce((call_t){kind, fd, msg->msg_iov, msg->msg_iovlen, flags,
                           .msg = (struct msghdr*)msg});
}

RMEM_PRELOAD_CALL(ssize_t, recvmsg, (int fd, struct msghdr *msg, int flags),
                  is_msg_window(msg), (fd, msg, flags),
                  bounce_msg(CALL_RECVMSG, fd, msg, flags))
RMEM_PRELOAD_CALL(ssize_t, sendmsg,
                  (int fd, const struct msghdr *msg, int flags),
                  is_msg_window(msg), (fd, msg, flags),
                  bounce_msg(CALL_SENDMSG, fd, msg, flags))

static ssize_t send_to(int fd, const void *buffer, size_t length, int flags,
                       const void *address, socklen_t size)
{
    struct iovec iov  = {(void*)buffer, length};
    struct msghdr msg = {(void*)address, size, &iov, 1};

    return sendmsg(fd, &msg, flags);
}

static ssize_t receive_from(int fd, void *buffer, size_t length, int flags,
                            void *address, socklen_t *size)
{
    struct iovec iov  = {buffer, length};
    struct msghdr msg = {address, (address != NULL) ? *size : 0, &iov, 1};
    ssize_t ret       = recvmsg(fd, &msg, flags);

    if ((ret >= 0) && (address != NULL)) {
        *size = msg.msg_namelen;
    }
    return ret;
}

#define IS_NAMED  (rmem_preload_owns(*(void**)&address) || \
                   rmem_preload_owns(size))

RMEM_PRELOAD_CALL(ssize_t, sendto,
                  (int fd, const void *buffer, size_t length, int flags,
                   __CONST_SOCKADDR_ARG address, socklen_t size),
                  IS_WINDOW || rmem_preload_owns(*(void**)&address),
                  (fd, buffer, length, flags, address, size),
                  send_to(fd, buffer, length, flags, *(void**)&address, size))
RMEM_PRELOAD_CALL(ssize_t, send,
                  (int fd, const void *buffer, size_t length, int flags),
                  IS_WINDOW, (fd, buffer, length, flags),
                  send_to(fd, buffer, length, flags, NULL, 0))
RMEM_PRELOAD_CALL(ssize_t, recvfrom,
                  (FD_BUFFER, int flags, __SOCKADDR_ARG address,
                   socklen_t *size), IS_WINDOW || IS_NAMED,
                  (fd, buffer, length, flags, address, size),
                  receive_from(fd, buffer, length, flags, *(void**)&address,
                               size))
RMEM_PRELOAD_CALL(ssize_t, __recvfrom_chk,
                  (FD_BUFFER, size_t room, int flags, __SOCKADDR_ARG address,
                   socklen_t *size),
                  (IS_WINDOW || IS_NAMED) && (length <= room),
                  (fd, buffer, length, room, flags, address, size),
                  receive_from(fd, buffer, length, flags, *(void**)&address,
                               size))
RMEM_PRELOAD_CALL(ssize_t, recv, (FD_BUFFER, int flags), IS_WINDOW,
                  (fd, buffer, length, flags),
                  receive_from(fd, buffer, length, flags, NULL, NULL))
RMEM_PRELOAD_CALL(ssize_t, __recv_chk, (FD_BUFFER, size_t room, int flags),
                  IS_RIGHT, (fd, buffer, length, room, flags),
                  receive_from(fd, buffer, length, flags, NULL, NULL))
RMEM_PRELOAD_CALL(ssize_t, getrandom,
                  (void *buffer, size_t length, unsigned flags), IS_WINDOW,
                  (buffer, length, flags),
                  bounce((call_t){CALL_GETRANDOM, -1, IOV(buffer, length),
                                  flags}))

/* <stdio.h> reads and writes large buffers where they are */
#define IS_STREAM (IS_WINDOW && (size * count > 0))
#define STREAM    size_t size, size_t count, FILE *file

RMEM_PRELOAD_CALL(size_t, fread, (void *buffer, STREAM), IS_STREAM,
                  (buffer, size, count, file),
                  bounce((call_t){CALL_FREAD, -1, IOV(buffer, size * count),
                                  .file = file}) / size)
RMEM_PRELOAD_CALL(size_t, fwrite, (const void *buffer, STREAM), IS_STREAM,
                  (buffer, size, count, file),
                  bounce((call_t){CALL_FWRITE, -1, IOV(buffer, size * count),
                                  .file = file}) / size)
RMEM_PRELOAD_CALL(size_t, fread_unlocked, (void *buffer, STREAM), IS_STREAM,
                  (buffer, size, count, file), fread(buffer, size, count, file))
RMEM_PRELOAD_CALL(size_t, fwrite_unlocked, (const void *buffer, STREAM),
                  IS_STREAM, (buffer, size, count, file),
                  fwrite(buffer, size, count, file))
RMEM_PRELOAD_CALL(size_t, __fread_chk, (void *buffer, size_t room, STREAM),
                  IS_STREAM && (size * count <= room),
                  (buffer, room, size, count, file),
                  fread(buffer, size, count, file))
RMEM_PRELOAD_CALL(size_t, __fread_unlocked_chk,
                  (void *buffer, size_t room, STREAM),
                  IS_STREAM && (size * count <= room),
                  (buffer, room, size, count, file),
                  fread(buffer, size, count, file))

/* libc takes a buffer of its own instead */
RMEM_PRELOAD_CALL(int, setvbuf, (FILE *file, char *buffer, int mode,
                                 size_t length), IS_WINDOW,
                  (file, buffer, mode, length),
                  RMEM_PRELOAD_REAL(setvbuf)(file, NULL, mode, length))
RMEM_PRELOAD_CALL(void, setbuffer, (FILE *file, char *buffer, size_t length),
                  IS_WINDOW, (file, buffer, length),
                  (void)setvbuf(file, buffer, _IOFBF, length))
RMEM_PRELOAD_CALL(void, setbuf, (FILE *file, char *buffer), IS_WINDOW,
                  (file, buffer), setbuffer(file, buffer, BUFSIZ))

RMEM_PRELOAD_EXPORT
int epoll_pwait(int fd, struct epoll_event *events, int max, int timeout,
                const sigset_t *set)
{
    bool is_window = rmem_preload_owns(events);
    struct epoll_event local[EVENTS];
    sigset_t copy;
    int ret;

    ret = RMEM_PRELOAD_REAL(epoll_pwait)(fd, is_window ? local : events,
                                         is_window ? MIN(max, EVENTS) : max,
                                         timeout,
                                         rmem_preload_mask(set, &copy));
    if (is_window && (ret > 0)) {
        memcpy(events, local, ret * sizeof(*events));
    }
    return ret;
}

RMEM_PRELOAD_CALL(int, epoll_wait,
                  (int fd, struct epoll_event *events, int max, int timeout),
                  rmem_preload_owns(events), (fd, events, max, timeout),
                  epoll_pwait(fd, events, max, timeout, NULL))
