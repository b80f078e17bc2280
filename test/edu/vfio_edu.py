#!/usr/bin/env python3
# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""vfio_edu.py SOCKET: a PCI function for QEMU's vfio-user-pci.

It has the DMA engine of QEMU's edu, and bursts of DMA, see
module/nprdma_edu.h. All DMA goes by messages, so that QEMU translates each
access by the emulated IOMMU, and reports faults. Memory that QEMU maps for
direct access is not used, because hardware has no such shadow. Exits when QEMU
does.
"""

import json
import os
import select
import socket
import struct
import sys

# Messages of the vfio-user protocol that occur
VERSION, DMA_MAP, DMA_UNMAP, GET_INFO, GET_REGION_INFO = 1, 2, 3, 4, 5
GET_IRQ_INFO, SET_IRQS, REGION_READ, REGION_WRITE = 7, 8, 9, 10
DMA_READ, DMA_WRITE, RESET = 11, 12, 13
HEADER = struct.Struct('<HHIII')      # id, command, size, flags, errno
REPLY, NO_REPLY, ERROR = 1, 0x10, 0x20
TYPE_MASK = 0xf

BAR, CONFIG = 0, 7                    # regions
SIZES = {BAR: 1 << 20, CONFIG: 4096}
BARS = range(0x10, 0x28)              # QEMU does not pass these on

SRC, DST, COUNT, CMD = 0x80, 0x88, 0x90, 0x98
BUFFER = 0x40000
(MAGIC, ADDRESS, BASE, BURST, FAULTS, TORN, FIRST, SECOND) = range(
    0xf8, 0x138, 8)
MAGIC_VALUE = 0x74737275626d6f72
WORD = 0x1111111111111111
LINE, HALF = 64, 2048


class Function:
    def __init__(self, connection):
        self.connection = connection
        self.input = b''
        self.number = 0
        self.config = bytearray(SIZES[CONFIG])
        struct.pack_into('<HH', self.config, 0, 0x1234, 0x11e8)
        self.config[0x08] = 0x10
        self.config[0x0b] = 0xff
        self.registers = {MAGIC: MAGIC_VALUE}
        self.buffer = bytearray(4096)
        self.done = 0

    def receive(self, size):
        while len(self.input) < size:
            data, extra, _, _ = self.connection.recvmsg(1 << 16, 4096)
            for _, _, fds in extra:
                for (fd,) in struct.iter_unpack('i', fds):
                    os.close(fd)
            if not data:
                raise EOFError
            self.input += data

    def message(self):
        self.receive(HEADER.size)
        number, command, size, flags, _ = HEADER.unpack_from(self.input)
        self.receive(size)
        body = self.input[HEADER.size:size]
        self.input = self.input[size:]
        return number, command, flags, body

    def send(self, number, command, flags, body=b''):
        self.connection.sendall(HEADER.pack(
            number, command, HEADER.size + len(body), flags, 0) + body)

    def dma(self, command, address, count, data=b''):
        """Returns the data read, b'' for a write, or None after a fault."""
        self.number = self.number % 0xffff + 1
        self.send(self.number, command, 0,
                  struct.pack('<QQ', address, count) + data)
        while True:
            number, answer, flags, body = self.message()
            if flags & TYPE_MASK != REPLY:
                self.serve(number, answer, flags, body)
            elif flags & ERROR:
                return None
            else:
                return body[16:]

    def reg(self, offset):
        return self.registers.get(offset, 0)

    def transfer(self):
        count, command = self.reg(COUNT), self.reg(CMD)
        if command & 2:
            at = self.reg(SRC) - BUFFER
            self.dma(DMA_WRITE, self.reg(DST), count,
                     bytes(self.buffer[at:at + count]))
        else:
            at = self.reg(DST) - BUFFER
            data = self.dma(DMA_READ, self.reg(SRC), count)
            if data is not None:
                self.buffer[at:at + count] = data
        self.registers[CMD] = command & ~1

    def begin_burst(self):
        self.done = 0
        for counter in FAULTS, TORN, FIRST, SECOND:
            self.registers[counter] = 0

    def count(self, counter):
        self.registers[counter] = self.reg(counter) + 1

    def burst_once(self):
        word = struct.pack('<Q', self.reg(BASE) + self.done)
        if self.dma(DMA_WRITE, self.reg(ADDRESS) + self.done * LINE, LINE,
                    word * (LINE // 8)) is None:
            self.count(FAULTS)
        data = self.dma(DMA_READ, self.reg(ADDRESS) + HALF, HALF)
        if data is None:
            self.count(FAULTS)
        elif data == struct.pack('<Q', WORD) * (HALF // 8):
            self.count(FIRST)
        elif data == struct.pack('<Q', WORD + 1) * (HALF // 8):
            self.count(SECOND)
        else:
            self.count(TORN)
        self.done += 1
        self.registers[BURST] -= 1

    def bar_write(self, offset, data):
        at, shift = offset & ~7, 8 * (offset & 7)
        mask = ((1 << 8 * len(data)) - 1) << shift
        self.registers[at] = (self.reg(at) & ~mask |
                              int.from_bytes(data, 'little') << shift)
        if offset == BURST:
            self.begin_burst()

    def bar_read(self, offset, count):
        value = self.reg(offset & ~7) >> 8 * (offset & 7)
        return (value & (1 << 8 * count) - 1).to_bytes(count, 'little')

    def region(self, command, body):
        offset, region, count = struct.unpack_from('<QII', body)
        data = body[16:16 + count]
        if command == REGION_READ:
            if region == BAR:
                return body[:16] + self.bar_read(offset, count)
            return body[:16] + bytes(self.config[offset:offset + count])
        if region == BAR:
            self.bar_write(offset, data)
        elif offset >= 4 and offset not in BARS:
            self.config[offset:offset + count] = data
        return body[:16]

    def answer(self, command, body):
        if command == VERSION:
            capabilities = {'max_msg_fds': 8, 'max_data_xfer_size': 1 << 20,
                            'pgsizes': 4096, 'max_dma_maps': 65535}
            return body[:4] + json.dumps(
                {'capabilities': capabilities}).encode() + b'\0'
        if command == DMA_UNMAP:
            return body[:24]
        if command == GET_INFO:               # resettable PCI, 9 regions
            return struct.pack('<IIII', 16, 3, 9, 5)
        if command == GET_REGION_INFO:
            region, = struct.unpack_from('<I', body, 8)
            size = SIZES.get(region, 0)
            return struct.pack('<IIIIQQ', 32, 3 if size else 0, region, 0,
                               size, region << 40)
        if command == GET_IRQ_INFO:           # none
            return struct.pack('<IIII', 16, 0,
                               *struct.unpack_from('<I', body, 8), 0)
        if command in (REGION_READ, REGION_WRITE):
            return self.region(command, body)
        if command in (DMA_MAP, SET_IRQS, RESET):
            return b''
        sys.exit(f'vfio_edu: message {command} is not known')

    def serve(self, number, command, flags, body):
        reply = self.answer(command, body)
        if not flags & NO_REPLY:
            self.send(number, command, REPLY, reply)

    def run(self):
        while True:
            busy = self.reg(BURST) or self.reg(CMD) & 1
            if self.input or not busy or select.select(
                    [self.connection], [], [], 0)[0]:
                self.serve(*self.message())
            elif self.reg(CMD) & 1:
                self.transfer()
            else:
                self.burst_once()


def main():
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(sys.argv[1])
        server.listen(1)
        # QEMU is started again if the guest hangs in its boot
        while True:
            try:
                Function(server.accept()[0]).run()
            except (EOFError, ConnectionError):
                pass


main()
