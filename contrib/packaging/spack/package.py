# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause

import os

from spack.package import *


class Nprdma(AutotoolsPackage):
    """UCX transport that does RDMA without pinning memory. MPI and other
    programs on UCX use it without a rebuild. It brings an emulated RDMA NIC."""

    # The tarballs that contrib/release makes have no public place yet. Spack
    # finds them in the directory or address NPRDMA_RELEASES, or in a mirror.
    homepage = "https://nprdma.invalid"
    url = os.environ.get("NPRDMA_RELEASES", homepage) + "/nprdma-0.1.0.tar.xz"

    license("BSD-3-Clause")

    # contrib/release adds the checksum
    version("0.1.0")

    variant("verbs", default=True, description="RDMA devices by libibverbs")
    variant("usdt", default=False, description="Static probes for bpftrace")
    variant("debug", default=False, description="Asserts, and trace of packets")

    depends_on("c", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("gmake", type="build")
    # The component loads into the UCX that it was built for, and no other
    depends_on("ucx@1.13.1,1.16.0,1.18.1,1.20.0,1.22.0")
    depends_on("rdma-core@28:")
    depends_on("systemtap", type="build", when="+usdt")
    depends_on("python@3.9:", type="run")

    # UCX's internal headers, of the UCX that is in use
    for ucx in ("1.13.1", "1.16.0", "1.18.1", "1.20.0", "1.22.0"):
        resource(
            name="ucx-source",
            git="https://github.com/openucx/ucx.git",
            tag="v" + ucx,
            placement="ucx-source",
            when="^ucx@" + ucx,
        )

    def configure_args(self):
        args = ["--with-ucx-src=" + join_path(self.stage.source_path,
                                              "ucx-source")]
        args += self.with_or_without("verbs")
        args += self.enable_or_disable("usdt")
        args += self.enable_or_disable("debug")
        return args

    def setup_run_environment(self, env):
        env.extend(EnvironmentModifications.from_sourcing_file(
            join_path(self.prefix.etc, "nprdma.env")))
