/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * libnpemu-verbs.so: with this library in LD_PRELOAD a program that knows only
 * libibverbs sees npemu0 beside the machine's real devices. Each public verb is
 * exported; objects of npemu0 go to the emulated device, all others to the real
 * library. The symbols carry no version on purpose: the dynamic linker lets
 * such a symbol satisfy a reference to any version of it.
 */

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "shim/npemu_shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The header turns these into calls of inline functions. */
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define SHIM_EXPORT __attribute__((visibility("default")))

/* UCX opens this before it uses a device; see shim_path(). */
#define SHIM_DEVICE_NODE "/dev/infiniband/uverbs_npemu0"

/*
 * The list handed out is real and emulated devices in one array. The lists that
 * hold the references are kept in front of it.
 */
typedef struct {
    struct ibv_device **real;
    struct ibv_device **emulated;
    struct ibv_device *devices[];
} shim_list_t;

static void *shim_libibverbs;

/* Set while the real library may list devices for itself. It assumes that all
 * of them are its own, and reads fields beyond struct ibv_device. */
static __thread int shim_hides_emulated;

static void shim_load(void)
{
    /*
     * By name and not by RTLD_NEXT: a plug-in may have brought libibverbs in
     * with RTLD_LOCAL, where RTLD_NEXT does not look.
     */
    shim_libibverbs = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_LOCAL);
}

/* The real function @a name, NULL if this libibverbs (if any) lacks it. */
static void *shim_real(const char *name)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, shim_load);
    return (shim_libibverbs == NULL) ? NULL : dlsym(shim_libibverbs, name);
}

static int shim_is_ours(const struct ibv_context *context)
{
    return npemu_is_device(context->device);
}

/*
 * The lookup is not cached: these are control verbs, and a symbol found in one
 * library costs a hash probe.
 */
#define SHIM_PASS(_result, _symbol, _failure, _params, _args) \
    _result(*real) _params = shim_real(_symbol); \
    if (real == NULL) { \
        errno = EOPNOTSUPP; \
        return _failure; \
    } \
    return real _args;

#define SHIM_VERB(_result, _symbol, _is_ours, _ours, _failure, _params, _args) \
    SHIM_EXPORT _result _symbol _params; \
    SHIM_EXPORT _result _symbol _params \
    { \
        if (_is_ours) { \
            return _ours; \
        } \
        SHIM_PASS(_result, #_symbol, _failure, _params, _args) \
    }

#define SHIM_SERVE(_result, _name, _failure, _owner, _params, _args) \
    SHIM_VERB(_result, ibv_##_name, shim_is_ours(_owner), npemu_##_name _args, \
              _failure, _params, _args)

#define SHIM_SERVE_HIDDEN(_result, _name, _failure, _owner, _params, _args) \
    SHIM_VERB(_result, _ibv_##_name, shim_is_ours(_owner), \
              npemu_##_name _args, _failure, _params, _args)

#define SHIM_REFUSE(_result, _name, _failure, _owner, _params, _args) \
    SHIM_VERB(_result, ibv_##_name, shim_is_ours(_owner), \
              (errno = EOPNOTSUPP, _failure), _failure, _params, _args)

NPEMU_SHIM_SERVED(SHIM_SERVE)
NPEMU_SHIM_HIDDEN(SHIM_SERVE_HIDDEN)
NPEMU_SHIM_UNSUPPORTED(SHIM_REFUSE)

/* --- verbs that do not fit the table ------------------------------------- */

SHIM_VERB(int, _ibv_query_comp_cntr_caps, shim_is_ours(context),
          (errno = EOPNOTSUPP), EOPNOTSUPP,
          (struct ibv_context *context, struct ibv_comp_cntr_caps *caps,
           size_t caps_size), (context, caps, caps_size))

/* A buffer names no device: npemu0 knows its own. */
SHIM_VERB(void, ibv_free_buf, npemu_is_buf(buf), npemu_free_buf(buf), (void)0,
          (struct ibv_buf *buf), (buf))
SHIM_VERB(int, ibv_export_buf_dmabuf_fd, npemu_is_buf(buf),
          (errno = EOPNOTSUPP, -1), -1, (struct ibv_buf *buf), (buf))

static size_t shim_count(struct ibv_device **list)
{
    size_t count = 0;

    while ((list != NULL) && (list[count] != NULL)) {
        count++;
    }
    return count;
}

/* Copy the devices of a list, which may be NULL for none. */
static void shim_copy(struct ibv_device **to, struct ibv_device **list)
{
    while ((list != NULL) && (*list != NULL)) {
        *to++ = *list++;
    }
}

static void shim_free_lists(struct ibv_device **real,
                            struct ibv_device **emulated)
{
    void (*real_free)(struct ibv_device **);

    if (real != NULL) {
        real_free = shim_real("ibv_free_device_list");
        if (real_free != NULL) {
            real_free(real);
        }
    }
    npemu_free_device_list(emulated);
}

/** Real devices come first, so that a program which opens the first device does
 * not get another one. */
SHIM_EXPORT struct ibv_device **ibv_get_device_list(int *num_devices)
{
    struct ibv_device **(*real_get)(int *) = shim_real("ibv_get_device_list");
    struct ibv_device **real, **emulated;
    size_t num_real, num_emulated;
    shim_list_t *list;

    emulated = shim_hides_emulated ? NULL : npemu_get_device_list(NULL);
    if ((emulated == NULL) && !shim_hides_emulated) {
        return NULL;
    }

    /* The real library has no list where there is no kernel driver */
    real         = (real_get == NULL) ? NULL : real_get(NULL);
    num_real     = shim_count(real);
    num_emulated = shim_count(emulated);
    list         = calloc(1, sizeof(*list) + ((num_real + num_emulated + 1) *
                                              sizeof(list->devices[0])));
    if (list == NULL) {
        shim_free_lists(real, emulated);
        errno = ENOMEM;
        return NULL;
    }

    list->real     = real;
    list->emulated = emulated;
    shim_copy(list->devices, real);
    shim_copy(list->devices + num_real, emulated);
    if (num_devices != NULL) {
        *num_devices = (int)(num_real + num_emulated);
    }
    return list->devices;
}

SHIM_EXPORT void ibv_free_device_list(struct ibv_device **devices)
{
    shim_list_t *list =
            (shim_list_t*)((char*)devices - offsetof(shim_list_t, devices));

    shim_free_lists(list->real, list->emulated);
    free(list);
}

/**
 * No descriptor leads to npemu0, whose cmd_fd is -1. The real library compares
 * the descriptor with its devices, which it gets by ibv_get_device_list(): by
 * the one above.
 */
SHIM_EXPORT struct ibv_context *ibv_import_device(int cmd_fd)
{
    struct ibv_context *(*real)(int) = shim_real("ibv_import_device");
    struct ibv_context *context;

    if (real == NULL) {
        errno = EOPNOTSUPP;
        return NULL;
    }

    shim_hides_emulated = 1;
    context             = real(cmd_fd);
    shim_hides_emulated = 0;
    return context;
}

#define SHIM_DEVICE(_result, _name, _failure, _ours) \
    SHIM_VERB(_result, ibv_##_name, npemu_is_device(device), _ours, _failure, \
              (struct ibv_device *device), (device))

/* It has no index, because it is no device of the kernel */
SHIM_DEVICE(const char *, get_device_name, NULL, npemu_get_device_name(device))
SHIM_DEVICE(__be64, get_device_guid, 0, npemu_get_device_guid(device))
SHIM_DEVICE(int, get_device_index, -1, -1)
SHIM_DEVICE(struct ibv_context *, open_device, NULL, npemu_open_device(device))

/**
 * The function behind the macro of the same name gets a structure that ends
 * before port_cap_flags2: what binaries older than that member allocated.
 */
SHIM_EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port,
                               struct _compat_ibv_port_attr *attr)
{
    struct ibv_port_attr full;
    int ret;

    if (!shim_is_ours(context)) {
        SHIM_PASS(int, "ibv_query_port", EOPNOTSUPP,
                  (struct ibv_context *, uint8_t,
                   struct _compat_ibv_port_attr *),
                  (context, port, attr))
    }

    ret = npemu_query_port(context, port, &full);
    if (ret == 0) {
        memcpy(attr, &full, offsetof(struct ibv_port_attr, port_cap_flags2));
    }
    return ret;
}

/* The context of the object an event is about, NULL if it is about none. */
static struct ibv_context *shim_event_context(struct ibv_async_event *event)
{
    switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
        return event->element.cq->context;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        return event->element.qp->context;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        return event->element.srq->context;
    case IBV_EVENT_WQ_FATAL:
        return event->element.wq->context;
    default:
        return NULL;
    }
}

SHIM_EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
    struct ibv_context *context = shim_event_context(event);

    /* Events of ports and devices are not counted: NULL is right for both */
    if ((context != NULL) && shim_is_ours(context)) {
        npemu_ack_async_event(event);
        return;
    }
    SHIM_PASS(void, "ibv_ack_async_event", (void)0,
              (struct ibv_async_event *), (event))
}

/** A forked child does not share objects of npemu0, so it has nothing to do. */
SHIM_EXPORT int ibv_fork_init(void)
{
    int (*real)(void) = shim_real("ibv_fork_init");

    return (real == NULL) ? 0 : real();
}

/* --- the device node ------------------------------------------------------ */

/*
 * UCX's libuct_ib uses a device only if /dev/infiniband/<name> is a character
 * device that it may read and write. npemu0 has none, so stat() and access() of
 * this one path are answered for /dev/null.
 */
static const char *shim_path(const char *path)
{
    return ((path != NULL) && (strcmp(path, SHIM_DEVICE_NODE) == 0)) ?
                   "/dev/null" :
                   path;
}

/*
 * The functions have other names in C: the compiler assumes of stat(), for
 * example, that the path is never NULL, which does not hold here.
 */
#define SHIM_PATH_CALL(_name, _arg_type) \
    static int (*shim_next_##_name)(const char *, _arg_type); \
    \
    /* In a constructor: stat() is also called where dlsym() must not be. */ \
    static void __attribute__((constructor)) shim_find_##_name(void) \
    { \
        shim_next_##_name = dlsym(RTLD_NEXT, #_name); \
    } \
    \
    SHIM_EXPORT int shim_##_name(const char *path, _arg_type arg) \
            __asm__(#_name); \
    SHIM_EXPORT int shim_##_name(const char *path, _arg_type arg) \
    { \
        /* NULL in constructors of libraries that are loaded before this. */ \
        if (shim_next_##_name == NULL) { \
            shim_find_##_name(); \
        } \
        return shim_next_##_name(shim_path(path), arg); \
    }

SHIM_PATH_CALL(stat, struct stat *)
SHIM_PATH_CALL(access, int)
