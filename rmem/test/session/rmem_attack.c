/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * rmem_attack ADDRESS:PORT TOKEN-FILE
 *
 * Clients of nprdma-memd, one after the other, that send what librmem never
 * sends. Ends with 0 if the server ends each session, or answers as it should,
 * within a minute. The list is at the end of this file.
 */

#define _GNU_SOURCE
#include "rmem.h"
#include "rmem_side.h"
#include "ucp_common.h"

enum {
    BYTES     = 1 << 20, /* Of the extent */
    PAGES     = BYTES / RMEM_PAGE_SIZE,
    MAX_DATA  = 4 << 20,
    PUT_BYTES = 64 << 10,
    SECONDS   = 60
};

static struct {
    rmem_side_t    side;
    rmem_where_t   where;
    uint8_t        token[RMEM_TOKEN_SIZE];
    ucp_ep_h       ep;
    unsigned       num_ended;  /* Endpoints */
    int            status;     /* Of WELCOME; 1: none has come */
    rmem_welcome_t welcome;
    ucp_rkey_h     rkey;
    uint32_t       acked;
    uint8_t        data[MAX_DATA];
} self = {.status = 1};

static void on_end(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    ++self.num_ended;
}

static void progress(void)
{
    rmem_side_progress(&self.side, -1, 100);
}

/* The key names the range of the extent, which the client itself checks */
static void forge(uint8_t *key, size_t length)
{
    uint64_t range[] = {self.welcome.address, self.welcome.bytes};
    uint8_t *found   = memmem(key, length, range, sizeof(range));

    CHECK(found != NULL, "the key has no range");
    range[0] -= PUT_BYTES;
    range[1] += PUT_BYTES;
    memcpy(found, range, sizeof(range));
}

static ucs_status_t
on_welcome(void *arg, const void *header, size_t header_length, void *data,
           size_t length, const ucp_am_recv_param_t *param)
{
    CHECK(rmem_wire_parse_welcome(header, header_length, length,
                                  &self.welcome) == NULL, "a wrong WELCOME");
    self.status = self.welcome.status;
    if (self.status == RMEM_OK) {
        forge(data, length);
        CHECK(ucp_ep_rkey_unpack(self.ep, data, &self.rkey) == UCS_OK,
              "no key");
    }
    return UCS_OK;
}

static ucs_status_t
on_ack(void *arg, const void *header, size_t header_length, void *data,
       size_t length, const ucp_am_recv_param_t *param)
{
    self.acked = ((const rmem_ack_t*)header)->seq;
    return UCS_OK;
}

static const ucp_am_recv_callback_t callbacks[RMEM_AM_LAST] = {
    on_ack, on_ack, on_welcome, on_ack, on_ack
};

static ucs_status_ptr_t start(unsigned id, const void *header,
                              size_t header_length, const void *data,
                              size_t length, unsigned flags)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags        = flags
    };

    return ucp_am_send_nbx(self.ep, id, header, header_length, data, length,
                           &param);
}

static ucs_status_t finish(ucs_status_ptr_t request)
{
    return wait_for(self.side.worker, request);
}

/* Until it is sent, or the server has ended the session */
static void send_am(unsigned id, const void *header, size_t header_length,
                    size_t length, unsigned flags)
{
    finish(start(id, header, header_length, self.data, length, flags));
}

/* A record and its line */
#define LINE  (sizeof(rmem_record_t) + RMEM_LINE_SIZE)
#define EAGER (UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER)

static void hello(uint32_t magic, uint16_t version, uint64_t bytes)
{
    rmem_hello_t message = {.magic = magic, .version = version, .bytes = bytes};

    memcpy(message.token, self.token, sizeof(self.token));
    send_am(RMEM_AM_HELLO, &message, sizeof(message), 0, EAGER);
}

static void await_end(void)
{
    while (self.num_ended == 0) {
        progress();
    }
}

static void expect_status(int status)
{
    while (self.status == 1) {
        progress();
    }
    CHECK(self.status == status, "status %d and not %d", self.status, status);
}

static void open_session(void)
{
    hello(RMEM_WIRE_MAGIC, RMEM_WIRE_VERSION, BYTES);
    expect_status(RMEM_OK);
}

/* The first line of the extent */
static void lines(uint32_t seq, size_t length, unsigned flags)
{
    rmem_lines_t header  = {seq, 1, 0};
    rmem_record_t record = {0, 0, 1};

    memcpy(self.data, &record, sizeof(record));
    send_am(RMEM_AM_LINES, &header, sizeof(header), length, flags);
}

static void good_line(uint32_t seq)
{
    lines(seq, LINE, EAGER);
}


/* ---- attacks ---- */

static void magic(void) { hello(1, RMEM_WIRE_VERSION, BYTES); await_end(); }

static void version(void)
{
    hello(RMEM_WIRE_MAGIC, RMEM_WIRE_VERSION + 1, BYTES);
    expect_status(RMEM_ERR_UNSUPPORTED);
    /* What follows is ignored, and the server has the patience to wait */
    good_line(1);
    await_end();
}

static void long_hello(void)
{
    send_am(RMEM_AM_HELLO, self.data, 1000, MAX_DATA, EAGER);
    await_end();
}

static void second_hello(void)
{
    open_session();
    hello(RMEM_WIRE_MAGIC, RMEM_WIRE_VERSION, BYTES);
    await_end();
}

static void no_hello(void) { good_line(1); await_end(); }

/* It connects and says nothing */
static void silence(void) { await_end(); }

static void seq_again(void)
{
    open_session();
    good_line(1);
    good_line(1);
    await_end();
}

static void rendezvous(void)
{
    open_session();
    lines(1, MAX_DATA, UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_RNDV);
    await_end();
}

/* Nothing tells the server whose these are: they change nothing */
static void anonymous(void)
{
    open_session();
    lines(1, LINE, UCP_AM_SEND_FLAG_EAGER);
    good_line(1);
    while (self.acked == 0) {
        progress();
    }
    CHECK(self.num_ended == 0, "the session has ended");
}

/* Without waiting for any ACK, for as long as the server takes it. Its file
 * has none of these pages in memory at first. */
static void flood(void)
{
    static struct {
        rmem_lines_t  header;
        rmem_record_t record;
        uint8_t       line[RMEM_LINE_SIZE];
    } messages[20000], *message;
    unsigned seq;

    open_session();
    for (seq = 1; (seq < 20000) && (self.num_ended == 0); ++seq) {
        message         = &messages[seq];
        message->header = (rmem_lines_t){seq, 1, 0};
        message->record = (rmem_record_t){seq % PAGES, 0, 1};
        start(RMEM_AM_LINES, &message->header, sizeof(message->header),
              &message->record, LINE, EAGER);
    }
    while ((self.num_ended == 0) && (self.acked < seq - 1)) {
        progress();
    }
}

/* Of other memory than its own, the NIC gives what is present, and the server's
 * software nothing */
static bool get(void *buffer, size_t length, uint64_t place, bool is_own)
{
    ucs_status_t status = finish(ucp_get_nbx(self.ep, buffer, length, place,
                                             self.rkey, &none));

    CHECK((status == UCS_OK) || (!is_own && (status == UCS_ERR_INVALID_ADDR)),
          "get of %zu bytes: %s", length, ucs_status_string(status));
    return status == UCS_OK;
}

/* Writes by RDMA to this extent, and to the end of the one before it, whose
 * client sees to it that nothing has changed there. The first of all attacks,
 * because the next extent may be in another region. */
static void put(void)
{
    static const size_t lengths[] = {RMEM_LINE_SIZE, RMEM_PAGE_SIZE, PUT_BYTES};
    static uint8_t before[PUT_BYTES], after[PUT_BYTES];
    bool is_own, is_read;
    uint64_t place;
    unsigned i;

    memset(self.data, 0xaa, PUT_BYTES);
    open_session();
    for (i = 0; i < 6; ++i) {
        is_own  = (i % 2 == 0);
        place   = self.welcome.address - (is_own ? 0 : PUT_BYTES);
        is_read = get(before, lengths[i / 2], place, is_own);
        CHECK((finish(ucp_put_nbx(self.ep, self.data, lengths[i / 2], place,
                                  self.rkey, &none)) != UCS_OK) ||
              (finish(ucp_ep_flush_nbx(self.ep, &none)) != UCS_OK),
              "put %u succeeds", i);
        CHECK(!get(after, lengths[i / 2], place, is_own) || !is_read ||
              !memcmp(before, after, lengths[i / 2]), "put %u lands", i);
    }
}

/* Many connections without HELLO: the server has places for 8 and refuses the
 * others, and ends those without HELLO */
static void crowd(void)
{
    unsigned i;

    for (i = 0; i < 300; ++i) {
        self.ep = rmem_side_connect(&self.side, &self.where, on_end, NULL);
        ucp_worker_progress(self.side.worker);
    }
    while (self.num_ended <= 300) {
        progress();
    }
}

/* Each has a session of its own. run: NULL: the message ends the session. UCX
 * 1.13 jumps to a random address for an identifier without a callback. */
static const struct {
    const char    *name;
    void          (*run)(void);
    unsigned      id;
    rmem_lines_t  header;
    size_t        length;
    rmem_record_t record;
} attacks[] = {
    {"put", .run = put}, {"magic", .run = magic}, {"version", .run = version},
    {"long_hello", .run = long_hello}, {"second_hello", .run = second_hello},
    {"no_hello", .run = no_hello}, {"silence", .run = silence},
    {"seq_again", .run = seq_again}, {"rendezvous", .run = rendezvous},
    {"anonymous", .run = anonymous}, {"flood", .run = flood},
    {"crowd", .run = crowd},
    {"long_data", NULL, RMEM_AM_LINES, {1, 1, 0}, MAX_DATA, {0, 0, 1}},
    {"behind_extent", NULL, RMEM_AM_LINES, {1, 1, 0}, LINE, {PAGES, 0, 1}},
    {"free_all", NULL, RMEM_AM_LINES, {1, 1, 1}, 16, {1, UINT32_MAX, 0}},
    {"seq_jump", NULL, RMEM_AM_LINES, {2, 1, 0}, LINE, {0, 0, 1}},
    {"of_server", NULL, RMEM_AM_WELCOME, {1, 1, 0}, LINE, {0, 0, 1}},
    {"zero", NULL, 0, {1, 1, 0}, LINE, {0, 0, 1}},
    {"unknown", NULL, RMEM_AM_LAST, {1, 1, 0}, LINE, {0, 0, 1}},
    {"highest", NULL, UINT16_MAX, {1, 1, 0}, LINE, {0, 0, 1}}
};

static void attack(unsigned i)
{
    CHECK(rmem_side_open(&self.side, callbacks, NULL) == RMEM_OK, "no UCX");
    self.ep = rmem_side_connect(&self.side, &self.where, on_end, NULL);
    if (attacks[i].run != NULL) {
        attacks[i].run();
        return;
    }
    open_session();
    memcpy(self.data, &attacks[i].record, sizeof(attacks[i].record));
    send_am(attacks[i].id, &attacks[i].header, sizeof(attacks[i].header),
            attacks[i].length, EAGER);
    await_end();
}

int main(int argc, char **argv)
{
    unsigned i;

    CHECK((argc == 3) &&
          (rmem_resolve(argv[1], false, &self.where) == RMEM_OK) &&
          (rmem_read_token(argv[2], self.token) == RMEM_OK),
          "ADDRESS:PORT TOKEN-FILE");
    for (i = 0; i < sizeof(attacks) / sizeof(*attacks); ++i) {
        fprintf(stderr, "%s\n", attacks[i].name);
        if (start_child() == 0) {
            alarm(SECONDS);
            attack(i);
            _Exit(0); /* Without notice, as an attacker would */
        }
        expect_end(-1, 0);
    }
    return 0;
}
