/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * copies [-] [local:FILE | deep:FILE]...: opens libraries by dlopen() with
 * RTLD_LOCAL, and RTLD_DEEPBIND, as programs do that bring a UCX of their own.
 * Then sends a message over each UCX that is among them, and over the one that
 * the program is linked with for "-", and prints its file. What was not linked
 * is not called by name, so that this program needs no UCX.
 */

#include <ucp/api/ucp.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LIBS 8
#define SIZE     (1 << 20)
#define TAG      77

#define FUNCTIONS(_of) \
    _of(ucp_init_version) _of(ucp_cleanup) _of(ucp_worker_create) \
    _of(ucp_worker_destroy) _of(ucp_worker_get_address) \
    _of(ucp_worker_release_address) _of(ucp_ep_create) _of(ucp_ep_close_nbx) \
    _of(ucp_tag_send_nbx) _of(ucp_tag_recv_nbx) _of(ucp_worker_progress) \
    _of(ucp_request_check_status) _of(ucp_request_free)
#define MEMBER(_name) __typeof__(_name) *_name;
#define LOAD(_name)   ucp._name = (__typeof__(_name)*)dlsym(lib, #_name);

static struct {
    FUNCTIONS(MEMBER)
} ucp;

static void fail(const char *what, const char *why)
{
    printf("%s: %s\n", what, why);
    exit(1);
}

static void check(const char *what, ucs_status_t status)
{
    if (status != UCS_OK) {
        printf("%s: status %d\n", what, status);
        exit(1);
    }
}

static void finish(const char *what, ucp_worker_h worker, void *request)
{
    ucs_status_t status = UCS_PTR_STATUS(request);

    if (UCS_PTR_IS_PTR(request)) {
        do {
            ucp.ucp_worker_progress(worker);
            status = ucp.ucp_request_check_status(request);
        } while (status == UCS_INPROGRESS);
        ucp.ucp_request_free(request);
    }
    check(what, status);
}

/* A message to ourselves, over the UCX in the table */
static void message(const char *name, unsigned char seed)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                           .features   = UCP_FEATURE_TAG};
    ucp_worker_params_t worker_params = {0};
    ucp_request_param_t none          = {0};
    ucp_ep_params_t ep_params = {.field_mask =
                                         UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    unsigned char *from = malloc(SIZE), *to = calloc(1, SIZE);
    ucp_address_t *address;
    ucp_context_h context;
    ucp_worker_h worker;
    void *recv, *send;
    size_t length;
    ucp_ep_h ep;

    memset(from, seed, SIZE);
    check(name, ucp.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params,
                                     NULL, &context));
    check(name, ucp.ucp_worker_create(context, &worker_params, &worker));
    check(name, ucp.ucp_worker_get_address(worker, &address, &length));
    ep_params.address = address;
    check(name, ucp.ucp_ep_create(worker, &ep_params, &ep));
    recv = ucp.ucp_tag_recv_nbx(worker, to, SIZE, TAG, -1ul, &none);
    send = ucp.ucp_tag_send_nbx(ep, from, SIZE, TAG, &none);
    finish("receive", worker, recv);
    finish("send", worker, send);
    if (memcmp(from, to, SIZE)) {
        fail(name, "the data is wrong");
    }

    finish("close", worker, ucp.ucp_ep_close_nbx(ep, &none));
    ucp.ucp_worker_release_address(worker, address);
    ucp.ucp_worker_destroy(worker);
    ucp.ucp_cleanup(context);
    free(from);
    free(to);
    printf("message over %s\n", name);
}

int main(int argc, char **argv)
{
    void *libs[MAX_LIBS] = {NULL}, *lib;
    Dl_info info;
    int i, mode;

    for (i = 1; (i < argc) && (i < MAX_LIBS); ++i) {
        if (!strcmp(argv[i], "-")) {
            libs[i] = RTLD_DEFAULT;
            continue;
        }

        mode    = strncmp(argv[i], "deep", 4) ? 0 : RTLD_DEEPBIND;
        libs[i] = dlopen(strchr(argv[i], ':') + 1,
                         RTLD_NOW | RTLD_LOCAL | mode);
        if (libs[i] == NULL) {
            fail(argv[i], dlerror());
        }
    }

    for (i = 1; (i < argc) && (i < MAX_LIBS); ++i) {
        lib = libs[i];
        FUNCTIONS(LOAD)
        if (ucp.ucp_init_version != NULL) {
            dladdr((void*)ucp.ucp_init_version, &info);
            message(info.dli_fname, i);
        }
    }
    return 0;
}
