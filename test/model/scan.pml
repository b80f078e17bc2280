/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Verification of a get by its data (ARCHITECTURE 3, remote READ, scan). The
 * range has any start and any end, in two pages of two lines of two words of
 * two bytes. The NIC splits a READ into packets counted from its start, and
 * PCIe splits these at lines of the address. Each part reads its page's data
 * or, if the page is absent, the signature. A byte of the signature in the
 * result must be detected.
 *
 * It models uct_nprdma_verify_scan() and uct_nprdma_verify_head().
 *
 * Each -DBREAK_x disables one rule and must lead to a counterexample.
 */

#define WORD       2
#define LINE       4       /* 64 bytes in the C code */
#define PAGE       8
#define BYTES      16
#define PACKET     LINE    /* Of the NIC: a multiple of a line */

#define LINE_OF(_i)  ((_i) / LINE * LINE)

/* Real data never equals the signature here. If it did, the only consequence
 * would be a needless repetition. */
bit  signature[BYTES];
byte from, to;

/* One READ. Each part finds its page present or absent at the time of its
 * access. */
inline read(_from, _to)
{
    i       = _from;
    absent  = 0;
    do
    :: i >= _to -> break
    :: else ->
       if
       :: i == _from || i % LINE == 0 || (i - (_from)) % PACKET == 0 ->
          if
          :: absent = 0
          :: absent = 1
          fi
       :: else
       fi;
       signature[i] = absent;
       i++
    od
}

/* A line, as far as it is in the range: its first whole aligned word decides,
 * and without one, each byte */
inline scan_line(_line)
{
    first = (_line < from -> from : _line);
    last  = (_line + LINE > to -> to : _line + LINE);
    word  = (first + WORD - 1) / WORD * WORD;
    if
    :: word + WORD <= last ->
       suspect = suspect || (signature[word] && signature[word + 1])
#ifndef BREAK_PARTIAL_WORD
    :: else ->
       i = first;
       do
       :: i < last -> suspect = suspect || signature[i]; i++
       :: else -> break
       od
#else
    :: else
#endif
    fi
}

init {
    byte i, line, head, first, last, word;
    bit  absent, suspect;

    select(from : 0 .. BYTES - 1);
    select(to : 1 .. BYTES);
    if
    :: from < to
    :: else -> goto end
    fi;

    d_step { head = LINE_OF(from + LINE - 1) };
#ifdef BREAK_UNALIGNED_START
    head = from;
#endif
    if
    :: head > to -> head = to
    :: else
    fi;
    read(from, head);
    read(head, to);

    line = LINE_OF(from);
    do
    :: line >= to -> break
#ifdef BREAK_FIRST_LINE
    :: line > LINE_OF(from) && line % PAGE != 0 && line < to -> line = line + LINE
#endif
#ifdef BREAK_FIRST_PAGE
    :: line / PAGE != from / PAGE && line < to -> break
#endif
    :: else ->
       scan_line(line);
       line = line + LINE
    od;

    i = from;
    do
    :: i < to -> assert(!signature[i] || suspect); i++
    :: else -> break
    od;
end:
    skip
}
