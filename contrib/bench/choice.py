# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Lines choice.*: what UCP chooses by itself, next to the best that settings of
UCX_RNDV_THRESH, UCX_RNDV_SCHEME, UCX_ZCOPY_THRESH and UCX_PROTO_ENABLE can
reach. With another UCX, PATH and LD_LIBRARY_PATH say where it is."""

import re

from calibration import LONGEST_IN_FRAGMENTS
from measure import Row
from probes import unlimited_memlock
from session import BenchError
from stats import median, ratio

FIRST, LAST = 1 << 10, 16 << 20

# One size needs one forced protocol: a threshold is below the size or above
FORCED = {"bcopy": {"RNDV_THRESH": "inf", "ZCOPY_THRESH": "inf"},
          "zcopy": {"RNDV_THRESH": "inf", "ZCOPY_THRESH": "1"},
          "get": {"RNDV_THRESH": "1", "RNDV_SCHEME": "get_zcopy"},
          "put": {"RNDV_THRESH": "1", "RNDV_SCHEME": "put_zcopy"}}
PROTOCOLS = {"old": "n", "new": "y"}

# Name -> variables of UCX without their prefix. "default" is UCX's own choice
# with the settings of the installation.
CHOICES = {"default": {}}
for _age, _enable in PROTOCOLS.items():
    CHOICES[_age] = {"PROTO_ENABLE": _enable}
    for _name, _settings in FORCED.items():
        CHOICES[f"{_age}-{_name}"] = {"PROTO_ENABLE": _enable, **_settings}

# Turns within one run of choice_bench, each of them some milliseconds
INNER_TURNS = 15

# Many contexts in one process, each with bounce buffers of its own
ROOM = {"UCX_NPRDMA_MAX_PINNED": "64m"}


def words_of_choice(name):
    """NAME:VARIABLE=VALUE,... for choice_bench."""
    settings = ",".join(f"{key}={value}"
                        for key, value in CHOICES[name].items())
    return f"{name}:{settings}" if settings else name


def read_choices(out):
    """{"NAME@SIZE": us}: the medians that choice_bench prints."""
    found = re.findall(r"^(\d+) (\S+) ([0-9.]+) [0-9.]+$", out, re.M)
    return {f"{name}@{size}": float(figure) for size, name, figure in found}


def messages(what):
    """All choices and sizes in one run of choice_bench."""
    def command(session, _contestant, _size):
        out = session.ucx("nprdma", "choice_bench", [
            what, str(FIRST), str(LAST), str(INNER_TURNS),
            *map(words_of_choice, CHOICES)], ROOM, 600)
        return read_choices(out)
    return command


def mpi(ranks, kind):
    """All sizes of one choice in one run of mpi_bench, as times."""
    def command(session, choice, _size):
        env = session.environment("nprdma", {
            f"UCX_{key}": value for key, value in CHOICES[choice].items()})
        bind = [] if ranks <= session.cpus else [
            "--bind-to", "core:if-supported,overload-allowed"]
        out = session.run(["mpirun.openmpi", "-np", str(ranks), *bind,
                           session.program("mpi_bench"), kind, str(LAST),
                           str(FIRST), "2"], env,
                          f"mpi_bench {kind} with {choice}", 600)
        lines = [line.split() for line in out.splitlines()]
        return {f"{choice}@{size}":
                int(size) / float(figure) if kind == "bandwidth"
                else float(figure) for size, figure in lines}
    return command


def is_in_fragments(name):
    """Whether a choice forces them."""
    return name.endswith(("-bcopy", "-zcopy"))


def fastest(values, size, wanted):
    """The name of the fastest choice that is wanted."""
    names = [name for name in values if name.endswith(f"@{size}") and
             wanted(name.partition("@")[0])]
    if not names:
        raise BenchError(f"nothing to compare with at {size} bytes")
    return min(names, key=lambda name: median(values[name]))


def judges(limit):
    """The default, and each protocol selection, over the best at each size. The
    limit holds for the best that calibration.py allows, as it says why."""
    def judge(_session, values):
        sizes = sorted({int(name.partition("@")[2]) for name in values})
        result = []
        for size in sizes:
            best = fastest(values, size, lambda name: name != "default" and
                           (size <= LONGEST_IN_FRAGMENTS or
                            name.endswith(("-get", "-put"))))
            result.append(ratio(f"default@{size}", best, "<=", limit,
                                size=size))
            result += [ratio(f"{age}@{size}", best, size=size)
                       for age in PROTOCOLS if best != f"{age}@{size}"]
            if size > LONGEST_IN_FRAGMENTS:
                result.append(ratio(f"default@{size}", fastest(
                    values, size, is_in_fragments), size=size))
        return result
    return judge


def message_row(what, title):
    """Between two processes, over UCP."""
    return Row(f"choice.{what}", title, messages(what), ("all",), judges(1.1),
               prepare=unlimited_memlock)


def mpi_row(kind, title, ranks, limit):
    """The same with MPI."""
    return Row(f"choice.{kind}", f"{title}, {ranks} ranks", mpi(ranks, kind),
               tuple(CHOICES), judges(limit))


CHOICE = [
    message_row("tag_lat", "tag latency"),
    message_row("tag_bw", "time of a tag message among many"),
    message_row("send_lat", "latency of a blocking tag send"),
    message_row("send_bw", "time of a blocking tag send among many"),
    message_row("am_lat", "latency of an active message"),
    message_row("am_bw", "time of an active message among many"),
    mpi_row("latency", "MPI latency", 2, 1.1),
    mpi_row("bandwidth", "time of an MPI message among many", 2, 1.1),
    mpi_row("allreduce", "MPI_Allreduce", 4, 1.15),
    mpi_row("alltoall", "MPI_Alltoall", 4, 1.15),
    mpi_row("bcast", "MPI_Bcast", 4, 1.15),
]
