/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "bus/emlx5_vfio.h"
#include "base/emlx5_bytes.h"
#include "base/emlx5_log.h"
#include "base/emlx5_time.h"
#include "bus/emlx5_loop.h"
#include "firmware/emlx5_bar.h"
#include "firmware/emlx5_cmdq.h"
#include "firmware/emlx5_monitor.h"
#include "object/emlx5_reset.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Indices of regions and interrupts, as in VFIO for PCI */
enum {
    EMLX5_REGION_BAR0   = 0,
    EMLX5_REGION_CONFIG = 7,
    EMLX5_REGIONS       = 9,
    EMLX5_IRQ_MSIX      = 2,
    EMLX5_IRQS          = 5,
    EMLX5_REGION_RW     = 3,
    EMLX5_INFO_PCI      = 3, /* PCI, and can be reset */
    EMLX5_IRQ_EVENTFD   = 1  /* and not "no resize": see emlx5_irq_raise() */
};

/* SET_IRQS */
enum {
    EMLX5_SET_NONE    = 1 << 0,
    EMLX5_SET_EVENTFD = 1 << 2,
    EMLX5_SET_TRIGGER = 1 << 5
};

enum {
    EMLX5_MAX_ACCESS  = 4096, /* bytes of a region in one message */
    EMLX5_DMA_HEAD    = 16,   /* address and length */
    EMLX5_MAX_REPLY   = 512,
    EMLX5_ID_SHIFT    = 6     /* of a message: below is its place */
};

/* A QEMU that does not answer for so long is taken for dead: ns */
static const uint64_t emlx5_vfio_patience = 120 * 1000000000ull;

static const char emlx5_vfio_version[] =
        "{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":1048576,"
        "\"pgsizes\":4096,\"max_dma_maps\":65535}}";

/* --- DMA -------------------------------------------------------------------*/

static emlx5_vfio_t *emlx5_vfio(emlx5_host_t *host)
{
    return emlx5_container_of(host, emlx5_vfio_t, host);
}

/* Waits until the condition holds or the connection is broken. */
#define emlx5_vfio_await(_vfio, _condition) \
    do { \
        uint64_t _limit = emlx5_now() + emlx5_vfio_patience; \
        while (!(_condition) && !(_vfio)->conn.broken) { \
            if ((_vfio)->loop->stop) { \
                (_vfio)->conn.broken = 1; \
            } \
            if (!emlx5_loop_wait((_vfio)->loop, _limit) && \
                (emlx5_now() >= _limit)) { \
                emlx5_event("port %u: QEMU does not answer", \
                            (_vfio)->hca.lid); \
                (_vfio)->conn.broken = 1; \
            } \
        } \
    } while (0)

static emlx5_pending_t *emlx5_vfio_free_place(emlx5_vfio_t *vfio)
{
    unsigned i;

    for (i = 0; i < EMLX5_VFIO_WINDOW; ++i) {
        if (!vfio->pending[i].busy) {
            return &vfio->pending[i];
        }
    }
    return NULL;
}

/* Sends a DMA message, if need be after an earlier one was answered. */
static void emlx5_vfio_dma(emlx5_vfio_t *vfio, const emlx5_tlp_t *tlp,
                           int is_write)
{
    emlx5_header_t header = {
        .type = is_write ? EMLX5_MSG_DMA_WRITE : EMLX5_MSG_DMA_READ
    };
    uint8_t head[EMLX5_DMA_HEAD];
    emlx5_pending_t *pending;

    emlx5_vfio_await(vfio, vfio->reads + vfio->writes < EMLX5_VFIO_WINDOW);
    if (vfio->conn.broken) {
        return;
    }
    pending         = emlx5_vfio_free_place(vfio);
    pending->busy   = 1;
    pending->id     = (vfio->next_id++ << EMLX5_ID_SHIFT) |
                      (pending - vfio->pending);
    pending->data   = is_write ? NULL : tlp->data;
    pending->length = tlp->length;
    ++*(is_write ? &vfio->writes : &vfio->reads);
    emlx5_log(EMLX5_LOG_DMA, "port %u: %s %#llx + %u", vfio->hca.lid,
              is_write ? "write" : "read", (unsigned long long)tlp->iova,
              tlp->length);
    header.id = pending->id;
    emlx5_put_le64(head, tlp->iova);
    emlx5_put_le64(head + 8, tlp->length);
    emlx5_conn_send(&vfio->conn, &header, head, sizeof(head), tlp->data,
                    is_write ? tlp->length : 0);
}

static int emlx5_vfio_read(emlx5_host_t *host, const emlx5_tlp_t *tlps,
                           unsigned count)
{
    emlx5_vfio_t *vfio = emlx5_vfio(host);
    unsigned i;

    vfio->read_failed = 0;
    for (i = 0; i < count; ++i) {
        /* What it has if no answer comes */
        memset(tlps[i].data, 0, tlps[i].length);
        emlx5_vfio_dma(vfio, &tlps[i], 0);
    }
    emlx5_vfio_await(vfio, vfio->reads == 0);
    return (vfio->read_failed || vfio->conn.broken) ? -1 : 0;
}

static void emlx5_vfio_write(emlx5_host_t *host, const emlx5_tlp_t *tlp)
{
    emlx5_vfio_dma(emlx5_vfio(host), tlp, 1);
}

static void emlx5_vfio_drain(emlx5_host_t *host)
{
    emlx5_vfio_t *vfio = emlx5_vfio(host);

    emlx5_vfio_await(vfio, vfio->writes == 0);
}

static void emlx5_vfio_pause(emlx5_host_t *host, uint32_t us)
{
    emlx5_vfio_t *vfio = emlx5_vfio(host);
    uint64_t until     = emlx5_now() + (us * 1000ull);

    while ((emlx5_now() < until) && !vfio->conn.broken) {
        emlx5_loop_wait(vfio->loop, until);
    }
}

static void emlx5_vfio_interrupt(emlx5_host_t *host, unsigned vector)
{
    emlx5_irq_raise(&emlx5_vfio(host)->irq, vector);
}

/* An answer. One without a request breaks the protocol. */
static void emlx5_vfio_answer(emlx5_vfio_t *vfio)
{
    const emlx5_header_t *header = &vfio->conn.header;
    uint32_t head = EMLX5_MESSAGE_HEADER + EMLX5_DMA_HEAD;
    emlx5_pending_t *pending = &vfio->pending[header->id % EMLX5_VFIO_WINDOW];

    if (!pending->busy || (pending->id != header->id)) {
        emlx5_event("port %u: answer %#x to no question", vfio->hca.lid,
                    header->id);
        vfio->conn.broken = 1;
        return;
    }
    pending->busy = 0;
    --*((pending->data == NULL) ? &vfio->writes : &vfio->reads);
    if ((header->flags & EMLX5_MSG_ERROR) ||
        ((pending->data != NULL) && (header->size < head + pending->length))) {
        ++vfio->faults;
        emlx5_event("port %u: DMA %s of %u bytes fails: error %u",
                    vfio->hca.lid, (pending->data == NULL) ? "write" : "read",
                    pending->length, header->error);
        vfio->read_failed |= (pending->data != NULL);
    } else if (pending->data != NULL) {
        memcpy(pending->data, vfio->conn.in + head, pending->length);
    }
}

/* --- messages --------------------------------------------------------------*/

static void emlx5_vfio_reply(emlx5_vfio_t *vfio, uint32_t error,
                             const void *body, uint32_t size,
                             const void *body2, uint32_t size2)
{
    emlx5_header_t header = vfio->conn.header;

    if ((header.flags & EMLX5_MSG_NO_REPLY) && (error == 0)) {
        return;
    }
    header.flags = EMLX5_MSG_REPLY | ((error != 0) ? EMLX5_MSG_ERROR : 0);
    header.error = error;
    emlx5_conn_send(&vfio->conn, &header, body, size, body2, size2);
}

static void emlx5_vfio_get_info(emlx5_vfio_t *vfio)
{
    uint8_t r[16];

    emlx5_put_le32(r, sizeof(r));
    emlx5_put_le32(r + 4, EMLX5_INFO_PCI);
    emlx5_put_le32(r + 8, EMLX5_REGIONS);
    emlx5_put_le32(r + 12, EMLX5_IRQS);
    emlx5_vfio_reply(vfio, 0, r, sizeof(r), NULL, 0);
}

static uint64_t emlx5_vfio_region_size(uint32_t index)
{
    switch (index) {
    case EMLX5_REGION_BAR0:
        return EMLX5_BAR_SIZE;
    case EMLX5_REGION_CONFIG:
        return EMLX5_CONFIG_SIZE;
    default:
        return 0;
    }
}

static void emlx5_vfio_get_region(emlx5_vfio_t *vfio, const uint8_t *body)
{
    uint32_t index = emlx5_le32(body + 8);
    uint64_t size  = emlx5_vfio_region_size(index);
    uint8_t r[32]  = {0};

    emlx5_put_le32(r, sizeof(r));
    emlx5_put_le32(r + 4, (size > 0) ? EMLX5_REGION_RW : 0);
    emlx5_put_le32(r + 8, index);
    emlx5_put_le64(r + 16, size);
    emlx5_put_le64(r + 24, (uint64_t)index << 40);
    emlx5_vfio_reply(vfio, 0, r, sizeof(r), NULL, 0);
}

static void emlx5_vfio_get_irq(emlx5_vfio_t *vfio, const uint8_t *body)
{
    uint32_t index = emlx5_le32(body + 8);
    int is_msix    = (index == EMLX5_IRQ_MSIX);
    uint8_t r[16];

    emlx5_put_le32(r, sizeof(r));
    emlx5_put_le32(r + 4, is_msix ? EMLX5_IRQ_EVENTFD : 0);
    emlx5_put_le32(r + 8, index);
    emlx5_put_le32(r + 12, is_msix ? EMLX5_VECTORS : 0);
    emlx5_vfio_reply(vfio, 0, r, sizeof(r), NULL, 0);
}

/* Vectors get the descriptors that came, or none. */
static void emlx5_vfio_set_irqs(emlx5_vfio_t *vfio, const uint8_t *body)
{
    uint32_t flags = emlx5_le32(body + 4), index = emlx5_le32(body + 8);
    uint32_t start = emlx5_le32(body + 12), count = emlx5_le32(body + 16);
    emlx5_conn_t *conn = &vfio->conn;
    uint32_t i;
    int fd;

    if ((index != EMLX5_IRQ_MSIX) || !(flags & EMLX5_SET_TRIGGER)) {
        emlx5_vfio_reply(vfio, 0, NULL, 0, NULL, 0);
        return;
    }
    if ((start > EMLX5_VECTORS) || (count > EMLX5_VECTORS - start)) {
        emlx5_vfio_reply(vfio, EINVAL, NULL, 0, NULL, 0);
        return;
    }
    if ((flags & EMLX5_SET_NONE) && (count == 0)) {
        for (i = 0; i < EMLX5_VECTORS; ++i) {
            emlx5_irq_set(&vfio->irq, i, -1);
        }
    }
    for (i = 0; (flags & EMLX5_SET_EVENTFD) && (i < count); ++i) {
        fd = -1;
        if (i < conn->num_fds) {
            fd           = conn->fds[i];
            conn->fds[i] = -1;
        }
        emlx5_irq_set(&vfio->irq, start + i, fd);
    }
    emlx5_vfio_reply(vfio, 0, NULL, 0, NULL, 0);
}

static void emlx5_vfio_reset(emlx5_vfio_t *vfio)
{
    emlx5_config_init(&vfio->config);
    emlx5_reset_later(&vfio->hca);
    vfio->hca.bus_master = 0;
}

/* 1 if an access to a region is inside of it */
static int emlx5_vfio_is_access(const uint8_t *body)
{
    uint64_t offset = emlx5_le64(body), size;
    uint32_t count  = emlx5_le32(body + 12);

    size = emlx5_vfio_region_size(emlx5_le32(body + 8));
    return (count <= EMLX5_MAX_ACCESS) && (offset <= size) &&
           (count <= size - offset);
}

static void emlx5_vfio_region_read(emlx5_vfio_t *vfio, const uint8_t *body)
{
    uint64_t offset = emlx5_le64(body);
    uint32_t count  = emlx5_le32(body + 12);
    uint8_t data[EMLX5_MAX_ACCESS];

    if (!emlx5_vfio_is_access(body)) {
        emlx5_vfio_reply(vfio, EINVAL, NULL, 0, NULL, 0);
        return;
    }
    if (emlx5_le32(body + 8) == EMLX5_REGION_CONFIG) {
        memcpy(data, vfio->config.bytes + offset, count);
    } else {
        emlx5_bar_read(&vfio->hca, offset, data, count);
    }
    emlx5_vfio_reply(vfio, 0, body, 16, data, count);
}

static void emlx5_vfio_region_write(emlx5_vfio_t *vfio, const uint8_t *body,
                                    uint32_t size)
{
    uint64_t offset = emlx5_le64(body);
    uint32_t count  = emlx5_le32(body + 12);

    if (!emlx5_vfio_is_access(body) || (count > size - 16)) {
        emlx5_vfio_reply(vfio, EINVAL, NULL, 0, NULL, 0);
        return;
    }
    if (emlx5_le32(body + 8) == EMLX5_REGION_BAR0) {
        emlx5_bar_write(&vfio->hca, offset, body + 16, count);
    } else if (emlx5_config_write(&vfio->config, offset, body + 16, count)) {
        emlx5_vfio_reset(vfio);
    } else {
        emlx5_hca_set_bus_master(&vfio->hca,
                                 emlx5_config_is_master(&vfio->config));
    }
    emlx5_vfio_reply(vfio, 0, body, 16, NULL, 0);
}

static void emlx5_vfio_command(emlx5_vfio_t *vfio)
{
    const uint8_t *body = vfio->conn.in + EMLX5_MESSAGE_HEADER;
    uint32_t size       = vfio->conn.header.size - EMLX5_MESSAGE_HEADER;

    if (size < emlx5_message_min_body(vfio->conn.header.type)) {
        emlx5_event("port %u: message %u of %u bytes refused", vfio->hca.lid,
                    vfio->conn.header.type, size);
        emlx5_vfio_reply(vfio, EINVAL, NULL, 0, NULL, 0);
        return;
    }
    switch (vfio->conn.header.type) {
    case EMLX5_MSG_VERSION:
        emlx5_vfio_reply(vfio, 0, body, 4, emlx5_vfio_version,
                         sizeof(emlx5_vfio_version));
        break;
    case EMLX5_MSG_DMA_MAP:
        /* All DMA goes by messages, which QEMU translates */
        ++vfio->hca.stats.maps;
        emlx5_vfio_reply(vfio, 0, NULL, 0, NULL, 0);
        break;
    case EMLX5_MSG_DMA_UNMAP:
        ++vfio->hca.stats.unmaps;
        emlx5_vfio_reply(vfio, 0, body, 24, NULL, 0);
        break;
    case EMLX5_MSG_GET_INFO:
        emlx5_vfio_get_info(vfio);
        break;
    case EMLX5_MSG_GET_REGION_INFO:
        emlx5_vfio_get_region(vfio, body);
        break;
    case EMLX5_MSG_GET_IRQ_INFO:
        emlx5_vfio_get_irq(vfio, body);
        break;
    case EMLX5_MSG_SET_IRQS:
        emlx5_vfio_set_irqs(vfio, body);
        break;
    case EMLX5_MSG_REGION_READ:
        emlx5_vfio_region_read(vfio, body);
        break;
    case EMLX5_MSG_REGION_WRITE:
        emlx5_vfio_region_write(vfio, body, size);
        break;
    default:
        emlx5_vfio_reset(vfio);
        emlx5_vfio_reply(vfio, 0, NULL, 0, NULL, 0);
        break;
    }
}

void emlx5_vfio_handle(emlx5_vfio_t *vfio)
{
    if ((vfio->conn.header.flags & EMLX5_MSG_TYPE_MASK) == EMLX5_MSG_REPLY) {
        emlx5_vfio_answer(vfio);
    } else {
        emlx5_vfio_command(vfio);
    }
}

/* --- life ------------------------------------------------------------------*/

static int emlx5_vfio_listen(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd;

    if (strlen(path) >= sizeof(address.sun_path)) {
        emlx5_error("%s: too long for a socket", path);
        return -1;
    }
    strcpy(address.sun_path, path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    unlink(path);
    if ((fd < 0) ||
        (bind(fd, (struct sockaddr*)&address, sizeof(address)) != 0) ||
        (listen(fd, 1) != 0)) {
        emlx5_error("%s: %s", path, strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return -1;
    }
    return fd;
}

int emlx5_vfio_init(emlx5_vfio_t *vfio, emlx5_loop_t *loop, const char *path,
                    const emlx5_dma_config_t *config, uint16_t lid)
{
    memset(vfio, 0, sizeof(*vfio));
    vfio->host = (emlx5_host_t){emlx5_vfio_read, emlx5_vfio_write,
                                emlx5_vfio_drain, emlx5_vfio_pause,
                                emlx5_vfio_interrupt};
    vfio->loop = loop;
    emlx5_irq_init(&vfio->irq);
    emlx5_config_init(&vfio->config);
    vfio->listener = emlx5_vfio_listen(path);
    if (vfio->listener < 0) {
        return -1;
    }
    strcpy(vfio->path, path);
    if ((emlx5_conn_init(&vfio->conn) != 0) ||
        (emlx5_hca_init(&vfio->hca, &vfio->host, config, lid) != 0)) {
        emlx5_error("no memory for %s", path);
        close(vfio->listener);
        free(vfio->conn.in);
        return -1;
    }
    emlx5_cmdq_init(&vfio->hca);
    return 0;
}

void emlx5_vfio_plug(emlx5_vfio_t *vfio, int fd)
{
    emlx5_event("port %u: a guest comes", vfio->hca.lid);
    memset(vfio->pending, 0, sizeof(vfio->pending));
    vfio->reads  = 0;
    vfio->writes = 0;
    vfio->faults = 0;
    memset(&vfio->hca.stats, 0, sizeof(vfio->hca.stats));
    memset(&vfio->hca.dma.stats, 0, sizeof(vfio->hca.dma.stats));
    emlx5_config_init(&vfio->config);
    vfio->hca.bus_master = 0;
    vfio->hca.present    = 1;
    emlx5_reset(&vfio->hca);
    emlx5_conn_open(&vfio->conn, fd);
}

void emlx5_vfio_unplug(emlx5_vfio_t *vfio)
{
    const emlx5_hca_t *hca = &vfio->hca;

    emlx5_event("port %u: the guest is gone: %llu commands (%llu failed), DMA: "
                "%llu reads, %llu writes, %llu failed", hca->lid,
                (unsigned long long)hca->stats.commands,
                (unsigned long long)hca->stats.failed_commands,
                (unsigned long long)hca->dma.stats.reads,
                (unsigned long long)hca->dma.stats.writes,
                (unsigned long long)vfio->faults);
    vfio->hca.present     = 0;
    vfio->hca.bus_master  = 0;
    vfio->hca.dma.enabled = 0;
    emlx5_reset(&vfio->hca);
    emlx5_irq_clear(&vfio->irq);
    emlx5_conn_close(&vfio->conn);
    vfio->conn.broken = 0;
}

void emlx5_vfio_cleanup(emlx5_vfio_t *vfio)
{
    if (vfio->hca.present) {
        emlx5_vfio_unplug(vfio);
    }
    emlx5_hca_cleanup(&vfio->hca);
    emlx5_conn_cleanup(&vfio->conn);
    close(vfio->listener);
    unlink(vfio->path);
}
