# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# For the scripts beside it. An emulated CPU may take long to answer a packet.

export UCX_NPRDMA_EMULATION=no UCX_NPRDMA_GID_INDEX=1 UCX_NPRDMA_TIMEOUT=2s
export UCX_NET_DEVICES=rxe0:1
