/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * nprdma-memd: lends memory to sessions of librmem. See nprdma-memd(1).
 *
 * One thread. Clients get from their extents by RDMA, and send what they have
 * changed in LINES, which are stored in order and then acknowledged. Whatever a
 * client sends ends its own session at most.
 */

#define _GNU_SOURCE
#include "memd_store.h"
#include "rmem.h"
#include "rmem_side.h"

#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <ucs/config/global_opts.h>
#include <ucs/sys/sock.h>
#include <unistd.h>

enum { EXIT_USAGE = 1, EXIT_POOL, EXIT_LISTEN, EXIT_UCX };

enum { MEMD_CLIENTS = 64, MEMD_MAX_CLIENTS = 1024 };

/* Numbers of descriptors of connections */
enum { MEMD_FD_MIN = 4096, MEMD_FD_MAX = 60000 };

/* For a HELLO; for the client to end a session after its last message */
#define MEMD_PATIENCE_NS UINT64_C(5000000000)

typedef enum {
    SESSION_UNUSED,
    SESSION_OPEN,
    SESSION_CLOSING, /* And what it had is cleared, before others have it */
    SESSION_LOST     /* That failed: nobody has its extent any more */
} state_t;

typedef struct {
    state_t          state;
    char             peer[UCS_SOCKADDR_STRING_LEN];
    ucp_ep_h         ep;
    ucs_status_ptr_t closing;
    const char       *wrong;       /* Why it has to end; NULL: it goes on */
    bool             is_gone;      /* The client has ended it */
    uint64_t         deadline;     /* For HELLO, or for the end; 0: none */

    memd_extent_t    extent;       /* bytes: 0: none */
    uint64_t         cleared;
    ucp_mem_h        memh;
    void             *key;
    size_t           key_length;

    uint32_t         received;     /* The last message */
    uint32_t         stored;       /* Up to this one; the others are late */
    memd_message_t   *late[RMEM_MAX_UNACKED]; /* By their numbers */
    int              status;       /* Not RMEM_OK: takes no further message */

    /* UCP reads these until the request ends */
    ucs_status_ptr_t request;
    rmem_welcome_t   welcome;
    rmem_ack_t       ack;
} session_t;

static struct {
    rmem_side_t    side;
    ucp_listener_h listener;
    memd_store_t   store;
    uint8_t        token[RMEM_TOKEN_SIZE];
    session_t      sessions[MEMD_MAX_CLIENTS];
    unsigned long  num_sessions;
    int            signals;
    uint64_t       num_messages;
    uint64_t       num_bytes;
    uint64_t       num_refused; /* Connections */
} memd;

static const ucp_request_param_t force = {
    .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
    .flags        = UCP_EP_CLOSE_FLAG_FORCE
};


/* ---- messages ---- */

static session_t *find_session(const ucp_am_recv_param_t *param)
{
    unsigned i;

    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) ||
        (param->reply_ep == NULL)) {
        return NULL;
    }
    for (i = 0; i < memd.num_sessions; ++i) {
        if (memd.sessions[i].ep == param->reply_ep) {
            return memd.sessions[i].wrong ? NULL : &memd.sessions[i];
        }
    }
    return NULL;
}

/* The client has the last word */
static void refuse(session_t *session, int status)
{
    session->status   = rmem_error(status, "%s: %s", session->peer,
                                   rmem_strerror(status));
    session->deadline = rmem_now() + MEMD_PATIENCE_NS;
}

static ucs_status_ptr_t send_am(session_t *session, unsigned id,
                                const void *header, size_t header_length,
                                const void *data, size_t length)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags        = UCP_AM_SEND_FLAG_EAGER
    };

    return ucp_am_send_nbx(session->ep, id, header, header_length, data, length,
                           &param);
}

/* Takes the same time for all tokens */
static bool is_our_token(const uint8_t *token)
{
    volatile uint8_t difference = 0;
    unsigned i;

    for (i = 0; i < RMEM_TOKEN_SIZE; ++i) {
        difference |= token[i] ^ memd.token[i];
    }
    return difference == 0;
}

/* Clients only read by RDMA. UCX 1.13 permits them to write as well, but the
 * mapping that they reach is read-only. */
static int lend(session_t *session, const rmem_hello_t *hello)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                      UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_PROT,
        .length     = roundup(hello->bytes, RMEM_PAGE_SIZE),
        .prot       = UCP_MEM_MAP_PROT_LOCAL_READ |
                      UCP_MEM_MAP_PROT_REMOTE_READ
    };

    if (hello->version != RMEM_WIRE_VERSION) {
        return RMEM_ERR_UNSUPPORTED;
    }
    if (!is_our_token(hello->token)) {
        return RMEM_ERR_DENIED;
    }
    if (memd_store_alloc(&memd.store, params.length, &session->extent) !=
        RMEM_OK) {
        return RMEM_ERR_FULL;
    }

    params.address = memd.store.lent + session->extent.offset;
    return ((ucp_mem_map(memd.side.context, &params, &session->memh) ==
             UCS_OK) &&
            (ucp_rkey_pack(memd.side.context, session->memh, &session->key,
                           &session->key_length) == UCS_OK)) ?
           RMEM_OK : RMEM_ERR_FULL;
}

static ucs_status_t
on_hello(void *arg, const void *header, size_t header_length, void *data,
         size_t length, const ucp_am_recv_param_t *param)
{
    session_t *session = find_session(param);
    rmem_hello_t hello;
    int status;

    if (session == NULL) {
        return UCS_OK;
    }
    if ((session->extent.bytes > 0) || (session->status != RMEM_OK)) {
        session->wrong = "HELLO was not expected";
        return UCS_OK;
    }
    session->wrong = rmem_wire_parse_hello(header, header_length, length,
                                           &hello);
    if (session->wrong != NULL) {
        return UCS_OK;
    }

    status           = lend(session, &hello);
    session->welcome = (rmem_welcome_t){
        .status     = status,
        .key_length = session->key_length,
        .address    = (uintptr_t)memd.store.lent + session->extent.offset,
        .bytes      = session->extent.bytes
    };
    session->deadline = 0;
    if (status != RMEM_OK) {
        refuse(session, status);
    }
    session->request = send_am(session, RMEM_AM_WELCOME, &session->welcome,
                               sizeof(session->welcome), session->key,
                               session->key_length);
    return UCS_OK;
}

/* Otherwise the first get of what this CPU has written is repaired. Pages
 * that follow each other are advised at once. */
static void advise(const session_t *session, const memd_message_t *message)
{
    ucp_mem_advise_params_t params = {
        .field_mask = UCP_MEM_ADVISE_PARAM_FIELD_ADDRESS |
                      UCP_MEM_ADVISE_PARAM_FIELD_LENGTH |
                      UCP_MEM_ADVISE_PARAM_FIELD_ADVICE,
        .advice     = UCP_MADV_WILLNEED
    };
    const rmem_record_t *records = message->records;
    unsigned i, next;

    for (i = 0; i < message->lines.records; i = next) {
        for (next = i + 1; (next < message->lines.records) &&
             (records[next].page == records[next - 1].page + 1); ++next) {
        }
        params.address = memd.store.lent + session->extent.offset +
                         (uint64_t)records[i].page * RMEM_PAGE_SIZE;
        params.length  = (size_t)(next - i) * RMEM_PAGE_SIZE;
        ucp_mem_advise(memd.side.context, session->memh, &params);
    }
}

static void store(session_t *session, const memd_message_t *message)
{
    int status = memd_store_lines(&memd.store, session->extent.offset, message);

    if (status != RMEM_OK) {
        session->received = session->stored; /* None is late any more */
        refuse(session, status);
        return;
    }
    ++session->stored;
    ++memd.num_messages;
    memd.num_bytes += message->length;
    if (!(message->lines.flags & RMEM_LINES_FREE)) {
        advise(session, message);
    }
}

static bool has_late(const session_t *session)
{
    return session->received != session->stored;
}

static memd_message_t **late_place(session_t *session, uint32_t seq)
{
    return &session->late[seq % RMEM_MAX_UNACKED];
}

static void store_late(session_t *session)
{
    memd_message_t **place  = late_place(session, session->stored + 1);
    memd_message_t *message = *place;

    *place = NULL;
    store(session, message);
    free(message);
}

static void add_late(session_t *session, const memd_message_t *message)
{
    memd_message_t **place = late_place(session, message->lines.seq);
    memd_message_t *copy;

    if (*place != NULL) {
        session->wrong = "LINES did not wait for an ACK";
        return;
    }
    copy = malloc(sizeof(*copy) + message->length);
    if (copy == NULL) {
        session->wrong = "no memory for LINES";
        return;
    }

    *copy      = *message;
    copy->data = memcpy(copy + 1, message->data, message->length);
    *place     = copy;
}

/* Messages of other sessions are not to wait for more than one read of the
 * disk: this one is stored later if it needs one, or is behind such a one. */
static ucs_status_t
on_lines(void *arg, const void *header, size_t header_length, void *data,
         size_t length, const ucp_am_recv_param_t *param)
{
    session_t *session = find_session(param);
    memd_message_t message;
    memd_extent_t *extent;
    size_t records;
    bool is_late;

    if ((session == NULL) || (session->status != RMEM_OK)) {
        return UCS_OK;
    }
    extent = &session->extent;
    if ((extent->bytes == 0) ||
        (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        session->wrong = "LINES was not expected";
        return UCS_OK;
    }
    session->wrong = rmem_wire_parse_lines(header, header_length, data, length,
                                           extent->bytes / RMEM_PAGE_SIZE,
                                           &message.lines, message.records);
    if ((session->wrong == NULL) &&
        (message.lines.seq != session->received + 1)) {
        session->wrong = "LINES is out of sequence";
    }
    if (session->wrong != NULL) {
        return UCS_OK;
    }

    records        = message.lines.records * sizeof(*message.records);
    message.data   = (uint8_t*)data + records;
    message.length = length - records;
    is_late        = has_late(session) |
                     !memd_store_is_here(&memd.store, extent->offset, &message);
    ++session->received;
    if (is_late) {
        add_late(session, &message);
    } else {
        store(session, &message);
    }
    return UCS_OK;
}

static ucs_status_t
on_other(void *arg, const void *header, size_t header_length, void *data,
         size_t length, const ucp_am_recv_param_t *param)
{
    session_t *session = find_session(param);

    if (session != NULL) {
        session->wrong = "the client sent something else";
    }
    return UCS_OK;
}

static const ucp_am_recv_callback_t memd_callbacks[RMEM_AM_LAST] = {
    on_other, on_hello, on_other, on_lines, on_other
};


/* ---- sessions ---- */

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    session_t *session = arg;

    session->is_gone = true;
}

static void on_connection(ucp_conn_request_h request, void *arg)
{
    ucp_ep_params_t params = {
        .field_mask     = UCP_EP_PARAM_FIELD_CONN_REQUEST |
                          UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .conn_request   = request,
        .err_mode       = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler.cb = on_error
    };
    ucp_conn_request_attr_t attr = {
        .field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR
    };
    session_t *session = memd.sessions;
    session_t *end     = session + memd.num_sessions;

    while ((session < end) && (session->state != SESSION_UNUSED)) {
        ++session;
    }
    if (session == end) {
        ++memd.num_refused;
        ucp_listener_reject(memd.listener, request);
        return;
    }

    memset(session, 0, sizeof(*session));
    ucp_conn_request_query(request, &attr);
    ucs_sockaddr_str((struct sockaddr*)&attr.client_address, session->peer,
                     sizeof(session->peer));
    params.err_handler.arg = session;
    if (ucp_ep_create(memd.side.worker, &params, &session->ep) == UCS_OK) {
        session->state    = SESSION_OPEN;
        session->deadline = rmem_now() + MEMD_PATIENCE_NS;
    } else {
        session->ep = NULL;
    }
}

/* Replaces the function of libc, which UCX calls. UCX keeps an event for a
 * descriptor that it closes meanwhile, and gives it to the next one with that
 * number: then an assertion of UCX fails, and strangers that come and go end
 * the server. So the number of a connection comes again late. */
__attribute__((visibility("default")))
int accept(int fd, __SOCKADDR_ARG address, socklen_t *length)
{
    static int last = MEMD_FD_MAX;
    int low         = accept4(fd, address, length, 0);
    int high;

    if (low < 0) {
        return low;
    }

    last = (last < MEMD_FD_MAX) ? last + 1 : MEMD_FD_MIN;
    high = fcntl(low, F_DUPFD, last);
    if (high < 0) {
        return low; /* The limit of descriptors is small */
    }
    close(low);
    last = high;
    return high;
}

static void begin_to_close(session_t *session)
{
    unsigned i;

    if (session->wrong != NULL) {
        rmem_error(0, "%s: session ended: %s", session->peer, session->wrong);
    }
    for (i = 0; i < RMEM_MAX_UNACKED; ++i) {
        free(session->late[i]);
    }
    session->closing = ucp_ep_close_nbx(session->ep, &force);
    session->ep      = NULL; /* The next one may have its address */
    session->state   = SESSION_CLOSING;
}

static bool is_done(ucs_status_ptr_t *request)
{
    if (UCS_PTR_IS_PTR(*request)) {
        if (ucp_request_check_status(*request) == UCS_INPROGRESS) {
            return false;
        }
        ucp_request_free(*request);
    }
    *request = NULL;
    return true;
}

/* Takes its key back, and then clears a part of its extent in each turn */
static void clear(session_t *session)
{
    memd_extent_t *extent = &session->extent;
    uint64_t bytes        = MIN(extent->bytes - session->cleared,
                                (uint64_t)RMEM_MAX_CLEAR * RMEM_PAGE_SIZE);

    if (session->key != NULL) {
        ucp_rkey_buffer_release(session->key);
        session->key = NULL;
    }
    if (session->memh != NULL) {
        ucp_mem_unmap(memd.side.context, session->memh);
        session->memh = NULL;
    }
    if (bytes == 0) {
        if (extent->bytes > 0) {
            memd_store_free(&memd.store, extent);
        }
        session->state = SESSION_UNUSED;
    } else if (memd_store_clear(&memd.store, extent->offset + session->cleared,
                                bytes) == RMEM_OK) {
        session->cleared += bytes;
    } else {
        session->state = SESSION_LOST;
    }
}

static void acknowledge(session_t *session)
{
    if ((session->ack.seq != session->stored) ||
        (session->ack.status != session->status)) {
        session->ack     = (rmem_ack_t){session->stored, session->status};
        session->request = send_am(session, RMEM_AM_ACK, &session->ack,
                                   sizeof(session->ack), NULL, 0);
    }
}

/* Returns for how many milliseconds the session needs no turn; -1: until
 * something happens */
static int take_turn(session_t *session)
{
    if ((session->state == SESSION_UNUSED) ||
        (session->state == SESSION_LOST)) {
        return -1;
    }
    if (session->state == SESSION_CLOSING) {
        if (!is_done(&session->closing) || !is_done(&session->request)) {
            return 1;
        }
        clear(session);
        return 0;
    }

    if ((session->deadline != 0) && (rmem_now() > session->deadline)) {
        session->wrong = (session->status == RMEM_OK) ? "no HELLO" :
                         "the client does not end it";
    }
    if (session->is_gone || (session->wrong != NULL)) {
        begin_to_close(session);
        return 0;
    }
    if (has_late(session)) {
        store_late(session);
    }
    if (is_done(&session->request)) {
        acknowledge(session);
    }
    return has_late(session) ? 0 : (session->deadline == 0) ? -1 : 100;
}


/* ---- the process ---- */

static void report(void)
{
    unsigned i, num = 0;

    for (i = 0; i < memd.num_sessions; ++i) {
        num += (memd.sessions[i].state != SESSION_UNUSED);
    }
    printf("%s: %u sessions, %" PRIu64 " bytes held, %" PRIu64 " messages, %"
           PRIu64 " bytes, %" PRIu64 " connections refused\n", rmem_log_name,
           num, memd.store.held, memd.num_messages, memd.num_bytes,
           memd.num_refused);
    fflush(stdout);
}

/* Returns whether the process has to end */
static bool take_signals(void)
{
    struct signalfd_siginfo info;

    while (read(memd.signals, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo != SIGUSR1) {
            return true;
        }
        report();
    }
    return false;
}

/* Returns for how many milliseconds no session needs a turn; -1: until
 * something happens */
static int take_turns(void)
{
    int timeout = -1, turn;
    unsigned i;

    for (i = 0; i < memd.num_sessions; ++i) {
        turn = take_turn(&memd.sessions[i]);
        if ((turn >= 0) && ((timeout < 0) || (turn < timeout))) {
            timeout = turn;
        }
    }
    return timeout;
}

static void serve(void)
{
    int timeout = 0;
    unsigned i;

    while (!take_signals()) {
        rmem_side_progress(&memd.side, memd.signals, timeout);
        timeout = take_turns();
    }

    ucp_listener_destroy(memd.listener);
    for (i = 0; i < memd.num_sessions; ++i) {
        memd.sessions[i].is_gone = true;
    }
    while (take_turns() >= 0) {
        ucp_worker_progress(memd.side.worker);
    }
}

static int start_to_listen(const rmem_where_t *where, const char *text)
{
    ucp_listener_params_t params = {
        .field_mask       = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                            UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr.addr    = (const struct sockaddr*)&where->addr,
        .sockaddr.addrlen = where->length,
        .conn_handler.cb  = on_connection
    };
    ucp_listener_attr_t attr     = {
        .field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR
    };
    ucs_status_t status;

    status = ucp_listener_create(memd.side.worker, &params, &memd.listener);
    if (status != UCS_OK) {
        return rmem_error(EXIT_LISTEN, "cannot listen at %s: %s", text,
                          ucs_status_string(status));
    }

    ucp_listener_query(memd.listener, &attr);
    /* The port is at the same place in both families */
    printf("%s: port %u, %" PRIu64 " bytes\n", rmem_log_name,
           ntohs(((struct sockaddr_in*)&attr.sockaddr)->sin_port),
           memd.store.size);
    fflush(stdout);
    return 0;
}

/* Before UCX starts threads, so that these get no signals */
static void block_signals(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    memd.signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    signal(SIGPIPE, SIG_IGN);
}

/* The transport takes a descriptor for each 256 MiB of the pool, and no more
 * than a quarter of the limit. The port of a server that ended is free at once.
 * At its limit of events, 1024 by default, UCX 1.13 breaks its memory, and many
 * strangers may connect. */
static void set_limits(void)
{
    struct rlimit files;

    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    setenv("UCX_CM_REUSEADDR", "y", 0);
    if (getenv("UCX_ASYNC_MAX_EVENTS") == NULL) {
        ucs_global_opts_set_value("ASYNC_MAX_EVENTS", "1048576");
    }
}

static void print_help(FILE *file)
{
    fprintf(file,
"Usage: nprdma-memd --size SIZE [--pool FILE] --listen ADDR:PORT --token FILE\n"
"                   [--clients N]\n"
"\n"
"  --size SIZE         memory to lend, in bytes, or with K, M, G or T\n"
"  --pool FILE         lend this file, on a local file system, and not memory\n"
"  --listen ADDR:PORT  where clients connect; [ADDR]:PORT for IPv6\n"
"  --token FILE        32 random bytes that only clients have, mode 0600\n"
"  --clients N         sessions at a time (%d)\n"
"  --version, --help\n"
"\n"
"A client changes only what it has itself, but a hostile one can read what\n"
"others have. Run one server for those that trust each other, in a network\n"
"that you trust. SIGUSR1 prints a line of numbers.\n",
            MEMD_CLIENTS);
}

static const struct option options[] = {
    {"size", required_argument, NULL, 's'},
    {"pool", required_argument, NULL, 'p'},
    {"listen", required_argument, NULL, 'l'},
    {"token", required_argument, NULL, 't'},
    {"clients", required_argument, NULL, 'c'},
    {"version", no_argument, NULL, 'v'},
    {"help", no_argument, NULL, 'h'},
    {NULL}
};

int main(int argc, char **argv)
{
    const char *pool = NULL, *listen = NULL, *token = NULL;
    uint64_t size = 0;
    rmem_where_t where;
    char *end;
    int opt, status;

    set_limits();
    rmem_log_name     = "nprdma-memd";
    memd.num_sessions = MEMD_CLIENTS;
    while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (opt) {
        case 's':
            size = rmem_parse_size(optarg);
            if (size == 0) {
                return rmem_error(EXIT_USAGE, "--size '%s' is no size of whole "
                                  "pages", optarg);
            }
            break;
        case 'p': pool   = optarg; break;
        case 'l': listen = optarg; break;
        case 't': token  = optarg; break;
        case 'c':
            memd.num_sessions = strtoul(optarg, &end, 10);
            if ((*end != '\0') || (memd.num_sessions < 1) ||
                (memd.num_sessions > MEMD_MAX_CLIENTS)) {
                return rmem_error(EXIT_USAGE, "--clients '%s' is not 1 to %d",
                                  optarg, MEMD_MAX_CLIENTS);
            }
            break;
        case 'v': printf("nprdma-memd %s\n", VERSION_TEXT); return 0;
        case 'h': print_help(stdout); return 0;
        default: print_help(stderr); return EXIT_USAGE;
        }
    }
    if (optind < argc) {
        return rmem_error(EXIT_USAGE, "unknown argument '%s'", argv[optind]);
    }
    if ((size == 0) || (listen == NULL) || (token == NULL)) {
        return rmem_error(EXIT_USAGE, "%s is missing; see --help",
                          !size ? "--size" : !listen ? "--listen" : "--token");
    }
    if ((rmem_resolve(listen, true, &where) != RMEM_OK) ||
        (rmem_read_token(token, memd.token) != RMEM_OK)) {
        return EXIT_USAGE;
    }
    if (memd_store_open(&memd.store, pool, size) != 0) {
        return EXIT_POOL;
    }

    block_signals();
    status = EXIT_UCX;
    if (rmem_side_open(&memd.side, memd_callbacks, NULL) == RMEM_OK) {
        status = start_to_listen(&where, listen);
        if (status == 0) {
            serve();
        }
        rmem_side_close(&memd.side);
    }
    memd_store_close(&memd.store);
    return status;
}
