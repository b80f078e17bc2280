/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Requests and replies of the internal messages. A request that passes the
 * parser is executed on memory that does not exist. Replacements of the access
 * functions check whether the access is permitted.
 */

#include "fuzz.h"

#include "ucm/access/nprdma_access.h"
#include "uct/ib/nprdma/mem/nprdma_mem.h"
#include "uct/ib/nprdma/service/nprdma_service_conn.h"
#include "uct/ib/nprdma/service/nprdma_service_execute.h"

enum {
    FUZZ_REPLY      = 1 << 7,   /* the message is a reply */
    FUZZ_NEAR       = 1 << 6,   /* the address is relative to a region */
    FUZZ_BUSY       = 1 << 5,   /* the region is being unmapped, for a moment */
    FUZZ_REGION     = 3,        /* region whose key is filled in; 3: none */
    FUZZ_TYPE       = 3         /* request of a reply, from STORE to NOP */
};

typedef struct {
    uint64_t address;
    uint64_t length;
    uint32_t access;
    int      has_views;
} fuzz_region_t;

static const fuzz_region_t fuzz_regions[] = {
    {0x10000, 64, NPRDMA_REG_ACCESS_ALL, 1},
    {0x7fff12345671, 200000, NPRDMA_REG_ACCESS_GET, 1},
    {UINT64_MAX - 4096, 4096, NPRDMA_REG_ACCESS_PUT | NPRDMA_REG_ACCESS_ATOMIC,
     0}
};

#define FUZZ_NUM_REGIONS (sizeof(fuzz_regions) / sizeof(fuzz_regions[0]))

/* Pages of the regions with views, and the state of each */
#define FUZZ_NUM_PAGES   50
#define FUZZ_STATE       0x1237

/* No process forks here */
static unsigned generation;
unsigned *uct_nprdma_fork_generation = &generation;

static struct {
    const uint8_t *message;     /* of exactly the size received */
    size_t        size;
    unsigned      calls;
    int           busy;
} fuzz_current;

/* All memory accesses of the service go through this function. */
static ucs_status_t
fuzz_access(uint64_t address, uint64_t length, uint32_t access)
{
    const fuzz_region_t *region;
    unsigned i;

    for (i = 0; i < FUZZ_NUM_REGIONS; ++i) {
        region = &fuzz_regions[i];
        if ((address >= region->address) &&
            (address - region->address < region->length)) {
            FUZZ_CHECK(length <= region->length - (address - region->address));
            FUZZ_CHECK(region->access & access);
            ++fuzz_current.calls;
            /* Every third access fails for lack of memory */
            return (address % 3) ? UCS_OK : UCS_ERR_INVALID_ADDR;
        }
    }

    FUZZ_CHECK(!"access outside of all regions");
    return UCS_ERR_INVALID_ADDR;
}

ucs_status_t
nprdma_access_store(uintptr_t address, const void *data, size_t length)
{
    const uint8_t *from = data;

    FUZZ_CHECK(from >= fuzz_current.message);
    FUZZ_CHECK(from + length <= fuzz_current.message + fuzz_current.size);
    return fuzz_access(address, length, NPRDMA_REG_ACCESS_PUT);
}

ucs_status_t nprdma_access_fetch(void *data, uintptr_t address, size_t length)
{
    memset(data, 0x5a, length);
    return fuzz_access(address, length, NPRDMA_REG_ACCESS_GET);
}

ucs_status_t
nprdma_access_atomic(nprdma_atomic_op_t op, size_t size, uintptr_t address,
                     uint64_t value, uint64_t compare, uint64_t *old_p)
{
    FUZZ_CHECK(op < NPRDMA_ATOMIC_LAST);
    FUZZ_CHECK((size == 4) || (size == 8));
    *old_p = value ^ compare;
    if (address % size) {
        return UCS_ERR_INVALID_PARAM;
    }
    return fuzz_access(address, size, NPRDMA_REG_ACCESS_ATOMIC);
}

/* The service asks for pieces of one range, one after the other */
ucs_status_t
nprdma_monitor_populate(nprdma_monitor_t *monitor, nprdma_range_t *range,
                        uintptr_t address, size_t length, unsigned flags)
{
    uint32_t access = (flags & NPRDMA_POPULATE_WRITE) ? NPRDMA_REG_ACCESS_PUT :
                                                        NPRDMA_REG_ACCESS_GET;

    FUZZ_CHECK((const void*)monitor == &fuzz_current);
    FUZZ_CHECK(length > 0);
    FUZZ_CHECK(address >= range->address);
    FUZZ_CHECK(length <= range->length - (address - range->address));
    if (fuzz_current.busy) {
        fuzz_current.busy = 0;
        return UCS_ERR_BUSY;
    }
    return fuzz_access(address, length, access);
}

/* Requests have no connection here, and these are not called */
unsigned uct_nprdma_bounce_grow(UCS_V_UNUSED uct_nprdma_bounce_t *pool)
{
    return 0;
}

void uct_nprdma_service_conn_stop(UCS_V_UNUSED uct_nprdma_service_t *service,
                                  UCS_V_UNUSED uct_nprdma_service_conn_t *conn)
{
}

void uct_nprdma_pager_populate(UCS_V_UNUSED uct_nprdma_pager_t *pager,
                               UCS_V_UNUSED const uct_nprdma_populate_t *range)
{
}

int nprdma_fault_enter(UCS_V_UNUSED nprdma_fault_section_t *section)
{
    return 1;
}

void nprdma_fault_leave(UCS_V_UNUSED const nprdma_fault_section_t *section)
{
}

int nprdma_fault_check(void)
{
    return 1;
}

static void fuzz_populated(const uct_nprdma_svc_request_t *request,
                           const uct_nprdma_svc_populated_t *populated)
{
    unsigned count = uct_nprdma_svc_num_states(request->address,
                                               request->length);
    unsigned valid = 0;
    unsigned i;

    FUZZ_CHECK(uct_nprdma_svc_populated_parse(populated, request->length) ==
               populated);
    if (populated->length > 0) {
        valid = uct_nprdma_svc_num_states(request->address, populated->length);
    }
    for (i = 0; i < count; ++i) {
        FUZZ_CHECK(populated->states[i] == ((i < valid) ? FUZZ_STATE : 0));
    }
}

static void fuzz_execute(nprdma_reg_table_t *table,
                         const uct_nprdma_svc_request_t *request)
{
    uct_nprdma_mem_md_t md = {.regs = table, .monitor = (void*)&fuzz_current};
    /* As small as the interface permits, for the address sanitizer */
    size_t room  = (request->type == UCT_NPRDMA_SVC_FETCH) ?
                   UCT_NPRDMA_SVC_MAX_PIECE :
                   (request->type == UCT_NPRDMA_SVC_POPULATE) ?
                   uct_nprdma_svc_populated_length(
                           request->address, request->length) : 8;
    void *result = malloc(room);
    size_t length;
    uct_nprdma_svc_status_t status;

    FUZZ_CHECK(result != NULL);
    status = uct_nprdma_svc_execute(&md, request, UINT32_MAX, result,
                                    &length);
    FUZZ_CHECK(status < UCT_NPRDMA_SVC_STATUS_LAST);
    FUZZ_CHECK(length <= room);
    FUZZ_CHECK((status == UCT_NPRDMA_SVC_OK) || (length == 0));
    if ((status == UCT_NPRDMA_SVC_OK) &&
        (request->type == UCT_NPRDMA_SVC_POPULATE)) {
        FUZZ_CHECK(length == room);
        fuzz_populated(request, result);
    } else if ((status == UCT_NPRDMA_SVC_OK) &&
               (request->type != UCT_NPRDMA_SVC_NOP)) {
        FUZZ_CHECK(fuzz_current.calls == 1);
    }
    free(result);
}

/* The reply must fit, whatever the range */
static void fuzz_populate_reply(const uct_nprdma_svc_request_t *request)
{
    uint64_t last = request->address + request->length + request->prefetch;
    unsigned states;

    FUZZ_CHECK(request->length > 0);
    FUZZ_CHECK(last > request->address);
    states = uct_nprdma_svc_num_states(request->address, request->length);
    FUZZ_CHECK(states >= 1);
    FUZZ_CHECK(states <= UCT_NPRDMA_SVC_MAX_STATES);
    FUZZ_CHECK(uct_nprdma_svc_populated_length(request->address,
                                               request->length) <=
               UCT_NPRDMA_SVC_MAX_PAYLOAD);
}

static void fuzz_request(nprdma_reg_table_t *table, void *message, size_t size)
{
    const uct_nprdma_svc_request_t *request;

    fuzz_current.message = message;
    fuzz_current.size    = size;
    fuzz_current.calls   = 0;
    request              = uct_nprdma_svc_request_parse(message, size);
    if (request == NULL) {
        return;
    }

    FUZZ_CHECK((const void*)request == message);
    FUZZ_CHECK(size >= sizeof(*request));
    if (request->type == UCT_NPRDMA_SVC_STORE) {
        FUZZ_CHECK(request->length == size - sizeof(*request));
    }
    if (request->type == UCT_NPRDMA_SVC_POPULATE) {
        fuzz_populate_reply(request);
    } else {
        FUZZ_CHECK(request->length <= UCT_NPRDMA_SVC_MAX_PIECE);
        FUZZ_CHECK(request->prefetch == 0);
    }
    if (request->type != UCT_NPRDMA_SVC_FIN) {
        fuzz_execute(table, request);
    }
}

static void fuzz_reply(const void *message, size_t size, uint8_t type,
                       uint32_t sn, size_t expected)
{
    const uct_nprdma_svc_populated_t *populated;
    const uct_nprdma_svc_reply_t *reply;

    reply = uct_nprdma_svc_reply_parse(message, size, type, sn, expected);
    if (reply == NULL) {
        return;
    }

    FUZZ_CHECK((const void*)reply == message);
    FUZZ_CHECK(reply->sn == sn);
    FUZZ_CHECK(reply->length == size - sizeof(*reply));
    FUZZ_CHECK((reply->status != UCT_NPRDMA_SVC_OK) ||
               (reply->length == expected));
    FUZZ_CHECK((reply->status == UCT_NPRDMA_SVC_OK) ||
               (type != UCT_NPRDMA_SVC_NOP));
    FUZZ_CHECK((uct_nprdma_svc_ucs_status(reply->status) == UCS_OK) ==
               (reply->status == UCT_NPRDMA_SVC_OK));
    if (reply->length >= sizeof(*populated)) {
        populated = uct_nprdma_svc_populated_parse(reply + 1, expected);
        FUZZ_CHECK((populated == NULL) || (populated->length <= expected));
    }
}

/* Register a range, and give it views */
static nprdma_reg_t *
fuzz_register(nprdma_reg_table_t *table, const fuzz_region_t *fuzz,
              nprdma_region_t *region)
{
    uct_nprdma_mem_t *mem;
    nprdma_reg_t *reg;

    FUZZ_CHECK(nprdma_reg_alloc(table, fuzz->address, fuzz->length,
                                fuzz->access, &reg) == UCS_OK);
    nprdma_reg_publish(reg);
    region->address    = fuzz->address & ~(NPRDMA_PAGE_SIZE - 1);
    region->length     = FUZZ_NUM_PAGES * NPRDMA_PAGE_SIZE;
    mem                = nprdma_reg_extra(reg);
    mem->reg           = reg;
    mem->has_region    = fuzz->has_views;
    mem->range.region  = region;
    mem->range.address = fuzz->address;
    mem->range.length  = fuzz->length;
    return reg;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nprdma_region_t regions[FUZZ_NUM_REGIONS];
    nprdma_page_state_t states[FUZZ_NUM_PAGES];
    fuzz_reader_t reader = {data, size};
    nprdma_reg_t *regs[FUZZ_NUM_REGIONS];
    uct_nprdma_svc_request_t *request;
    nprdma_reg_sums_t sums = {0};
    nprdma_reg_table_t *table;
    uint8_t control;
    void *message;
    unsigned i;

    control = fuzz_read_u8(&reader);
    if (control & FUZZ_REPLY) {
        uint32_t sn     = fuzz_read_u8(&reader);
        size_t expected = fuzz_read_u8(&reader);

        message = fuzz_copy(reader.data, reader.left);
        fuzz_reply(message, reader.left,
                   UCT_NPRDMA_SVC_STORE + (control & FUZZ_TYPE), sn, expected);
        free(message);
        return 0;
    }

    for (i = 0; i < FUZZ_NUM_PAGES; ++i) {
        states[i] = FUZZ_STATE;
    }
    FUZZ_CHECK(nprdma_reg_table_create(sizeof(uct_nprdma_mem_t), &sums,
                                       &table) == UCS_OK);
    for (i = 0; i < FUZZ_NUM_REGIONS; ++i) {
        regions[i].states = states;
        regs[i]           = fuzz_register(table, &fuzz_regions[i], &regions[i]);
    }
    fuzz_current.busy = control & FUZZ_BUSY;

    /* Keys are random, so only a known key leads beyond the table */
    message = fuzz_copy(reader.data, reader.left);
    request = message;
    i       = control & FUZZ_REGION;
    if ((reader.left >= sizeof(*request)) && (i < FUZZ_NUM_REGIONS)) {
        if (request->key == 0) {
            request->key = nprdma_reg_key(regs[i]);
        }
        if (control & FUZZ_NEAR) {
            request->address += fuzz_regions[i].address;
        }
    }

    fuzz_request(table, message, reader.left);
    free(message);
    nprdma_reg_table_destroy(table);
    return 0;
}
