/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

#include "refuser.h"

extern "C" {
#include "uct/ib/nprdma/wire/nprdma_wire.h"
}

#include <atomic>
#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>

/* What a callback was given. Callbacks run in UCX's asynchronous thread. */
struct event {
    std::atomic<bool>  happened{false};
    std::string        device;
    std::vector<char>  address;
    std::string        data;
    ucs_status_t       status  = UCS_OK;
    uct_conn_request_h request = nullptr;

    void set_remote(const uct_cm_remote_data_t *remote)
    {
        const char *begin = reinterpret_cast<const char*>(remote->dev_addr);

        if (remote->field_mask & UCT_CM_REMOTE_DATA_FIELD_DEV_ADDR) {
            address.assign(begin, begin + remote->dev_addr_length);
        }
        if (remote->field_mask & UCT_CM_REMOTE_DATA_FIELD_CONN_PRIV_DATA) {
            data.assign(static_cast<const char*>(remote->conn_priv_data),
                        remote->conn_priv_data_length);
        }
    }

    void wait() const
    {
        await([this]() { return happened.load(); });
    }
};

/* One side of a connection: a connection manager with a listener or endpoint */
class side {
public:
    explicit side(uct_worker_h worker, const std::string &name = "nprdma")
    {
        uct_component_h *components;
        unsigned count;

        EXPECT_EQ(UCS_OK, uct_query_components(&components, &count));
        for (unsigned i = 0; i < count; ++i) {
            uct_component_attr_t attr = {};
            attr.field_mask           = UCT_COMPONENT_ATTR_FIELD_NAME;
            EXPECT_EQ(UCS_OK, uct_component_query(components[i], &attr));
            if (name == attr.name) {
                open(components[i], worker);
            }
        }
        uct_release_component_list(components);
        EXPECT_NE(nullptr, m_cm);
    }

    ~side()
    {
        close_ep();
        close_listener();
        uct_cm_close(m_cm);
    }

    side(const side&) = delete;

    size_t max_data() const
    {
        uct_cm_attr_t attr = {};

        attr.field_mask = UCT_CM_ATTR_FIELD_MAX_CONN_PRIV;
        EXPECT_EQ(UCS_OK, uct_cm_query(m_cm, &attr));
        return attr.max_conn_priv;
    }

    ucs_status_t listen(uint16_t port = 0)
    {
        struct sockaddr_in address   = loopback(port);
        uct_listener_params_t params = {};

        params.field_mask      = UCT_LISTENER_PARAM_FIELD_CONN_REQUEST_CB |
                                 UCT_LISTENER_PARAM_FIELD_USER_DATA;
        params.conn_request_cb = on_request;
        params.user_data       = this;
        return uct_listener_create(m_cm,
                                   reinterpret_cast<sockaddr*>(&address),
                                   sizeof(address), &params, &m_listener);
    }

    uint16_t port() const
    {
        uct_listener_attr_t attr = {};

        attr.field_mask = UCT_LISTENER_ATTR_FIELD_SOCKADDR;
        EXPECT_EQ(UCS_OK, uct_listener_query(m_listener, &attr));
        return ntohs(reinterpret_cast<sockaddr_in*>(&attr.sockaddr)->sin_port);
    }

    void close_listener()
    {
        if (m_listener != nullptr) {
            uct_listener_destroy(m_listener);
            m_listener = nullptr;
        }
    }

    uct_ep_params_t params()
    {
        uct_ep_params_t params = {};

        params.field_mask        = UCT_EP_PARAM_FIELD_CM |
                                   UCT_EP_PARAM_FIELD_USER_DATA |
                                   UCT_EP_PARAM_FIELD_SOCKADDR_CB_FLAGS |
                                   UCT_EP_PARAM_FIELD_SOCKADDR_DISCONNECT_CB;
        params.cm                = m_cm;
        params.user_data         = this;
        params.sockaddr_cb_flags = UCT_CB_FLAG_ASYNC;
        params.disconnect_cb     = on_disconnected;
        return params;
    }

    /* By the pack callback, or with connect_with() after it was resolved */
    ucs_status_t
    connect(uint16_t port, bool is_packed, bool has_callback = true)
    {
        uct_ep_params_t p          = params();
        struct sockaddr_in address = loopback(port);
        ucs_sock_addr_t sock_addr;

        sock_addr.addr       = reinterpret_cast<sockaddr*>(&address);
        sock_addr.addrlen    = sizeof(address);
        p.field_mask        |= UCT_EP_PARAM_FIELD_SOCKADDR |
                               UCT_EP_PARAM_FIELD_SOCKADDR_CONNECT_CB_CLIENT |
                               (is_packed ?
                                UCT_EP_PARAM_FIELD_SOCKADDR_PACK_CB :
                                UCT_EP_PARAM_FIELD_CM_RESOLVE_CB);
        p.sockaddr           = &sock_addr;
        p.sockaddr_cb_client = has_callback ? on_connected : nullptr;
        p.cm_resolve_cb      = on_resolved;
        p.sockaddr_pack_cb   = on_pack;
        return uct_ep_create(&p, &m_ep);
    }

    ucs_status_t connect_with(const std::string &data)
    {
        uct_ep_connect_params_t p = {};

        p.field_mask          = UCT_EP_CONNECT_PARAM_FIELD_PRIVATE_DATA |
                                UCT_EP_CONNECT_PARAM_FIELD_PRIVATE_DATA_LENGTH;
        p.private_data        = data.data();
        p.private_data_length = data.size();
        /* As UCP does: TCP's manager leaves this lock to the caller */
        refuser_hold(m_ep->iface);
        const ucs_status_t status = uct_ep_connect(m_ep, &p);
        refuser_release(m_ep->iface);
        return status;
    }

    ucs_status_t accept(bool is_packed, const std::string &data)
    {
        uct_ep_params_t p = params();

        p.field_mask         |= UCT_EP_PARAM_FIELD_CONN_REQUEST |
                                UCT_EP_PARAM_FIELD_SOCKADDR_NOTIFY_CB_SERVER |
                                (is_packed ?
                                 UCT_EP_PARAM_FIELD_SOCKADDR_PACK_CB :
                                 (UCT_EP_PARAM_FIELD_PRIV_DATA |
                                  UCT_EP_PARAM_FIELD_PRIV_DATA_LENGTH));
        p.conn_request        = requested.request;
        p.sockaddr_cb_server  = on_notified;
        p.sockaddr_pack_cb    = on_pack;
        p.private_data        = data.data();
        p.private_data_length = data.size();
        return uct_ep_create(&p, &m_ep);
    }

    ucs_status_t reject()
    {
        return uct_listener_reject(m_listener, requested.request);
    }

    ucs_status_t notify() { return uct_cm_client_ep_conn_notify(m_ep); }

    ucs_status_t disconnect() { return uct_ep_disconnect(m_ep, 0); }

    void close_ep()
    {
        if (m_ep != nullptr) {
            uct_ep_destroy(m_ep);
            m_ep = nullptr;
        }
    }

    std::string packed; /* what the pack callback says */
    event       resolved, requested, connected, notified, disconnected;

private:
    void open(uct_component_h component, uct_worker_h worker)
    {
        uct_cm_config_t *config;

        ASSERT_EQ(UCS_OK, uct_cm_config_read(component, nullptr, nullptr,
                                             &config));
        EXPECT_EQ(UCS_OK, uct_cm_open(component, worker, config, &m_cm));
        uct_config_release(config);
    }

    static struct sockaddr_in loopback(uint16_t port)
    {
        struct sockaddr_in address = {};

        address.sin_family      = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address.sin_port        = htons(port);
        return address;
    }

    static void on_request(uct_listener_h, void *arg,
                           const uct_cm_listener_conn_request_args_t *args)
    {
        event &e = static_cast<side*>(arg)->requested;

        e.device  = args->dev_name;
        e.request = args->conn_request;
        e.set_remote(args->remote_data);
        e.happened = true;
    }

    static ucs_status_t
    on_resolved(void *arg, const uct_cm_ep_resolve_args_t *args)
    {
        event &e = static_cast<side*>(arg)->resolved;

        e.device   = args->dev_name;
        e.happened = true;
        return UCS_OK;
    }

    static ssize_t on_pack(void *arg,
                           const uct_cm_ep_priv_data_pack_args_t *args,
                           void *priv_data)
    {
        side *self = static_cast<side*>(arg);

        self->resolved.device   = args->dev_name;
        self->resolved.happened = true;
        memcpy(priv_data, self->packed.data(), self->packed.size());
        return self->packed.size();
    }

    static void on_connected(uct_ep_h, void *arg,
                             const uct_cm_ep_client_connect_args_t *args)
    {
        event &e = static_cast<side*>(arg)->connected;

        e.status = args->status;
        e.set_remote(args->remote_data);
        e.happened = true;
    }

    static void on_notified(uct_ep_h, void *arg,
                            const uct_cm_ep_server_conn_notify_args_t *args)
    {
        event &e = static_cast<side*>(arg)->notified;

        e.status   = args->status;
        e.happened = true;
    }

    static void on_disconnected(uct_ep_h, void *arg)
    {
        static_cast<side*>(arg)->disconnected.happened = true;
    }

    uct_cm_h       m_cm       = nullptr;
    uct_listener_h m_listener = nullptr;
    uct_ep_h       m_ep       = nullptr;
};

/* A worker without an interface */
class bare_worker {
public:
    bare_worker()
    {
        EXPECT_EQ(UCS_OK, ucs_async_context_create(UCS_ASYNC_MODE_THREAD,
                                                   &m_async));
        EXPECT_EQ(UCS_OK, uct_worker_create(m_async, UCS_THREAD_MODE_SINGLE,
                                            &handle));
    }

    ~bare_worker()
    {
        uct_worker_destroy(handle);
        ucs_async_context_destroy(m_async);
    }

    uct_worker_h handle = nullptr;

private:
    ucs_async_context_t *m_async = nullptr;
};

class test_sockcm : public ::testing::TestWithParam<bool> {
protected:
    static std::string port_name() { return device_name() + ":1"; }

    static std::vector<char> device_address(const entity &e)
    {
        std::vector<char> address(e.attr().device_addr_len);
        auto *addr = reinterpret_cast<uct_device_addr_t*>(address.data());

        EXPECT_EQ(UCS_OK, uct_iface_get_device_address(e.iface(), addr));
        return address;
    }

    /* Until the server has the request */
    static void request(side *client, side *server, bool is_packed,
                        const std::string &data)
    {
        client->packed = data;
        ASSERT_EQ(UCS_OK, client->connect(server->port(), is_packed));
        client->resolved.wait();
        if (!is_packed) {
            ASSERT_EQ(UCS_OK, client->connect_with(data));
        }
        server->requested.wait();
    }

    static void finish(side *client, side *server, bool is_packed,
                       const std::string &data)
    {
        server->packed = data;
        ASSERT_EQ(UCS_OK, server->accept(is_packed, data));
        client->connected.wait();
        ASSERT_EQ(UCS_OK, client->connected.status);
        ASSERT_EQ(UCS_OK, client->notify());
        server->notified.wait();
        EXPECT_EQ(UCS_OK, server->notified.status);
    }
};

TEST_P(test_sockcm, both_sides_get_device_and_address)
{
    entity a, b;
    side client(a.worker()), server(b.worker());

    ASSERT_EQ(UCS_OK, server.listen());
    request(&client, &server, GetParam(), "question");
    EXPECT_EQ(port_name(), client.resolved.device);
    EXPECT_EQ(port_name(), server.requested.device);
    EXPECT_EQ("question", server.requested.data);
    EXPECT_EQ(device_address(a), server.requested.address);
    finish(&client, &server, GetParam(), "answer");
    EXPECT_EQ("answer", client.connected.data);
    EXPECT_EQ(device_address(b), client.connected.address);

    EXPECT_EQ(UCS_OK, client.disconnect());
    server.disconnected.wait();
    EXPECT_EQ(UCS_OK, server.disconnect());
    client.disconnected.wait();
}

TEST_P(test_sockcm, longest_private_data)
{
    entity a, b;
    side client(a.worker()), server(b.worker());
    const std::string longest(client.max_data(), 'x');

    ASSERT_EQ(UCS_OK, server.listen());
    request(&client, &server, GetParam(), longest);
    EXPECT_EQ(longest, server.requested.data);
    finish(&client, &server, GetParam(), longest);
    EXPECT_EQ(longest, client.connected.data);
}

TEST_P(test_sockcm, client_without_interface_uses_tcp)
{
    bare_worker a;
    entity b;
    side client(a.handle), server(b.worker());

    ASSERT_EQ(UCS_OK, server.listen());
    request(&client, &server, GetParam(), "question");
    EXPECT_NE(port_name(), client.resolved.device);
    EXPECT_NE(port_name(), server.requested.device);
    EXPECT_EQ("question", server.requested.data);
    finish(&client, &server, GetParam(), "answer");
    EXPECT_EQ("answer", client.connected.data);
    EXPECT_NE(device_address(b), client.connected.address);
}

INSTANTIATE_TEST_SUITE_P(how, test_sockcm, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool> &param) {
                             return param.param ? "packed" : "connect";
                         });

/* How a connection fails */
class test_sockcm_refused : public test_sockcm {
};

TEST_F(test_sockcm_refused, trailer_has_room)
{
    entity a;
    side ours(a.worker()), tcp(a.worker(), "tcp");

    EXPECT_EQ(tcp.max_data(),
              ours.max_data() + sizeof(uct_nprdma_sock_trailer_t));
}

TEST_F(test_sockcm_refused, null_callback_is_refused)
{
    entity a;
    side client(a.worker());
    complaints log;

    EXPECT_EQ(UCS_ERR_INVALID_PARAM, client.connect(1, false, false));
    ASSERT_EQ(1u, log.lines().size());
    EXPECT_NE(std::string::npos, log.lines()[0].find("NULL"));
}

TEST_F(test_sockcm_refused, second_listener_at_a_port_is_refused)
{
    entity a;
    side first(a.worker()), second(a.worker());

    ASSERT_EQ(UCS_OK, first.listen());
    EXPECT_EQ(UCS_ERR_BUSY, second.listen(first.port()));
    /* The port is free again after the first */
    const uint16_t port = first.port();
    first.close_listener();
    EXPECT_EQ(UCS_OK, second.listen(port));
}

/* Without the resolve callback TCP's manager packs again when it is rejected */
TEST_F(test_sockcm_refused, rejected)
{
    entity a, b;
    side client(a.worker()), server(b.worker());

    ASSERT_EQ(UCS_OK, server.listen());
    request(&client, &server, false, "question");
    EXPECT_EQ(UCS_OK, server.reject());
    client.connected.wait();
    EXPECT_EQ(UCS_ERR_REJECTED, client.connected.status);
}

/* Trailers that no peer of ours sends, over TCP's own manager */
class test_sockcm_forged : public test_sockcm {
protected:
    static uct_nprdma_sock_trailer_t trailer(const entity &e)
    {
        uct_nprdma_sock_trailer_t t;
        uct_nprdma_dev_addr_t dev;

        memcpy(&dev, device_address(e).data(), sizeof(dev));
        uct_nprdma_sock_trailer_init(&t, &dev);
        return t;
    }

    /* Whether the server takes it for a device that it reaches */
    static bool is_taken(const entity &e, const void *bytes, size_t length)
    {
        bare_worker worker;
        side client(worker.handle, "tcp"), server(e.worker());
        const std::string data(static_cast<const char*>(bytes), length);

        EXPECT_EQ(UCS_OK, server.listen());
        request(&client, &server, false, data);
        const bool taken = (server.requested.device == port_name());
        EXPECT_EQ(taken ? "" : data, server.requested.data);
        EXPECT_EQ(UCS_OK, server.reject());
        return taken;
    }
};

TEST_F(test_sockcm_forged, each_field_is_checked)
{
    entity e;
    const uct_nprdma_sock_trailer_t good = trailer(e);
    uct_nprdma_sock_trailer_t t          = good;

    EXPECT_TRUE(is_taken(e, &t, sizeof(t)));
    EXPECT_FALSE(is_taken(e, reinterpret_cast<char*>(&t) + 1, sizeof(t) - 1));
    t.magic ^= 1;
    EXPECT_FALSE(is_taken(e, &t, sizeof(t)));
    t = good;
    ++t.dev.version;
    EXPECT_FALSE(is_taken(e, &t, sizeof(t)));
    t         = good;
    t.dev.mtu = 0;
    EXPECT_FALSE(is_taken(e, &t, sizeof(t)));
    t         = good;
    t.dev.mtu = 6;
    EXPECT_FALSE(is_taken(e, &t, sizeof(t)));
    /* A device of another kind of network is not reached */
    t            = good;
    t.dev.flags ^= UCT_NPRDMA_DEV_ADDR_ETH;
    EXPECT_FALSE(is_taken(e, &t, sizeof(t)));
}
