/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_keys send|receive|get
 *
 * Keys after a process was killed, over endpoints with error handling.
 *   send, receive  The owner of a buffer sends it to a client, or receives into
 *                  it from the client, by rendezvous. The client is killed when
 *                  it has the key of the buffer. A second client, which got the
 *                  key from the first one, can use it before. Afterwards the
 *                  transfer of the owner ends with an error, the key is of no
 *                  use, and the buffer stays as it is.
 *   get            A client gets memory of a server that is killed. The next
 *                  get ends with an error, and so does a get with this key from
 *                  another process that has the same addresses.
 *
 * This program has its own uct_rkey_unpack(), which UCP calls, to see keys and
 * to replace them. UCX 1.20 calls another function: there the test is skipped.
 */

#define _GNU_SOURCE
#include "ucp_socket.h"

#include <dlfcn.h>
#include <uct/api/uct.h>

enum {
    SIZE      = 4 << 20,
    KEY_SIZE  = 256,
    TAG       = 1,
    AM_HELLO  = 3,
    ERROR_SEC = 20    /* until an error is reported */
};

/* The processes of a run */
enum {
    OWNER,
    VICTIM,
    ACCOMPLICE,
    SUCCESSOR,
    NUM_ROLES
};

/* What all processes see */
static struct shared {
    volatile uint16_t port[NUM_ROLES];
    volatile int      num_connected;  /* clients that the owner has accepted */
    volatile int      has_stolen;     /* packed_key is complete */
    volatile int      has_tried;      /* the accomplice has used it once */
    volatile int      has_ended;      /* the owner's transfer, with an error */
    volatile int      has_tried_again;
    char              packed_key[KEY_SIZE];
    uint64_t          buffer;         /* address of the owner's buffer */
    uint64_t          second;         /* that of the successor's */
    char              ucp_key[NUM_ROLES][KEY_SIZE];    /* as UCP packs them */
} *shared;

static struct {
    int            steals;         /* stop at the next key, and keep it */
    int            replaces;       /* use the kept key in place of the next */
    size_t         key_size;       /* of a packed key of the transport */
    ucp_context_h  context;
    ucp_worker_h   worker;
    ucp_listener_h listener;
    ucp_ep_h       clients[NUM_ROLES];
    ucs_status_t   error[NUM_ROLES];
    unsigned       num_clients;
} self;


ucs_status_t uct_rkey_unpack(uct_component_h component, const void *rkey_buffer,
                             uct_rkey_bundle_t *rkey_ob)
{
    ucs_status_t (*next)(uct_component_h, const void*, uct_rkey_bundle_t*) =
            dlsym(RTLD_NEXT, "uct_rkey_unpack");

    CHECK(next != NULL, "uct_rkey_unpack: %s", dlerror());
    if (self.steals) {
        memcpy(shared->packed_key, rkey_buffer, self.key_size);
        shared->has_stolen = 1;
        for (;;) {
            pause();
        }
    }
    if (self.replaces) {
        self.replaces = 0;
        CHECK(memcmp(shared->packed_key, rkey_buffer, self.key_size),
              "the stolen key is the key of the other buffer");
        rkey_buffer = shared->packed_key;
    }
    return next(component, rkey_buffer, rkey_ob);
}


/* ---- UCP objects ---- */

static void open_worker(void)
{
    open_ucp(UCP_FEATURE_TAG | UCP_FEATURE_RMA, &self.context, &self.worker);
}

static void close_worker(void)
{
    close_ucp(self.context, self.worker);
}

/* Progress while a condition holds, with a limit */
#define PROGRESS_WHILE(_condition) \
    do { \
        double _deadline = now() + ERROR_SEC; \
        while (_condition) { \
            ucp_worker_progress(self.worker); \
            CHECK(now() < _deadline, "%s for %d s", #_condition, ERROR_SEC); \
        } \
    } while (0)

static void on_request(ucp_conn_request_h request, void *arg)
{
    unsigned i = self.num_clients;

    CHECK(i < NUM_ROLES, "too many clients");
    self.clients[i] = accept_request(self.worker, request, &self.error[i]);
    shared->num_connected = ++self.num_clients;
}

static void start_listener(int role)
{
    shared->port[role] = listen_anywhere(self.worker, AF_INET, on_request,
                                         &self.listener);
}

/* Clients connect one after the other, so the owner knows which is which. UCP
 * takes nothing from a key that it unpacks before the endpoint is connected. */
static ucp_ep_h connect_as(int number, int server, ucs_status_t *error)
{
    ucp_ep_h ep;

    while ((shared->port[server] == 0) || (shared->num_connected < number)) {
    }
    ep = connect_to(self.worker, AF_INET, shared->port[server], error);
    PROGRESS_WHILE(shared->num_connected == number);
    CHECK_OK(wait_for(self.worker, ucp_ep_flush_nbx(ep, &none)));
    return ep;
}

/* Gives the other processes the key of memory */
static void share_key(ucp_mem_h memh, int role)
{
    void *key;
    size_t size;

    CHECK_OK(ucp_rkey_pack(self.context, memh, &key, &size));
    CHECK(size <= KEY_SIZE, "a key of %zu bytes", size);
    memcpy(shared->ucp_key[role], key, size);
    ucp_rkey_buffer_release(key);
}

static ucp_rkey_h unpack_key(ucp_ep_h ep, int role)
{
    ucp_rkey_h rkey;

    CHECK_OK(ucp_ep_rkey_unpack(ep, shared->ucp_key[role], &rkey));
    return rkey;
}

/* @return Size of a packed key of nprdma. */
static size_t query_key_size(void)
{
    uct_component_attr_t attr = {
        .field_mask = UCT_COMPONENT_ATTR_FIELD_NAME |
                      UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT
    };
    uct_component_h *components;
    uct_md_config_t *config;
    uct_md_attr_t md_attr;
    unsigned count, i;
    size_t size = 0;
    uct_md_h md;

    CHECK_OK(uct_query_components(&components, &count));
    for (i = 0; i < count; ++i) {
        CHECK_OK(uct_component_query(components[i], &attr));
        if (strcmp(attr.name, "nprdma")) {
            continue;
        }
        CHECK_OK(uct_md_config_read(components[i], NULL, NULL, &config));
        CHECK_OK(uct_md_open(components[i], "npemu0", config, &md));
        CHECK_OK(uct_md_query(md, &md_attr));
        size = md_attr.rkey_packed_size;
        uct_md_close(md);
        uct_config_release(config);
    }
    uct_release_component_list(components);
    CHECK((size > 0) && (size <= KEY_SIZE), "a key of %zu bytes", size);
    return size;
}


/* ---- a rendezvous whose peer is killed ---- */

static ucs_status_ptr_t start_transfer(ucp_ep_h ep, char *data, int is_sender)
{
    return is_sender ?
           ucp_tag_send_nbx(ep, data, SIZE, TAG, &none) :
           ucp_tag_recv_nbx(self.worker, data, SIZE, TAG, -1, &none);
}

static void be_owner(int is_sender)
{
    char *data  = new_memory(SIZE);
    char *other = new_memory(SIZE);
    ucs_status_ptr_t request;
    ucs_status_t status;
    ucp_mem_h memh;
    unsigned i;

    open_worker();
    fill(data, SIZE, 0);
    shared->buffer = (uintptr_t)data;
    memh           = map_memory(self.context, other, SIZE);
    share_key(memh, OWNER);
    start_listener(OWNER);
    PROGRESS_WHILE(self.num_clients < 2);

    request = start_transfer(self.clients[0], data, is_sender);
    CHECK(UCS_PTR_IS_PTR(request), "no rendezvous");
    PROGRESS_WHILE(!is_done(request));
    status = wait_for(self.worker, request);
    CHECK(status != UCS_OK, "the transfer did not fail");
    PROGRESS_WHILE(self.error[0] == UCS_OK);
    printf("owner: '%s'\n", ucs_status_string(status));
    shared->has_ended = 1;
    PROGRESS_WHILE(!shared->has_tried_again);
    expect(data, SIZE, 0);

    for (i = 0; i < self.num_clients; ++i) {
        close_ep(self.worker, self.clients[i], UCP_EP_CLOSE_FLAG_FORCE);
    }
    ucp_listener_destroy(self.listener);
    CHECK_OK(ucp_mem_unmap(self.context, memh));
    close_worker();
}

/* Stops when it has the key of the owner's buffer, and is killed */
static void be_victim(int is_sender)
{
    char *data = new_memory(SIZE);
    ucs_status_t error;
    ucs_status_ptr_t request;
    ucp_ep_h ep;

    self.key_size = query_key_size();
    open_worker();
    fill(data, SIZE, 0);
    ep          = connect_as(0, OWNER, &error);
    self.steals = 1;
    request     = start_transfer(ep, data, is_sender);
    wait_for(self.worker, request);
    CHECK(0, "the transfer ended without a key");
}

/* Whether one cache line has the data of the owner. What a get that failed has
 * left is not defined, but must not be that. */
static int got_data(const char *data)
{
    char line[64];
    size_t i;

    for (i = 0; i < SIZE; i += sizeof(line)) {
        fill(line, sizeof(line), i);
        if (!memcmp(data + i, line, sizeof(line))) {
            return 1;
        }
    }
    return 0;
}

static ucs_status_t
get(ucp_ep_h ep, ucp_rkey_h rkey, char *data, uint64_t address)
{
    memset(data, 0, SIZE);
    return wait_for(self.worker,
                    ucp_get_nbx(ep, data, SIZE, address, rkey, &none));
}

/* Puts the data of this place */
static ucs_status_t
put(ucp_ep_h ep, ucp_rkey_h rkey, char *data, uint64_t place)
{
    ucs_status_t status;

    fill(data, SIZE, place);
    status = wait_for(self.worker, ucp_put_nbx(ep, data, SIZE, shared->buffer,
                                               rkey, &none));
    return (status == UCS_OK) ?
           wait_for(self.worker, ucp_ep_flush_nbx(ep, &none)) : status;
}

static void be_accomplice(int is_put)
{
    char *data = new_memory(SIZE);
    ucs_status_t error, status;
    ucp_rkey_h rkey;
    ucp_ep_h ep;

    self.key_size = query_key_size();
    open_worker();
    ep = connect_as(1, OWNER, &error);
    PROGRESS_WHILE(!shared->has_stolen);
    self.replaces = 1;
    rkey          = unpack_key(ep, OWNER);
    CHECK(!self.replaces, "UCP did not use the stolen key");
    CHECK_OK(is_put ? put(ep, rkey, data, 0) :
                      get(ep, rkey, data, shared->buffer));
    expect(data, SIZE, 0);
    shared->has_tried = 1;

    PROGRESS_WHILE(!shared->has_ended);
    status = is_put ? put(ep, rkey, data, SIZE) :
                      get(ep, rkey, data, shared->buffer);
    printf("accomplice: '%s'\n", ucs_status_string(status));
    CHECK(status != UCS_OK, "the key is still of use");
    CHECK(is_put || !got_data(data), "it got data");
    shared->has_tried_again = 1;
    ucp_rkey_destroy(rkey);
    close_ep(self.worker, ep, UCP_EP_CLOSE_FLAG_FORCE);
    close_worker();
}


/* ---- memory of a process that is killed ---- */

/* Two buffers, the same in each server. The owner exports the first one, its
 * successor the second one. */
static void be_server(int role)
{
    char *first  = new_memory(SIZE);
    char *second = new_memory(SIZE);
    ucp_mem_h memh;

    open_worker();
    fill(first, SIZE, 0);
    fill(second, SIZE, 0);
    if (role == OWNER) {
        shared->buffer = (uintptr_t)first;
        memh           = map_memory(self.context, first, SIZE);
    } else {
        CHECK(shared->buffer == (uintptr_t)first, "another address");
        shared->second = (uintptr_t)second;
        memh           = map_memory(self.context, second, SIZE);
    }
    share_key(memh, role);
    self.num_clients = shared->num_connected;
    start_listener(role);
    PROGRESS_WHILE(!shared->has_tried_again);

    CHECK(role == SUCCESSOR, "the owner was not killed");
    close_ep(self.worker, self.clients[1], UCP_EP_CLOSE_FLAG_FORCE);
    ucp_listener_destroy(self.listener);
    CHECK_OK(ucp_mem_unmap(self.context, memh));
    close_worker();
}

static void get_fails(ucp_ep_h ep, ucp_rkey_h rkey, char *data,
                      const char *where)
{
    ucs_status_t status = get(ep, rkey, data, shared->buffer);

    printf("%s: '%s'\n", where, ucs_status_string(status));
    CHECK(status != UCS_OK, "the key is still of use");
    CHECK(!got_data(data), "it got data");
    ucp_rkey_destroy(rkey);
    close_ep(self.worker, ep, UCP_EP_CLOSE_FLAG_FORCE);
}

static void be_getter(void)
{
    char *data = new_memory(SIZE);
    ucs_status_t error;
    ucp_rkey_h rkey;
    ucp_ep_h ep;

    open_worker();
    ep   = connect_as(0, OWNER, &error);
    rkey = unpack_key(ep, OWNER);
    CHECK_OK(get(ep, rkey, data, shared->buffer));
    expect(data, SIZE, 0);
    shared->has_tried = 1;

    PROGRESS_WHILE(!shared->has_ended);
    get_fails(ep, rkey, data, "after the end of the owner");
    ep   = connect_as(1, SUCCESSOR, &error);
    rkey = unpack_key(ep, SUCCESSOR);
    CHECK_OK(get(ep, rkey, data, shared->second));
    expect(data, SIZE, 0);
    ucp_rkey_destroy(rkey);
    get_fails(ep, unpack_key(ep, OWNER), data, "at its successor");
    shared->has_tried_again = 1;
    close_worker();
}


/* ---- the processes ---- */

static void be(int role, const char *mode)
{
    const int is_get    = !strcmp(mode, "get");
    const int is_sender = !strcmp(mode, "send");

    switch (role) {
    case OWNER:
        if (is_get) {
            be_server(role);
        } else {
            be_owner(is_sender);
        }
        break;
    case VICTIM:
        be_victim(!is_sender);
        break;
    case ACCOMPLICE:
        if (is_get) {
            be_getter();
        } else {
            be_accomplice(!is_sender);
        }
        break;
    default:
        be_server(role);
    }
}

static pid_t start(int role, const char *mode)
{
    pid_t pid = start_child();

    if (pid == 0) {
        be(role, mode);
        exit(0);
    }
    return pid;
}

/* Ends the program if another process fails before */
static void wait_until(volatile int *condition)
{
    int status;

    while (!*condition) {
        CHECK(waitpid(-1, &status, WNOHANG) == 0,
              "a process ended early, with status 0x%x", status);
        usleep(1000);
    }
}

int main(int argc, char **argv)
{
    const char *mode = (argc == 2) ? argv[1] : "";
    int is_get       = !strcmp(mode, "get");
    pid_t pid;
    int i;

    CHECK(is_get || !strcmp(mode, "send") || !strcmp(mode, "receive"),
          "usage: ucp_keys send|receive|get");
    shared = new_shared(sizeof(*shared));
    setvbuf(stdout, NULL, _IOLBF, 0);

    pid = start(is_get ? OWNER : VICTIM, mode);
    start(ACCOMPLICE, mode);
    if (!is_get) {
        start(OWNER, mode);
    }
    wait_until(&shared->has_tried);
    kill_child(pid);
    if (is_get) {
        start(SUCCESSOR, mode);
        shared->has_ended = 1;
    }
    for (i = 0; i < 2; ++i) {
        expect_end(-1, 0);
    }
    return 0;
}
