! Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
!
! Coarrays: puts to and gets from other images, of whole arrays and of sections,
! sums over images, and atomics. Image 1 prints checksums.

program coarray_exchange
    use, intrinsic :: iso_fortran_env, only: int64, atomic_int_kind, &
        error_unit
    implicit none
    ! The library gets element by element
    integer, parameter :: n = 262144, num_got = 1024, rounds = 4
    integer(int64), allocatable :: source(:)[:], target(:)[:]
    integer(int64), allocatable :: local(:)
    integer(atomic_int_kind) :: counter[*]
    integer :: me, images, next, previous, round, i, seen
    integer(int64) :: put, got, section

    me = this_image()
    images = num_images()
    next = merge(1, me + 1, me == images)
    previous = merge(images, me - 1, me == 1)
    allocate (source(n)[*], target(n)[*], local(num_got))
    put = 0
    got = 0
    do round = 1, rounds
        source = [(value(me, round, i), i = 1, n)]
        sync all
        target(:)[next] = source
        local = source(1:num_got)[next]
        sync all
        do i = 1, n
            call expect('put', target(i), value(previous, round, i))
        end do
        do i = 1, num_got
            call expect('got', local(i), value(next, round, i))
        end do
        put = put + sum(target)
        got = got + sum(local)
        sync all
    end do

    target = 0
    sync all
    target(1:1000:3)[next] = source(2:668:2)
    sync all
    do i = 1, 334
        call expect('section', target(3 * i - 2), &
            value(previous, rounds, 2 * i))
    end do
    section = sum(target)

    call atomic_define(counter, 0)
    sync all
    do i = 1, 100
        call atomic_add(counter[mod(i, images) + 1], 3)
    end do
    sync all
    call atomic_ref(seen, counter)
    call co_sum(seen)
    call co_sum(put)
    call co_sum(got)
    call co_sum(section)
    if (me == 1) then
        if (seen /= 300 * images) error stop 'atomics were lost'
        print '(a, i0)', 'put ', put
        print '(a, i0)', 'get ', got
        print '(a, i0)', 'section ', section
        print '(a, i0)', 'atomic ', seen
    end if

contains

    pure integer(int64) function value(image, round, i)
        integer, intent(in) :: image, round, i

        value = mod(i * 40503_int64 + image * 65537_int64 + round, 1000003_int64)
    end function value

    subroutine expect(what, found, wanted)
        character(*), intent(in) :: what
        integer(int64), intent(in) :: found, wanted

        if (found /= wanted) then
            write (error_unit, *) 'image', me, ': ', what, found, &
                ' and not', wanted
            error stop 1
        end if
    end subroutine expect
end program coarray_exchange
