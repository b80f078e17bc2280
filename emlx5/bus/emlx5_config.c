/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "bus/emlx5_config.h"
#include "base/emlx5_bytes.h"
#include "base/emlx5_limits.h"

/* PCI 3.0, 6.1, and PCI Express 3.0, 7.8 */
enum {
    EMLX5_PCI_VENDOR      = 0x00,
    EMLX5_PCI_DEVICE      = 0x02,
    EMLX5_PCI_COMMAND     = 0x04,
    EMLX5_PCI_STATUS      = 0x06,
    EMLX5_PCI_CLASS       = 0x08, /* and revision */
    EMLX5_PCI_CACHE_LINE  = 0x0c,
    EMLX5_PCI_BAR0        = 0x10,
    EMLX5_PCI_SUB_VENDOR  = 0x2c,
    EMLX5_PCI_SUB_DEVICE  = 0x2e,
    EMLX5_PCI_CAPS        = 0x34,
    EMLX5_PCI_INTR_LINE   = 0x3c,
    EMLX5_PCI_EXPRESS     = 0x60,
    EMLX5_PCI_DEV_CAP     = EMLX5_PCI_EXPRESS + 4,
    EMLX5_PCI_DEV_CONTROL = EMLX5_PCI_EXPRESS + 8,
    EMLX5_PCI_LINK_CAP    = EMLX5_PCI_EXPRESS + 12,
    EMLX5_PCI_LINK_STATUS = EMLX5_PCI_EXPRESS + 18,
    EMLX5_PCI_MSIX        = 0x9c,
    EMLX5_PCI_MSIX_CONTROL = EMLX5_PCI_MSIX + 2
};

enum {
    EMLX5_ID_MELLANOX     = 0x15b3,
    EMLX5_ID_CX5_VF       = 0x1018, /* ConnectX-5, virtual function */
    EMLX5_CLASS_IB        = 0x02070000,
    EMLX5_STATUS_HAS_CAPS = 0x10,
    EMLX5_BAR_64_PREFETCH = 0x0c,
    EMLX5_COMMAND_MASTER  = 1 << 2,
    EMLX5_CAP_ID_EXPRESS  = 0x10,
    EMLX5_CAP_ID_MSIX     = 0x11,
    EMLX5_EXPRESS_2       = 2,          /* an endpoint */
    EMLX5_DEV_CAP_VALUE   = 0x10008001, /* FLR, payload of 256 */
    EMLX5_DEV_CONTROL_FLR = 1 << 15,
    EMLX5_LINK_X8_8GT     = 0x83
};

/* Bits that can be written, in words of 16 */
static const struct {
    uint16_t offset, mask;
} emlx5_config_writable[] = {
    {EMLX5_PCI_COMMAND, 0x0547},
    {EMLX5_PCI_CACHE_LINE, 0x00ff},
    {EMLX5_PCI_INTR_LINE, 0x00ff},
    {EMLX5_PCI_DEV_CONTROL, 0x7fff},
    {EMLX5_PCI_MSIX_CONTROL, 0xc000},
};

void emlx5_config_init(emlx5_config_t *config)
{
    uint8_t *c = config->bytes;

    memset(c, 0, EMLX5_CONFIG_SIZE);
    emlx5_put_le16(c + EMLX5_PCI_VENDOR, EMLX5_ID_MELLANOX);
    emlx5_put_le16(c + EMLX5_PCI_DEVICE, EMLX5_ID_CX5_VF);
    emlx5_put_le16(c + EMLX5_PCI_STATUS, EMLX5_STATUS_HAS_CAPS);
    emlx5_put_le32(c + EMLX5_PCI_CLASS, EMLX5_CLASS_IB);
    emlx5_put_le32(c + EMLX5_PCI_BAR0, EMLX5_BAR_64_PREFETCH);
    emlx5_put_le16(c + EMLX5_PCI_SUB_VENDOR, EMLX5_ID_MELLANOX);
    emlx5_put_le16(c + EMLX5_PCI_SUB_DEVICE, 4);
    c[EMLX5_PCI_CAPS] = EMLX5_PCI_EXPRESS;

    c[EMLX5_PCI_EXPRESS]     = EMLX5_CAP_ID_EXPRESS;
    c[EMLX5_PCI_EXPRESS + 1] = EMLX5_PCI_MSIX;
    emlx5_put_le16(c + EMLX5_PCI_EXPRESS + 2, EMLX5_EXPRESS_2);
    emlx5_put_le32(c + EMLX5_PCI_DEV_CAP, EMLX5_DEV_CAP_VALUE);
    emlx5_put_le32(c + EMLX5_PCI_LINK_CAP, EMLX5_LINK_X8_8GT);
    emlx5_put_le16(c + EMLX5_PCI_LINK_STATUS, EMLX5_LINK_X8_8GT);

    c[EMLX5_PCI_MSIX] = EMLX5_CAP_ID_MSIX;
    emlx5_put_le16(c + EMLX5_PCI_MSIX_CONTROL, EMLX5_VECTORS - 1);
    emlx5_put_le32(c + EMLX5_PCI_MSIX + 4, EMLX5_MSIX_TABLE);
    emlx5_put_le32(c + EMLX5_PCI_MSIX + 8, EMLX5_MSIX_PBA);
}

static uint8_t emlx5_config_mask(uint32_t offset)
{
    unsigned i;

    for (i = 0; i < sizeof(emlx5_config_writable) /
                    sizeof(emlx5_config_writable[0]); ++i) {
        if (emlx5_config_writable[i].offset == (offset & ~1u)) {
            return emlx5_config_writable[i].mask >> (8 * (offset & 1));
        }
    }
    return 0;
}

int emlx5_config_write(emlx5_config_t *config, uint32_t offset,
                       const uint8_t *data, uint32_t length)
{
    int reset = 0;
    uint8_t mask;
    uint32_t i;

    for (i = 0; i < length; ++i, ++offset) {
        mask = emlx5_config_mask(offset);
        config->bytes[offset] = (config->bytes[offset] & ~mask) |
                                (data[i] & mask);
        if (offset == EMLX5_PCI_DEV_CONTROL + 1) {
            reset = ((data[i] << 8) & EMLX5_DEV_CONTROL_FLR) != 0;
        }
    }
    return reset;
}

int emlx5_config_is_master(const emlx5_config_t *config)
{
    return (emlx5_le16(config->bytes + EMLX5_PCI_COMMAND) &
            EMLX5_COMMAND_MASTER) != 0;
}
