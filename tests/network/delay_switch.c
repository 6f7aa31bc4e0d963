/* A network of slow links between namespaces of one machine, for kernels without netem:
 *
 *     delay_switch LATENCY_US MBIT NAMESPACE...
 *
 * makes a TUN device "slow0" in each namespace and carries IPv4 packets between them. Host 10.88.0.K is the Kth
 * namespace; the caller sets addresses and brings the devices up when "ready" is printed. A packet waits for those
 * before it to leave its host at MBIT (0: no limit), then arrives LATENCY_US later. Ends when its standard input does.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { HOSTS_MAX = 16, PACKET_BYTES = 1600, QUEUE = 8192, DEST_BYTE = 19, IPV4_HEADER = 20 };

struct packet {
    double due_s;
    int to;
    int bytes;
    unsigned char data[PACKET_BYTES];
};

/* What left one host, in the order in which it arrives: every packet takes the same time. */
struct host {
    int fd;
    double free_s; /* when its link has sent what waits */
    int64_t head, tail;
    struct packet *queue; /* [QUEUE] */
};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what) {
    fprintf(stderr, "delay_switch: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* The descriptor stays when the process goes back to its own namespace. */
static int open_tun(const char *namespace, int home) {
    char path[256];
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    snprintf(path, sizeof path, "/run/netns/%s", namespace);
    int there = open(path, O_RDONLY | O_CLOEXEC);
    if (there < 0 || setns(there, CLONE_NEWNET) != 0) die(path);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) die("/dev/net/tun");
    snprintf(request.ifr_name, sizeof request.ifr_name, "slow0");
    if (ioctl(fd, TUNSETIFF, &request) != 0) die("TUNSETIFF");
    if (setns(home, CLONE_NEWNET) != 0) die("setns");
    close(there);
    return fd;
}

/* All that waits in a device; what finds no place in the queue is lost, as in a switch. */
static void receive(struct host *from, int n_hosts, double latency_s, double seconds_per_byte) {
    while (from->tail - from->head < QUEUE) {
        struct packet *p = &from->queue[from->tail % QUEUE];
        ssize_t got = read(from->fd, p->data, sizeof p->data);
        if (got < IPV4_HEADER) return;
        p->to = p->data[DEST_BYTE] - 1;
        if (p->data[0] >> 4 != 4 || p->to < 0 || p->to >= n_hosts) continue;
        double now = now_s();
        from->free_s = (from->free_s > now ? from->free_s : now) + (double)got * seconds_per_byte;
        p->due_s = from->free_s + latency_s;
        p->bytes = (int)got;
        from->tail++;
    }
}

/* Returns when the next packet of this host is due; infinity: none waits. */
static double deliver(struct host *from, struct host hosts[]) {
    while (from->head < from->tail) {
        const struct packet *p = &from->queue[from->head % QUEUE];
        if (p->due_s > now_s()) return p->due_s;
        (void)!write(hosts[p->to].fd, p->data, (size_t)p->bytes);
        from->head++;
    }
    return 1e300;
}

int main(int argc, char **argv) {
    struct host hosts[HOSTS_MAX] = {0};
    struct pollfd waits[HOSTS_MAX + 1];
    int n = argc - 3, home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (n < 1 || n > HOSTS_MAX || home < 0) {
        fprintf(stderr, "usage: delay_switch LATENCY_US MBIT NAMESPACE...\n");
        return 2;
    }
    double latency_s = 1e-6 * atof(argv[1]), mbit = atof(argv[2]);
    for (int k = 0; k < n; k++) {
        hosts[k].fd = open_tun(argv[3 + k], home);
        hosts[k].queue = calloc(QUEUE, sizeof *hosts[k].queue);
        if (!hosts[k].queue) die("memory");
        waits[k] = (struct pollfd){.fd = hosts[k].fd, .events = POLLIN};
    }
    waits[n] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        double next_s = now_s() + 1;
        for (int k = 0; k < n; k++) {
            receive(&hosts[k], n, latency_s, mbit > 0 ? 8e-6 / mbit : 0);
            double due_s = deliver(&hosts[k], hosts);
            if (due_s < next_s) next_s = due_s;
        }
        double left_s = next_s - now_s();
        if (left_s < 0) left_s = 0;
        struct timespec left = {.tv_sec = (time_t)left_s, .tv_nsec = (long)(1e9 * (left_s - (double)(time_t)left_s))};
        if (ppoll(waits, (nfds_t)n + 1, &left, NULL) < 0 && errno != EINTR) die("poll");
        if (waits[n].revents & (POLLHUP | POLLIN)) return 0;
    }
}
