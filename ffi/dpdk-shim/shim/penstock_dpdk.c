#define _GNU_SOURCE
#include "penstock_dpdk.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <rte_alarm.h>
#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_prefetch.h>
#include <rte_ring.h>
#include <rte_version.h>

#define BURST_MAX 64u
/* Buffers that a thread keeps for itself. */
#define CACHED_BUFFERS 256
/* Drivers want room for a little more than a packet: af_packet for frames of its ring, of 2 or 9 KiB. */
#define SPARE_BYTES 256
/* The longest IP packet that one buffer has room for. */
#define MTU_MAX 64000
/* Looks at a link that is down, since the port was started, before the port begins anew: its ends may be about to meet. */
#define LOOKS_DOWN 1
/* Packets that wait in one direction of a ring. */
#define RING_PACKETS 1024
/* Pieces of lent memory that one packet has at most. */
#define LENT_MAX 64u
/* Pieces of lent memory that have a buffer, for each queue; what is beyond is copied. */
#define LENT_PIECES 1024
/* Ethernet's header, with one VLAN tag, and its checksum. */
#define ETHERNET_BYTES (RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN + 4)

static_assert(sizeof(struct penstock_dpdk_facts) == 44, "facts");
static_assert(sizeof(struct penstock_dpdk_options) == 10, "options");
static_assert(sizeof(struct penstock_dpdk_counts) == 40, "counts");
static_assert(sizeof(struct penstock_dpdk_packet) == 24, "packet");
static_assert(sizeof(struct penstock_dpdk_piece) == 16, "piece");

static penstock_dpdk_log log_line;
static struct rte_mempool *pools[RTE_MAX_ETHPORTS];
/* Buffers without room, each for one piece of lent memory, and what DPDK wants them to share: a count, of which nothing depends, as lent
 * memory is not DPDK's to free. Workers of a port change it without a lock. */
static struct rte_mempool *lent_pools[RTE_MAX_ETHPORTS];
static struct rte_mbuf_ext_shared_info lent_info[RTE_MAX_ETHPORTS];
/* Whether a port moves packets, and whether it waits for its other end where that is not there. */
static uint8_t is_started[RTE_MAX_ETHPORTS], waits[RTE_MAX_ETHPORTS];
/* Looks at a link that was down since the port was started; as many as there may be if it was up since. */
static uint8_t looks[RTE_MAX_ETHPORTS];

const char *penstock_dpdk_release(void)
{
    return RTE_STR(RTE_VER_YEAR) "." RTE_STR(RTE_VER_MONTH) "." RTE_STR(RTE_VER_MINOR);
}

uint64_t penstock_dpdk_sizes(void)
{
    return sizeof(struct penstock_dpdk_facts) | sizeof(struct penstock_dpdk_options) << 16 |
           sizeof(struct penstock_dpdk_counts) << 32 | sizeof(struct penstock_dpdk_packet) << 48;
}

const char *penstock_dpdk_error(int error)
{
    return rte_strerror(-error);
}

/* What DPDK writes to its log, a line at a time. */
static ssize_t write_log(void *cookie, const char *bytes, size_t count)
{
    (void)cookie;
    uint32_t level = rte_log_cur_msg_loglevel();
    size_t start = 0;
    for (size_t at = 0; at <= count; at++) {
        if (at < count && bytes[at] != '\n')
            continue;
        if (at > start)
            log_line(level, bytes + start, at - start);
        start = at + 1;
    }
    return count;
}

int penstock_dpdk_start(int argc, char **argv, penstock_dpdk_log log)
{
    cookie_io_functions_t calls = {.write = write_log};
    log_line = log;
    FILE *stream = fopencookie(NULL, "w", calls);
    if (stream == NULL)
        return -errno;
    setvbuf(stream, NULL, _IOLBF, BUFSIZ);
    rte_openlog_stream(stream);
    return rte_eal_init(argc, argv) < 0 ? -rte_errno : 0;
}

int penstock_dpdk_enter(void)
{
    if (rte_lcore_id() != LCORE_ID_ANY)
        return 0;
    return rte_thread_register() < 0 ? -rte_errno : 0;
}

void penstock_dpdk_leave(void)
{
    rte_thread_unregister();
}

int penstock_dpdk_ports(void)
{
    return rte_eth_dev_count_avail();
}

/* One end of a pair within this process: it receives from the rings of its number, and sends into the others. The rings stay. */
static int add_ring(const char *name, int end, uint16_t queues)
{
    struct rte_ring *rings[2][RTE_PMD_RING_MAX_RX_RINGS];
    char its[RTE_RING_NAMESIZE];
    if (queues == 0 || queues > RTE_DIM(rings[0]))
        return -EINVAL;
    for (int of = 0; of < 2; of++)
        for (uint16_t queue = 0; queue < queues; queue++) {
            snprintf(its, sizeof its, "%s_%d_%u", name, of, queue);
            rings[of][queue] = rte_ring_lookup(its);
            if (rings[of][queue] == NULL)
                rings[of][queue] = rte_ring_create(its, RING_PACKETS, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
            if (rings[of][queue] == NULL)
                return -rte_errno;
        }
    snprintf(its, sizeof its, "%s_%d", name, end);
    int port = rte_eth_from_rings(its, rings[end], queues, rings[1 - end], queues, 0);
    return port < 0 ? -rte_errno : port;
}

int penstock_dpdk_add(const char *device, uint16_t queues)
{
    struct rte_dev_iterator iterator;
    char name[12];
    int end, all = 0;
    if (sscanf(device, "ring:%11[a-z0-9-]/%1d%n", name, &end, &all) == 2 && device[all] == 0 && (end == 0 || end == 1))
        return add_ring(name, end, queues);
    int error = rte_dev_probe(device);
    if (error < 0)
        return error;
    if (rte_eth_iterator_init(&iterator, device) != 0)
        return -EINVAL;
    uint16_t port = rte_eth_iterator_next(&iterator);
    rte_eth_iterator_cleanup(&iterator);
    return port < RTE_MAX_ETHPORTS ? port : -ENODEV;
}

/* The arguments of a memif device; NULL: it is none. */
static const char *memif_arguments(uint16_t port)
{
    struct rte_eth_dev_info info;
    if (rte_eth_dev_info_get(port, &info) < 0 || strcmp(info.driver_name, "net_memif") != 0)
        return NULL;
    const struct rte_devargs *given = rte_dev_devargs(info.device);
    return given != NULL && given->args != NULL ? given->args : "";
}

/* One argument of a memif device, or what it is unless given. Returns whether it is such a device. */
static int memif_argument(uint16_t port, const char *name, const char *unless, char *value, size_t room)
{
    const char *arguments = memif_arguments(port);
    memset(value, 0, room);
    if (arguments == NULL)
        return 0;
    const char *named = strstr(arguments, name);
    const char *its = named != NULL ? named + strlen(name) : unless;
    size_t bytes = strcspn(its, ",");
    memcpy(value, its, RTE_MIN(bytes, room - 1));
    return 1;
}

/* Finds out at which socket the driver of a memif device meets others. Returns whether it is one. */
static int memif_socket(uint16_t port, struct sockaddr_un *socket)
{
    memset(socket, 0, sizeof *socket);
    return memif_argument(port, "socket=", "/run/memif.sock", socket->sun_path, sizeof socket->sun_path);
}

static int listens_at(int descriptor, const struct sockaddr_un *socket)
{
    struct sockaddr_un its = {0};
    int is_listening = 0;
    socklen_t flag_bytes = sizeof is_listening, bytes = sizeof its;
    if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &flag_bytes) < 0 || !is_listening ||
        getsockname(descriptor, (struct sockaddr *)&its, &bytes) < 0 || its.sun_family != AF_UNIX)
        return 0;
    const char *name = its.sun_path + (its.sun_path[0] == '\0');
    return strncmp(name, socket->sun_path, sizeof its.sun_path - 1) == 0;
}

/* memif's driver takes a server out and leaves its socket listening, and the callback for it in DPDK's interrupt thread, with memory that is
 * free. So the next server has no such socket, and a client that comes keeps that thread busy for good. An event that never happens
 * takes the descriptor's place: closed it must not be, as that thread waits for it. */
static void silence_memif(uint16_t port)
{
    struct sockaddr_un socket, others;
    uint16_t other;
    if (!memif_socket(port, &socket))
        return;
    RTE_ETH_FOREACH_DEV(other)
        if (other != port && memif_socket(other, &others) && strcmp(others.sun_path, socket.sun_path) == 0)
            return;
    DIR *descriptors = opendir("/proc/self/fd");
    for (struct dirent *one; descriptors != NULL && (one = readdir(descriptors)) != NULL;) {
        int descriptor = atoi(one->d_name), never;
        if (!listens_at(descriptor, &socket) || (never = eventfd(0, EFD_CLOEXEC)) < 0)
            continue;
        (void)dup3(never, descriptor, O_CLOEXEC);
        (void)close(never);
    }
    if (descriptors != NULL)
        (void)closedir(descriptors);
}

int penstock_dpdk_remove(uint16_t port)
{
    struct rte_eth_dev_info info;
    int error = rte_eth_dev_info_get(port, &info);
    silence_memif(port);
    return error < 0 ? error : rte_dev_remove(info.device);
}

/* The longest IP packet, as the device says. */
static uint16_t said_longest(const struct rte_eth_dev_info *info)
{
    uint32_t frame = info->max_rx_pktlen - RTE_ETHER_HDR_LEN - RTE_ETHER_CRC_LEN;
    return RTE_MIN(info->max_mtu, frame);
}

/* The longest IP packet. What only goes through memory is copied whatever its length, and memif says 1,500 all the same. */
static uint16_t longest(const struct rte_eth_dev_info *info)
{
    if (strcmp(info->driver_name, "net_memif") == 0 || strcmp(info->driver_name, "net_ring") == 0)
        return MTU_MAX;
    return said_longest(info);
}

int penstock_dpdk_facts(uint16_t port, struct penstock_dpdk_facts *facts)
{
    struct rte_eth_dev_info info;
    struct rte_ether_addr mac;
    memset(facts, 0, sizeof *facts);
    int error = rte_eth_dev_info_get(port, &info);
    if (error == 0)
        error = rte_eth_macaddr_get(port, &mac);
    if (error == 0)
        error = rte_eth_dev_get_mtu(port, &facts->mtu);
    if (error < 0)
        return error;
    snprintf(facts->driver, sizeof facts->driver, "%s", info.driver_name);
    memcpy(facts->mac, mac.addr_bytes, sizeof facts->mac);
    facts->queues_max = RTE_MIN(info.max_rx_queues, info.max_tx_queues);
    facts->mtu_max = longest(&info);
    return 0;
}

/* Queues of a port, each with its buffers in the port's pool. */
static int set_up_queues(uint16_t port, const struct penstock_dpdk_options *options, struct rte_mempool *pool)
{
    int socket = rte_eth_dev_socket_id(port), error = 0;
    for (uint16_t queue = 0; queue < options->queues && error == 0; queue++) {
        error = rte_eth_rx_queue_setup(port, queue, options->receive_packets, socket, NULL, pool);
        if (error == 0)
            error = rte_eth_tx_queue_setup(port, queue, options->send_packets, socket, NULL);
    }
    return error;
}

static int start(uint16_t port)
{
    int error = rte_eth_dev_start(port);
    is_started[port] = error == 0;
    looks[port] = 0;
    return waits[port] ? 0 : error;
}

/* A port that ends, for a while or for good. */
struct ending {
    sem_t is_over;
    uint16_t port;
    uint8_t for_good;
};

static void end_here(void *argument)
{
    struct ending *ending = argument;
    (void)rte_eth_dev_stop(ending->port);
    if (ending->for_good) {
        silence_memif(ending->port);
        (void)rte_eth_dev_close(ending->port);
    }
    (void)sem_post(&ending->is_over);
}

/* Stops a port, and closes it for good. memif's ends part without a lock in DPDK's interrupt thread: so a memif does it there. */
static void end(uint16_t port, int for_good)
{
    struct sockaddr_un socket;
    struct ending ending = {.port = port, .for_good = for_good};
    (void)sem_init(&ending.is_over, 0, 0);
    if (!memif_socket(port, &socket) || rte_eal_alarm_set(1, end_here, &ending) < 0)
        end_here(&ending);
    while (sem_wait(&ending.is_over) < 0 && errno == EINTR)
        ;
    (void)sem_destroy(&ending.is_over);
}

/* Whether packets of a port may lend memory: its driver has copied what it sends when it returns, and joins the pieces. memif does both,
 * unless it was told how to copy nothing; it joins only where its own pieces are shorter than a buffer has room, and is quicker where it need not. */
static int may_lend(uint16_t port, uint32_t room)
{
    char piece[8];
    return memif_argument(port, "bsize=", "2048", piece, sizeof piece) && (uint32_t)atoi(piece) < room &&
           strstr(memif_arguments(port), "zero-copy") == NULL;
}

static void keep(void *address, void *opaque)
{
    (void)address;
    (void)opaque;
}

static int add_lent_pool(uint16_t port, uint16_t queues)
{
    char name[RTE_MEMPOOL_NAMESIZE];
    snprintf(name, sizeof name, "penstock_lent_%u", port);
    lent_pools[port] = rte_pktmbuf_pool_create(name, queues * LENT_PIECES, CACHED_BUFFERS, 0, 0, rte_eth_dev_socket_id(port));
    lent_info[port].free_cb = keep;
    rte_mbuf_ext_refcnt_set(&lent_info[port], 1);
    return lent_pools[port] == NULL ? -rte_errno : 0;
}

int penstock_dpdk_lends(uint16_t port)
{
    return lent_pools[port] != NULL;
}

int penstock_dpdk_open(uint16_t port, const struct penstock_dpdk_options *options)
{
    struct rte_eth_dev_info info;
    struct rte_eth_conf how = {0};
    uint16_t mtu = options->mtu;
    int error = rte_eth_dev_info_get(port, &info);
    if (error == 0 && mtu == 0)
        error = rte_eth_dev_get_mtu(port, &mtu);
    if (error < 0)
        return error;
    how.rxmode.mtu = RTE_MIN(mtu, said_longest(&info));
    how.rxmode.offloads = info.rx_offload_capa & (RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM);
    error = rte_eth_dev_configure(port, options->queues, options->queues, &how);
    if (error < 0)
        return error;

    char name[RTE_MEMPOOL_NAMESIZE];
    static unsigned opened;
    snprintf(name, sizeof name, "penstock_%u", opened++);
    /* Full queues of both kinds, what threads keep, and bursts between them. A packet lies in one piece, also where a driver rounds down. */
    uint32_t each = options->receive_packets + options->send_packets + 2 * CACHED_BUFFERS + 2 * BURST_MAX;
    uint32_t room = RTE_PKTMBUF_HEADROOM + RTE_ALIGN(mtu + ETHERNET_BYTES + SPARE_BYTES, 1024);
    if (room > UINT16_MAX)
        return -EINVAL;
    pools[port] = rte_pktmbuf_pool_create(name, options->queues * each, CACHED_BUFFERS, 0, room, rte_eth_dev_socket_id(port));
    if (pools[port] == NULL)
        return -rte_errno;
    error = may_lend(port, room - RTE_PKTMBUF_HEADROOM) ? add_lent_pool(port, options->queues) : 0;
    if (error < 0)
        return error;
    waits[port] = options->waits;
    error = set_up_queues(port, options, pools[port]);
    return error < 0 ? error : start(port);
}

int penstock_dpdk_steer(uint16_t port, uint16_t first, uint16_t queues)
{
    for (uint16_t queue = 0; queue < queues; queue++) {
        struct rte_flow_item_udp to = {.hdr.dst_port = rte_cpu_to_be_16(first + queue)}, mask = {.hdr.dst_port = UINT16_MAX};
        struct rte_flow_action_queue by = {.index = queue};
        const struct rte_flow_attr attributes = {.ingress = 1};
        const struct rte_flow_item pattern[] = {
            {.type = RTE_FLOW_ITEM_TYPE_ETH},
            {.type = RTE_FLOW_ITEM_TYPE_IPV4},
            {.type = RTE_FLOW_ITEM_TYPE_UDP, .spec = &to, .mask = &mask},
            {.type = RTE_FLOW_ITEM_TYPE_END},
        };
        const struct rte_flow_action actions[] = {
            {.type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &by},
            {.type = RTE_FLOW_ACTION_TYPE_END},
        };
        struct rte_flow_error why = {0};
        if (rte_flow_create(port, &attributes, pattern, actions, &why) == NULL)
            return rte_errno > 0 ? -rte_errno : -ENOTSUP;
    }
    return 0;
}

int penstock_dpdk_close(uint16_t port)
{
    struct rte_eth_dev_info info;
    int error = rte_eth_dev_info_get(port, &info);
    is_started[port] = 0;
    if (error == 0) {
        end(port, 1);
        error = rte_dev_remove(info.device);
    }
    /* Another device of this process may hold buffers that were sent to it: then the pool stays. */
    if (pools[port] != NULL && rte_mempool_in_use_count(pools[port]) == 0)
        rte_mempool_free(pools[port]);
    pools[port] = NULL;
    rte_mempool_free(lent_pools[port]);
    lent_pools[port] = NULL;
    return error;
}

int penstock_dpdk_link(uint16_t port)
{
    struct rte_eth_link link = {0};
    int error = rte_eth_link_get_nowait(port, &link);
    if (error < 0)
        return error;
    if (is_started[port] && link.link_status == RTE_ETH_LINK_UP) {
        looks[port] = LOOKS_DOWN;
        return 1;
    }
    if (waits[port] && is_started[port] && looks[port]++ == LOOKS_DOWN) {
        end(port, 0);
        is_started[port] = 0;
    }
    if (waits[port] && !is_started[port])
        (void)start(port);
    return 0;
}

int penstock_dpdk_counts(uint16_t port, struct penstock_dpdk_counts *counts)
{
    struct rte_eth_stats stats;
    int error = rte_eth_stats_get(port, &stats);
    if (error < 0)
        return error;
    *counts = (struct penstock_dpdk_counts){
        .received = stats.ipackets,
        .sent = stats.opackets,
        .missed = stats.imissed + stats.rx_nombuf,
        .receive_errors = stats.ierrors,
        .send_errors = stats.oerrors,
    };
    return 0;
}

int penstock_dpdk_in_use(uint16_t port)
{
    if (pools[port] == NULL)
        return -ENODEV;
    return rte_mempool_in_use_count(pools[port]) + (lent_pools[port] == NULL ? 0 : rte_mempool_in_use_count(lent_pools[port]));
}

uint32_t penstock_dpdk_receive(uint16_t port, uint16_t queue, struct penstock_dpdk_packet *packets, uint32_t most)
{
    struct rte_mbuf *buffers[BURST_MAX];
    if (!is_started[port])
        return 0;
    uint16_t count = rte_eth_rx_burst(port, queue, buffers, RTE_MIN(most, BURST_MAX));
    for (uint16_t at = 0; at < count; at++) {
        struct rte_mbuf *buffer = buffers[at];
        if (at + 4 < count)
            rte_prefetch0(rte_pktmbuf_mtod(buffers[at + 4], void *));
        uint64_t of = buffer->ol_flags;
        int is_bad = (of & RTE_MBUF_F_RX_IP_CKSUM_MASK) == RTE_MBUF_F_RX_IP_CKSUM_BAD ||
                     (of & RTE_MBUF_F_RX_L4_CKSUM_MASK) == RTE_MBUF_F_RX_L4_CKSUM_BAD;
        packets[at] = (struct penstock_dpdk_packet){
            .buffer = buffer,
            .bytes = rte_pktmbuf_mtod(buffer, uint8_t *),
            .len = buffer->data_len,
            .flags = is_bad | (buffer->nb_segs > 1) << 1,
        };
    }
    return count;
}

void penstock_dpdk_put_back(struct penstock_dpdk_packet *packets, uint32_t count)
{
    for (uint32_t at = 0; at < count; at++)
        rte_pktmbuf_free(packets[at].buffer);
}

uint32_t penstock_dpdk_take(uint16_t port, struct penstock_dpdk_packet *packets, uint32_t count)
{
    struct rte_mbuf *buffers[BURST_MAX];
    count = RTE_MIN(count, BURST_MAX);
    if (rte_pktmbuf_alloc_bulk(pools[port], buffers, count) != 0)
        return 0;
    for (uint32_t at = 0; at < count; at++)
        packets[at] = (struct penstock_dpdk_packet){
            .buffer = buffers[at],
            .bytes = rte_pktmbuf_mtod(buffers[at], uint8_t *),
            .len = rte_pktmbuf_tailroom(buffers[at]),
        };
    return count;
}

/* Copies memory behind what a packet has in its own buffer. */
static void copy_behind(struct penstock_dpdk_packet *packet, uint64_t address, uint32_t len)
{
    rte_memcpy(packet->bytes + packet->len, (const void *)(uintptr_t)address, len);
    packet->len += len;
}

void penstock_dpdk_lend(uint16_t port, struct penstock_dpdk_packet *packet, const struct penstock_dpdk_piece *pieces, uint32_t count)
{
    struct rte_mbuf *of[LENT_MAX], *head = packet->buffer, *last = head;
    if (count > LENT_MAX || rte_pktmbuf_alloc_bulk(lent_pools[port], of, count) != 0) {
        for (uint32_t at = 0; at < count; at++)
            copy_behind(packet, pieces[at].address, pieces[at].len);
        return;
    }
    for (uint32_t at = 0; at < count; at++) {
        rte_mbuf_ext_refcnt_update(&lent_info[port], 1);
        rte_pktmbuf_attach_extbuf(of[at], (void *)(uintptr_t)pieces[at].address, RTE_BAD_IOVA, pieces[at].len, &lent_info[port]);
        of[at]->data_len = pieces[at].len;
        head->pkt_len += pieces[at].len;
        last = last->next = of[at];
    }
    head->nb_segs = 1 + count;
}

void penstock_dpdk_settle(struct penstock_dpdk_packet *packets, uint32_t count)
{
    for (uint32_t at = 0; at < count; at++) {
        struct rte_mbuf *head = packets[at].buffer, *lent = head->next;
        if (lent == NULL)
            continue;
        for (struct rte_mbuf *one = lent; one != NULL; one = one->next)
            copy_behind(&packets[at], (uintptr_t)rte_pktmbuf_mtod(one, void *), one->data_len);
        head->next = NULL;
        head->nb_segs = 1;
        head->pkt_len = head->data_len;
        rte_pktmbuf_free(lent);
    }
}

uint32_t penstock_dpdk_send(uint16_t port, uint16_t queue, struct penstock_dpdk_packet *packets, uint32_t count)
{
    struct rte_mbuf *buffers[BURST_MAX];
    count = is_started[port] ? RTE_MIN(count, BURST_MAX) : 0;
    for (uint32_t at = 0; at < count; at++) {
        buffers[at] = packets[at].buffer;
        buffers[at]->pkt_len += packets[at].len - buffers[at]->data_len;
        buffers[at]->data_len = packets[at].len;
    }
    return count == 0 ? 0 : rte_eth_tx_burst(port, queue, buffers, count);
}
