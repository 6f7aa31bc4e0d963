/* The machine a report was made on, in one line. */
#define _DEFAULT_SOURCE /* sysconf names */
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/report_sections.h"
#include "base/cpu.h"

static void put_cpu_name(nmlp_str *out) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = '\0';
        nmlp_str_puts(out, colon + 1 + strspn(colon + 1, " "));
        break;
    }
    if (file) fclose(file);
    if (out->len == 0) nmlp_str_puts(out, "unknown CPU");
}

void nmlp_report_machine(nmlp_str *out) {
    const nmlp_cpu *cpu = nmlp_cpu_get();
    struct utsname system;
    char memory[32];
    put_cpu_name(out);
    nmlp_cli_bytes_text(memory, (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE));
    nmlp_str_printf(out, ", %ld CPUs, %s, %s memory", sysconf(_SC_NPROCESSORS_ONLN),
                    cpu->amx_bf16   ? "AMX"
                    : cpu->avx512   ? "AVX-512"
                    : cpu->avx2_fma ? "AVX2"
                                    : "no vector set we use",
                    memory);
    if (uname(&system) == 0) nmlp_str_printf(out, ", %s %s", system.sysname, system.release);
}
