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

#define DOOR_EXPORT __attribute__((visibility("default")))

/* What UCX looks at before it takes a device for usable; see door_path(). */
#define DOOR_DEVICE_NODE "/dev/infiniband/uverbs_npemu0"

/*
 * The list handed out is real and emulated devices in one array. The lists that
 * hold the references are kept in front of it.
 */
typedef struct {
    struct ibv_device **real;
    struct ibv_device **emulated;
    struct ibv_device *devices[];
} door_list_t;

static void *door_libibverbs;

/* Set while the real library may list devices for its own use: it takes all
 * that are in a list for its own, and looks behind struct ibv_device. */
static __thread int door_hides_emulated;

static void door_load(void)
{
    /*
     * By name and not by RTLD_NEXT: a plug-in may have brought libibverbs in
     * with RTLD_LOCAL, where RTLD_NEXT does not look.
     */
    door_libibverbs = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_LOCAL);
}

/* The real function @a name, NULL if this libibverbs (if any) lacks it. */
static void *door_real(const char *name)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, door_load);
    return (door_libibverbs == NULL) ? NULL : dlsym(door_libibverbs, name);
}

static int door_is_ours(const struct ibv_context *context)
{
    return npemu_is_device(context->device);
}

/*
 * The lookup is not cached: these are control verbs, and a symbol found in one
 * library costs a hash probe.
 */
#define DOOR_PASS(_result, _symbol, _failure, _params, _args) \
    _result(*real) _params = door_real(_symbol); \
    if (real == NULL) { \
        errno = EOPNOTSUPP; \
        return _failure; \
    } \
    return real _args;

#define DOOR_SERVE(_result, _name, _failure, _owner, _params, _args) \
    DOOR_EXPORT _result ibv_##_name _params \
    { \
        if (door_is_ours(_owner)) { \
            return npemu_##_name _args; \
        } \
        DOOR_PASS(_result, "ibv_" #_name, _failure, _params, _args) \
    }

#define DOOR_SERVE_HIDDEN(_result, _name, _failure, _owner, _params, _args) \
    DOOR_EXPORT _result _ibv_##_name _params \
    { \
        if (door_is_ours(_owner)) { \
            return npemu_##_name _args; \
        } \
        DOOR_PASS(_result, "_ibv_" #_name, _failure, _params, _args) \
    }

#define DOOR_REFUSE(_result, _name, _failure, _owner, _params, _args) \
    DOOR_EXPORT _result ibv_##_name _params; \
    DOOR_EXPORT _result ibv_##_name _params \
    { \
        if (door_is_ours(_owner)) { \
            errno = EOPNOTSUPP; \
            return _failure; \
        } \
        DOOR_PASS(_result, "ibv_" #_name, _failure, _params, _args) \
    }

/* Not in the public header, but exported by libibverbs for its own tools. */
int ibv_query_gid_type(struct ibv_context *context, uint8_t port,
                       unsigned index, unsigned *type);

NPEMU_DOOR_SERVED(DOOR_SERVE)
NPEMU_DOOR_HIDDEN(DOOR_SERVE_HIDDEN)
NPEMU_DOOR_UNSUPPORTED(DOOR_REFUSE)

/* --- verbs that do not fit the table ------------------------------------- */

DOOR_EXPORT int _ibv_query_comp_cntr_caps(struct ibv_context *context,
                                          struct ibv_comp_cntr_caps *caps,
                                          size_t caps_size);

DOOR_EXPORT int _ibv_query_comp_cntr_caps(struct ibv_context *context,
                                          struct ibv_comp_cntr_caps *caps,
                                          size_t caps_size)
{
    if (door_is_ours(context)) {
        errno = EOPNOTSUPP;
        return EOPNOTSUPP;
    }
    DOOR_PASS(int, "_ibv_query_comp_cntr_caps", EOPNOTSUPP,
              (struct ibv_context *, struct ibv_comp_cntr_caps *, size_t),
              (context, caps, caps_size))
}

static size_t door_count(struct ibv_device **list)
{
    size_t count = 0;

    while ((list != NULL) && (list[count] != NULL)) {
        count++;
    }
    return count;
}

/* Copy the devices of a list, which may be NULL for none. */
static void door_copy(struct ibv_device **to, struct ibv_device **list)
{
    while ((list != NULL) && (*list != NULL)) {
        *to++ = *list++;
    }
}

static void door_free_lists(struct ibv_device **real,
                            struct ibv_device **emulated)
{
    void (*real_free)(struct ibv_device **);

    if (real != NULL) {
        real_free = door_real("ibv_free_device_list");
        if (real_free != NULL) {
            real_free(real);
        }
    }
    npemu_free_device_list(emulated);
}

/** Real devices first: programs that take the first one keep theirs. */
DOOR_EXPORT struct ibv_device **ibv_get_device_list(int *num_devices)
{
    struct ibv_device **(*real_get)(int *) = door_real("ibv_get_device_list");
    struct ibv_device **real, **emulated;
    size_t num_real, num_emulated;
    door_list_t *list;

    emulated = door_hides_emulated ? NULL : npemu_get_device_list(NULL);
    if ((emulated == NULL) && !door_hides_emulated) {
        return NULL;
    }

    /* No list, for example for want of a kernel driver, is no device here. */
    real         = (real_get == NULL) ? NULL : real_get(NULL);
    num_real     = door_count(real);
    num_emulated = door_count(emulated);
    list         = calloc(1, sizeof(*list) + ((num_real + num_emulated + 1) *
                                              sizeof(list->devices[0])));
    if (list == NULL) {
        door_free_lists(real, emulated);
        errno = ENOMEM;
        return NULL;
    }

    list->real     = real;
    list->emulated = emulated;
    door_copy(list->devices, real);
    door_copy(list->devices + num_real, emulated);
    if (num_devices != NULL) {
        *num_devices = (int)(num_real + num_emulated);
    }
    return list->devices;
}

DOOR_EXPORT void ibv_free_device_list(struct ibv_device **devices)
{
    door_list_t *list =
            (door_list_t*)((char*)devices - offsetof(door_list_t, devices));

    door_free_lists(list->real, list->emulated);
    free(list);
}

/**
 * No descriptor leads to npemu0, whose cmd_fd is -1. The real library compares
 * the descriptor with its devices, which it gets by ibv_get_device_list(): by
 * the one above.
 */
DOOR_EXPORT struct ibv_context *ibv_import_device(int cmd_fd)
{
    struct ibv_context *(*real)(int) = door_real("ibv_import_device");
    struct ibv_context *context;

    if (real == NULL) {
        return npemu_import_device(cmd_fd);
    }

    door_hides_emulated = 1;
    context             = real(cmd_fd);
    door_hides_emulated = 0;
    return context;
}

#define DOOR_DEVICE(_result, _name, _failure) \
    DOOR_EXPORT _result ibv_##_name(struct ibv_device *device) \
    { \
        if (npemu_is_device(device)) { \
            return npemu_##_name(device); \
        } \
        DOOR_PASS(_result, "ibv_" #_name, _failure, (struct ibv_device *), \
                  (device)) \
    }

DOOR_DEVICE(const char *, get_device_name, NULL)
DOOR_DEVICE(__be64, get_device_guid, 0)
DOOR_DEVICE(int, get_device_index, -1)
DOOR_DEVICE(struct ibv_context *, open_device, NULL)

/**
 * The function behind the macro of the same name gets a structure that ends
 * before port_cap_flags2: what binaries older than that member allocated.
 */
DOOR_EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port,
                               struct _compat_ibv_port_attr *attr)
{
    struct ibv_port_attr full;
    int ret;

    if (!door_is_ours(context)) {
        DOOR_PASS(int, "ibv_query_port", EOPNOTSUPP,
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
static struct ibv_context *door_event_context(struct ibv_async_event *event)
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

DOOR_EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
    struct ibv_context *context = door_event_context(event);

    /* Nobody counts events of a port or device: no need to ask whose. */
    if ((context != NULL) && door_is_ours(context)) {
        npemu_ack_async_event(event);
        return;
    }
    DOOR_PASS(void, "ibv_ack_async_event", (void)0,
              (struct ibv_async_event *), (event))
}

/** Concerns the process and not a device, so the real library is told too. */
DOOR_EXPORT int ibv_fork_init(void)
{
    int (*real)(void) = door_real("ibv_fork_init");
    int ret           = npemu_fork_init();

    return ((ret != 0) || (real == NULL)) ? ret : real();
}

/* --- the device node ------------------------------------------------------ */

/*
 * UCX's libuct_ib takes a device only if /dev/infiniband/<name> is a character
 * device that it may read and write. There is none for npemu0, so questions
 * about this one path are answered for /dev/null.
 */
static const char *door_path(const char *path)
{
    return ((path != NULL) && (strcmp(path, DOOR_DEVICE_NODE) == 0)) ?
                   "/dev/null" :
                   path;
}

/*
 * The functions have names of their own in C: what the compiler knows of
 * stat(), for example that the path is never NULL, would not hold here.
 */
#define DOOR_PATH_CALL(_name, _arg_type) \
    static int (*door_next_##_name)(const char *, _arg_type); \
    \
    /* Looked up early: stat() may be called where dlsym() must not be. */ \
    static void __attribute__((constructor)) door_find_##_name(void) \
    { \
        door_next_##_name = dlsym(RTLD_NEXT, #_name); \
    } \
    \
    DOOR_EXPORT int door_##_name(const char *path, _arg_type arg) \
            __asm__(#_name); \
    DOOR_EXPORT int door_##_name(const char *path, _arg_type arg) \
    { \
        /* Not yet, in the constructor of a library loaded before us. */ \
        if (door_next_##_name == NULL) { \
            door_find_##_name(); \
        } \
        return door_next_##_name(door_path(path), arg); \
    }

DOOR_PATH_CALL(stat, struct stat *)
DOOR_PATH_CALL(access, int)
