/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Messages between two processes over several configurations of UCP by turns,
 * to compare its own choice of protocols with forced ones:
 *
 *   choice_bench WHAT FIRST LAST TURNS NAME[:VARIABLE=VALUE[,...]]...
 *
 * WHAT is tag_lat, send_lat, am_lat, tag_bw, send_bw or am_bw. send_* are tag
 * messages whose sender wants its buffer back early, as a blocking MPI_Send()
 * does. Sizes are the powers of two from FIRST to LAST bytes. VARIABLE is one
 * of UCX's without its prefix. Each NAME is a UCP context of its own in both
 * processes. All contexts live at the same time, and each turn takes one batch
 * of each, so whatever disturbs the machine disturbs all of them.
 *
 * Prints a line "SIZE NAME MEDIAN FASTEST" for each: the turns in us per
 * message, one way for latency, with a window of messages in flight for
 * bandwidth. The receiver of an active message copies it to its own buffer, if
 * UCP does not.
 */

#include "ucp_side.h"

#define MAX_BYTES  (16u << 20)
#define MAX_SIDES  16
#define MAX_TURNS  1001
#define WINDOW     16
#define AM_ID      3
#define DATA_TAG   1
#define ACK_TAG    2

/* Bytes, and messages, of one batch: so short that many are not disturbed */
#define BATCH_BYTES (1u << 20)
#define MAX_BATCH   32

typedef struct {
    const char *name;
    side_t     side;
    ucp_ep_h   ep;
    unsigned   received;  /* Active messages that are complete */
} contender_t;

static contender_t contenders[MAX_SIDES];
static int         num_contenders, num_turns;
static const char  *what;
static size_t      first_size, last_size;
static char        *out_buffer, *in_buffer;

static int is_am(void)
{
    return strncmp(what, "am_", 3) == 0;
}

static int is_bandwidth(void)
{
    return strcmp(strchr(what, '_'), "_bw") == 0;
}


/* ---- contexts ---- */

/* Sets the variables of "NAME:VARIABLE=VALUE,..." and cuts them off */
static void apply_settings(ucp_config_t *config, char *spec)
{
    char *settings = strchr(spec, ':');
    char *item, *value, *save;

    if (settings == NULL) {
        return;
    }

    *settings = '\0';
    for (item = strtok_r(settings + 1, ",", &save); item != NULL;
         item = strtok_r(NULL, ",", &save)) {
        value = strchr(item, '=');
        CHECK(value != NULL, "%s: '%s' is not VARIABLE=VALUE", spec, item);
        *value++ = '\0';
        CHECK(ucp_config_modify(config, item, value) == UCS_OK,
              "%s: UCX does not take %s=%s", spec, item, value);
    }
}

static void am_done(void *request, ucs_status_t status, size_t length,
                    void *arg)
{
    contender_t *contender = arg;

    CHECK(status == UCS_OK, "%s", ucs_status_string(status));
    ++contender->received;
    ucp_request_free(request);
}

static ucs_status_t am_arrived(void *arg, const void *header,
                               size_t header_length, void *data, size_t length,
                               const ucp_am_recv_param_t *param)
{
    contender_t *contender     = arg;
    ucp_request_param_t recv   = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am   = am_done,
        .user_data    = contender
    };
    ucs_status_ptr_t request;

    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        memcpy(in_buffer, data, length);
        ++contender->received;
        return UCS_OK;
    }

    request = ucp_am_recv_data_nbx(contender->side.worker, data, in_buffer,
                                   length, &recv);
    CHECK(!UCS_PTR_IS_ERR(request), "%s",
          ucs_status_string(UCS_PTR_STATUS(request)));
    if (request == NULL) {
        ++contender->received;
        return UCS_OK;
    }
    return UCS_INPROGRESS;
}

static void contender_init(contender_t *contender, int sock, char *spec)
{
    ucp_params_t params               = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features   = UCP_FEATURE_TAG | UCP_FEATURE_AM
    };
    ucp_worker_params_t worker_params = {0};
    ucp_am_handler_param_t handler    = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                      UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id         = AM_ID,
        .cb         = am_arrived,
        .arg        = contender
    };
    side_t *side                      = &contender->side;
    ucp_address_t *address;
    ucp_config_t *config;

    side->sock = sock;
    UCP_CHECK(ucp_config_read(NULL, NULL, &config));
    apply_settings(config, spec);
    contender->name = spec;
    UCP_CHECK(ucp_init(&params, config, &side->context));
    ucp_config_release(config);
    UCP_CHECK(ucp_worker_create(side->context, &worker_params, &side->worker));
    UCP_CHECK(ucp_worker_set_am_recv_handler(side->worker, &handler));
    send_worker_address(side);
    address       = recv_blob(sock);
    contender->ep = make_ep(side, address);
    free(address);
}

static void contender_cleanup(contender_t *contender)
{
    close_ep(&contender->side, contender->ep);
    side_cleanup(&contender->side);
}


/* ---- messages ---- */

static ucs_status_ptr_t send_message(contender_t *contender, size_t size)
{
    ucp_request_param_t param = {0};

    if (is_am()) {
        return ucp_am_send_nbx(contender->ep, AM_ID, NULL, 0, out_buffer, size,
                               &param);
    }
    if (strncmp(what, "send_", 5) == 0) {
        param.op_attr_mask = UCP_OP_ATTR_FLAG_FAST_CMPL;
    }
    return ucp_tag_send_nbx(contender->ep, out_buffer, size, DATA_TAG, &param);
}

static ucs_status_ptr_t
tag_receive(contender_t *contender, void *buffer, size_t size, ucp_tag_t tag)
{
    ucp_request_param_t param = {0};

    return ucp_tag_recv_nbx(contender->side.worker, buffer, size, tag,
                            (ucp_tag_t)-1, &param);
}

static void await_am(contender_t *contender, unsigned count)
{
    while (contender->received < count) {
        ucp_worker_progress(contender->side.worker);
    }
    contender->received -= count;
}

static void receive_message(contender_t *contender, size_t size)
{
    if (is_am()) {
        await_am(contender, 1);
    } else {
        wait_for(&contender->side,
                 tag_receive(contender, in_buffer, size, DATA_TAG));
    }
}

/* Microseconds of a message one way */
static double latency(contender_t *contender, int is_first, size_t size,
                      int count)
{
    double start = now_us();
    ucs_status_ptr_t sent;
    int i;

    for (i = 0; i < count; ++i) {
        if (!is_first) {
            receive_message(contender, size);
        }
        sent = send_message(contender, size);
        if (is_first) {
            receive_message(contender, size);
        }
        wait_for(&contender->side, sent);
    }
    return (now_us() - start) / count / 2;
}

/* Microseconds of a message among many; the receiver answers once at the end */
static double stream(contender_t *contender, int is_first, size_t size,
                     int count)
{
    ucs_status_ptr_t open[WINDOW] = {NULL};
    side_t *side                  = &contender->side;
    ucp_request_param_t param     = {0};
    double start                  = now_us();
    char ack                      = 0;
    int i;

    for (i = 0; i < count; ++i) {
        if (!is_first && is_am()) {
            await_am(contender, 1);
            continue;
        }
        wait_for(side, open[i % WINDOW]);
        open[i % WINDOW] = is_first ? send_message(contender, size) :
                           tag_receive(contender, in_buffer, size, DATA_TAG);
    }
    for (i = 0; i < WINDOW; ++i) {
        wait_for(side, open[i]);
    }
    wait_for(side, is_first ? tag_receive(contender, &ack, 1, ACK_TAG) :
                              ucp_tag_send_nbx(contender->ep, &ack, 1, ACK_TAG,
                                               &param));
    return (now_us() - start) / count;
}

static double batch(contender_t *contender, int is_first, size_t size)
{
    int count = BATCH_BYTES / size;

    count = (count > MAX_BATCH) ? MAX_BATCH : (count < 2) ? 2 : count;
    if (!is_bandwidth()) {
        return latency(contender, is_first, size, count);
    }
    return stream(contender, is_first, size, 4 * count);
}

static void print_size(size_t size, double values[MAX_SIDES][MAX_TURNS])
{
    double middle;
    int i;

    for (i = 0; i < num_contenders; ++i) {
        middle = median(values[i], num_turns); /* which sorts them */
        printf("%zu %s %.3f %.3f\n", size, contenders[i].name, middle,
               values[i][0]);
    }
    fflush(stdout);
}

static void measure_size(int is_first, size_t size)
{
    static double values[MAX_SIDES][MAX_TURNS];
    int turn, k, i;

    for (i = 0; i < num_contenders; ++i) {
        batch(&contenders[i], is_first, size);
    }
    for (turn = 0; turn < num_turns; ++turn) {
        for (k = 0; k < num_contenders; ++k) {
            /* A B B A */
            i               = (turn % 2) ? num_contenders - 1 - k : k;
            values[i][turn] = batch(&contenders[i], is_first, size);
        }
    }
    if (is_first) {
        print_size(size, values);
    }
}

static void side_main(int sock, int is_first, char **specs)
{
    cpu_set_t set;
    size_t size;
    int i;

    CPU_ZERO(&set);
    CPU_SET(!is_first % sysconf(_SC_NPROCESSORS_ONLN), &set);
    sched_setaffinity(0, sizeof(set), &set);
    out_buffer = malloc(MAX_BYTES);
    in_buffer  = malloc(MAX_BYTES);
    CHECK((out_buffer != NULL) && (in_buffer != NULL), "malloc: %m");
    /* Pages of their own, not the one of zeroes that is always in the cache */
    memset(out_buffer, 0x55, MAX_BYTES);
    memset(in_buffer, 0x55, MAX_BYTES);

    for (i = 0; i < num_contenders; ++i) {
        contender_init(&contenders[i], sock, specs[i]);
    }
    for (size = first_size; size <= last_size; size *= 2) {
        measure_size(is_first, size);
    }
    for (i = 0; i < num_contenders; ++i) {
        contender_cleanup(&contenders[i]);
    }
}

static char **all_specs;

static void second_main(int sock)
{
    side_main(sock, 0, all_specs);
}

static void first_main(int sock, pid_t peer)
{
    side_main(sock, 1, all_specs);
}

static int is_kind(const char *name)
{
    static const char *kinds[] = {"tag_lat", "send_lat", "am_lat",
                                  "tag_bw", "send_bw", "am_bw"};
    size_t i;

    for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); ++i) {
        if (strcmp(name, kinds[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    what           = argc > 1 ? argv[1] : "";
    first_size     = argc > 2 ? strtoul(argv[2], NULL, 0) : 0;
    last_size      = argc > 3 ? strtoul(argv[3], NULL, 0) : 0;
    num_turns      = argc > 4 ? atoi(argv[4]) : 0;
    num_contenders = argc - 5;
    if (!is_kind(what) || (first_size == 0) || (last_size > MAX_BYTES) ||
        (num_turns < 1) || (num_turns > MAX_TURNS) || (num_contenders < 1) ||
        (num_contenders > MAX_SIDES)) {
        fprintf(stderr, "usage: choice_bench tag_lat|send_lat|am_lat|tag_bw|"
                        "send_bw|am_bw FIRST LAST\n       TURNS "
                        "NAME[:VARIABLE=VALUE[,...]]... (at most %u bytes, %d "
                        "turns, %d names)\n", MAX_BYTES, MAX_TURNS, MAX_SIDES);
        return 2;
    }

    all_specs = argv + 5;
    return run_both(second_main, first_main);
}
