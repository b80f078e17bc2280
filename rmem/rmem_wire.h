/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef RMEM_WIRE_H_
#define RMEM_WIRE_H_

/*
 * Active messages between librmem and nprdma-memd. Integers are little-endian,
 * as on all machines that nprdma supports. Parsers trust nothing, copy headers
 * out, and return NULL, or what is wrong with the message.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RMEM_WIRE_MAGIC   UINT32_C(0x6d656d72)
#define RMEM_WIRE_VERSION 1

enum {
    RMEM_PAGE_SIZE   = 4096,
    RMEM_LINE_SIZE   = 64,
    RMEM_TOKEN_SIZE  = 32,
    RMEM_MAX_RECORDS = 64,  /* Of one message */
    RMEM_MAX_UNACKED = 16   /* Messages of one session */
};

/* Page numbers and counts of pages have 32 bits */
#define RMEM_MAX_BYTES ((uint64_t)UINT32_MAX * RMEM_PAGE_SIZE)

/* Identifiers of active messages */
enum {
    RMEM_AM_HELLO   = 1, /* Client: a session, please; no data */
    RMEM_AM_WELCOME = 2, /* Server: the answer; the packed key as data */
    RMEM_AM_LINES   = 3, /* Client: records, then the lines that they name */
    RMEM_AM_ACK     = 4, /* Server: what is stored; no data */
    RMEM_AM_LAST
};

enum {
    RMEM_LINES_FREE = 1 << 0 /* The pages of the records are dropped */
};

typedef struct {
    uint32_t magic;
    uint16_t version;
    uint16_t zero;
    uint8_t  token[RMEM_TOKEN_SIZE];
    uint64_t bytes; /* Of the extent */
} __attribute__((packed)) rmem_hello_t;

typedef struct {
    int32_t  status; /* RMEM_OK, or why there is no session */
    uint32_t key_length;
    uint64_t address;
    uint64_t bytes;
} __attribute__((packed)) rmem_welcome_t;

typedef struct {
    uint32_t seq;     /* 1 for the first of a session */
    uint16_t records; /* 1 to RMEM_MAX_RECORDS */
    uint16_t flags;
} __attribute__((packed)) rmem_lines_t;

typedef struct {
    uint32_t page;
    uint32_t count; /* Of pages to drop, with RMEM_LINES_FREE; else 0 */
    uint64_t mask;  /* Of lines of the page, bit 0 the first; else 0 */
} __attribute__((packed)) rmem_record_t;

typedef struct {
    uint32_t seq;    /* All up to this one are stored */
    int32_t  status; /* Of the next one */
} __attribute__((packed)) rmem_ack_t;

/* Pages that the server clears at a time, because other sessions wait
 * meanwhile; the most that one message drops */
enum { RMEM_MAX_CLEAR = (256 << 20) / RMEM_PAGE_SIZE };

/* The most data of a LINES message */
enum {
    RMEM_MAX_DATA = RMEM_MAX_RECORDS *
                    (sizeof(rmem_record_t) + RMEM_PAGE_SIZE)
};

/* A HELLO of another version may be longer; only its version is of use then */
const char *rmem_wire_parse_hello(const void *header, size_t header_length,
                                  size_t length, rmem_hello_t *hello);

const char *rmem_wire_parse_welcome(const void *header, size_t header_length,
                                    size_t length, rmem_welcome_t *welcome);

/* pages: of the extent. The records of an accepted message are
 * copied into an array of RMEM_MAX_RECORDS; the lines follow them in the data,
 * whose length is what they need. */
const char *rmem_wire_parse_lines(const void *header, size_t header_length,
                                  const void *data, size_t length,
                                  uint64_t pages, rmem_lines_t *lines,
                                  rmem_record_t *records);

const char *rmem_wire_parse_ack(const void *header, size_t header_length,
                                size_t length, rmem_ack_t *ack);

/* The lines of a page that differ from those of its twin. Both begin at a
 * multiple of 8. */
uint64_t rmem_wire_diff(const void *page, const void *twin);

/* Copies the lines of a record out of a page, or into it. Returns what follows
 * them in the message. */
uint8_t *rmem_wire_gather(uint8_t *message, const void *page, uint64_t mask);
const uint8_t *rmem_wire_scatter(const uint8_t *message, void *page,
                                 uint64_t mask);

#ifdef __cplusplus
}
#endif

#endif
