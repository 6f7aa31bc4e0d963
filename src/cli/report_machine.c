/* The machine a report was made on, in one line. */
#define _DEFAULT_SOURCE /* sysconf names */
#include <sys/utsname.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/report_sections.h"
#include "base/cpu.h"

void nmlp_report_machine(nmlp_str *out) {
    const nmlp_cpu *cpu = nmlp_cpu_get();
    struct utsname system;
    char memory[32];
    nmlp_cli_bytes_text(memory, (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE));
    nmlp_str_printf(out, "%s, %ld CPUs, %s, %s memory", cpu->name[0] ? cpu->name : "unknown CPU",
                    sysconf(_SC_NPROCESSORS_ONLN),
                    cpu->amx_bf16   ? "AMX"
                    : cpu->avx512   ? "AVX-512"
                    : cpu->avx2_fma ? "AVX2"
                                    : "no vector set we use",
                    memory);
    if (uname(&system) == 0) nmlp_str_printf(out, ", %s %s", system.sysname, system.release);
}
