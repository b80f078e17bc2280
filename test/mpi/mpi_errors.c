/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Wrong arguments, wrong states and messages that are too long return errors of
 * the right class under MPI_ERRORS_RETURN, and call the program's handlers.
 * After each kind of error, all ranks still exchange correct data.
 */

#include "mpi_test.h"

#include <stdlib.h>
#include <string.h>

/* Length of each rank's window, in bytes */
#define LENGTH 65536

/* A message with a rendezvous, and one without */
#define LARGE 300000
#define SMALL 100

#define REFUSED(_class, _call) refused(_class, _call, #_call, __LINE__)

typedef struct {
    MPI_Win  win;
    char    *base;
    int      serial;
    uint64_t bytes;
} job_t;

static int right_rank(void)
{
    return (mpi_test_rank + 1) % mpi_test_size;
}

static int left_rank(void)
{
    return (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
}

/* A call returned an error of this class, which has a text */
static void refused(int want, int code, const char *call, int line)
{
    char text[MPI_MAX_ERROR_STRING];
    int class, length;

    MPI_Error_class(code, &class);
    MPI_Error_string(code, text, &length);
    CHECK((class == want) && (length > 0),
          "line %d: %s is of class %d ('%s'), not %d", line, call, class, text,
          want);
}

/* Point to point, collectives and one-sided operations still work */
static void job_goes_on(job_t *j)
{
    char *out = malloc(LENGTH), *in = malloc(LENGTH);
    int key   = ++j->serial * 64, sum;

    mpi_test_fill(out, LENGTH, key + mpi_test_rank);
    MPI_Sendrecv(out, LENGTH, MPI_BYTE, right_rank(), 1, in, LENGTH, MPI_BYTE,
                 left_rank(), 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    mpi_test_verify(in, LENGTH, key + left_rank(), "message after an error");

    MPI_Allreduce(&mpi_test_rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum == mpi_test_size * (mpi_test_size - 1) / 2, "sum is %d", sum);

    MPI_Win_lock(MPI_LOCK_SHARED, right_rank(), 0, j->win);
    MPI_Put(out, LENGTH, MPI_BYTE, right_rank(), 0, LENGTH, MPI_BYTE, j->win);
    MPI_Win_flush(right_rank(), j->win);
    memset(in, 0xdb, LENGTH);
    MPI_Get(in, LENGTH, MPI_BYTE, right_rank(), 0, LENGTH, MPI_BYTE, j->win);
    MPI_Win_unlock(right_rank(), j->win);
    mpi_test_verify(in, LENGTH, key + mpi_test_rank, "block after an error");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, mpi_test_rank, 0, j->win);
    mpi_test_verify(j->base, LENGTH, key + left_rank(),
                    "window after an error");
    MPI_Win_unlock(mpi_test_rank, j->win);
    MPI_Barrier(MPI_COMM_WORLD);

    j->bytes += 3 * LENGTH;
    free(in);
    free(out);
}

static void wrong_messages(MPI_Datatype uncommitted)
{
    int data = 7;
    MPI_Request req;
    MPI_Status status;

    REFUSED(MPI_ERR_COUNT, MPI_Send(&data, -1, MPI_INT, 0, 1, MPI_COMM_WORLD));
    REFUSED(MPI_ERR_TYPE,
            MPI_Send(&data, 1, MPI_DATATYPE_NULL, 0, 1, MPI_COMM_WORLD));
    REFUSED(MPI_ERR_TYPE,
            MPI_Send(&data, 1, uncommitted, 0, 1, MPI_COMM_WORLD));
    REFUSED(MPI_ERR_RANK, MPI_Send(&data, 1, MPI_INT, mpi_test_size, 1,
                                   MPI_COMM_WORLD));
    REFUSED(MPI_ERR_TAG, MPI_Send(&data, 1, MPI_INT, 0, -5, MPI_COMM_WORLD));
    REFUSED(MPI_ERR_COMM, MPI_Send(&data, 1, MPI_INT, 0, 1, MPI_COMM_NULL));

    REFUSED(MPI_ERR_COUNT, MPI_Irecv(&data, -1, MPI_INT, 0, 1, MPI_COMM_WORLD,
                                     &req));
    REFUSED(MPI_ERR_RANK, MPI_Recv(&data, 1, MPI_INT, mpi_test_size, 1,
                                   MPI_COMM_WORLD, &status));
    REFUSED(MPI_ERR_TYPE, MPI_Recv_init(&data, 1, MPI_DATATYPE_NULL, 0, 1,
                                        MPI_COMM_WORLD, &req));
    REFUSED(MPI_ERR_RANK, MPI_Probe(-7, 1, MPI_COMM_WORLD, &status));
    CHECK(data == 7, "data is %d", data);
}

static void wrong_collectives(void)
{
    int data = 7, result = 8;
    MPI_Comm comm;

    REFUSED(MPI_ERR_ROOT,
            MPI_Bcast(&data, 1, MPI_INT, mpi_test_size, MPI_COMM_WORLD));
    REFUSED(MPI_ERR_COUNT, MPI_Bcast(&data, -1, MPI_INT, 0, MPI_COMM_WORLD));
    REFUSED(MPI_ERR_COMM, MPI_Bcast(&data, 1, MPI_INT, 0, MPI_COMM_NULL));
    REFUSED(MPI_ERR_OP, MPI_Allreduce(&data, &result, 1, MPI_INT, MPI_OP_NULL,
                                      MPI_COMM_WORLD));
    REFUSED(MPI_ERR_OP, MPI_Allreduce(&data, &result, 1, MPI_DOUBLE, MPI_BAND,
                                      MPI_COMM_WORLD));
    REFUSED(MPI_ERR_TYPE, MPI_Allgather(&data, 1, MPI_DATATYPE_NULL, &result,
                                        1, MPI_INT, MPI_COMM_WORLD));
    REFUSED(MPI_ERR_COMM, MPI_Barrier(MPI_COMM_NULL));
    REFUSED(MPI_ERR_COMM, MPI_Comm_dup(MPI_COMM_NULL, &comm));
    CHECK((data == 7) && (result == 8), "data %d, result %d", data, result);
}

static void wrong_handles(void)
{
    MPI_Datatype type   = MPI_DATATYPE_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Group group     = MPI_GROUP_NULL;
    MPI_Win win         = MPI_WIN_NULL;
    MPI_Info info       = MPI_INFO_NULL;
    MPI_Op op           = MPI_SUM;
    int num;

    REFUSED(MPI_ERR_TYPE, MPI_Type_commit(&type));
    REFUSED(MPI_ERR_TYPE, MPI_Type_free(&type));
    type = MPI_INT;
    REFUSED(MPI_ERR_TYPE, MPI_Type_free(&type));
    REFUSED(MPI_ERR_REQUEST, MPI_Request_free(&request));
    REFUSED(MPI_ERR_REQUEST, MPI_Cancel(&request));
    REFUSED(MPI_ERR_REQUEST, MPI_Start(&request));
    REFUSED(MPI_ERR_GROUP, MPI_Group_size(group, &num));
    REFUSED(MPI_ERR_WIN, MPI_Win_free(&win));
    REFUSED(MPI_ERR_WIN, MPI_Win_get_group(win, &group));
    REFUSED(MPI_ERR_INFO, MPI_Info_set(info, "key", "value"));
    REFUSED(MPI_ERR_OP, MPI_Op_free(&op));
    REFUSED(MPI_ERR_TOPOLOGY, MPI_Cartdim_get(MPI_COMM_WORLD, &num));
}

/* Arguments of one-sided operations, in an epoch that permits all of them */
static void wrong_operations(job_t *j)
{
    double floating = 1, result = 2;
    int data = 7, old = 8;

    MPI_Win_lock_all(0, j->win);
    REFUSED(MPI_ERR_COUNT, MPI_Put(&data, -1, MPI_INT, 0, 0, 1, MPI_INT,
                                   j->win));
    REFUSED(MPI_ERR_RANK, MPI_Put(&data, 1, MPI_INT, mpi_test_size, 0, 1,
                                  MPI_INT, j->win));
    REFUSED(MPI_ERR_TYPE, MPI_Put(&data, 1, MPI_INT, 0, 0, 1,
                                  MPI_DATATYPE_NULL, j->win));
    REFUSED(MPI_ERR_DISP, MPI_Put(&data, 1, MPI_INT, 0, -4, 1, MPI_INT,
                                  j->win));
    REFUSED(MPI_ERR_WIN, MPI_Put(&data, 1, MPI_INT, 0, 0, 1, MPI_INT,
                                 MPI_WIN_NULL));
    REFUSED(MPI_ERR_COUNT, MPI_Get(&data, 1, MPI_INT, 0, 0, -1, MPI_INT,
                                   j->win));
    REFUSED(MPI_ERR_RANK, MPI_Get(&data, 1, MPI_INT, -9, 0, 1, MPI_INT,
                                  j->win));
    REFUSED(MPI_ERR_OP, MPI_Accumulate(&data, 1, MPI_INT, 0, 0, 1, MPI_INT,
                                       MPI_OP_NULL, j->win));
    REFUSED(MPI_ERR_OP, MPI_Get_accumulate(&floating, 1, MPI_DOUBLE, &result, 1,
                                           MPI_DOUBLE, 0, 0, 1, MPI_DOUBLE,
                                           MPI_BXOR, j->win));
    REFUSED(MPI_ERR_RANK, MPI_Fetch_and_op(&data, &old, MPI_INT, mpi_test_size,
                                           0, MPI_SUM, j->win));
    MPI_Win_unlock_all(j->win);
    CHECK((data == 7) && (old == 8) && (result == 2), "data %d, old %d", data,
          old);
}

static void wrong_requests(job_t *j)
{
    int data = 7;
    MPI_Request req;

    MPI_Win_lock_all(0, j->win);
    REFUSED(MPI_ERR_COUNT, MPI_Rput(&data, -1, MPI_INT, 0, 0, 1, MPI_INT,
                                    j->win, &req));
    REFUSED(MPI_ERR_RANK, MPI_Rget(&data, 1, MPI_INT, mpi_test_size, 0, 1,
                                   MPI_INT, j->win, &req));
    REFUSED(MPI_ERR_TYPE, MPI_Rget(&data, 1, MPI_DATATYPE_NULL, 0, 0, 1,
                                   MPI_INT, j->win, &req));
    REFUSED(MPI_ERR_OP, MPI_Raccumulate(&data, 1, MPI_INT, 0, 0, 1, MPI_INT,
                                        MPI_OP_NULL, j->win, &req));
    MPI_Win_unlock_all(j->win);
}

/* Calls that the state of the window does not permit */
static void wrong_epochs(job_t *j)
{
    int data = 7;

    REFUSED(MPI_ERR_RMA_SYNC, MPI_Win_unlock(0, j->win));
    REFUSED(MPI_ERR_RMA_SYNC, MPI_Win_unlock_all(j->win));
    REFUSED(MPI_ERR_RMA_SYNC, MPI_Win_flush(0, j->win));
    REFUSED(MPI_ERR_RMA_SYNC, MPI_Win_complete(j->win));
    REFUSED(MPI_ERR_RMA_SYNC, MPI_Put(&data, 1, MPI_INT, 0, 0, 1, MPI_INT,
                                      j->win));
    REFUSED(MPI_ERR_LOCKTYPE, MPI_Win_lock(-3, 0, 0, j->win));
    REFUSED(MPI_ERR_RANK, MPI_Win_lock(MPI_LOCK_SHARED, mpi_test_size, 0,
                                       j->win));

    /* A refused call does not affect the lock */
    MPI_Win_lock(MPI_LOCK_SHARED, right_rank(), 0, j->win);
    REFUSED(MPI_ERR_RMA_SYNC, MPI_Win_lock_all(0, j->win));
    REFUSED(MPI_ERR_RMA_SYNC, MPI_Win_fence(0, j->win));
    MPI_Win_unlock(right_rank(), j->win);
}

static void wrong_windows(void)
{
    char *base;
    MPI_Win win;

    REFUSED(MPI_ERR_SIZE, MPI_Win_allocate(-1, 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                                           &base, &win));
    REFUSED(MPI_ERR_COMM, MPI_Win_allocate(LENGTH, 1, MPI_INFO_NULL,
                                           MPI_COMM_NULL, &base, &win));
}

/* A message that is longer than the buffer is an error at the receiver. Memory
 * behind the buffer is not written. The sender gets no error. */
static void truncated(job_t *j, int length, int space)
{
    char *out = malloc(length), *in = malloc(length);
    MPI_Request req[2];
    MPI_Status status[2];
    int i, pos;

    mpi_test_fill(out, length, j->serial + mpi_test_rank);
    for (i = 0; i < 3; ++i) {
        memset(in, 0xdb, length);
        MPI_Irecv(in, space, MPI_BYTE, left_rank(), i, MPI_COMM_WORLD, &req[0]);
        MPI_Isend(out, length, MPI_BYTE, right_rank(), i, MPI_COMM_WORLD,
                  &req[1]);
        if (i == 0) {
            REFUSED(MPI_ERR_IN_STATUS, MPI_Waitall(2, req, status));
            REFUSED(MPI_ERR_TRUNCATE, status[0].MPI_ERROR);
            CHECK((status[1].MPI_ERROR == MPI_SUCCESS) ||
                          (status[1].MPI_ERROR == MPI_ERR_PENDING),
                  "the sender failed: %d", status[1].MPI_ERROR);
        } else {
            REFUSED(MPI_ERR_TRUNCATE, MPI_Wait(&req[0], &status[0]));
        }
        CHECK(MPI_Wait(&req[1], &status[1]) == MPI_SUCCESS,
              "the sender failed");
        CHECK((status[0].MPI_SOURCE == left_rank()) && (status[0].MPI_TAG == i),
              "truncated message %d from %d", status[0].MPI_TAG,
              status[0].MPI_SOURCE);
        for (pos = space; pos < length; ++pos) {
            CHECK((unsigned char)in[pos] == 0xdb,
                  "%d bytes into %d: byte %d was written", length, space, pos);
        }
    }

    /* The last message has arrived when its receive is posted */
    MPI_Isend(out, length, MPI_BYTE, right_rank(), 3, MPI_COMM_WORLD, &req[1]);
    MPI_Probe(left_rank(), 3, MPI_COMM_WORLD, &status[0]);
    REFUSED(MPI_ERR_TRUNCATE, MPI_Recv(in, space, MPI_BYTE, left_rank(), 3,
                                       MPI_COMM_WORLD, &status[0]));
    CHECK(MPI_Wait(&req[1], &status[1]) == MPI_SUCCESS, "the sender failed");
    free(in);
    free(out);
}

static int handled_comm, handled_win;

static void comm_handler(MPI_Comm *comm, int *code, ...)
{
    CHECK(*comm == MPI_COMM_WORLD, "error of another communicator");
    MPI_Error_class(*code, &handled_comm);
}

static void win_handler(MPI_Win *win, int *code, ...)
{
    (void)win;
    MPI_Error_class(*code, &handled_win);
}

/* Handlers of the program get the error, and no other handler does */
static void handlers(job_t *j)
{
    MPI_Errhandler for_comm, for_win, before;
    int data = 7;

    MPI_Comm_create_errhandler(comm_handler, &for_comm);
    MPI_Win_create_errhandler(win_handler, &for_win);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, for_comm);
    MPI_Win_set_errhandler(j->win, for_win);

    handled_comm = handled_win = MPI_SUCCESS;
    REFUSED(MPI_ERR_RANK, MPI_Send(&data, 1, MPI_INT, mpi_test_size, 1,
                                   MPI_COMM_WORLD));
    CHECK((handled_comm == MPI_ERR_RANK) && (handled_win == MPI_SUCCESS),
          "classes %d and %d were handled", handled_comm, handled_win);
    REFUSED(MPI_ERR_RMA_SYNC, MPI_Win_unlock(0, j->win));
    CHECK((handled_comm == MPI_ERR_RANK) && (handled_win == MPI_ERR_RMA_SYNC),
          "classes %d and %d were handled", handled_comm, handled_win);
    MPI_Win_call_errhandler(j->win, MPI_ERR_OTHER);
    MPI_Comm_call_errhandler(MPI_COMM_WORLD, MPI_ERR_BUFFER);
    CHECK((handled_comm == MPI_ERR_BUFFER) && (handled_win == MPI_ERR_OTHER),
          "classes %d and %d were handled", handled_comm, handled_win);

    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
    CHECK(before == for_comm, "another handler than that which was set");
    MPI_Errhandler_free(&before);
    MPI_Errhandler_free(&for_comm);
    MPI_Errhandler_free(&for_win);
}

static void return_errors(const job_t *j)
{
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Win_set_errhandler(j->win, MPI_ERRORS_RETURN);
}

int main(int argc, char **argv)
{
    int rounds = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 3);
    job_t j    = {.bytes = 0};
    MPI_Datatype uncommitted;
    int round;

    MPI_Win_allocate(LENGTH, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &j.base, &j.win);
    MPI_Type_vector(2, 1, 2, MPI_INT, &uncommitted);
    return_errors(&j);
    for (round = 0; round < rounds; ++round) {
        wrong_messages(uncommitted);
        job_goes_on(&j);
        wrong_collectives();
        job_goes_on(&j);
        wrong_handles();
        job_goes_on(&j);
        wrong_operations(&j);
        job_goes_on(&j);
        wrong_requests(&j);
        job_goes_on(&j);
        wrong_epochs(&j);
        job_goes_on(&j);
        wrong_windows();
        job_goes_on(&j);
        truncated(&j, SMALL, SMALL / 2);
        truncated(&j, LARGE, SMALL);
        truncated(&j, LARGE, LARGE - 1);
        truncated(&j, SMALL, 0);
        job_goes_on(&j);
        handlers(&j);
        job_goes_on(&j);
        return_errors(&j);
    }
    MPI_Type_free(&uncommitted);
    MPI_Win_free(&j.win);
    return mpi_test_done(j.bytes);
}
