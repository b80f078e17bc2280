# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The nprdma authors.
#
# make -f arm64.mk BUILD=DIR ROOT=DIR: compiles programs of the tests for guests
# of arm64, whose file system is ROOT, in the current directory. BUILD is a build
# tree of this machine: config.h and the headers of libraries are the same.

top   := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))/../..)
cross := aarch64-linux-gnu-
gtest := /usr/src/googletest/googletest

kmod := $(wildcard $(top)/test/kmod/*.c)
edu  := $(wildcard $(top)/test/edu/*.c) $(filter %/kmod_main.c %/kmod_test.c,$(kmod))
# What libnprdma_ucm and libnpemu consist of, and their tests
ucm := $(wildcard $(top)/src/ucm/*.c $(top)/src/ucm/*/*.c) \
       $(filter-out $(top)/npemu/shim/%,$(wildcard $(top)/npemu/*/*.c)) \
       $(filter-out %allocator.cc %forked.cc %device.cc, \
	 $(wildcard $(top)/test/gtest/ucm/*.cc)) \
       $(addprefix $(gtest)/src/gtest,-all.cc _main.cc)

objects = $(addsuffix .o,$(notdir $(1)))
VPATH  := $(sort $(dir $(kmod) $(edu) $(ucm)))
flags  := -O1 -g -MMD -Wall -Wextra -Werror -Wno-unused-parameter \
	  -Wno-missing-field-initializers -Wno-format-zero-length \
	  -DHAVE_CONFIG_H -DNPRDMA_BUILD_UCT -D_GNU_SOURCE -I$(BUILD) \
	  $(addprefix -I$(top)/,include src npemu/include npemu) -I$(gtest) \
	  $(shell sed -n 's/^UCX_CPPFLAGS = //p' $(BUILD)/Makefile) \
	  -idirafter /usr/include -idirafter /usr/include/x86_64-linux-gnu
libs   := -L$(ROOT)/usr/lib/aarch64-linux-gnu \
	  -Wl,--allow-shlib-undefined,--no-as-needed \
	  $(addprefix -l:lib,ucs.so.0 ucm.so.0 ibverbs.so.1)

all: kmod_test edu_test test_ucm
kmod_test: $(call objects,$(kmod))
	$(cross)gcc -o $@ $^
edu_test: $(call objects,$(edu))
	$(cross)gcc -o $@ $^
test_ucm: $(call objects,$(ucm))
	$(cross)g++ -o $@ $^ $(libs)
%.c.o: %.c
	$(cross)gcc -std=gnu11 $(flags) -c -o $@ $<
%.cc.o: %.cc
	$(cross)g++ -std=c++17 $(flags) -c -o $@ $<
-include $(wildcard *.d)
