/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Stands for the real libibverbs.so.1: notes which function was called last,
 * and with which first argument. It has one device, which is not ours.
 */

#include "shim/npemu_shim.h"

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define STUB_EXPORT __attribute__((visibility("default")))

STUB_EXPORT const char *shim_stub_called;
STUB_EXPORT int shim_stub_lists;
STUB_EXPORT int shim_stub_found; /* devices that ibv_import_device() saw */

static struct ibv_device shim_stub_device = {.name = "stub0"};

#define STUB_CALLED(_result, _name, _failure, _params) \
    STUB_EXPORT _result _name _params; \
    STUB_EXPORT _result _name _params \
    { \
        shim_stub_called = #_name; \
        return _failure; \
    }
#define STUB(_result, _name, _failure, _owner, _params, _args) \
    STUB_CALLED(_result, ibv_##_name, _failure, _params)
#define STUB_HIDDEN(_result, _name, _failure, _owner, _params, _args) \
    STUB_CALLED(_result, _ibv_##_name, _failure, _params)

NPEMU_SHIM_SERVED(STUB)
NPEMU_SHIM_UNSUPPORTED(STUB)
NPEMU_SHIM_HIDDEN(STUB_HIDDEN)

STUB_CALLED(const char *, ibv_get_device_name, device->name,
            (struct ibv_device *device))
STUB_CALLED(__be64, ibv_get_device_guid, 0, (struct ibv_device *device))
STUB_CALLED(int, ibv_get_device_index, 7, (struct ibv_device *device))
STUB_CALLED(struct ibv_context *, ibv_open_device, NULL,
            (struct ibv_device *device))
STUB_CALLED(int, ibv_query_port, 0,
            (struct ibv_context *context, uint8_t port,
             struct _compat_ibv_port_attr *attr))
STUB_CALLED(int, ibv_fork_init, 0, (void))
STUB_CALLED(int, ibv_export_buf_dmabuf_fd, -1, (struct ibv_buf *buf))
STUB_CALLED(void, ibv_free_buf, , (struct ibv_buf *buf))
STUB_CALLED(void, ibv_ack_async_event, , (struct ibv_async_event *event))

STUB_EXPORT struct ibv_device **ibv_get_device_list(int *num_devices)
{
    static struct ibv_device *list[] = {&shim_stub_device, NULL};

    ++shim_stub_lists;
    if (num_devices != NULL) {
        *num_devices = 1;
    }
    return list;
}

STUB_EXPORT void ibv_free_device_list(struct ibv_device **list)
{
    if ((list != NULL) && (list[0] == &shim_stub_device)) {
        --shim_stub_lists;
    }
}

/* As in the real library: by its public functions, which the shim replaces. */
STUB_EXPORT struct ibv_context *ibv_import_device(int cmd_fd)
{
    struct ibv_device **list = ibv_get_device_list(&shim_stub_found);

    if (list != NULL) {
        ibv_free_device_list(list);
    }
    shim_stub_called = "ibv_import_device";
    return NULL;
}
