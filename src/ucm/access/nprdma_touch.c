/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "ucm/events/nprdma_hook.h"
#include "nprdma_touch.h"

#include <nprdma_page_state.h>

#include <ucontext.h>

_Static_assert(NPRDMA_LINE_SIZE == 64, "nprdma_touch_lines() steps by 64");

/*
 * All routines are between nprdma_touch_begin and nprdma_touch_end. In each of
 * them, two registers hold the range of application memory:
 *
 *            start  length
 *   x86-64   r10    r11
 *   aarch64  x9     x10
 *
 * A routine never changes the stack pointer, a callee-saved register, or the
 * direction flag. So a jump from any of its instructions to nprdma_touch_failed
 * returns to the caller.
 */

/* Symbol and unwind information of a routine */
#define NPRDMA_TOUCH_ROUTINE(_name, _landing) \
    ".p2align 4\n" \
    ".globl " _name "\n" \
    ".hidden " _name "\n" \
    ".type " _name ", %function\n" \
    _name ":\n" \
    ".cfi_startproc\n" \
    _landing "\n"

#define NPRDMA_TOUCH_ROUTINE_END(_name) \
    ".cfi_endproc\n" \
    ".size " _name ", . - " _name "\n"

#define NPRDMA_TOUCH_LABEL(_name) \
    ".globl " _name "\n" \
    ".hidden " _name "\n" \
    _name ":\n"


#if defined(__x86_64__)

#define NPRDMA_TOUCH_BEGIN(_name)  NPRDMA_TOUCH_ROUTINE(_name, "endbr64")

/* Bytes from which `rep movsb` is as fast as vector instructions */
#define NPRDMA_TOUCH_STRING  "$768"

/* A load of 4 bytes into a register clears the upper half of it */
#define NPRDMA_TOUCH_CSWAP(_size, _expected, _value) \
    NPRDMA_TOUCH_BEGIN("nprdma_touch_cswap" _size) \
    "    mov %rdi, %r10\n" \
    "    mov $" _size ", %r11d\n" \
    "    mov (%rsi), " _expected "\n" \
    "    lock cmpxchg " _value ", (%rdi)\n" \
    "    setne %cl\n" \
    "    mov %rax, (%rsi)\n" \
    "    movzbl %cl, %eax\n" \
    "    ret\n" \
    NPRDMA_TOUCH_ROUTINE_END("nprdma_touch_cswap" _size)

__asm__(
    ".pushsection .text\n"
    ".p2align 4\n"
    NPRDMA_TOUCH_LABEL("nprdma_touch_begin")

    /* to: rdi, from: rsi, length: rdx, app: rcx */
    NPRDMA_TOUCH_BEGIN("nprdma_touch_copy")
    "    mov %rcx, %r10\n"
    "    mov %rdx, %r11\n"
    "    cmp " NPRDMA_TOUCH_STRING ", %rdx\n"
    "    jae 9f\n"
    "1:  cmp $64, %rdx\n"
    "    jb 2f\n"
    "    movups (%rsi), %xmm0\n"
    "    movups 16(%rsi), %xmm1\n"
    "    movups 32(%rsi), %xmm2\n"
    "    movups 48(%rsi), %xmm3\n"
    "    movups %xmm0, (%rdi)\n"
    "    movups %xmm1, 16(%rdi)\n"
    "    movups %xmm2, 32(%rdi)\n"
    "    movups %xmm3, 48(%rdi)\n"
    "    add $64, %rsi\n"
    "    add $64, %rdi\n"
    "    sub $64, %rdx\n"
    "    jmp 1b\n"
    "2:  test $48, %dl\n"
    "    jz 4f\n"
    "    test $32, %dl\n"
    "    jz 3f\n"
    "    movups (%rsi), %xmm0\n"
    "    movups 16(%rsi), %xmm1\n"
    "    movups %xmm0, (%rdi)\n"
    "    movups %xmm1, 16(%rdi)\n"
    "    add $32, %rsi\n"
    "    add $32, %rdi\n"
    "3:  test $16, %dl\n"
    "    jz 4f\n"
    "    movups (%rsi), %xmm0\n"
    "    movups %xmm0, (%rdi)\n"
    "    add $16, %rsi\n"
    "    add $16, %rdi\n"
    "4:  test $8, %dl\n"
    "    jz 5f\n"
    "    mov (%rsi), %rax\n"
    "    mov %rax, (%rdi)\n"
    "    add $8, %rsi\n"
    "    add $8, %rdi\n"
    "5:  test $7, %dl\n"
    "    jz 8f\n"
    "    test $4, %dl\n"
    "    jz 6f\n"
    "    mov (%rsi), %eax\n"
    "    mov %eax, (%rdi)\n"
    "    add $4, %rsi\n"
    "    add $4, %rdi\n"
    "6:  test $2, %dl\n"
    "    jz 7f\n"
    "    movzwl (%rsi), %eax\n"
    "    mov %ax, (%rdi)\n"
    "    add $2, %rsi\n"
    "    add $2, %rdi\n"
    "7:  test $1, %dl\n"
    "    jz 8f\n"
    "    movzbl (%rsi), %eax\n"
    "    mov %al, (%rdi)\n"
    "8:  xor %eax, %eax\n"
    "    ret\n"
    "9:  mov %rdx, %rcx\n"
    "    rep movsb\n"
    "    xor %eax, %eax\n"
    "    ret\n"
    NPRDMA_TOUCH_ROUTINE_END("nprdma_touch_copy")

    NPRDMA_TOUCH_CSWAP("4", "%eax", "%edx")
    NPRDMA_TOUCH_CSWAP("8", "%rax", "%rdx")

    /* app: rdi, num_lines: rsi, value: rdx */
    NPRDMA_TOUCH_BEGIN("nprdma_touch_lines")
    "    mov %rdi, %r10\n"
    "    mov %rsi, %r11\n"
    "    shl $6, %r11\n"
    "    xor %eax, %eax\n"
    "    test %rsi, %rsi\n"
    "    jz 2f\n"
    "1:  xor %ecx, %ecx\n"
    "    cmp %rdx, (%rdi)\n"
    "    sete %cl\n"
    "    add %rcx, %rax\n"
    "    add $64, %rdi\n"
    "    dec %rsi\n"
    "    jnz 1b\n"
    "2:  ret\n"
    NPRDMA_TOUCH_ROUTINE_END("nprdma_touch_lines")

    NPRDMA_TOUCH_LABEL("nprdma_touch_end")

    NPRDMA_TOUCH_ROUTINE("nprdma_touch_failed", "")
    "    mov $-1, %rax\n"
    "    ret\n"
    NPRDMA_TOUCH_ROUTINE_END("nprdma_touch_failed")
    ".popsection\n");

#elif defined(__aarch64__)

#define NPRDMA_TOUCH_BEGIN(_name)  NPRDMA_TOUCH_ROUTINE(_name, "hint #34")

/* A load of 4 bytes into a register clears the upper half of it */
#define NPRDMA_TOUCH_CSWAP(_size, _r) \
    NPRDMA_TOUCH_BEGIN("nprdma_touch_cswap" _size) \
    "    mov x9, x0\n" \
    "    mov x10, #" _size "\n" \
    "    ldr " _r "3, [x1]\n" \
    "1:  ldaxr " _r "4, [x0]\n" \
    "    cmp " _r "4, " _r "3\n" \
    "    b.ne 2f\n" \
    "    stlxr w5, " _r "2, [x0]\n" \
    "    cbnz w5, 1b\n" \
    "    str x4, [x1]\n" \
    "    mov x0, #0\n" \
    "    ret\n" \
    "2:  clrex\n" \
    "    str x4, [x1]\n" \
    "    mov x0, #1\n" \
    "    ret\n" \
    NPRDMA_TOUCH_ROUTINE_END("nprdma_touch_cswap" _size)

__asm__(
    ".pushsection .text\n"
    ".p2align 4\n"
    NPRDMA_TOUCH_LABEL("nprdma_touch_begin")

    /* to: x0, from: x1, length: x2, app: x3 */
    NPRDMA_TOUCH_BEGIN("nprdma_touch_copy")
    "    mov x9, x3\n"
    "    mov x10, x2\n"
    "1:  cmp x2, #64\n"
    "    b.lo 2f\n"
    "    ldp q0, q1, [x1]\n"
    "    ldp q2, q3, [x1, #32]\n"
    "    stp q0, q1, [x0]\n"
    "    stp q2, q3, [x0, #32]\n"
    "    add x1, x1, #64\n"
    "    add x0, x0, #64\n"
    "    sub x2, x2, #64\n"
    "    b 1b\n"
    "2:  tbz x2, #5, 3f\n"
    "    ldp q0, q1, [x1], #32\n"
    "    stp q0, q1, [x0], #32\n"
    "3:  tbz x2, #4, 4f\n"
    "    ldr q0, [x1], #16\n"
    "    str q0, [x0], #16\n"
    "4:  tbz x2, #3, 5f\n"
    "    ldr x4, [x1], #8\n"
    "    str x4, [x0], #8\n"
    "5:  tbz x2, #2, 6f\n"
    "    ldr w4, [x1], #4\n"
    "    str w4, [x0], #4\n"
    "6:  tbz x2, #1, 7f\n"
    "    ldrh w4, [x1], #2\n"
    "    strh w4, [x0], #2\n"
    "7:  tbz x2, #0, 8f\n"
    "    ldrb w4, [x1]\n"
    "    strb w4, [x0]\n"
    "8:  mov x0, #0\n"
    "    ret\n"
    NPRDMA_TOUCH_ROUTINE_END("nprdma_touch_copy")

    NPRDMA_TOUCH_CSWAP("4", "w")
    NPRDMA_TOUCH_CSWAP("8", "x")

    /* app: x0, num_lines: x1, value: x2 */
    NPRDMA_TOUCH_BEGIN("nprdma_touch_lines")
    "    mov x9, x0\n"
    "    lsl x10, x1, #6\n"
    "    mov x3, #0\n"
    "    cbz x1, 2f\n"
    "1:  ldr x4, [x0], #64\n"
    "    cmp x4, x2\n"
    "    cinc x3, x3, eq\n"
    "    sub x1, x1, #1\n"
    "    cbnz x1, 1b\n"
    "2:  mov x0, x3\n"
    "    ret\n"
    NPRDMA_TOUCH_ROUTINE_END("nprdma_touch_lines")

    NPRDMA_TOUCH_LABEL("nprdma_touch_end")

    NPRDMA_TOUCH_ROUTINE("nprdma_touch_failed", "hint #34")
    "    mov x0, #-1\n"
    "    ret\n"
    NPRDMA_TOUCH_ROUTINE_END("nprdma_touch_failed")
    ".popsection\n");

#endif


#if NPRDMA_TOUCH_SUPPORTED

extern const char nprdma_touch_begin[] __attribute__((visibility("hidden")));
extern const char nprdma_touch_end[] __attribute__((visibility("hidden")));
extern const char nprdma_touch_failed[] __attribute__((visibility("hidden")));

NPRDMA_UNINSTRUMENTED
int nprdma_touch_is_at(const void *context, nprdma_touch_regs_t *regs)
{
    const mcontext_t *machine = &((const ucontext_t*)context)->uc_mcontext;

#if defined(__x86_64__)
    regs->pc     = machine->gregs[REG_RIP];
    regs->start  = machine->gregs[REG_R10];
    regs->length = machine->gregs[REG_R11];
#else
    regs->pc     = machine->pc;
    regs->start  = machine->regs[9];
    regs->length = machine->regs[10];
#endif
    return (regs->pc >= (uintptr_t)nprdma_touch_begin) &&
           (regs->pc < (uintptr_t)nprdma_touch_end);
}

NPRDMA_UNINSTRUMENTED
void nprdma_touch_fail(void *context)
{
    mcontext_t *machine = &((ucontext_t*)context)->uc_mcontext;

#if defined(__x86_64__)
    machine->gregs[REG_RIP] = (uintptr_t)nprdma_touch_failed;
#else
    machine->pc = (uintptr_t)nprdma_touch_failed;
#endif
}

#else

int nprdma_touch_copy(void *to, const void *from, size_t length,
                      const void *app)
{
    return NPRDMA_TOUCH_FAULT;
}

int nprdma_touch_cswap4(void *app, uint64_t *expected, uint64_t value)
{
    return NPRDMA_TOUCH_FAULT;
}

int nprdma_touch_cswap8(void *app, uint64_t *expected, uint64_t value)
{
    return NPRDMA_TOUCH_FAULT;
}

#endif
