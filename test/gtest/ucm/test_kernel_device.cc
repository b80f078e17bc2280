/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include <ucm/backend/nprdma_backend.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel module, played by the test: the linker diverts the library's
 * open() and syscall() to it. It has one region. */
namespace {

struct module_t {
    int                  fd = -1;  /* The open device */
    std::map<long, int>  errors;   /* errno by call */
    std::map<long, int>  calls;
    std::string          attached, why;
    uint32_t             abi        = NPRDMA_ABI_VERSION;
    bool                 exists     = true;
    uint64_t             features   = NPRDMA_IOC_FEATURE_RETIRE;
    uint64_t             lost       = 0; /* Result of INVALIDATE */
    uint32_t             flags      = 0; /* Of REGION_CREATE, REGISTER */
    uint8_t              *states    = nullptr; /* What the library maps */
    int                  signals    = 0; /* Calls that a signal interrupts */
};

module_t *module;

constexpr size_t states_offset = NPRDMA_PAGE_SIZE;

int make_file(size_t size)
{
    int fd = memfd_create("module", MFD_CLOEXEC);
    EXPECT_EQ(0, ftruncate(fd, size));
    return fd;
}

int create(nprdma_ioc_region_create *arg)
{
    arg->states_offset = states_offset;
    arg->states_size   = states_offset + 2 * NPRDMA_PAGE_SIZE;
    arg->region        = 7;
    arg->signature     = 0x1234;
    arg->states_fd     = make_file(arg->states_size);
    module->flags      = arg->flags;
    module->states     = (uint8_t*)mmap(nullptr, arg->states_size,
                                        PROT_READ | PROT_WRITE, MAP_SHARED,
                                        arg->states_fd, 0);
    return 0;
}

int attach(nprdma_ioc_check_device *arg, int error)
{
    module->attached = arg->name;
    if (error != 0) {
        snprintf(arg->why, sizeof(arg->why), "%s", module->why.c_str());
    }
    return 0;
}

int answer(long request, void *arg, int error)
{
    switch (request) {
    case NPRDMA_IOC_QUERY:
        static_cast<nprdma_ioc_query*>(arg)->abi      = module->abi;
        static_cast<nprdma_ioc_query*>(arg)->features = module->features;
        return 0;
    case NPRDMA_IOC_CHECK_DEVICE:
        return attach(static_cast<nprdma_ioc_check_device*>(arg), error);
    case NPRDMA_IOC_REGION_CREATE:
        return (error == 0) ?
               create(static_cast<nprdma_ioc_region_create*>(arg)) : 0;
    case NPRDMA_IOC_EXPORT:
        static_cast<nprdma_ioc_export*>(arg)->fd = (error == 0) ?
                                                   make_file(1) : -1;
        return 0;
    case NPRDMA_IOC_REGISTER:
        static_cast<nprdma_ioc_register*>(arg)->registration = 3;
        module->flags = static_cast<nprdma_ioc_register*>(arg)->flags;
        return 0;
    case NPRDMA_IOC_INVALIDATE:
        static_cast<nprdma_ioc_invalidate*>(arg)->invalidated = module->lost;
        return 0;
    default:
        return 0;
    }
}

int call(long request, void *arg)
{
    ++module->calls[request];
    if ((request == NPRDMA_IOC_CHECK_DEVICE) && (module->signals-- > 0)) {
        errno = EINTR;
        return -1;
    }
    int error = module->errors.count(request) ? module->errors[request] : 0;
    answer(request, arg, error);
    errno = error;
    return (error == 0) ? 0 : -1;
}

size_t num_descriptors()
{
    auto begin = std::filesystem::directory_iterator("/proc/self/fd");
    return std::distance(begin, std::filesystem::directory_iterator());
}

} // namespace

extern "C" {
int __real_open(const char *path, int flags, ...);
long __real_syscall(long number, ...);

int __wrap_open(const char *path, int flags, ...)
{
    if ((module == nullptr) || strcmp(path, NPRDMA_DEVICE_PATH)) {
        return __real_open(path, flags, 0600);
    }
    if (!module->exists) {
        errno = ENOENT;
        return -1;
    }
    return module->fd = make_file(1);
}

long __wrap_syscall(long number, ...)
{
    va_list args;
    long a[6];

    va_start(args, number);
    for (auto &word : a) {
        word = va_arg(args, long);
    }
    va_end(args);
    if ((module != nullptr) && (number == SYS_ioctl) && (a[0] == module->fd)) {
        return call(a[1], (void*)a[2]);
    }
    return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
}

class test_kernel_device : public ::testing::Test {
protected:
    void SetUp() override
    {
        m_descriptors = num_descriptors();
        module        = &m_module;
        region.address = 0x200000000000;
        region.length  = 2u << 20;
        region.fd      = -1;
    }

    void TearDown() override
    {
        module = nullptr;
        EXPECT_EQ(m_descriptors, num_descriptors());
    }

    ucs_status_t open(const char *device = "0000:03:00.0")
    {
        return nprdma_backend_device.open(device, why);
    }

    void expect_refused(const char *device, const std::string &reason)
    {
        EXPECT_EQ(UCS_ERR_NO_DEVICE, open(device));
        EXPECT_NE(std::string::npos, std::string(why).find(reason)) << why;
    }

    module_t        m_module;
    nprdma_region_t region{};
    void            *priv = nullptr;
    char            why[NPRDMA_BACKEND_WHY_MAX];

private:
    size_t m_descriptors;
};

TEST_F(test_kernel_device, attached_by_its_address)
{
    m_module.signals = 3;
    ASSERT_EQ(UCS_OK, open());
    EXPECT_EQ("0000:03:00.0", m_module.attached);
    EXPECT_EQ(4, m_module.calls[NPRDMA_IOC_CHECK_DEVICE]);
    nprdma_backend_device.close();
}

TEST_F(test_kernel_device, refused)
{
    const char *device = "0000:03:00.0";

    expect_refused(nullptr, "no PCI address");
    expect_refused(std::string(64, '0').c_str(), "no PCI address");
    EXPECT_EQ(0, m_module.calls[NPRDMA_IOC_CHECK_DEVICE]);

    m_module.errors[NPRDMA_IOC_CHECK_DEVICE] = EOPNOTSUPP;
    m_module.why                              = "no IOMMU";
    expect_refused(device, "0000:03:00.0: the kernel module refuses it: no "
                           "IOMMU");
    m_module.why = "";
    expect_refused(device, "refuses it: Operation not supported");
    m_module.abi = NPRDMA_ABI_VERSION + 1;
    expect_refused(device, "version");
    m_module.abi      = NPRDMA_ABI_VERSION;
    m_module.features = NPRDMA_IOC_FEATURE_DEVICES;
    expect_refused(device, "too old");
    m_module.exists = false;
    expect_refused(device, "/dev/nprdma: No such file");
}

/* The region has one descriptor, the dma-buf's, until the caller closes it */
TEST_F(test_kernel_device, descriptors)
{
    ASSERT_EQ(UCS_OK, open());
    size_t before = num_descriptors();
    ASSERT_EQ(UCS_OK, nprdma_backend_device.region_create(&region, &priv));
    EXPECT_EQ(before + 1, num_descriptors());
    EXPECT_EQ(0x1234u, region.signature);
    EXPECT_EQ(0u, nprdma_page_load(&region.states[0]));
    EXPECT_FALSE(nprdma_backend_device.has_descriptors);
    close(region.fd);
    region.fd = -1;
    nprdma_backend_device.region_destroy(&region, priv);
    EXPECT_EQ(1, m_module.calls[NPRDMA_IOC_REGION_DESTROY]);
    nprdma_backend_device.close();
}

/* A range tells the module at once if it has pages that are retired */
TEST_F(test_kernel_device, readmits)
{
    nprdma_range_t range = {};

    region.has_no_hooks = 1;
    ASSERT_EQ(UCS_OK, open());
    ASSERT_EQ(UCS_OK, nprdma_backend_device.region_create(&region, &priv));
    EXPECT_EQ(NPRDMA_IOC_REGION_RETIRE, m_module.flags);
    nprdma_backend_device.readmit(priv, &range, 0, 512);
    EXPECT_EQ(0, m_module.calls[NPRDMA_IOC_REGISTER]);
    m_module.states[states_offset + NPRDMA_PAGE_SIZE + 44 / 8] = 1 << 44 % 8;
    nprdma_backend_device.readmit(priv, &range, 0, 44);
    nprdma_backend_device.readmit(priv, &range, 45, 467);
    EXPECT_EQ(0, m_module.calls[NPRDMA_IOC_REGISTER]);
    nprdma_backend_device.readmit(priv, &range, 44, 1);
    EXPECT_EQ(1, m_module.calls[NPRDMA_IOC_REGISTER]);
    EXPECT_EQ(NPRDMA_IOC_REGISTER_READMIT, m_module.flags);
    EXPECT_EQ(3u, range.backend);

    /* A range from before does not, when it is populated */
    nprdma_populate_t populate;
    range.backend   = 0;
    populate.region = &region;
    populate.range  = &range;
    populate.first  = populate.flags = 0;
    populate.count  = 1;
    EXPECT_EQ(UCS_OK, nprdma_backend_device.populate(priv, &populate));
    EXPECT_EQ(2, m_module.calls[NPRDMA_IOC_REGISTER]);
    EXPECT_EQ(0u, m_module.flags);
    close(region.fd);
    region.fd = -1;
    nprdma_backend_device.region_destroy(&region, priv);
    nprdma_backend_device.close();
}

/* The module's count, and a call also if no state has a bit: the kernel may be
 * about to flush */
TEST_F(test_kernel_device, invalidate)
{
    ASSERT_EQ(UCS_OK, open());
    ASSERT_EQ(UCS_OK, nprdma_backend_device.region_create(&region, &priv));
    EXPECT_EQ(0u, nprdma_backend_device.invalidate(&region, priv, 0, 8,
                                                   NPRDMA_PAGE_BITS, 0));
    EXPECT_EQ(1, m_module.calls[NPRDMA_IOC_INVALIDATE]);
    m_module.lost = 5;
    EXPECT_EQ(5u, nprdma_backend_device.invalidate(&region, priv, 0, 8,
                                                   NPRDMA_PAGE_BITS, 0));
    nprdma_backend_device.region_destroy(&region, priv);
    nprdma_backend_device.close();
}

/* Errors of the calls that make a region */
struct region_error_t {
    long         request;
    int          error;
    ucs_status_t status;
};

class test_kernel_device_error
    : public test_kernel_device,
      public ::testing::WithParamInterface<region_error_t> {
};

TEST_P(test_kernel_device_error, leaves_nothing)
{
    auto [request, error, status] = GetParam();

    ASSERT_EQ(UCS_OK, open());
    size_t before            = num_descriptors();
    m_module.errors[request] = error;
    EXPECT_EQ(status, nprdma_backend_device.region_create(&region, &priv));
    EXPECT_EQ(before, num_descriptors());
    EXPECT_EQ(request == NPRDMA_IOC_EXPORT,
              m_module.calls[NPRDMA_IOC_REGION_DESTROY]);
    nprdma_backend_device.close();
}

INSTANTIATE_TEST_SUITE_P(
        all, test_kernel_device_error,
        ::testing::Values(
                region_error_t{NPRDMA_IOC_REGION_CREATE, EDQUOT,
                               UCS_ERR_EXCEEDS_LIMIT},
                region_error_t{NPRDMA_IOC_REGION_CREATE, EFBIG,
                               UCS_ERR_IO_ERROR},
                region_error_t{NPRDMA_IOC_EXPORT, EMFILE,
                               UCS_ERR_EXCEEDS_LIMIT},
                region_error_t{NPRDMA_IOC_EXPORT, ENOMEM, UCS_ERR_NO_MEMORY}));
