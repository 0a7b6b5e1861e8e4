/*
 * What Penstock needs of DPDK, a burst at a time.
 *
 * DPDK's hot calls are inline functions of its headers, made for the structures of one release. This library is compiled against the
 * headers that are installed, and Penstock opens it at run time: the same program runs with and without DPDK. Its symbols have the
 * version PENSTOCK_DPDK_2; whoever changes a function or a structure here changes that.
 *
 * Functions return 0 or a count where they do not say otherwise, and a negative errno when they fail.
 */
#ifndef PENSTOCK_DPDK_H
#define PENSTOCK_DPDK_H

#include <stdint.h>

/* A line of DPDK's log, without its end; level 1 (emergency) to 8 (debug). May be called by any thread. */
typedef void (*penstock_dpdk_log)(uint32_t level, const char *line, uint32_t bytes);

/* What a port is. */
struct penstock_dpdk_facts {
    char driver[32];
    uint8_t mac[6];
    /* Queues of each kind at most. */
    uint16_t queues_max;
    /* Bytes of an IP packet: as it is set, and at most. */
    uint16_t mtu;
    uint16_t mtu_max;
};

/* How a port is opened. */
struct penstock_dpdk_options {
    uint16_t queues;
    /* Packets that wait in each queue, at most. */
    uint16_t receive_packets;
    uint16_t send_packets;
    /* Bytes of an IP packet at most; 0: as the port has it. */
    uint16_t mtu;
    /* Whether it opens although its other end is not there, and comes to it later: a client of memif, with one queue. */
    uint16_t waits;
};

/* What has happened at a port since it was opened. */
struct penstock_dpdk_counts {
    uint64_t received;
    uint64_t sent;
    /* Packets that had no room in the receive queue, or no buffer. */
    uint64_t missed;
    uint64_t receive_errors;
    uint64_t send_errors;
};

/* A packet, from its Ethernet header on. */
struct penstock_dpdk_packet {
    /* DPDK's. */
    void *buffer;
    uint8_t *bytes;
    uint32_t len;
    /* Of one that has come: bit 0, its IPv4 or UDP checksum was found wrong by the port; bit 1, it does not lie in one piece. */
    uint32_t flags;
};

/* Memory that is sent from where it lies. */
struct penstock_dpdk_piece {
    uint64_t address;
    uint64_t len;
};

/* The release of DPDK that this was compiled for, such as 22.11.11, and sizes of the structures above as one number. */
const char *penstock_dpdk_release(void);
uint64_t penstock_dpdk_sizes(void);

/* Starts DPDK, once for a process, on the thread that calls. DPDK pins that thread: let it be one that does nothing else. */
int penstock_dpdk_start(int argc, char **argv, penstock_dpdk_log log);
/* The words of a negative errno that was returned. */
const char *penstock_dpdk_error(int error);

/* A thread that calls what follows, from before its first call until after its last one. */
int penstock_dpdk_enter(void);
void penstock_dpdk_leave(void);

/* Ports: how many there are. */
int penstock_dpdk_ports(void);
/* Adds a device, as DPDK's `--vdev` or `--allow` would name it, and returns the number of its port; that of a port that is there already,
 * if it names one. `ring:NAME/0` and `ring:NAME/1` are two ends within this process, with so many queues. `remove` takes out what was added. */
int penstock_dpdk_add(const char *device, uint16_t queues);
int penstock_dpdk_remove(uint16_t port);
int penstock_dpdk_facts(uint16_t port, struct penstock_dpdk_facts *facts);
int penstock_dpdk_open(uint16_t port, const struct penstock_dpdk_options *options);
/* Has packets to the first of so many ports of UDP come by the first queue, and so on. A device that cannot answers what it says to that. */
int penstock_dpdk_steer(uint16_t port, uint16_t first, uint16_t queues);
/* Closes a port of which all buffers were given back, or that did not open, and takes its device out. */
int penstock_dpdk_close(uint16_t port);
/* Whether its link is up. One that waits for its other end looks for it now: by the only thread that uses its queue. */
int penstock_dpdk_link(uint16_t port);
int penstock_dpdk_counts(uint16_t port, struct penstock_dpdk_counts *counts);
/* Buffers that are somewhere between the port and its users. */
int penstock_dpdk_in_use(uint16_t port);

/* One thread at a time for each queue. Packets that have come are given back by `put_back`. */
uint32_t penstock_dpdk_receive(uint16_t port, uint16_t queue, struct penstock_dpdk_packet *packets, uint32_t most);
void penstock_dpdk_put_back(struct penstock_dpdk_packet *packets, uint32_t count);
/* Empty packets to be written; `len` says how much room each has. */
uint32_t penstock_dpdk_take(uint16_t port, struct penstock_dpdk_packet *packets, uint32_t count);
/* Whether packets of a port that is open may lend memory, whose driver is done with it when it has sent. */
int penstock_dpdk_lends(uint16_t port);
/* Puts memory behind the `len` bytes of a packet that was taken and written, of a port that lends. Where there is no buffer for it, it is
 * copied behind them. It has to stay until `send` has taken the packet or `settle` has copied it, and is not touched any more then. */
void penstock_dpdk_lend(uint16_t port, struct penstock_dpdk_packet *packet, const struct penstock_dpdk_piece *pieces, uint32_t count);
void penstock_dpdk_settle(struct penstock_dpdk_packet *packets, uint32_t count);
/* Sends packets that were taken, `len` bytes of each. Those beyond the count that is returned are still the caller's. */
uint32_t penstock_dpdk_send(uint16_t port, uint16_t queue, struct penstock_dpdk_packet *packets, uint32_t count);

#endif
