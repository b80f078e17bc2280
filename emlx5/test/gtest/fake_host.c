/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "fake_host.h"
#include "object/emlx5_reset.h"

#include <stdlib.h>

static fake_host_t *fake_host(emlx5_host_t *host)
{
    return emlx5_container_of(host, fake_host_t, host);
}

uint8_t *fake_at(fake_host_t *fake, uint64_t bus, uint64_t length)
{
    if ((bus < FAKE_BASE) || (bus - FAKE_BASE > FAKE_SIZE) ||
        (length > FAKE_SIZE - (bus - FAKE_BASE))) {
        return NULL;
    }
    return fake->memory + (bus - FAKE_BASE);
}

static void fake_look(fake_host_t *fake, const emlx5_tlp_t *tlp)
{
    if (tlp->length > fake->longest) {
        fake->longest = tlp->length;
    }
    fake->crossing += (tlp->iova / EMLX5_PAGE) !=
                      ((tlp->iova + tlp->length - 1) / EMLX5_PAGE);
}

static int fake_read(emlx5_host_t *host, const emlx5_tlp_t *tlps,
                     unsigned count)
{
    fake_host_t *fake = fake_host(host);
    const uint8_t *from;
    int status = 0;
    unsigned i;

    for (i = 0; i < count; ++i) {
        fake_look(fake, &tlps[i]);
        fake->backward += tlps[i].iova < fake->last_read;
        fake->last_read = tlps[i].iova;
        from = fake_at(fake, tlps[i].iova, tlps[i].length);
        if (from != NULL) {
            memcpy(tlps[i].data, from, tlps[i].length);
        } else {
            memset(tlps[i].data, 0, tlps[i].length);
            ++fake->faults;
            status = -1;
        }
    }
    return status;
}

static void fake_write(emlx5_host_t *host, const emlx5_tlp_t *tlp)
{
    fake_host_t *fake = fake_host(host);
    uint8_t *to       = fake_at(fake, tlp->iova, tlp->length);

    fake_look(fake, tlp);
    ++fake->writes;
    if (to != NULL) {
        memcpy(to, tlp->data, tlp->length);
    } else {
        ++fake->faults;
    }
}

static void fake_drain(emlx5_host_t *host)
{
    ++fake_host(host)->drains;
}

static void fake_pause(emlx5_host_t *host, uint32_t us)
{
    (void)us;
    ++fake_host(host)->pauses;
}

static void fake_interrupt(emlx5_host_t *host, unsigned vector)
{
    fake_host(host)->interrupts |= 1u << vector;
}

fake_host_t *fake_host_create(const emlx5_dma_config_t *config, uint16_t lid)
{
    fake_host_t *fake = calloc(1, sizeof(*fake));

    if (fake == NULL) {
        abort();
    }
    fake->host = (emlx5_host_t){fake_read, fake_write, fake_drain, fake_pause,
                                fake_interrupt};
    if (emlx5_hca_init(&fake->hca, &fake->host, config, lid) != 0) {
        abort();
    }
    emlx5_cmdq_init(&fake->hca);
    emlx5_reset(&fake->hca);
    fake->hca.present = 1;
    fake->hca.fabric  = &fake->alone;
    emlx5_hca_set_bus_master(&fake->hca, 1);
    return fake;
}

void fake_host_destroy(fake_host_t *fake)
{
    emlx5_reset(&fake->hca);
    emlx5_hca_cleanup(&fake->hca);
    free(fake);
}

unsigned fake_run(fake_host_t *fake, unsigned limit)
{
    unsigned done = 0;

    while ((done < limit) && emlx5_queue_run(&fake->hca.queue)) {
        ++done;
    }
    return done;
}

emlx5_cmd_status_t fake_command(fake_host_t *fake, uint16_t op, uint8_t *in,
                                uint32_t size, uint8_t *out)
{
    uint8_t *copy    = calloc(1, (size_t)size + EMLX5_CMD_BUFFER);
    emlx5_cmd_t cmd  = {&fake->hca, op, copy, size, out};
    emlx5_cmd_status_t status;

    if (copy == NULL) {
        abort();
    }
    emlx5_put_be16(in, op);
    memcpy(copy, in, size);
    memset(out, 0, EMLX5_MAX_CMD_OUT);
    status = emlx5_cmd_execute(&cmd);
    free(copy);
    return status;
}
