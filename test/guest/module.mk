# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The nprdma authors.
#
# make -f module.mk KDIR=HEADERS DIR=SOURCES BUILD=DIR [W=1]: builds test modules
# for the kernel with the headers in KDIR, in the directory BUILD.

build := $(abspath $(BUILD))

# As in kmod/Makefile
ifeq ($(shell command -v pahole),)
btf := CONFIG_DEBUG_INFO_BTF_MODULES=
endif

modules:
	@mkdir -p $(build)
	@ln -sf $(wildcard $(DIR)/*.[ch]) $(DIR)/Kbuild $(build)/
	$(MAKE) -C $(KDIR) M=$(build) $(btf) modules

.PHONY: modules
