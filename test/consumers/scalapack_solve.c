/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ScaLAPACK: solves a system of equations whose solution is known, on a grid of
 * two rows of processes, and prints the largest error and a checksum.
 */

#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    SIZE  = 600,
    BLOCK = 40,
    ROWS  = 2      /* of the grid */
};

/* Of BLACS and ScaLAPACK, which have no header */
void Cblacs_get(int context, int what, int *value);
void Cblacs_gridinit(int *context, const char *order, int rows, int columns);
void Cblacs_gridinfo(int context, int *rows, int *columns, int *row,
                     int *column);
void Cblacs_gridexit(int context);
int numroc_(const int *n, const int *block, const int *process,
            const int *first, const int *processes);
void descinit_(int *desc, const int *m, const int *n, const int *mb,
               const int *nb, const int *row, const int *column,
               const int *context, const int *lld, int *info);
void pdgesv_(const int *n, const int *nrhs, double *a, const int *ia,
             const int *ja, const int *desca, int *pivots, double *b,
             const int *ib, const int *jb, const int *descb, int *info);


/* Element of the matrix: a dominant diagonal, and the rest of either sign */
static double element(int row, int column)
{
    return ((row == column) ? SIZE : 0) +
           (((row * 31 + column * 17) % 19) - 9) / 8.0;
}

static double solution(int row)
{
    return 1 + (row % 7) * 0.25;
}

static double right_side(int row)
{
    double sum = 0;
    int column;

    for (column = 0; column < SIZE; ++column) {
        sum += element(row, column) * solution(column);
    }
    return sum;
}

/* Number in the whole matrix of a row or column of one of count processes */
static int global(int local, int process, int count)
{
    return ((local / BLOCK) * count + process) * BLOCK + local % BLOCK;
}

int main(int argc, char **argv)
{
    const int zero = 0, one = 1, n = SIZE, nb = BLOCK;
    int context, size, rows, columns, row, column, num_rows, num_columns;
    int i, j, info;
    int desc_a[9], desc_b[9];
    double *a, *b, error = 0, sum = 0, all[2], own[2];
    int *pivots;

    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    Cblacs_get(-1, 0, &context);
    Cblacs_gridinit(&context, "Row", ROWS, size / ROWS);
    Cblacs_gridinfo(context, &rows, &columns, &row, &column);
    num_rows    = numroc_(&n, &nb, &row, &zero, &rows);
    num_columns = numroc_(&n, &nb, &column, &zero, &columns);
    a           = calloc((size_t)num_rows * num_columns, sizeof(*a));
    b           = calloc(num_rows, sizeof(*b));
    pivots      = calloc(num_rows + BLOCK, sizeof(*pivots));
    descinit_(desc_a, &n, &n, &nb, &nb, &zero, &zero, &context, &num_rows,
              &info);
    descinit_(desc_b, &n, &one, &nb, &nb, &zero, &zero, &context, &num_rows,
              &info);

    for (i = 0; i < num_rows; ++i) {
        for (j = 0; j < num_columns; ++j) {
            a[i + (size_t)j * num_rows] = element(global(i, row, rows),
                                                  global(j, column,
                                                         columns));
        }
        b[i] = right_side(global(i, row, rows));
    }
    pdgesv_(&n, &one, a, &one, &one, desc_a, pivots, b, &one, &one, desc_b,
            &info);

    /* The first column of processes has the solution */
    for (i = 0; (column == 0) && (i < num_rows); ++i) {
        error = fmax(error, fabs(b[i] - solution(global(i, row, rows))));
        sum  += b[i];
    }
    own[0] = error;
    own[1] = info;
    MPI_Allreduce(own, all, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(&sum, own, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if ((row == 0) && (column == 0)) {
        printf("info %.0f, error %s 1e-9, sum %.9f\n", all[1],
               (all[0] < 1e-9) ? "below" : "above", own[0]);
    }
    Cblacs_gridexit(context);
    MPI_Finalize();
    return (all[0] < 1e-9) && (all[1] == 0) ? 0 : 1;
}
