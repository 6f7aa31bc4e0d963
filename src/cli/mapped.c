#define _POSIX_C_SOURCE 200809L
#include "cli/mapped.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 4096 + 128 };

/* In a signal handler: nothing that allocates, formats or locks. */
static void say(const char *text, size_t len) {
    while (len > 0) {
        ssize_t n = write(STDERR_FILENO, text, len);
        if (n <= 0) return;
        text += n;
        len -= (size_t)n;
    }
}

static const char *read_hex(const char *at, uintptr_t *value) {
    for (*value = 0;; at++) {
        if (*at >= '0' && *at <= '9')
            *value = *value * 16 + (uintptr_t)(*at - '0');
        else if (*at >= 'a' && *at <= 'f')
            *value = *value * 16 + (uintptr_t)(*at - 'a' + 10);
        else
            return at;
    }
}

/* The file of a line of /proc/self/maps, "begin-end rwxp offset dev inode path", where the address is in its range. */
static const char *file_of(const char *line, uintptr_t address) {
    uintptr_t begin, end;
    const char *at = read_hex(line, &begin);
    if (*at != '-') return NULL;
    (void)read_hex(at + 1, &end);
    return address >= begin && address < end ? strchr(line, '/') : NULL;
}

static void name_file(uintptr_t address) {
    static char line[LINE_BYTES];
    size_t len = 0;
    char c;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && read(fd, &c, 1) == 1) {
        if (c != '\n') {
            if (len < sizeof line - 1) line[len++] = c;
            continue;
        }
        line[len] = '\0';
        len = 0;
        const char *path = file_of(line, address);
        if (!path) continue;
        say(path, strlen(path));
        return;
    }
    static const char unknown[] = "a mapped file";
    say(unknown, sizeof unknown - 1);
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    static const char before[] = "neuronmlp: ", after[] = ": was cut short or became unreadable while it was used\n"
                                                          "hint: leave the files of a model alone while it is read\n";
    static atomic_flag taken = ATOMIC_FLAG_INIT;
    (void)number;
    (void)context;
    /* Other threads meet the same file: one speaks and ends the process, they wait for that. */
    while (atomic_flag_test_and_set(&taken)) pause();
    say(before, sizeof before - 1);
    name_file((uintptr_t)info->si_addr);
    say(after, sizeof after - 1);
    _exit(1);
}

void nmlp_cli_mapped_install(void) {
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGBUS, &action, NULL);
}
