/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What any client may send to nprdma-memd, and any server to librmem */

#include "fuzz.h"
#include "rmem_wire.h"

/* As the server stores it: within the extent, and not beyond the data */
static void check_lines(const uint8_t *data, size_t length, uint64_t pages,
                        const rmem_lines_t *lines, const rmem_record_t *records)
{
    uint8_t page[RMEM_PAGE_SIZE];
    const uint8_t *next = data + lines->records * sizeof(*records);
    unsigned i;

    for (i = 0; i < lines->records; ++i) {
        FUZZ_CHECK(records[i].page < pages);
        FUZZ_CHECK((uint64_t)records[i].page + records[i].count <= pages);
        if (lines->flags == 0) {
            next = rmem_wire_scatter(next, page, records[i].mask);
        }
    }
    FUZZ_CHECK(next == data + length);
}

/* The first bytes choose the message and the lengths of its parts */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rmem_record_t records[RMEM_MAX_RECORDS];
    fuzz_reader_t reader = {data, size};
    uint8_t kind         = fuzz_read_u8(&reader);
    size_t header_length = fuzz_read_u8(&reader);
    uint64_t pages       = fuzz_read_u8(&reader) * (uint64_t)UINT32_MAX / 255;
    rmem_welcome_t welcome;
    uint8_t *header, *rest;
    rmem_hello_t hello;
    rmem_lines_t lines;
    rmem_ack_t ack;
    size_t length;

    if (header_length > reader.left) {
        header_length = reader.left;
    }
    header = fuzz_copy(reader.data, header_length);
    length = reader.left - header_length;
    rest   = fuzz_copy(reader.data + header_length, length);

    switch (kind % 4) {
    case 0:
        rmem_wire_parse_hello(header, header_length, length, &hello);
        break;
    case 1:
        rmem_wire_parse_welcome(header, header_length, length, &welcome);
        break;
    case 2:
        rmem_wire_parse_ack(header, header_length, length, &ack);
        break;
    default:
        if (rmem_wire_parse_lines(header, header_length, rest, length, pages,
                                  &lines, records) == NULL) {
            check_lines(rest, length, pages, &lines, records);
        }
        break;
    }

    free(header);
    free(rest);
    return 0;
}
