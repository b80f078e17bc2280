# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause

import os

from spack_repo.builtin.build_systems.autotools import AutotoolsPackage

from spack.package import *


class Nprdma(AutotoolsPackage):
    """UCX transport that does RDMA without pinning memory. MPI and other
    programs on UCX use it without a rebuild. It brings an emulated RDMA NIC."""

    # contrib/release fills in @WORD@. Its tarballs have no public place yet:
    # Spack finds them at the address NPRDMA_RELEASES, or in a mirror.
    homepage = "@PACKAGE_BUGREPORT@"
    url = os.environ.get("NPRDMA_RELEASES", "file:///NPRDMA_RELEASES-is-not-set"
                         ) + "/nprdma-@VERSION@.tar.xz"

    license("BSD-3-Clause")

    version("@VERSION@", sha256="@SHA256@")

    # Those of UCX's tags: a tag could move
    ucx_commits = {
        "1.13.1": "09f27c0efb04beb110d3a05dab274269309c4e23",
        "1.16.0": "e4bb80267c5978f18ad0b4fcfb53d3f552d884d6",
        "1.18.1": "d9aa5650d4cbcbb00d61af980614dbe9dd27a1f2",
        "1.20.0": "4b7a6ca8410f9cea0e15857233ecfeefdd863dde",
        "1.22.0": "8a6b06fb880accbb933a79cda893883872c68d9d",
    }

    variant("usdt", default=False, description="Static probes for bpftrace")

    depends_on("c", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("gmake", type="build")
    # The component loads into the UCX that it was built for, and no other
    depends_on("ucx@" + ",".join(ucx_commits))
    depends_on("rdma-core@28:")
    depends_on("systemtap", type="build", when="+usdt")
    depends_on("python@3.9:", type="run")

    # UCX's internal headers, of the UCX that is in use
    for ucx, ucx_commit in ucx_commits.items():
        resource(
            name="ucx-source",
            git="https://github.com/openucx/ucx.git",
            commit=ucx_commit,
            placement="ucx-source",
            when="^ucx@" + ucx,
        )

    def configure_args(self):
        args = ["--with-ucx-src=" + join_path(self.stage.source_path,
                                              "ucx-source")]
        args += self.enable_or_disable("usdt")
        return args

    def setup_run_environment(self, env):
        env.extend(EnvironmentModifications.from_sourcing_file(
            join_path(self.prefix.etc, "nprdma.env")))
