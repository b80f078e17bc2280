/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE
#include "rmem_side.h"
#include "rmem.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* How long a worker without work is polled: a sleeping one answers later */
#define SIDE_POLL_NS 50000

/* As nprdma.env has for programs that connect by socket address */
static const char *const side_settings[][2] = {
    {"UCX_TLS", "nprdma"},
    {"UCX_SOCKADDR_TLS_PRIORITY", "nprdma,rdmacm"},
    /* With errors of peers, its new protocols let the server's CPU do gets */
    {"UCX_PROTO_ENABLE", "n"}
};

const char *rmem_log_name = "rmem";

int rmem_error(int status, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    /* Not <stdio.h>: another thread that faults may have locked stderr */
    dprintf(STDERR_FILENO, "%s: error: %s\n", rmem_log_name, text);
    return status;
}

/* As UCX from 1.22 on does with a plugin; older ones have none. The library
 * chooses the component for the UCX that this function calls. */
static int load_component(void)
{
    ucs_status_t (*serve)(void);
    void *library = dlopen(RMEM_PRELOAD, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        return rmem_error(RMEM_ERR_UNSUPPORTED, "%s", dlerror());
    }

    serve = (ucs_status_t(*)(void))dlsym(library, "ucs_module_global_init");
    if ((serve == NULL) || (serve() != UCS_OK)) {
        return rmem_error(RMEM_ERR_UNSUPPORTED, "%s is of another nprdma",
                          RMEM_PRELOAD);
    }
    return RMEM_OK;
}

static ucs_status_t open_context(ucp_context_h *context_p)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features   = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP
    };
    ucp_config_t *config;
    ucs_status_t status;
    size_t i;

    status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) {
        return status;
    }

    for (i = 0; i < sizeof(side_settings) / sizeof(*side_settings); ++i) {
        if ((getenv(side_settings[i][0]) == NULL) && (status == UCS_OK)) {
            status = ucp_config_modify(config,
                                       side_settings[i][0] + strlen("UCX_"),
                                       side_settings[i][1]);
        }
    }
    if (status == UCS_OK) {
        status = ucp_init(&params, config, context_p);
    }
    ucp_config_release(config);
    return status;
}

/* From the highest identifier on, so that UCP extends its table once */
static ucs_status_t set_callbacks(rmem_side_t *side,
                                  const ucp_am_recv_callback_t *callbacks,
                                  void *arg)
{
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                      UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .flags      = UCP_AM_FLAG_WHOLE_MSG,
        .arg        = arg
    };
    ucs_status_t status = UCS_OK;
    unsigned id;

    for (id = UINT16_MAX + 1; (id > 0) && (status == UCS_OK); --id) {
        param.id = id - 1;
        param.cb = callbacks[(id <= RMEM_AM_LAST) ? id - 1 : 0];
        status   = ucp_worker_set_am_recv_handler(side->worker, &param);
    }
    return status;
}

int rmem_side_open(rmem_side_t *side, const ucp_am_recv_callback_t *callbacks,
                   void *arg)
{
    ucp_worker_params_t params = {
        .field_mask  = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED
    };
    ucs_status_t status;
    int ret;

    ret = load_component();
    if (ret != RMEM_OK) {
        return ret;
    }

    status = open_context(&side->context);
    if (status == UCS_OK) {
        status = ucp_worker_create(side->context, &params, &side->worker);
        if (status == UCS_OK) {
            status = set_callbacks(side, callbacks, arg);
            if (status == UCS_OK) {
                ucp_worker_get_efd(side->worker, &side->fd);
                side->busy = rmem_now();
                return RMEM_OK;
            }
            ucp_worker_destroy(side->worker);
        }
        ucp_cleanup(side->context);
    }
    return rmem_error(RMEM_ERR_UNSUPPORTED, "UCX does not open nprdma: %s",
                      ucs_status_string(status));
}

void rmem_side_close(rmem_side_t *side)
{
    ucp_worker_destroy(side->worker);
    ucp_cleanup(side->context);
}

bool rmem_side_progress(rmem_side_t *side, int fd, int timeout_ms)
{
    struct pollfd fds[] = {
        {.fd = side->fd, .events = POLLIN},
        {.fd = fd, .events = POLLIN}
    };

    if (ucp_worker_progress(side->worker) != 0) {
        side->busy = rmem_now();
        return true;
    }
    if ((rmem_now() - side->busy >= SIDE_POLL_NS) &&
        (ucp_worker_arm(side->worker) == UCS_OK)) {
        poll(fds, 2, timeout_ms);
        side->busy = rmem_now();
    }
    return false;
}

ucs_status_t rmem_side_finish(rmem_side_t *side, ucs_status_ptr_t request)
{
    ucs_status_t status;

    if (!UCS_PTR_IS_PTR(request)) {
        return UCS_PTR_STATUS(request);
    }
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
        ucp_worker_progress(side->worker);
    }
    ucp_request_free(request);
    return status;
}

int rmem_resolve(const char *text, bool is_server, rmem_where_t *where)
{
    struct addrinfo hints = {
        .ai_flags    = (is_server ? AI_PASSIVE : 0) | AI_NUMERICSERV,
        .ai_socktype = SOCK_STREAM
    };
    const char *colon = strrchr(text, ':');
    struct addrinfo *found;
    char name[256];
    size_t length;
    int ret;

    length = (colon == NULL) ? 0 : colon - text;
    if ((length > 2) && (text[0] == '[') && (colon[-1] == ']')) {
        ++text;
        length -= 2;
    }
    if ((length == 0) || (length >= sizeof(name)) || (colon[1] == '\0')) {
        return rmem_error(RMEM_ERR_ARG, "'%s' is no ADDRESS:PORT", text);
    }

    memcpy(name, text, length);
    name[length] = '\0';
    ret          = getaddrinfo(name, colon + 1, &hints, &found);
    if (ret != 0) {
        return rmem_error(RMEM_ERR_ARG, "'%s': %s", text, gai_strerror(ret));
    }
    memcpy(&where->addr, found->ai_addr, found->ai_addrlen);
    where->length = found->ai_addrlen;
    freeaddrinfo(found);
    return RMEM_OK;
}

ucp_ep_h rmem_side_connect(rmem_side_t *side, const rmem_where_t *where,
                           ucp_err_handler_cb_t on_error, void *arg)
{
    ucp_ep_params_t params = {
        .field_mask       = UCP_EP_PARAM_FIELD_FLAGS |
                            UCP_EP_PARAM_FIELD_SOCK_ADDR |
                            UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                            UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .flags            = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr.addr    = (const struct sockaddr*)&where->addr,
        .sockaddr.addrlen = where->length,
        .err_mode         = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler.cb   = on_error,
        .err_handler.arg  = arg
    };
    ucp_ep_h ep;

    return (ucp_ep_create(side->worker, &params, &ep) == UCS_OK) ? ep : NULL;
}

uint64_t rmem_parse_size(const char *text)
{
    static const char units[] = "KMGT";
    unsigned shift            = 0;
    const char *unit;
    char *end;
    uint64_t value;

    errno = 0;
    value = strtoull(text, &end, 10);
    unit  = (*end != '\0') ? strchr(units, *end) : NULL;
    if (unit != NULL) {
        shift = 10 * (unit - units + 1);
        ++end;
    }
    if ((text[0] < '0') || (text[0] > '9') || (*end != '\0') || (errno != 0) ||
        (value > (RMEM_MAX_BYTES >> shift))) {
        return 0;
    }
    value <<= shift;
    return (value % RMEM_PAGE_SIZE) ? 0 : value;
}

int rmem_read_token(const char *path, uint8_t *token)
{
    uint8_t data[RMEM_TOKEN_SIZE + 1];
    struct stat st = {0};
    ssize_t length = -1;
    int fd;

    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
        fstat(fd, &st);
        length = read(fd, data, sizeof(data));
        close(fd);
    }
    if (length < 0) {
        return rmem_error(RMEM_ERR_ARG, "token file %s: %s", path,
                          strerror(errno));
    }
    if ((length != RMEM_TOKEN_SIZE) || !S_ISREG(st.st_mode)) {
        return rmem_error(RMEM_ERR_ARG, "token file %s is no file of %d bytes",
                          path, RMEM_TOKEN_SIZE);
    }
    if (st.st_mode & (S_IRWXG | S_IRWXO)) {
        return rmem_error(RMEM_ERR_ARG,
                          "token file %s is open to others: chmod 600", path);
    }
    memcpy(token, data, RMEM_TOKEN_SIZE);
    return RMEM_OK;
}

uint64_t rmem_now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}
