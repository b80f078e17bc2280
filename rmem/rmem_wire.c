/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "rmem_wire.h"
#include "rmem.h"

#include <string.h>

enum {
    LINE_WORDS = RMEM_LINE_SIZE / sizeof(uint64_t)
};

/* The program has stored objects of any type there */
typedef uint64_t __attribute__((may_alias)) word_t;

static const char *const wire_statuses[] = {
    "success",
    "an argument is wrong",
    "no local memory",
    "the server has another token",
    "the server has no memory left for this",
    "the server's pool cannot be read or written there",
    "the server does not answer",
    "the connection to the server has ended",
    "not supported"
};

static int is_status(int32_t status)
{
    return (status <= RMEM_OK) && (status >= RMEM_ERR_UNSUPPORTED);
}

const char *rmem_wire_parse_hello(const void *header, size_t header_length,
                                  size_t length, rmem_hello_t *hello)
{
    if (header_length < sizeof(*hello)) {
        return "HELLO is too short";
    }

    memcpy(hello, header, sizeof(*hello));
    if (hello->magic != RMEM_WIRE_MAGIC) {
        return "HELLO has another magic number";
    }
    if (hello->version != RMEM_WIRE_VERSION) {
        return NULL;
    }
    if ((header_length != sizeof(*hello)) || (length != 0)) {
        return "HELLO has another length";
    }
    if (hello->zero != 0) {
        return "HELLO has unknown flags";
    }
    if ((hello->bytes == 0) || (hello->bytes > RMEM_MAX_BYTES)) {
        return "HELLO asks for no bytes, or too many";
    }
    return NULL;
}

const char *rmem_wire_parse_welcome(const void *header, size_t header_length,
                                    size_t length, rmem_welcome_t *welcome)
{
    if (header_length != sizeof(*welcome)) {
        return "WELCOME has another length";
    }

    memcpy(welcome, header, sizeof(*welcome));
    if (!is_status(welcome->status)) {
        return "WELCOME has an unknown status";
    }
    if ((welcome->key_length != length) ||
        ((length == 0) != (welcome->status != RMEM_OK))) {
        return "WELCOME has a key of another length";
    }
    return NULL;
}

static const char *parse_record(const rmem_record_t *record, unsigned flags,
                                uint64_t pages)
{
    if (flags & RMEM_LINES_FREE) {
        if ((record->count == 0) || (record->mask != 0)) {
            return "LINES drops no pages, or has a mask with them";
        }
    } else if ((record->count != 0) || (record->mask == 0)) {
        return "LINES has a record without lines, or with a count";
    }
    if ((record->page >= pages) || (record->count > pages - record->page)) {
        return "LINES leaves the extent";
    }
    return NULL;
}

const char *rmem_wire_parse_lines(const void *header, size_t header_length,
                                  const void *data, size_t length,
                                  uint64_t pages, rmem_lines_t *lines,
                                  rmem_record_t *records)
{
    uint64_t dropped = 0;
    const char *wrong;
    size_t expected;
    unsigned i;

    if (header_length != sizeof(*lines)) {
        return "LINES has a header of another length";
    }

    memcpy(lines, header, sizeof(*lines));
    if ((lines->records == 0) || (lines->records > RMEM_MAX_RECORDS)) {
        return "LINES has no records, or too many";
    }
    if (lines->flags & ~RMEM_LINES_FREE) {
        return "LINES has unknown flags";
    }
    expected = lines->records * sizeof(*records);
    if (length < expected) {
        return "LINES is shorter than its records";
    }

    memcpy(records, data, expected);
    for (i = 0; i < lines->records; ++i) {
        wrong = parse_record(&records[i], lines->flags, pages);
        if (wrong != NULL) {
            return wrong;
        }
        expected += (size_t)__builtin_popcountll(records[i].mask) *
                    RMEM_LINE_SIZE;
        dropped  += records[i].count;
    }
    if (dropped > RMEM_MAX_CLEAR) {
        return "LINES drops too many pages";
    }
    return (length == expected) ? NULL :
           "LINES has another length than its masks say";
}

const char *rmem_wire_parse_ack(const void *header, size_t header_length,
                                size_t length, rmem_ack_t *ack)
{
    if ((header_length != sizeof(*ack)) || (length != 0)) {
        return "ACK has another length";
    }

    memcpy(ack, header, sizeof(*ack));
    return is_status(ack->status) ? NULL : "ACK has an unknown status";
}

/* Without a branch in a line, so that the compiler makes vectors of it */
uint64_t rmem_wire_diff(const void *page, const void *twin)
{
    const word_t *a = page;
    const word_t *b = twin;
    uint64_t mask   = 0;
    uint64_t differ;
    unsigned line, word;

    for (line = 0; line < RMEM_PAGE_SIZE / RMEM_LINE_SIZE; ++line) {
        differ = 0;
        for (word = 0; word < LINE_WORDS; ++word) {
            differ |= a[word] ^ b[word];
        }
        mask |= (uint64_t)(differ != 0) << line;
        a    += LINE_WORDS;
        b    += LINE_WORDS;
    }
    return mask;
}

uint8_t *rmem_wire_gather(uint8_t *message, const void *page, uint64_t mask)
{
    for (; mask != 0; mask &= mask - 1) {
        memcpy(message,
               (const uint8_t*)page + __builtin_ctzll(mask) * RMEM_LINE_SIZE,
               RMEM_LINE_SIZE);
        message += RMEM_LINE_SIZE;
    }
    return message;
}

const uint8_t *rmem_wire_scatter(const uint8_t *message, void *page,
                                 uint64_t mask)
{
    for (; mask != 0; mask &= mask - 1) {
        memcpy((uint8_t*)page + __builtin_ctzll(mask) * RMEM_LINE_SIZE, message,
               RMEM_LINE_SIZE);
        message += RMEM_LINE_SIZE;
    }
    return message;
}

const char *rmem_strerror(int status)
{
    return is_status(status) ? wire_statuses[-status] : "unknown status";
}
