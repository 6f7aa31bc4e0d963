#define _POSIX_C_SOURCE 200809L
#include "cli/stop.h"

#include <signal.h>
#include <stddef.h>

/* The one variable of the program that is not somebody's: a signal handler can reach nothing else. */
static volatile sig_atomic_t asked;

static void on_interrupt(int number) {
    (void)number;
    asked = 1;
}

/* The second one, of either kind, ends the process as if nothing had caught it. */
static void on_stop(int number) {
    struct sigaction action = {.sa_handler = SIG_DFL};
    if (asked) {
        sigemptyset(&action.sa_mask);
        (void)sigaction(number, &action, NULL);
        (void)raise(number); /* comes when this handler returns */
    }
    asked = 1;
}

/* A signal that whoever started the process wants ignored stays so. */
static void install(int number) {
    struct sigaction old, action = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    if (sigaction(number, NULL, &old) == 0 && old.sa_handler != SIG_IGN) (void)sigaction(number, &action, NULL);
}

void nmlp_cli_stop_install(void) {
    install(SIGINT);
    install(SIGTERM);
}

void nmlp_cli_interrupts_install(void) {
    struct sigaction action = {.sa_handler = on_interrupt};
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
}

void nmlp_cli_stop_clear(void) { asked = 0; }

bool nmlp_cli_stop_asked(void) { return asked != 0; }
