/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

#include <ucs/async/async_fwd.h>
#include <ucs/datastruct/string_buffer.h>
#include <ucs/debug/log.h>
#include <ucs/vfs/base/vfs_obj.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <dlfcn.h>
#include <grp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Set by the build to the component that is tested */
#ifndef NPRDMA_TEST_COMPONENT
#error "NPRDMA_TEST_COMPONENT is not defined"
#endif

static const char *peer_environment      = "NPRDMA_TEST_PEER";
static const char *component_environment = "NPRDMA_TEST_COMPONENT_COPY";
static const char *device_environment    = "NPRDMA_TEST_DEVICE";

double now()
{
    return std::chrono::duration<double>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
}

std::string device_name()
{
    const char *name = getenv(device_environment);

    return (name == nullptr) ? "npemu0" : name;
}

void await(const std::function<bool()> &condition)
{
    time_limit limit(patience);

    while (!condition()) {
        if (limit.is_over()) {
            throw std::runtime_error("a condition did not become true in time");
        }
        std::this_thread::yield();
    }
}

void idle(const std::function<void()> &step)
{
    auto deadline = std::chrono::steady_clock::now() +
                    std::chrono::milliseconds(20);

    for (int i = 0; i < 300; ++i) {
        step();
        std::this_thread::yield();
        if (std::chrono::steady_clock::now() > deadline) {
            return;
        }
    }
}

static void check(ucs_status_t status, const char *what)
{
    if (status != UCS_OK) {
        throw std::runtime_error(std::string(what) + ": " +
                                 ucs_status_string(status));
    }
}

/* ---- complaints ---- */

static complaints *complaints_now;

static ucs_log_func_rc_t
collect(const char *, unsigned, const char *, ucs_log_level_t level,
        const ucs_log_component_config_t *, const char *format, va_list args)
{
    char text[1024];

    vsnprintf(text, sizeof(text), format, args);
    std::lock_guard<std::mutex> guard(complaints::lock);
    return ((complaints_now != nullptr) && complaints_now->add(level, text)) ?
           UCS_LOG_FUNC_RC_STOP : UCS_LOG_FUNC_RC_CONTINUE;
}

bool complaints::add(ucs_log_level_t level, const char *text)
{
    if (level > m_most) {
        return false;
    }
    m_lines.push_back({level, text});
    return true;
}

/* UCX's threads read the level without a lock */
void complaints::set_level(ucs_log_level_t level)
{
    if (ucs_global_opts.log_component.log_level != level) {
        ucs_global_opts.log_component.log_level = level;
    }
}

complaints::complaints(ucs_log_level_t most) : m_most(most)
{
    find_component(); /* May push a handler of its own when it is loaded */
    complaints_now = this;
    ucs_log_push_handler(collect);
    m_before = ucs_global_opts.log_component.log_level;
    set_level(std::max(m_before, most));
}

complaints::~complaints()
{
    set_level(m_before);
    ucs_log_pop_handler();
    std::lock_guard<std::mutex> guard(lock);
    complaints_now = nullptr;
}

void expect_line(const complaints &log, const std::string &text)
{
    const auto lines = log.lines();

    ASSERT_EQ(1u, lines.size());
    EXPECT_NE(std::string::npos, lines[0].find(text)) << lines[0];
}

unsigned num_descriptors()
{
    auto begin = std::filesystem::directory_iterator("/proc/self/fd");
    return std::distance(begin, std::filesystem::directory_iterator());
}

/* ---- buffer ---- */

buffer::buffer(uct_md_h md, size_t length, void *ptr, unsigned flags) :
    m_md(md), m_ptr(ptr), m_length(length), m_owner(ptr == nullptr),
    m_memh(nullptr)
{
    if (m_owner) {
        m_ptr = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (m_ptr == MAP_FAILED) {
            throw std::runtime_error("mmap");
        }
    }
    check(uct_md_mem_reg(md, m_ptr, length, flags, &m_memh), "mem_reg");
}

buffer::~buffer()
{
    deregister();
    if (m_owner) {
        munmap(m_ptr, m_length);
    }
}

void buffer::deregister()
{
    if (m_memh != nullptr) {
        EXPECT_EQ(UCS_OK, uct_md_mem_dereg(m_md, m_memh));
        m_memh = nullptr;
    }
}

std::vector<char> buffer::packed_key() const
{
    uct_md_attr_t attr;

    check(uct_md_query(m_md, &attr), "md_query");
    std::vector<char> key(attr.rkey_packed_size);
    check(uct_md_mkey_pack(m_md, m_memh, key.data()), "mkey_pack");
    return key;
}

void buffer::fill(uint64_t seed)
{
    for (size_t i = 0; i < m_length; ++i) {
        seed    = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        *ptr(i) = seed >> 56;
    }
}

/* ---- completion ---- */

static void on_completion(uct_completion_t *self)
{
    static_cast<completion*>(self)->done = true;
}

completion::completion(int count)
{
    this->func   = on_completion;
    this->count  = count;
    this->status = UCS_OK;
}

void unpack_to(void *arg, const void *data, size_t length)
{
    memcpy(arg, data, length);
}

ucs_status_t
start_zcopy(bool is_put, uct_ep_h ep, const uct_iov_t &iov, uint64_t address,
            uct_rkey_t rkey, uct_completion_t *comp)
{
    return is_put ? uct_ep_put_zcopy(ep, &iov, 1, address, rkey, comp) :
                    uct_ep_get_zcopy(ep, &iov, 1, address, rkey, comp);
}

ucs_status_t try_invalidate(uct_md_h md, uct_mem_h memh)
{
    uct_md_mem_dereg_params_t params = {};
    completion comp;
    ucs_status_t status;

    params.field_mask = UCT_MD_MEM_DEREG_FIELD_MEMH |
                        UCT_MD_MEM_DEREG_FIELD_FLAGS |
                        UCT_MD_MEM_DEREG_FIELD_COMPLETION;
    params.memh       = memh;
    params.flags      = UCT_MD_MEM_DEREG_FLAG_INVALIDATE;
    params.comp       = &comp;
    status            = uct_md_mem_dereg_v2(md, &params);
    EXPECT_EQ(status == UCS_OK, comp.done);
    return status;
}

void invalidate(uct_md_h md, uct_mem_h memh)
{
    ASSERT_EQ(UCS_OK, try_invalidate(md, memh));
}

/* ---- entity ---- */

uct_component_h find_component()
{
    uct_component_h *components, found = nullptr;
    const char *copy = getenv(component_environment);
    const char *path = (copy != nullptr) ? copy : NPRDMA_TEST_COMPONENT;
    unsigned count;

    if (dlopen(path, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
        throw std::runtime_error(dlerror());
    }

    check(uct_query_components(&components, &count), "query_components");
    for (unsigned i = 0; i < count; ++i) {
        uct_component_attr_t attr = {};
        attr.field_mask           = UCT_COMPONENT_ATTR_FIELD_NAME;
        check(uct_component_query(components[i], &attr), "component_query");
        if (std::string(attr.name) == "nprdma") {
            found = components[i];
        }
    }
    uct_release_component_list(components);
    if (found == nullptr) {
        throw std::runtime_error("component nprdma is not there");
    }
    return found;
}

/* Since 1.17 UCX expects names with the table's prefix, and before without.
 * Removes from "left" those that this configuration has taken. The rest belongs
 * to another one. */
template<typename C> static void modify(C *config, config_t *left)
{
    static const std::string prefix = "NPRDMA_";

    for (auto setting = left->begin(); setting != left->end();) {
        std::string name = setting->first;
        const char *value = setting->second.c_str();
        if (name.compare(0, prefix.size(), prefix) == 0) {
            name.erase(0, prefix.size());
        }

        ucs_status_t status = uct_config_modify(config, (prefix + name).c_str(),
                                                value);
        if (status == UCS_ERR_NO_ELEM) {
            status = uct_config_modify(config, name.c_str(), value);
        }
        if (status == UCS_ERR_NO_ELEM) {
            ++setting;
        } else {
            check(status, setting->first.c_str());
            setting = left->erase(setting);
        }
    }
}

/* What no user sets is an item of one variable of the MD. Its names are here as
 * if they were variables. */
static void add_items(config_t *left)
{
    std::string items;

    for (auto setting = left->begin(); setting != left->end();) {
        std::string name = setting->first;
        if (name.compare(0, 7, "NPRDMA_") == 0) {
            name.erase(0, 7);
        }
        /* Of an interface */
        if ((name == "MAX_NUM_EPS") || (name == "TX_MAX_BUFS") ||
            (name == "TX_BUFS_GROW") || (name == "RX_MAX_BUFS")) {
            ++setting;
            continue;
        }

        std::transform(name.begin(), name.end(), name.begin(), ::tolower);
        items += (items.empty() ? "" : ",") + name + ":" + setting->second;
        setting = left->erase(setting);
    }
    if (!items.empty()) {
        const char *env = getenv("UCX_NPRDMA_INJECT");
        left->emplace("INJECT", (env ? env + std::string(",") : "") + items);
    }
}

entity::entity(const config_t &config)
{
    try {
        m_component = find_component();
        check(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK,
                                       &m_async),
              "async_context_create");
        check(uct_worker_create(m_async, UCS_THREAD_MODE_SINGLE, &m_worker),
              "worker_create");
        config_t left = config;
        open_md(&left);
        open_iface(&left);
    } catch (...) {
        close();
        throw;
    }
}

/* What UCX has allocated */
template<typename T> using owned = std::unique_ptr<T, void (*)(T *)>;

void entity::open_md(config_t *left)
{
    uct_component_attr_t attr = {};
    std::vector<uct_md_resource_desc_t> mds;
    uct_md_config_t *md_config;

    attr.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
    check(uct_component_query(m_component, &attr), "component_query");
    mds.resize(attr.md_resource_count);
    attr.field_mask   = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
    attr.md_resources = mds.data();
    check(uct_component_query(m_component, &attr), "component_query");
    auto md = std::find_if(mds.begin(), mds.end(),
                           [](const uct_md_resource_desc_t &desc) {
                               return desc.md_name == device_name();
                           });
    if (md == mds.end()) {
        throw std::runtime_error("no MD " + device_name());
    }

    check(uct_md_config_read(m_component, nullptr, nullptr, &md_config),
          "md_config_read");
    owned<void> owned_config(md_config, uct_config_release);
    modify(md_config, left);
    add_items(left);
    modify(md_config, left);
    check(uct_md_open(m_component, md->md_name, md_config, &m_md), "md_open");
    check(uct_md_query(m_md, &m_md_attr), "md_query");
}

void entity::open_iface(config_t *left)
{
    uct_tl_resource_desc_t *tls;
    uct_iface_config_t *iface_config;
    uct_iface_params_t params = {};
    unsigned count;

    check(uct_md_query_tl_resources(m_md, &tls, &count), "query_tl_resources");
    owned<uct_tl_resource_desc_t> owned_tls(tls, uct_release_tl_resource_list);
    if (count != 1) {
        throw std::runtime_error("not exactly one transport");
    }

    check(uct_md_iface_config_read(m_md, tls[0].tl_name, nullptr, nullptr,
                                   &iface_config), "iface_config_read");
    owned<void> owned_config(iface_config, uct_config_release);
    modify(iface_config, left);
    if (!left->empty()) {
        throw std::runtime_error("no setting " + left->begin()->first);
    }
    params.field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE |
                        UCT_IFACE_PARAM_FIELD_DEVICE |
                        UCT_IFACE_PARAM_FIELD_RX_HEADROOM |
                        UCT_IFACE_PARAM_FIELD_ERR_HANDLER |
                        UCT_IFACE_PARAM_FIELD_ERR_HANDLER_ARG |
                        UCT_IFACE_PARAM_FIELD_ERR_HANDLER_FLAGS;
    params.open_mode            = UCT_IFACE_OPEN_MODE_DEVICE;
    params.mode.device.tl_name  = tls[0].tl_name;
    params.mode.device.dev_name = tls[0].dev_name;
    params.err_handler          = on_error;
    params.err_handler_arg      = this;
    check(uct_iface_open(m_md, m_worker, &params, iface_config, &m_iface),
          "iface_open");
    check(uct_iface_query(m_iface, &m_attr), "iface_query");
    uct_iface_progress_enable(m_iface,
                              UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    check(uct_iface_set_am_handler(
                  m_iface, 1,
                  [](void *, void *, size_t, unsigned) { return UCS_OK; },
                  nullptr, 0),
          "set_am_handler");
}

entity::~entity()
{
    close();
}

void entity::close()
{
    for (auto ep : m_eps) {
        uct_ep_destroy(ep);
    }
    for (auto &rkey : m_rkeys) {
        uct_rkey_release(m_component, &rkey);
    }
    if (m_iface != nullptr) {
        uct_iface_close(m_iface);
    }
    if (m_md != nullptr) {
        uct_md_close(m_md);
    }
    if (m_worker != nullptr) {
        uct_worker_destroy(m_worker);
    }
    if (m_async != nullptr) {
        ucs_async_context_destroy(m_async);
    }
}

ucs_status_t entity::on_error(void *arg, uct_ep_h ep, ucs_status_t status)
{
    auto self        = static_cast<entity*>(arg);
    self->failed[ep] = status;
    ++self->num_errors;
    self->on_failure();
    return UCS_OK;
}

std::vector<char> entity::address() const
{
    std::vector<char> address(m_attr.device_addr_len + m_attr.iface_addr_len);

    check(uct_iface_get_device_address(m_iface,
                                       (uct_device_addr_t*)address.data()),
          "get_device_address");
    check(uct_iface_get_address(m_iface,
                                (uct_iface_addr_t*)(address.data() +
                                                    m_attr.device_addr_len)),
          "get_address");
    return address;
}

uct_ep_h entity::connect(const std::vector<char> &address)
{
    uct_ep_params_t params = {};
    uct_ep_h ep;

    params.field_mask = UCT_EP_PARAM_FIELD_IFACE |
                        UCT_EP_PARAM_FIELD_DEV_ADDR |
                        UCT_EP_PARAM_FIELD_IFACE_ADDR;
    params.iface      = m_iface;
    params.dev_addr   = (const uct_device_addr_t*)address.data();
    params.iface_addr = (const uct_iface_addr_t*)(address.data() +
                                                  m_attr.device_addr_len);
    check(uct_ep_create(&params, &ep), "ep_create");
    m_eps.push_back(ep);
    return ep;
}

void entity::disconnect(uct_ep_h ep)
{
    m_eps.erase(std::remove(m_eps.begin(), m_eps.end(), ep), m_eps.end());
    uct_ep_destroy(ep);
}

uct_rkey_t entity::unpack(const std::vector<char> &packed_key)
{
    uct_rkey_bundle_t bundle;

    check(uct_rkey_unpack(m_component, packed_key.data(), &bundle),
          "rkey_unpack");
    m_rkeys.push_back(bundle);
    return bundle.rkey;
}

ucs_status_t entity::retry(const std::function<ucs_status_t()> &op)
{
    ucs_status_t status = UCS_ERR_NO_RESOURCE;

    wait([&]() {
        status = op();
        return status != UCS_ERR_NO_RESOURCE;
    });
    return status;
}

void entity::wait(const std::function<bool()> &condition)
{
    time_limit limit(patience);

    while (!condition()) {
        progress();
        for (auto other : m_others) {
            other->progress();
        }
        if (limit.is_over()) {
            throw std::runtime_error("a condition stayed false in progress");
        }
    }
}

void entity::wait_alone(const std::function<bool()> &condition)
{
    await([&]() {
        progress();
        return condition();
    });
}

ucs_status_t entity::complete(
        const std::function<ucs_status_t(uct_completion_t*)> &op)
{
    completion comp;
    ucs_status_t status = retry([&]() { return op(&comp); });

    if (status == UCS_INPROGRESS) {
        wait([&]() { return comp.done; });
        status = comp.status;
    }
    return status;
}

ucs_status_t entity::put(uct_ep_h ep, const void *local, size_t length,
                         uint64_t address, uct_rkey_t rkey)
{
    uct_iov_t iov = {const_cast<void*>(local), length, nullptr, 0, 1};

    return complete([&](uct_completion_t *comp) {
        return uct_ep_put_zcopy(ep, &iov, 1, address, rkey, comp);
    });
}

ucs_status_t entity::get(uct_ep_h ep, void *local, size_t length,
                         uint64_t address, uct_rkey_t rkey)
{
    uct_iov_t iov = {local, length, nullptr, 0, 1};

    return complete([&](uct_completion_t *comp) {
        return uct_ep_get_zcopy(ep, &iov, 1, address, rkey, comp);
    });
}

ucs_status_t entity::flush_status(uct_ep_h ep)
{
    return complete([&](uct_completion_t *comp) {
        return uct_ep_flush(ep, 0, comp);
    });
}

void entity::flush(uct_ep_h ep, ucs_status_t expected)
{
    ucs_status_t status = flush_status(ep);

    EXPECT_EQ(expected, status) << ucs_status_string(status);
}

void entity::wire_up(uct_ep_h ep, const void *buffer, uint64_t address,
                     uct_rkey_t rkey)
{
    ASSERT_EQ(UCS_OK, retry([&]() {
        return uct_ep_put_short(ep, buffer, 8, address, rkey);
    }));
    ASSERT_EQ(UCS_OK, retry([&]() {
        return uct_ep_am_short(ep, 1, 0, nullptr, 0);
    }));
    flush(ep);
}

std::vector<std::pair<std::string, uint64_t>> entity::counters() const
{
    std::vector<std::pair<std::string, uint64_t>> all;
    ucs_string_buffer_t text = UCS_STRING_BUFFER_INITIALIZER;
    std::ostringstream path;
    std::string word;
    uint64_t value;

    path << "/uct/worker/" << m_worker << "/iface/" << m_iface;
    /* UCX creates the file when the directory is read */
    check(ucs_vfs_path_list_dir(path.str().c_str(),
                                [](const char *, void *) {}, nullptr),
          "vfs_path_list_dir");
    for (auto file : {"/nprdma_counters", "/nprdma_memory"}) {
        check(ucs_vfs_path_read_file((path.str() + file).c_str(), &text),
              "vfs_path_read_file");
    }
    std::istringstream lines(ucs_string_buffer_cstr(&text));
    ucs_string_buffer_cleanup(&text);
    while (lines >> word >> value) {
        all.emplace_back(word, value);
    }
    return all;
}

uint64_t entity::counter(const std::string &name) const
{
    for (auto &counter : counters()) {
        if (counter.first == name) {
            return counter.second;
        }
    }
    throw std::runtime_error("no counter " + name);
}

void entity::finish_prefetch() const
{
    await([this]() { return counter("prefetch_waiting") == 0; });
}

/* ---- uct_pair_test ---- */

void uct_pair_test::open(const config_t &config_a, const config_t &config_b)
{
    m_a.reset(new entity(config_a));
    m_b.reset(new entity(config_b));
    m_a->add_progress(m_b.get());
    m_b->add_progress(m_a.get());
    prepare();
    m_ab = m_a->connect(m_b->address());
    m_ba = m_b->connect(m_a->address());
}

void uct_pair_test::TearDown()
{
    m_a.reset();
    m_b.reset();
}

void uct_buffer_test::SetUp()
{
    uct_pair_test::SetUp();
    m_local.reset(new buffer(m_a->md(), m_length));
    m_remote.reset(new buffer(m_b->md(), m_length));
    m_rkey = m_a->unpack(m_remote->packed_key());
}

void uct_buffer_test::TearDown()
{
    m_local.reset();
    m_remote.reset();
    uct_pair_test::TearDown();
}

/* ---- peer ---- */

std::map<std::string, peer::function_t> &peer::functions()
{
    static std::map<std::string, function_t> functions;
    return functions;
}

peer::registration::registration(const char *name, function_t function)
{
    functions()[name] = function;
}

peer::peer(const std::string &function, uid_t uid, size_t memlock)
{
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) {
        throw std::runtime_error("socketpair");
    }

    /* A new program, so that it contains no state of this process's UCX */
    std::string value = function + ":" + std::to_string(fds[1]);
    pid_t parent      = getpid();
    m_fd              = fds[0];
    m_pid             = fork();
    if (m_pid == 0) {
        close(fds[0]);
        if (memlock > 0) {
            struct rlimit limit = {memlock, memlock};
            setrlimit(RLIMIT_MEMLOCK, &limit);
        }
        if ((uid != 0) && ((setgroups(0, nullptr) != 0) ||
                           (setgid(uid) != 0) || (setuid(uid) != 0))) {
            _exit(126);
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(127);
        }
        setenv(peer_environment, value.c_str(), 1);
        execl("/proc/self/exe", "uct-test-peer", (char*)nullptr);
        _exit(127);
    }
    close(fds[1]);
}

peer::~peer()
{
    if (m_pid > 0) {
        kill();
    }
    close(m_fd);
}

void peer::kill()
{
    int status;

    /* kill(-1) would signal all processes */
    if (m_pid <= 0) {
        throw std::runtime_error("the other process has been ended before");
    }
    ::kill(m_pid, SIGKILL);
    waitpid(m_pid, &status, 0);
    m_pid = -1;
}

void peer::stop()
{
    int status;

    ASSERT_GT(m_pid, 0);
    ::kill(m_pid, SIGSTOP);
    EXPECT_EQ(m_pid, waitpid(m_pid, &status, WUNTRACED));
    EXPECT_TRUE(WIFSTOPPED(status));
}

void peer::go_on()
{
    ASSERT_GT(m_pid, 0);
    ::kill(m_pid, SIGCONT);
}

int peer::join()
{
    int status;

    waitpid(m_pid, &status, 0);
    m_pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void peer::send(const void *data, size_t length)
{
    if (::send(m_fd, data, length, MSG_NOSIGNAL) != (ssize_t)length) {
        throw std::runtime_error("the other process is gone");
    }
}

void peer::receive(void *data, size_t length)
{
    /* Zero bytes need no wait */
    if ((length > 0) &&
        (recv(m_fd, data, length, MSG_WAITALL) != (ssize_t)length)) {
        throw std::runtime_error("the other process is gone");
    }
}

bool peer::ready() const
{
    struct pollfd pfd = {m_fd, POLLIN, 0};
    return poll(&pfd, 1, 0) > 0;
}

void peer::put_bytes(const std::vector<char> &bytes)
{
    put(bytes.size());
    send(bytes.data(), bytes.size());
}

std::vector<char> peer::get_bytes()
{
    std::vector<char> bytes(get<size_t>());
    receive(bytes.data(), bytes.size());
    return bytes;
}

component_copy::component_copy()
{
    char pattern[] = "/tmp/nprdma-test.XXXXXX";

    if (mkdtemp(pattern) == nullptr) {
        throw std::runtime_error("mkdtemp");
    }
    m_dir            = pattern;
    std::string path = m_dir + "/component.so";
    std::filesystem::copy_file(NPRDMA_TEST_COMPONENT, path);
    std::filesystem::permissions(m_dir, std::filesystem::perms(0755));
    std::filesystem::permissions(path, std::filesystem::perms(0644));
    setenv(component_environment, path.c_str(), 1);
}

component_copy::~component_copy()
{
    unsetenv(component_environment);
    std::filesystem::remove_all(m_dir);
}

/* ---- /proc ---- */

long proc_status_kb(pid_t pid, const std::string &name)
{
    std::ifstream file("/proc/" + std::to_string(pid) + "/status");
    std::string word;

    while (file >> word) {
        if (word == name) {
            long value;
            file >> value;
            return value;
        }
    }
    ADD_FAILURE() << "no " << name << " of process " << pid;
    return -1;
}

/* Directories of the threads of a process with this name, below /proc */
static std::vector<std::string>
threads_by_name(pid_t pid, const std::string &name)
{
    std::vector<std::string> threads;
    std::error_code gone;

    for (auto &entry : std::filesystem::directory_iterator(
                 "/proc/" + std::to_string(pid) + "/task", gone)) {
        std::string comm;
        std::ifstream(entry.path() / "comm") >> comm;
        if (comm == name) {
            threads.push_back(entry.path());
        }
    }
    return threads;
}

unsigned num_threads(pid_t pid, const std::string &name)
{
    return threads_by_name(pid, name).size();
}

bool thread_sleeps(pid_t pid, const std::string &name)
{
    auto threads = threads_by_name(pid, name);

    return !threads.empty() &&
           std::all_of(threads.begin(), threads.end(),
                       [](const std::string &thread) {
                           unsigned long fds = 0, count = 0, timeout = 0;
                           long number = -1;
                           std::ifstream file(thread + "/syscall");
                           file >> number >> std::hex >> fds >> count >>
                                   timeout;
#ifdef SYS_poll
                           if (number == SYS_poll) {
                               return (int)timeout < 0;
                           }
#endif
                           return (number == SYS_ppoll) && (timeout == 0);
                       });
}

int main(int argc, char **argv)
{
    const char *function = getenv(peer_environment);

    /* What the emulated RNIC would pin can be read, and has a limit */
    setenv("NPEMU_PIN", "mlock", 0);
    if (function != nullptr) {
        std::string value(function);
        size_t colon = value.find(':');
        peer parent(std::stoi(value.substr(colon + 1)));
        try {
            int ret = peer::functions().at(value.substr(0, colon))(parent);
            return ::testing::Test::HasFailure() ? 1 : ret;
        } catch (std::exception &e) {
            fprintf(stderr, "%s: %s\n", function, e.what());
            return 2;
        }
    }

    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
